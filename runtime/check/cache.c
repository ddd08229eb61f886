#include "check/cache.h"

#include <stdlib.h>

#include "model/dequant.h"

#define SCALE ((float)SOQ__CACHE_SCALE)

/* The group is a part of a model: what backends tell coders are these numbers. */
static const uint32_t layers[] = {3, 5, 8, 9, 14, 15, 20, 21};
enum { FIRST_HEAD = 2 };

static struct soq_op_desc desc_of(const struct soq__cache_shape *s, uint32_t op)
{
    return (struct soq_op_desc){.op = op,
                                .head_dim_k = s->dk,
                                .head_dim_v = s->dv,
                                .n_heads = s->n_heads,
                                .n_kv_heads = s->n_kv_heads,
                                .key_format = SOQ_FORMAT_PLAIN,
                                .value_format = SOQ_FORMAT_PLAIN,
                                .key_dtype = s->dtype,
                                .value_dtype = s->dtype,
                                .flags = (s->softcap > 0 ? SOQ_OPDESC_SOFTCAP : 0u) | (s->window ? SOQ_OPDESC_WINDOW : 0u)};
}

bool soq__cache_claimed(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    return soq__cache_claimed_with(rig, shape, 0);
}

bool soq__cache_claimed_with(struct soq__rig *rig, const struct soq__cache_shape *shape, uint32_t flags)
{
    struct soq_op_desc attention = desc_of(shape, SOQ_OP_ATTENTION);

    attention.flags |= flags;
    return (!shape->sink_logits || rig->ops->memory) && soq__rig_supports(rig, attention) &&
           soq__rig_supports(rig, desc_of(shape, SOQ_OP_KV_APPEND));
}

bool soq__cache_gathers(struct soq__rig *rig, const struct soq__cache_shape *shape)
{
    return soq__cache_claimed(rig, shape) && soq__rig_supports(rig, desc_of(shape, SOQ_OP_KV_GATHER));
}

bool soq__cache_claimed_packing(struct soq__rig *rig, const struct soq__cache_shape *shape, const struct soq__coder *coders,
                                uint32_t flags)
{
    static const uint32_t ops[] = {SOQ_OP_ATTENTION, SOQ_OP_KV_APPEND, SOQ_OP_KV_PACK};

    for (size_t i = 0; i < SOQ__COUNT(ops); i++) {
        struct soq_op_desc desc = desc_of(shape, ops[i]);

        desc.flags |= flags;
        desc.packed_key = &coders[0].format;
        desc.packed_value = &coders[1].format;
        if (!soq__rig_supports(rig, desc))
            return false;
    }
    return rig->ops->memory || !shape->sink_logits;
}

/* ---- The group. Planes lie in a stride that is larger than a plane. */

struct wide_plane {
    struct soq_kv_plane plane;
    uint64_t later[8];
};

static uint64_t tile_bytes(const struct soq__cache_shape *s, uint32_t width)
{
    return ((uint64_t)s->block_tokens * width * (s->dtype == SOQ_DTYPE_F32 ? 4 : 2) + 7) / 8 * 8;
}

static struct wide_plane plane_of(const struct soq__cache_shape *s, uint32_t role)
{
    uint32_t width = role == SOQ_PLANE_KEY ? s->dk : s->dv;
    struct wide_plane wide = {.plane = {.struct_size = sizeof wide.plane,
                                        .role = role,
                                        .heads = s->n_kv_heads,
                                        .width = width,
                                        .tokens_per_entry = 1,
                                        .alias = -1,
                                        .format = {.struct_size = sizeof wide.plane.format,
                                                   .kind = SOQ_FORMAT_PLAIN,
                                                   .dtype = s->dtype,
                                                   .tail_dtype = s->dtype,
                                                   .tile_bytes = tile_bytes(s, width)}}};

    memset(wide.later, 0xa5, sizeof wide.later);
    return wide;
}

/* What outlives the group: packed planes and views of the coders. */
static void make_packed(struct soq__cache *c, struct soq__coder *coders)
{
    struct wide_plane *planes = soq__kit_guard(c->rig->kit, 2 * sizeof *planes, 8);

    for (uint32_t i = 0; i < 2; i++) {
        planes[i] = plane_of(&c->shape, i ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY);
        planes[i].plane.format = coders[i].format;
        c->views[i] = soq__coder_view(&coders[i]);
        c->packed_bytes += coders[i].format.tile_bytes * c->shape.layers * c->shape.n_kv_heads;
    }
    c->coders = coders;
    c->packed_planes = planes;
}

