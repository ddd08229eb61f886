/* Checks of what a cache needs from which entries were evicted: ranges that begin anywhere, rotated segments, heads of one
 * layer in groups of their own, groups that share storage, survivors that move together. */
#include <stdlib.h>

#include "check/segments.h"
#include "check/table.h"

/* ---- Segments */

static void each_shape(struct soq__kit *kit, const struct soq__cache_shape *shapes, size_t count, uint32_t flags,
                       void (*lay)(struct soq__rig_step *step, uint32_t n_entries))
{
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    for (size_t i = 0; i < count; i++) {
        if (!soq__cache_claimed_with(&rig, &shapes[i], flags))
            continue;
        any = true;
        for (uint32_t n = 1; n <= 9; n += 8) {
            soq__kit_at(kit, "%s, %u heads over %u of %u, window %u, sinks %u, %u rows",
                        shapes[i].dtype == SOQ_DTYPE_F32 ? "F32" : "F16", shapes[i].n_heads, shapes[i].n_kv_heads, shapes[i].dk,
                        shapes[i].window, shapes[i].sinks, n);
            soq__segments_try(&rig, &shapes[i], &(struct soq__segments_try){.n_entries = 200, .n_rows = n, .lay = lay});
        }
    }
    if (!any)
        soq__kit_skip(kit, "does not claim it");
}

static const struct soq__cache_shape open_shapes[] = {
    {6, 2, 24, 24, 2, 8, SOQ_DTYPE_F32, 0, 0, 0, false},
    {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false},
};
static const struct soq__cache_shape rolling_shapes[] = {
    {6, 2, 24, 24, 2, 8, SOQ_DTYPE_F32, 0, 20, 4, false},
    {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 33, 5, false},
};

/* What was selected ends at the newest entry and begins inside a block, below which nothing is mapped. */
static void lay_base(struct soq__rig_step *step, uint32_t n_entries)
{
    step->segments[0].first_entry = 101;
    step->segments[0].n_entries = n_entries - 101;
    step->edits[step->step.n_edits++] = (struct soq_step_edit){.index = 0, .block = SOQ_BLOCK_NONE};
    step->edits[step->step.n_edits++] = (struct soq_step_edit){.index = 1, .block = SOQ_BLOCK_NONE};
}

static void check_base(struct soq__kit *kit)
{
    each_shape(kit, open_shapes, SOQ__COUNT(open_shapes), 0, lay_base);
}

static void lay_rotated(struct soq__rig_step *step, uint32_t n_entries)
{
    soq__segments_split(step, 5, 133, n_entries);
    step->segments[0].flags = SOQ_SEGMENT_ROTATE;
    step->segments[0].rotation = 128;
    step->segments[0].position_offset = 128;
}

static void check_rotate(struct soq__kit *kit)
{
    each_shape(kit, open_shapes, SOQ__COUNT(open_shapes), SOQ_OPDESC_SEGMENTS | SOQ_OPDESC_ROTATE, lay_rotated);
}

static void lay_rolling(struct soq__rig_step *step, uint32_t n_entries)
{
    soq__segments_split(step, 5, 150, n_entries);
    step->segments[0].flags = SOQ_SEGMENT_ROLLING;
}

static void check_rolling(struct soq__kit *kit)
{
    each_shape(kit, rolling_shapes, SOQ__COUNT(rolling_shapes), SOQ_OPDESC_SEGMENTS | SOQ_OPDESC_ROTATE, lay_rolling);
}

/* ---- Columns: one kv head of several, by views into the matrices of all */

/* Columns [first, first + n); its raw numbers are m's, and only its rows and columns may be looked at. */
static struct soq__matrix columns(const struct soq__matrix *m, uint32_t first, uint32_t n)
{
    struct soq__matrix part = *m;

    part.view.offset += first * sizeof(float);
    part.view.cols = n;
    part.raw += first;
    return part;
}

