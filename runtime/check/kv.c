/* Checks of the cache: what is appended lies where it should, copies and rollbacks, tables to their last place. */
#include <stdlib.h>

#include "check/cache.h"
#include "check/table.h"

static const struct soq__cache_shape layouts[] = {
    {6, 2, 24, 24, 3, 4, SOQ_DTYPE_F32, 0, 0, 0, false},
    {2, 2, 20, 12, 2, 16, SOQ_DTYPE_F32, 0, 0, 0, false},
    {2, 1, 7, 9, 2, 8, SOQ_DTYPE_F16, 0, 0, 0, false},
    {4, 4, 64, 64, 1, 1, SOQ_DTYPE_F16, 0, 0, 0, false},
};

/* Runs `try` on the shapes that the backend claims. */
static void each_layout(struct soq__kit *kit, void (*try)(struct soq__rig *rig, const struct soq__cache_shape *shape))
{
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    for (size_t i = 0; i < SOQ__COUNT(layouts); i++) {
        const struct soq__cache_shape *s = &layouts[i];

        if (!soq__cache_claimed(&rig, s))
            continue;
        any = true;
        soq__kit_at(kit, "%s, %u kv heads of %u and %u, blocks of %u", s->dtype == SOQ_DTYPE_F32 ? "F32" : "F16", s->n_kv_heads,
                    s->dk, s->dv, s->block_tokens);
        try(&rig, s);
    }
    if (!any)
        soq__kit_skip(kit, "claims no plain cache of F32 or F16");
}

static void step_append(struct soq__cache *c, uint32_t slot, uint32_t first, uint32_t n, bool map)
{
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    soq__rig_step_add(&s, slot, first, n);
    if (map)
        soq__cache_map(c, &s, slot);
    soq__rig_begin(c->rig, &s);
    soq__cache_append(c, first, n);
    soq__rig_end(c->rig);
}

static uint8_t *read_slab(struct soq__cache *c)
{
    uint8_t *slab = malloc(c->block_bytes * c->n_blocks);

    SOQ__EXPECT(c->rig->kit, slab, "the kit is out of memory");
    soq__rig_read(c->rig, c->slab, 0, slab, c->block_bytes * c->n_blocks);
    return slab;
}

/* ---- append */

static void expect_entry(struct soq__cache *c, const uint8_t *slab, uint32_t role, uint32_t entry, bool there)
{
    const struct soq__cache_shape *s = &c->shape;
    const struct soq__matrix *m = role == SOQ_PLANE_KEY ? &c->k : &c->v;
    uint32_t width = role == SOQ_PLANE_KEY ? s->dk : s->dv, block = soq__cache_block(c, entry / s->block_tokens);

    for (uint32_t i = 0; i < s->n_kv_heads * width; i++) {
        double got = soq__cache_stored(c, slab, role, block, c->layer, i / width, entry % s->block_tokens, i % width);
        double want = there ? (double)*soq__matrix_at(m, entry, i) : (double)NAN;

        want = s->dtype == SOQ_DTYPE_F16 ? soq__ref_half(want) : want;
        SOQ__EXPECT(c->rig->kit, there ? got == want : isnan(got), "%s of entry %u, head %u, dim %u is %.9g and should be %.9g",
                    role == SOQ_PLANE_KEY ? "key" : "value", entry, i / width, i % width, got, want);
    }
}

/* Bytes that no entry was appended to are as they were. */
static void expect_rest(struct soq__cache *c, const uint8_t *slab, uint32_t first, uint32_t n)
{
    const struct soq__cache_shape *s = &c->shape;

    for (uint32_t layer = 0; layer < s->layers; layer++) {
        for (uint32_t entry = 0; entry < c->n_blocks * s->block_tokens && layer != c->layer; entry++) {
            double got = soq__cache_stored(c, slab, SOQ_PLANE_KEY, soq__cache_block(c, entry / s->block_tokens), layer, 0,
                                           entry % s->block_tokens, 0);

            SOQ__EXPECT(c->rig->kit, isnan(got), "an append to layer %u wrote layer %u", c->layer, layer);
        }
    }
    for (uint32_t entry = 0; entry < c->n_entries; entry++) {
        if (entry >= first && entry < first + n)
            continue;
        expect_entry(c, slab, SOQ_PLANE_KEY, entry, false);
        expect_entry(c, slab, SOQ_PLANE_VALUE, entry, false);
    }
}