static soq_kv_group create_group(struct soq__cache *c, uint32_t index, soq_kv_group storage)
{
    struct wide_plane *planes = soq__kit_guard(c->rig->kit, 2 * sizeof *planes, 8);
    struct soq_kv_group_desc desc = {.index = index,
                                     .kind = SOQ_GROUP_FULL,
                                     .n_layers = c->shape.layers,
                                     .block_tokens = c->shape.block_tokens,
                                     .max_blocks = c->n_blocks,
                                     .n_planes = 2,
                                     .plane_stride = sizeof *planes,
                                     .planes = &planes->plane,
                                     .block_bytes = c->block_bytes,
                                     .storage = storage,
                                     .packed = c->packed_planes,
                                     .packed_bytes = c->packed_bytes,
                                     .coders = c->coders ? c->views : NULL,
                                     .layers = layers,
                                     .first_head = FIRST_HEAD};
    struct soq_error *err = soq__kit_error(c->rig->kit);
    void *box = soq__kit_box(c->rig->kit, &desc, sizeof desc);
    soq_kv_group group = 0;

    planes[0] = plane_of(&c->shape, SOQ_PLANE_KEY);
    planes[1] = plane_of(&c->shape, SOQ_PLANE_VALUE);
    soq__kit_ok(c->rig->kit, "group_create", c->rig->ops->attention->group_create(c->rig->self, box, &group, err), err);
    soq__kit_unbox(c->rig->kit, box, NULL, sizeof desc);
    memset(planes, 0xff, 2 * sizeof *planes); /* desc is copied */
    return group;
}

static soq_buffer fill_slab(struct soq__cache *c, uint32_t class, uint64_t block_bytes)
{
    uint64_t bytes = block_bytes * c->n_blocks;
    struct soq_error *err = soq__kit_error(c->rig->kit);
    soq_buffer slab = soq__rig_alloc(c->rig, bytes);
    void *fill = malloc(bytes);

    SOQ__EXPECT(c->rig->kit, fill, "the kit is out of memory");
    memset(fill, 0xff, bytes);
    soq__rig_write(c->rig, slab, 0, fill, bytes);
    free(fill);
    soq__kit_ok(c->rig->kit, "group_slab",
                c->rig->ops->attention->group_slab(c->rig->self, c->group, class, 0, c->n_blocks, slab, err), err);
    return slab;
}

void soq__cache_open_packing(struct soq__cache *c, struct soq__rig *rig, const struct soq__cache_shape *s, uint32_t n_entries,
                             uint32_t more, struct soq__coder *coders)
{
    *c = (struct soq__cache){.rig = rig, .shape = *s, .n_entries = n_entries, .layer = s->layers - 1};
    c->n_blocks = (n_entries + s->block_tokens - 1) / s->block_tokens + more;
    c->key_tile = tile_bytes(s, s->dk);
    c->value_tile = tile_bytes(s, s->dv);
    c->block_bytes = (c->key_tile + c->value_tile) * s->layers * s->n_kv_heads;
    if (coders)
        make_packed(c, coders);
    c->group = create_group(c, 0, 0);
    c->slab = fill_slab(c, 0, c->block_bytes);
    c->packed_slab = coders ? fill_slab(c, 1, c->packed_bytes) : 0;
    c->q = soq__rig_matrix(rig, n_entries, s->n_heads * s->dk, 0, 1);
    c->k = soq__rig_matrix(rig, n_entries, s->n_kv_heads * s->dk, 5, 2);
    c->v = soq__rig_matrix(rig, n_entries, s->n_kv_heads * s->dv, 0, 3);
    for (uint32_t h = 0; h < s->n_heads; h++)
        c->sink_values[h] = 0.5f * (float)h - 1.0f;
    c->sinks = s->sink_logits ? soq__rig_vector(rig, c->sink_values, s->n_heads) : 0;
}