static void check_columns(struct soq__kit *kit)
{
    enum { N = 50, HEADS = 3, WIDTH = 24, AT = 1 };
    static const struct soq__cache_shape s = {HEADS, 1, WIDTH, WIDTH, 2, 8, SOQ_DTYPE_F32, 0, 0, 0, false};
    struct soq__matrix q, k, v, out, part;
    struct soq__cache c, own;
    struct soq__rig rig;
    float *before;

    soq__rig_open(&rig, kit);
    if (!soq__cache_claimed(&rig, &s))
        soq__kit_skip(kit, "does not claim it");
    q = soq__rig_matrix(&rig, N, 3 * HEADS * WIDTH, 0, 11);
    k = soq__rig_matrix(&rig, N, 3 * WIDTH, 0, 12);
    v = soq__rig_matrix(&rig, N, 3 * WIDTH, 0, 13);
    out = soq__rig_matrix(&rig, N, 3 * HEADS * WIDTH, 0, 14);
    before = malloc(out.n_raw * sizeof *before);
    SOQ__EXPECT(kit, before, "the kit is out of memory");
    memcpy(before, out.raw, out.n_raw * sizeof *before);
    soq__cache_open(&own, &rig, &s, N, 0);
    c = own;
    c.q = columns(&q, AT * HEADS * WIDTH, HEADS * WIDTH);
    c.k = columns(&k, AT * WIDTH, WIDTH);
    c.v = columns(&v, AT * WIDTH, WIDTH);
    part = columns(&out, AT * HEADS * WIDTH, HEADS * WIDTH);
    soq__kit_at(kit, "the second of three kv heads, by views of its columns");
    soq__cache_chunk(&c, 0, N - 1, &part);
    soq__cache_chunk(&c, N - 1, 1, &part);
    soq__rig_fetch(&rig, &out);
    soq__cache_compare(&c, &part, 0, 0, N);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t col = 0; col < 3 * HEADS * WIDTH; col++)
            SOQ__EXPECT(kit,
                        col / (HEADS * WIDTH) == AT ||
                            *soq__matrix_at(&out, r, col) == before[soq__matrix_at(&out, r, col) - out.raw],
                        "row %u: wrote column %u, which is another head's", r, col);
    free(before);
    soq__cache_close(&own);
}

/* ---- Groups that share storage */

static void attend_all(struct soq__cache *c, uint32_t group, uint32_t n, bool append)
{
    struct soq__matrix out = soq__rig_matrix(c->rig, n, c->shape.n_heads * c->shape.dv, 0, 4);
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, 0, n);
    s.segments[0].group = group;
    soq__rig_begin(c->rig, &s);
    if (append)
        soq__cache_append(c, 0, n);
    soq__cache_attend(c, 0, n, &out, 0);
    soq__rig_end(c->rig);
    soq__rig_fetch(c->rig, &out);
    soq__cache_compare(c, &out, 0, 0, n);
    soq__rig_matrix_free(c->rig, &out);
}

/* Gives a group the blocks [first, first + n) of the slab. */
static void map_blocks(struct soq__cache *c, uint32_t group, uint32_t first, uint32_t n)
{
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    for (uint32_t i = 0; i < n; i++)
        s.edits[s.step.n_edits++] = (struct soq_step_edit){.group = group, .index = i, .block = first + i};
    soq__rig_begin(c->rig, &s);
    soq__rig_end(c->rig);
}

static void check_storage(struct soq__kit *kit)
{
    static const struct soq__cache_shape s = {6, 2, 24, 24, 2, 8, SOQ_DTYPE_F32, 0, 0, 0, false};
    enum { N = 30, BLOCKS = 4 };
    struct soq__cache c, other;
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!soq__cache_claimed(&rig, &s))
        soq__kit_skip(kit, "does not claim it");
    soq__cache_open(&c, &rig, &s, N, BLOCKS);
    other = c;
    other.group = soq__cache_share(&c, 1);
    other.k = soq__rig_matrix(&rig, N, s.n_kv_heads * s.dk, 0, 21);
    other.v = soq__rig_matrix(&rig, N, s.n_kv_heads * s.dv, 0, 22);
    soq__kit_at(kit, "two groups in one slab");
    map_blocks(&c, 0, 0, BLOCKS);
    map_blocks(&c, 1, BLOCKS, BLOCKS);
    attend_all(&c, 0, N, true);
    attend_all(&other, 1, N, true);
    attend_all(&c, 0, N, false);
    soq__kit_at(kit, "after the other group was freed");
    rig.ops->attention->group_free(rig.self, other.group);
    attend_all(&c, 0, N, false);
    soq__rig_matrix_free(&rig, &other.k);
    soq__rig_matrix_free(&rig, &other.v);
    soq__cache_close(&c);
}