static void try_append(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    enum { N = 40, FIRST = 11, MANY = 18 };
    struct soq__cache c;
    uint8_t *slab;

    soq__cache_open(&c, rig, shape, N, 1);
    step_append(&c, 1, FIRST, MANY, true);
    slab = read_slab(&c);
    for (uint32_t i = 0; i < MANY; i++) {
        expect_entry(&c, slab, SOQ_PLANE_KEY, FIRST + i, true);
        expect_entry(&c, slab, SOQ_PLANE_VALUE, FIRST + i, true);
    }
    expect_rest(&c, slab, FIRST, MANY);
    soq__rig_fetch(rig, &c.k);
    soq__rig_fetch(rig, &c.v);
    soq__cache_close(&c);
}

static void check_append(struct soq__kit *kit)
{
    each_layout(kit, try_append);
}

/* ---- copies: the first n entries of all layers and heads, and no more */

static void try_copy(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    uint32_t n = shape->block_tokens, part = (n + 1) / 2;
    struct soq__rig_step s;
    struct soq__cache c;
    uint8_t *slab;

    soq__cache_open(&c, rig, shape, n, 1);
    for (c.layer = 0; c.layer < shape->layers; c.layer++)
        step_append(&c, 0, 0, n, c.layer == 0);
    soq__rig_step_init(&s);
    s.copies[0] = (struct soq_step_copy){.dst = 0, .src = soq__cache_block(&c, 0), .n_tokens = part};
    s.step.n_copies = 1;
    soq__rig_begin(rig, &s);
    soq__rig_end(rig);
    slab = read_slab(&c);
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        for (uint32_t i = 0; i < n * shape->n_kv_heads * shape->dv; i++) {
            uint32_t token = i / (shape->n_kv_heads * shape->dv), head = i / shape->dv % shape->n_kv_heads, d = i % shape->dv;
            double from = soq__cache_stored(&c, slab, SOQ_PLANE_VALUE, soq__cache_block(&c, 0), layer, head, token, d);
            double to = soq__cache_stored(&c, slab, SOQ_PLANE_VALUE, 0, layer, head, token, d);

            SOQ__EXPECT(rig->kit, token < part ? to == from : isnan(to),
                        "a copy of %u entries: layer %u, head %u, entry %u holds %g, the source %g", part, layer, head, token,
                        to, from);
        }
    }
    soq__cache_close(&c);
}

static void check_copy(struct soq__kit *kit)
{
    each_layout(kit, try_copy);
}

/* ---- rollback: entries are written again, as after a draft that was rejected */

static void try_rollback(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    enum { N = 30, KEPT = 13 };
    struct soq__matrix out = soq__rig_matrix(rig, N, shape->n_heads * shape->dv, 0, 4);
    struct soq__cache c;

    soq__cache_open(&c, rig, shape, N, 0);
    soq__cache_chunk(&c, 0, N, &out);
    for (uint32_t i = KEPT; i < N; i++) {
        soq__kit_fill(soq__matrix_at(&c.k, i, 0), c.k.view.cols, 1000 + i);
        soq__kit_fill(soq__matrix_at(&c.v, i, 0), c.v.view.cols, 2000 + i);
    }
    soq__rig_send(rig, &c.k);
    soq__rig_send(rig, &c.v);
    soq__cache_chunk(&c, KEPT, N - KEPT, &out);
    soq__rig_fetch(rig, &out);
    soq__cache_compare(&c, &out, KEPT, KEPT, N - KEPT);
    soq__cache_close(&c);
}