void soq__cache_open(struct soq__cache *c, struct soq__rig *rig, const struct soq__cache_shape *s, uint32_t n_entries,
                     uint32_t more)
{
    soq__cache_open_packing(c, rig, s, n_entries, more, NULL);
}

void soq__cache_close(struct soq__cache *c)
{
    if (c->sinks)
        c->rig->ops->memory->weight_free(c->rig->self, c->sinks);
    c->rig->ops->attention->group_free(c->rig->self, c->group);
    soq__rig_free(c->rig, c->slab);
    if (c->packed_slab)
        soq__rig_free(c->rig, c->packed_slab);
    soq__rig_matrix_free(c->rig, &c->q);
    soq__rig_matrix_free(c->rig, &c->k);
    soq__rig_matrix_free(c->rig, &c->v);
}

soq_kv_group soq__cache_share(struct soq__cache *c, uint32_t index)
{
    return create_group(c, index, c->group);
}

/* ---- Steps */

soq_block_ref soq__cache_block(const struct soq__cache *c, uint32_t index)
{
    return (c->n_blocks - 1 - index) | (index < c->n_packed ? 1u << SOQ_BLOCK_CLASS_SHIFT : 0);
}

void soq__cache_map(const struct soq__cache *c, struct soq__rig_step *s, uint32_t slot)
{
    SOQ__EXPECT(c->rig->kit, s->step.n_edits + c->n_blocks <= SOQ__RIG_EDITS, "the kit has no room for %u edits", c->n_blocks);
    for (uint32_t i = 0; i < c->n_blocks; i++)
        s->edits[s->step.n_edits++] = (struct soq_step_edit){.slot = slot, .index = i, .block = soq__cache_block(c, i)};
}

void soq__cache_append(struct soq__cache *c, uint32_t first, uint32_t n)
{
    struct soq_kv_append_args args = {
        .layer = c->layer, .group = c->group, .k = soq__matrix_rows(&c->k, first, n), .v = soq__matrix_rows(&c->v, first, n)};

    SOQ__SUBMIT(c->rig, c->rig->ops->attention->kv_append, args);
}

struct soq_attention_args soq__cache_attention_args(const struct soq__cache *c, uint32_t first, uint32_t n,
                                                    const struct soq__matrix *out, uint32_t row)
{
    return (struct soq_attention_args){
        .layer = c->layer,
        .group = c->group,
        .n_heads = c->shape.n_heads,
        .n_kv_heads = c->shape.n_kv_heads,
        .head_dim_k = c->shape.dk,
        .head_dim_v = c->shape.dv,
        .scale = SCALE,
        .softcap = c->shape.softcap,
        .window = c->shape.window,
        .sinks = c->shape.sinks,
        .sink_logits = c->sinks,
        .q = soq__matrix_rows(&c->q, first, n),
        .out = soq__matrix_rows(out, row, n),
    };
}

void soq__cache_attend(struct soq__cache *c, uint32_t first, uint32_t n, const struct soq__matrix *out, uint32_t row)
{
    struct soq_attention_args args = soq__cache_attention_args(c, first, n, out, row);

    SOQ__SUBMIT(c->rig, c->rig->ops->attention->attention, args);
}

void soq__cache_chunk(struct soq__cache *c, uint32_t first, uint32_t n, const struct soq__matrix *out)
{
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, first, n);
    if (first == 0)
        soq__cache_map(c, &s, 0);
    soq__rig_begin(c->rig, &s);
    soq__cache_append(c, first, n);
    soq__cache_attend(c, first, n, out, first);
    soq__rig_end(c->rig);
}

/* ---- Packing */

/* A backend without kernels for it knows nothing of an OPAQUE tile but what it told the codec. */
static void expect_name(struct soq__cache *c, uint32_t side, const struct soq__coder_name *want, const uint8_t *tile)
{
    struct soq__coder_name got;

    if (c->coders[side].format.kind != SOQ_FORMAT_OPAQUE)
        return;
    got = soq__coder_name_of(&c->coders[side], tile);
    SOQ__EXPECT(c->rig->kit, memcmp(&got, want, sizeof got) == 0,
                "%s of layer %u, head %u from position %u on are encoded as those of layer %u, head %u, position %u",
                side ? "values" : "keys", want->layer, want->head, want->first_position, got.layer, got.head,
                got.first_position);
}