/* ---- kv_gather */

static const struct soq__cache_shape gathered[] = {
    {6, 2, 24, 24, 3, 4, SOQ_DTYPE_F32, 0, 0, 0, false},
    {2, 2, 20, 12, 2, 16, SOQ_DTYPE_F32, 0, 0, 0, false},
    {2, 1, 7, 9, 2, 8, SOQ_DTYPE_F16, 0, 0, 0, false},
    {4, 4, 64, 64, 1, 1, SOQ_DTYPE_F16, 0, 0, 0, false},
};

enum { GATHER_N = 40, GATHER_KEEP = 13 };

static uint8_t *read_slab(struct soq__cache *c)
{
    uint64_t bytes = c->block_bytes * c->n_blocks;
    uint8_t *slab = malloc(bytes);

    SOQ__EXPECT(c->rig->kit, slab, "the kit is out of memory");
    soq__rig_read(c->rig, c->slab, 0, slab, bytes);
    return slab;
}

/* Another set of entries for each layer and head, ascending. */
static uint32_t kept_entry(uint32_t layer, uint32_t head, uint32_t i)
{
    return 2 * i + (i > 4 ? layer % 2 : 0) + (i > 8 ? head : 0);
}

static void gather(struct soq__cache *c, uint32_t n_src, uint32_t n_dst, uint32_t dst_first)
{
    const struct soq__cache_shape *s = &c->shape;
    uint32_t lines = s->layers * s->n_kv_heads;
    soq_block_ref *src = soq__kit_guard(c->rig->kit, n_src * sizeof *src, 4);
    soq_block_ref *dst = soq__kit_guard(c->rig->kit, n_dst * sizeof *dst, 4);
    uint32_t *keep = soq__kit_guard(c->rig->kit, lines * GATHER_KEEP * sizeof *keep, 4);
    struct soq_kv_gather_args args = {.n_keep = GATHER_KEEP,
                                      .group = c->group,
                                      .src = src,
                                      .dst = dst,
                                      .n_src = n_src,
                                      .n_dst = n_dst,
                                      .dst_first = dst_first,
                                      .keep = keep};
    struct soq_error *err = soq__kit_error(c->rig->kit);
    void *box = soq__kit_box(c->rig->kit, &args, sizeof args);

    for (uint32_t i = 0; i < n_src; i++)
        src[i] = soq__cache_block(c, i);
    for (uint32_t i = 0; i < n_dst; i++)
        dst[i] = i;
    for (uint32_t i = 0; i < lines * GATHER_KEEP; i++)
        keep[i] = kept_entry(i / GATHER_KEEP / s->n_kv_heads, i / GATHER_KEEP % s->n_kv_heads, i % GATHER_KEEP);
    soq__kit_ok(c->rig->kit, "kv_gather", c->rig->ops->attention->kv_gather(c->rig->self, box, err), err);
    soq__kit_unbox(c->rig->kit, box, NULL, sizeof args);
    memset(src, 0xff, n_src * sizeof *src);
    memset(keep, 0xff, lines * GATHER_KEEP * sizeof *keep);
}