static void check_rollback(struct soq__kit *kit)
{
    each_layout(kit, try_rollback);
}

/* ---- sharing: two slots have the same blocks, then one gets its own last block by copy on write */

static void try_sharing(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    uint32_t blocks = 3, n = blocks * shape->block_tokens - (shape->block_tokens > 1), last = n - 1;
    struct soq__matrix out = soq__rig_matrix(rig, 2, shape->n_heads * shape->dv, 0, 4);
    struct soq__matrix first = soq__rig_matrix(rig, n, shape->n_heads * shape->dv, 0, 4);
    struct soq__rig_step s;
    struct soq__cache c;

    soq__cache_open(&c, rig, shape, n, 1);
    soq__cache_chunk(&c, 0, n, &first);
    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, last, 1);
    soq__rig_step_add(&s, 3, last, 1);
    soq__cache_map(&c, &s, 3);
    s.edits[s.step.n_edits++] = (struct soq_step_edit){.slot = 3, .index = blocks - 1, .block = 0};
    s.copies[s.step.n_copies++] =
        (struct soq_step_copy){.dst = 0, .src = soq__cache_block(&c, blocks - 1), .n_tokens = last % shape->block_tokens};
    soq__rig_begin(rig, &s);
    /* Both rows append the same position: the k and v of two rows are those of `last - 1` and `last`. */
    soq__cache_append(&c, last - 1, 2);
    soq__cache_attend(&c, last - 1, 2, &out, 0);
    soq__rig_end(rig);
    soq__rig_fetch(rig, &out);
    /* Slot 3's row is what slot 0 had before. */
    soq__cache_compare(&c, &out, 1, last, 1);
    soq__cache_close(&c);
}

static void check_sharing(struct soq__kit *kit)
{
    each_layout(kit, try_sharing);
}

/* ---- the last place of the last block; blocks that are taken back */

static void try_full(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    uint32_t n = 3 * shape->block_tokens;
    struct soq__matrix out = soq__rig_matrix(rig, n, shape->n_heads * shape->dv, 0, 4);
    struct soq_error *err;
    struct soq__cache c;

    soq__cache_open(&c, rig, shape, n, 0);
    soq__cache_chunk(&c, 0, n - 1, &out);
    soq__cache_chunk(&c, n - 1, 1, &out);
    soq__rig_fetch(rig, &out);
    soq__cache_compare(&c, &out, n - 1, n - 1, 1);
    err = soq__kit_error(rig->kit);
    soq__kit_ok(rig->kit, "group_slab, taking blocks back",
                rig->ops->attention->group_slab(rig->self, c.group, 0, 0, c.n_blocks, 0, err), err);
    err = soq__kit_error(rig->kit);
    soq__kit_ok(rig->kit, "group_slab, giving them again",
                rig->ops->attention->group_slab(rig->self, c.group, 0, 0, c.n_blocks, c.slab, err), err);
    soq__cache_chunk(&c, n - 1, 1, &out);
    soq__rig_fetch(rig, &out);
    soq__cache_compare(&c, &out, n - 1, n - 1, 1);
    soq__cache_close(&c);
}

static void check_full(struct soq__kit *kit)
{
    each_layout(kit, try_full);
}

/* ---- edits, copies and segments of a group that another backend holds */

enum { ANOTHER = 7 };