/* Tile (layer, head) of a packed block. */
static const uint8_t *packed_tile(const struct soq__cache *c, const uint8_t *slab, uint32_t side, uint32_t place,
                                  uint32_t layer, uint32_t head)
{
    const struct soq__cache_shape *s = &c->shape;
    const uint8_t *block = slab + (soq__cache_block(c, place) & SOQ_BLOCK_INDEX_MASK) * c->packed_bytes;

    return block + (side ? s->layers * s->n_kv_heads * c->coders[0].format.tile_bytes : 0) +
           ((uint64_t)layer * s->n_kv_heads + head) * c->coders[side].format.tile_bytes;
}

/* The numbers of a tile that were appended, in every layer the same. */
static void appended(const struct soq__cache *c, uint32_t side, uint32_t place, uint32_t skip, uint32_t head, float *x)
{
    const struct soq__matrix *m = side ? &c->v : &c->k;
    uint32_t tokens = c->shape.block_tokens, width = c->coders[side].width;

    for (uint32_t i = 0; i < tokens * width; i++) {
        uint32_t t = i / width < skip ? skip : i / width;
        double kept = (double)*soq__matrix_at(m, place * tokens + t, head * width + i % width);

        x[i] = (float)(c->shape.dtype == SOQ_DTYPE_F16 ? soq__ref_half(kept) : kept);
    }
}

/* The tiles of a head in all layers as they should be packed: what the codec makes of what was appended. */
static void expect_tiles(struct soq__cache *c, const uint8_t *slab, uint32_t side, uint32_t place, uint32_t skip, uint32_t head)
{
    const struct soq__coder *coder = &c->coders[side];
    const struct soq__matrix *m = side ? &c->v : &c->k;
    uint32_t tokens = c->shape.block_tokens, width = coder->width;
    float *x = malloc((size_t)tokens * width * sizeof *x);
    uint8_t *want = malloc(coder->format.tile_bytes);

    SOQ__EXPECT(c->rig->kit, x && want, "the kit is out of memory");
    appended(c, side, place, skip, head, x);
    memset(want, 0xff, coder->format.tile_bytes);
    SOQ__EXPECT(c->rig->kit, soq__coder_encode(coder, x, want), "the kit is out of memory");
    for (uint32_t l = 0; l < c->shape.layers; l++) {
        const struct soq__coder_name name = {layers[l], FIRST_HEAD + head, place * tokens, 0};
        const uint8_t *tile = packed_tile(c, slab, side, place, l, head);

        expect_name(c, side, &name, tile);
        soq__coder_set_name(coder, &name, want);
        SOQ__EXPECT(c->rig->kit, memcmp(want, tile, coder->format.tile_bytes) == 0,
                    "block %u, layer %u, head %u: the packed %s are not what the codec makes of them", place, l, head,
                    side ? "values" : "keys");
    }
    soq__coder_decode(coder, want, x);
    for (uint32_t i = 0; i < tokens * width; i++)
        *soq__matrix_at(m, place * tokens + i / width, head * width + i % width) = x[i];
    free(x);
    free(want);
}

static void expect_packed(struct soq__cache *c, uint32_t skip)
{
    uint32_t heads = c->shape.n_kv_heads;
    uint64_t bytes = c->packed_bytes * c->n_blocks;
    uint8_t *slab = malloc(bytes);

    SOQ__EXPECT(c->rig->kit, slab, "the kit is out of memory");
    soq__rig_read(c->rig, c->packed_slab, 0, slab, bytes);
    for (uint32_t i = 0; i < c->n_packed * 2 * heads; i++) {
        uint32_t place = i / (2 * heads), side = i / heads % 2;

        expect_tiles(c, slab, side, place, place ? 0 : skip, i % heads);
    }
    free(slab);
}