/* What each place of the destination holds: the entry that belongs there, or what it held. */
static void expect_gathered(struct soq__cache *c, const uint8_t *before, const uint8_t *after, uint32_t n_dst,
                            uint32_t dst_first)
{
    const struct soq__cache_shape *s = &c->shape;

    for (uint32_t i = 0; i < s->layers * s->n_kv_heads * n_dst * s->block_tokens; i++) {
        uint32_t layer = i / (s->n_kv_heads * n_dst * s->block_tokens), head = i / (n_dst * s->block_tokens) % s->n_kv_heads,
                 at = i % (n_dst * s->block_tokens);
        bool moved = at >= dst_first && at < dst_first + GATHER_KEEP;
        uint32_t from = moved ? kept_entry(layer, head, at - dst_first) : at;
        uint32_t block = moved ? soq__cache_block(c, from / s->block_tokens) : at / s->block_tokens;

        for (uint32_t role = SOQ_PLANE_KEY; role <= SOQ_PLANE_VALUE; role++) {
            for (uint32_t d = 0; d < (role == SOQ_PLANE_KEY ? s->dk : s->dv); d++) {
                double want = soq__cache_stored(c, before, role, block, layer, head, from % s->block_tokens, d);
                double got = soq__cache_stored(c, after, role, at / s->block_tokens, layer, head, at % s->block_tokens, d);

                SOQ__EXPECT(c->rig->kit, got == want || (isnan(got) && isnan(want)),
                            "layer %u, head %u, place %u, dim %u of the %s is %g and should be %g, %s", layer, head, at, d,
                            role == SOQ_PLANE_KEY ? "key" : "value", got, want, moved ? "an entry that is kept" : "as it was");
            }
        }
    }
}

static void try_gather(struct soq__rig *rig, const struct soq__cache_shape *s)
{
    uint32_t dst_first = s->block_tokens - 1, n_dst = (dst_first + GATHER_KEEP + s->block_tokens - 1) / s->block_tokens,
             n_src = (GATHER_N + s->block_tokens - 1) / s->block_tokens;
    struct soq__rig_step step;
    uint8_t *before, *after;
    struct soq__cache c;

    soq__cache_open(&c, rig, s, GATHER_N, n_dst);
    soq__rig_step_init(&step);
    soq__rig_step_add(&step, 0, 0, GATHER_N);
    soq__cache_map(&c, &step, 0);
    soq__rig_begin(rig, &step);
    for (c.layer = 0; c.layer < s->layers; c.layer++)
        soq__cache_append(&c, 0, GATHER_N);
    soq__rig_end(rig);
    before = read_slab(&c);
    gather(&c, n_src, n_dst, dst_first);
    after = read_slab(&c);
    expect_gathered(&c, before, after, n_dst, dst_first);
    SOQ__EXPECT(rig->kit,
                memcmp(before + n_dst * c.block_bytes, after + n_dst * c.block_bytes, (c.n_blocks - n_dst) * c.block_bytes) ==
                    0,
                "wrote to blocks that are not among the destination");
    free(before);
    free(after);
    soq__cache_close(&c);
}

static void check_gather(struct soq__kit *kit)
{
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    for (size_t i = 0; i < SOQ__COUNT(gathered); i++) {
        if (!soq__cache_gathers(&rig, &gathered[i]))
            continue;
        any = true;
        soq__kit_at(kit, "%s, %u layers, %u kv heads of %u and %u, blocks of %u",
                    gathered[i].dtype == SOQ_DTYPE_F32 ? "F32" : "F16", gathered[i].layers, gathered[i].n_kv_heads,
                    gathered[i].dk, gathered[i].dv, gathered[i].block_tokens);
        try_gather(&rig, &gathered[i]);
    }
    if (!any)
        soq__kit_skip(kit, "does not have kv_gather, or does not claim it");
}

static const struct soq__check checks[] = {
    {"attention.base", SOQ_ROLE_BACKEND, "what is kept may begin inside a block", check_base, "attention.segments"},
    {"attention.rotate", SOQ_ROLE_BACKEND, "keys that stand for other positions are met by a rotated query", check_rotate,
     "attention.segments"},
    {"attention.rolling", SOQ_ROLE_BACKEND, "and row by row, as a window moves on", check_rolling, "attention.segments"},
    {"attention.columns", SOQ_ROLE_BACKEND, "a kv head of several is read and written by columns", check_columns,
     "attention.reference"},
    {"kv.storage", SOQ_ROLE_BACKEND, "groups that share storage know nothing of each other", check_storage,
     "attention.reference"},
    {"kv.gather", SOQ_ROLE_BACKEND, "entries that stay are copied together, and nothing else is written", check_gather,
     "kv.append"},
};
const struct soq__check_family soq__checks_evicted = SOQ__FAMILY(checks);