static void try_others(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    enum { N = 20 };
    struct soq__matrix out = soq__rig_matrix(rig, N, shape->n_heads * shape->dv, 0, 4);
    struct soq__rig_step s;
    struct soq__cache c;

    soq__cache_open(&c, rig, shape, N, 0);
    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, 0, N);
    s.edits[s.step.n_edits++] = (struct soq_step_edit){.group = ANOTHER, .index = 100000, .block = 99999};
    soq__cache_map(&c, &s, 0);
    s.edits[s.step.n_edits++] = (struct soq_step_edit){.group = ANOTHER, .block = SOQ_BLOCK_NONE};
    s.copies[s.step.n_copies++] = (struct soq_step_copy){.group = ANOTHER, .dst = 99999, .src = 88888, .n_tokens = 1};
    s.segments[1] = s.segments[0];
    s.segments[1].group = ANOTHER;
    s.segments[1].n_entries = 1 << 20;
    s.step.n_segments = s.seqs[0].n_segments = 2;
    soq__rig_begin(rig, &s);
    soq__cache_append(&c, 0, N);
    soq__cache_attend(&c, 0, N, &out, 0);
    soq__rig_end(rig);
    soq__rig_fetch(rig, &out);
    soq__cache_compare(&c, &out, 0, 0, N);
    soq__cache_close(&c);
}

static void check_others(struct soq__kit *kit)
{
    each_layout(kit, try_others);
}

/* ---- formats and groups that nobody has */

static void check_formats(struct soq__kit *kit)
{
    struct soq_kv_plane planes[2] = {{.role = SOQ_PLANE_KEY}, {.role = SOQ_PLANE_VALUE}};
    struct soq_kv_group_desc desc = {.kind = 999,
                                     .n_layers = 1,
                                     .block_tokens = 4,
                                     .max_blocks = 2,
                                     .n_planes = 2,
                                     .plane_stride = sizeof planes[0],
                                     .planes = planes,
                                     .block_bytes = 1024};
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!rig.ops->attention)
        soq__kit_skip(kit, "has no attention table");
    for (uint32_t i = 0; i < 2; i++) {
        planes[i].struct_size = sizeof planes[i];
        planes[i].heads = 1;
        planes[i].width = 8;
        planes[i].tokens_per_entry = 1;
        planes[i].alias = -1;
        planes[i].format = (struct soq_kv_format){.struct_size = sizeof planes[i].format, .kind = 999, .tile_bytes = 256};
    }
    for (desc.kind = SOQ_GROUP_FULL; desc.kind < 1000; desc.kind += 998) {
        struct soq_error *err = soq__kit_error(kit);
        uint64_t live = kit->host.n_live;
        soq_kv_group group = 42;

        soq__kit_at(kit, desc.kind == SOQ_GROUP_FULL ? "planes of kind 999" : "a group of kind 999");
        soq__kit_refused(kit, "group_create",
                         rig.ops->attention->group_create(rig.self, soq__kit_box(kit, &desc, sizeof desc), &group, err),
                         -SOQ_EUNSUPPORTED, err);
        SOQ__EXPECT(kit, group == 42, "the failed call wrote its result");
        SOQ__EXPECT(kit, kit->host.n_live == live, "the failed call kept an allocation");
    }
}

static const struct soq__check checks[] = {
    {"kv.append", SOQ_ROLE_BACKEND, "keys and values lie where the format says, and nowhere else", check_append, "skew.exact"},
    {"kv.copy", SOQ_ROLE_BACKEND, "a step copies the entries of a block that it names, and no more", check_copy, "kv.append"},
    {"kv.rollback", SOQ_ROLE_BACKEND, "entries that are written again are those that count", check_rollback, "kv.append"},
    {"kv.sharing", SOQ_ROLE_BACKEND, "slots share blocks until one gets a copy", check_sharing, "kv.append"},
    {"kv.full", SOQ_ROLE_BACKEND, "tables are used to their last place; slabs go and come", check_full, "kv.append"},
    {"kv.others", SOQ_ROLE_BACKEND, "edits, copies and segments of other groups are passed over", check_others, "kv.append"},
    {"kv.formats", SOQ_ROLE_BACKEND, "formats and groups that it does not know are unsupported", check_formats, "skew.exact"},
};
const struct soq__check_family soq__checks_kv = SOQ__FAMILY(checks);