void soq__cache_pack(struct soq__cache *c, uint32_t n, uint32_t skip)
{
    struct soq__kit *kit = c->rig->kit;
    soq_block_ref *src = soq__kit_guard(kit, n * sizeof *src, 4), *dst = soq__kit_guard(kit, n * sizeof *dst, 4);
    uint32_t *skips = soq__kit_guard(kit, n * sizeof *skips, 4), *first = soq__kit_guard(kit, n * sizeof *first, 4);
    struct soq_kv_pack_args args = {.n = n, .group = c->group, .src = src, .dst = dst, .skip = skips, .first_position = first};
    struct soq_error *err = soq__kit_error(kit);
    void *box = soq__kit_box(kit, &args, sizeof args);

    for (uint32_t i = 0; i < n; i++)
        src[i] = soq__cache_block(c, i);
    c->n_packed = n;
    for (uint32_t i = 0; i < n; i++) {
        dst[i] = soq__cache_block(c, i);
        first[i] = i * c->shape.block_tokens;
    }
    skips[0] = skip;
    soq__kit_ok(kit, "kv_pack", c->rig->ops->attention->kv_pack(c->rig->self, box, err), err);
    soq__kit_unbox(kit, box, NULL, sizeof args);
    memset(src, 0xff, n * sizeof *src);
    memset(dst, 0xff, n * sizeof *dst);
    expect_packed(c, skip);
}

/* ---- The reference */

struct soq__ref_attention soq__cache_reference(const struct soq__cache *c, uint32_t head)
{
    uint32_t kv = head / (c->shape.n_heads / c->shape.n_kv_heads);

    return (struct soq__ref_attention){.dk = c->shape.dk,
                                       .dv = c->shape.dv,
                                       .scale = (double)SCALE,
                                       .softcap = (double)c->shape.softcap,
                                       .window = c->shape.window,
                                       .sinks = c->shape.sinks,
                                       .sink_logit = c->shape.sink_logits ? &c->sink_values[head] : NULL,
                                       .k = soq__matrix_at(&c->k, 0, kv * c->shape.dk),
                                       .v = soq__matrix_at(&c->v, 0, kv * c->shape.dv),
                                       .k_stride = c->k.view.row_stride,
                                       .v_stride = c->v.view.row_stride,
                                       .halves = c->shape.dtype == SOQ_DTYPE_F16,
                                       .halves_from = c->n_packed * c->shape.block_tokens};
}

uint32_t soq__cache_tolerance(const struct soq__cache *c)
{
    bool few = false;

    if (!c->n_packed)
        return c->shape.dtype;
    for (int side = 0; side < 2; side++)
        few |= c->coders[side].format.bits >= 1 && c->coders[side].format.bits <= 5;
    return few ? SOQ__FEW_BITS : SOQ_DTYPE_F16;
}

void soq__cache_compare(struct soq__cache *c, const struct soq__matrix *out, uint32_t row, uint32_t first, uint32_t n)
{
    uint32_t dv = c->shape.dv, dtype = soq__cache_tolerance(c);
    double want[512];

    for (uint32_t i = 0; i < n; i += i % 5 + 1) {
        for (uint32_t h = 0; h < c->shape.n_heads; h++) {
            struct soq__ref_attention reference = soq__cache_reference(c, h);

            soq__ref_attend(&reference, soq__matrix_at(&c->q, first + i, h * c->shape.dk), first + i, want);
            for (uint32_t d = 0; d < dv; d++)
                soq__rig_close(c->rig, SOQ_OP_ATTENTION, dtype, (double)*soq__matrix_at(out, row + i, h * dv + d), want[d], 1,
                               row + i, h * dv + d);
        }
    }
}

double soq__cache_stored(const struct soq__cache *c, const uint8_t *slab, uint32_t role, uint32_t block, uint32_t layer,
                         uint32_t head, uint32_t token, uint32_t dim)
{
    const struct soq__cache_shape *s = &c->shape;
    uint32_t width = role == SOQ_PLANE_KEY ? s->dk : s->dv;
    uint64_t tile = role == SOQ_PLANE_KEY ? c->key_tile : c->value_tile;
    uint64_t plane = role == SOQ_PLANE_KEY ? 0 : c->key_tile * s->layers * s->n_kv_heads;
    const uint8_t *at = slab + block * c->block_bytes + plane + ((uint64_t)layer * s->n_kv_heads + head) * tile;
    float value;

    soq__dequant((enum soq_dtype)s->dtype)(at + ((uint64_t)token * width + dim) * (s->dtype == SOQ_DTYPE_F32 ? 4 : 2), &value,
                                           1);
    return (double)value;
}
