/* Checks of blocks that were packed by a codec: their bytes, and attention over them beside f64 over what the codec decodes.
 * The formats are those that soquete/kv.h describes, and one that only the codec knows. */
#include <stdlib.h>
#include <string.h>

#include "check/packing.h"
#include "check/segments.h"
#include "check/table.h"

static const float codebook1[2] = {-0.79788f, 0.79788f}, codebook2[4] = {-1.51f, -0.4528f, 0.4528f, 1.51f};
static const float codebook3[8] = {-2.15195f, -1.34391f, -0.75601f, -0.24509f, 0.24509f, 0.75601f, 1.34391f, 2.15195f};
static const float codebook4[16] = {-2.73259f, -2.06902f, -1.61805f, -1.25623f, -0.94234f, -0.65676f, -0.38805f, -0.1284f,
                                    0.1284f,   0.38805f,  0.65676f,  0.94234f,  1.25623f,  1.61805f,  2.06902f,  2.73259f};

enum {
    AFFINE = SOQ_FORMAT_AFFINE,
    BOOK = SOQ_FORMAT_CODEBOOK,
    F16 = SOQ_DTYPE_F16,
    F32 = SOQ_DTYPE_F32,
    H = SOQ_ROTATION_HADAMARD,
    HS = SOQ_ROTATION_HADAMARD_SIGNS,
};

/* Name, kind, bits, group_tokens, group_dims, symmetric, rotation, dtype, codebook; groups of 0: the tile's. Keys, values. The
 * first FEW are one for each way in which a query meets keys. */
static const struct soq__coder_spec specs[][2] = {
    {{"int8", AFFINE, 8, 1, 32, 1, 0, F16, NULL}, {"int8", AFFINE, 8, 1, 32, 1, 0, F16, NULL}},
    {{"int4", AFFINE, 4, 1, 32, 1, H, F16, NULL}, {"int4", AFFINE, 4, 1, 32, 1, 0, F16, NULL}},
    {{"2 bits by channel", AFFINE, 2, 32, 1, 0, 0, F16, NULL}, {"2 bits", AFFINE, 2, 1, 32, 0, 0, F16, NULL}},
    {{"4-bit codebook", BOOK, 4, 1, 0, 0, HS, F16, codebook4}, {"3-bit codebook", BOOK, 3, 1, 0, 0, HS, F32, codebook3}},
    {{"opaque", SOQ_FORMAT_OPAQUE, 0, 0, 0, 0, 0, F32, NULL}, {"opaque", SOQ_FORMAT_OPAQUE, 0, 0, 0, 0, 0, F16, NULL}},
    {{"4 bits with minima", AFFINE, 4, 1, 32, 0, 0, F16, NULL}, {"4 bits with minima", AFFINE, 4, 1, 32, 0, H, F16, NULL}},
    {{"5 bits with minima", AFFINE, 5, 1, 32, 0, H, F16, NULL}, {"5 bits with minima", AFFINE, 5, 1, 32, 0, H, F16, NULL}},
    {{"4 bits by channel", AFFINE, 4, 16, 1, 0, 0, F32, NULL}, {"4 bits", AFFINE, 4, 1, 16, 0, 0, F32, NULL}},
    {{"7 bits by tile", AFFINE, 7, 0, 0, 1, 0, F32, NULL}, {"6 bits by channel", AFFINE, 6, 0, 1, 0, 0, F32, NULL}},
    {{"1 bit", AFFINE, 1, 1, 32, 0, 0, F16, NULL}, {"3 bits", AFFINE, 3, 1, 32, 1, 0, F16, NULL}},
    {{"2-bit codebook", BOOK, 2, 1, 0, 0, HS, F32, codebook2}, {"1-bit codebook", BOOK, 1, 1, 0, 0, HS, F32, codebook1}},
    {{"1-bit codebook", BOOK, 1, 1, 0, 0, HS, F16, codebook1}, {"2-bit codebook", BOOK, 2, 1, 0, 0, HS, F16, codebook2}},
    {{"fp8 by tile", SOQ_FORMAT_E4M3, 8, 0, 0, 0, 0, F32, NULL}, {"fp8", SOQ_FORMAT_E4M3, 8, 1, 32, 0, 0, F16, NULL}},
    {{"2 bits, a scale a row", AFFINE, 2, 1, 0, 0, 0, F16, NULL}, {"4 bits, a scale a row", AFFINE, 4, 1, 0, 1, 0, F16, NULL}},
    {{"int8", AFFINE, 8, 1, 32, 1, 0, F16, NULL}, {"plain", SOQ_FORMAT_PLAIN, 0, 0, 0, 0, 0, F16, NULL}},
    {{"plain", SOQ_FORMAT_PLAIN, 0, 0, 0, 0, 0, F32, NULL}, {"4 bits", AFFINE, 4, 1, 32, 0, H, F16, NULL}},
    {{"opaque", SOQ_FORMAT_OPAQUE, 0, 0, 0, 0, 0, F16, NULL}, {"int4", AFFINE, 4, 1, 32, 1, 0, F16, NULL}},
};

static const struct soq__cache_shape shapes[] = {
    {9, 3, 64, 64, 2, 32, F16, 0, 0, 0, false},  {4, 1, 128, 64, 2, 64, F16, 0, 70, 9, true},
    {2, 2, 32, 32, 1, 16, F32, 5, 0, 0, false},  {2, 1, 96, 160, 1, 128, F16, 0, 0, 0, false},
    {40, 2, 32, 32, 1, 32, F16, 0, 0, 0, false}, {4, 2, 20, 12, 2, 16, F32, 0, 33, 2, false},
    {3, 1, 64, 64, 1, 32, F16, 0, 40, 3, false},
};

enum { FEW = 5, N = 420, PACKED = 384 /* entries */, TRY = 13 /* of the last rows */ };

/* The last TRY positions attend, `each` at a time. */
static void attend(struct soq__cache *c, uint32_t each, struct soq__matrix *out)
{
    for (uint32_t first = N - TRY, n; first < N; first += n) {
        struct soq__rig_step s;

        n = N - first < each ? N - first : each;
        soq__rig_step_init(&s);
        soq__rig_step_add(&s, 0, first, n);
        soq__cache_map(c, &s, 0);
        soq__rig_begin(c->rig, &s);
        soq__cache_attend(c, first, n, out, first);
        soq__rig_end(c->rig);
    }
    soq__rig_fetch(c->rig, out);
}

static void try_reference(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders)
{
    struct soq__matrix out = soq__rig_matrix(rig, N, s->n_heads * s->dv, 3, 4);
    bool invariant = rig->ops->flags & SOQ_BACKEND_BATCH_INVARIANT;
    struct soq__cache c;
    float *once;

    soq__cache_open_packing(&c, rig, s, N, 0, coders);
    soq__cache_fill(&c, PACKED, 0);
    attend(&c, TRY, &out);
    soq__cache_compare(&c, &out, N - TRY, N - TRY, TRY);
    once = malloc(out.n_raw * sizeof *once);
    SOQ__EXPECT(rig->kit, once, "the kit is out of memory");
    memcpy(once, out.raw, out.n_raw * sizeof *once);
    for (uint32_t each = 1; each < 6 && invariant; each += 4) {
        attend(&c, each, &out);
        SOQ__EXPECT(rig->kit, memcmp(out.raw, once, out.n_raw * sizeof *once) == 0, "%u rows at a time give other bits than %u",
                    each, TRY);
    }
    free(once);
    soq__cache_close(&c);
    soq__rig_matrix_free(rig, &out);
}

/* Every format, in the first n shapes. */
static void each_format(struct soq__kit *kit, size_t n,
                        void (*fn)(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders))
{
    const struct soq__packing_tries tries = {
        .specs = specs, .n_specs = SOQ__COUNT(specs), .shapes = shapes, .n_shapes = n, .try = fn};

    soq__packing_try(kit, &tries);
}

static void check_reference(struct soq__kit *kit)
{
    each_format(kit, SOQ__COUNT(shapes), try_reference);
}

/* ---- Skipped entries */

static void try_skip(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders)
{
    struct soq__cache c;

    soq__cache_open_packing(&c, rig, s, N, 0, coders);
    soq__cache_fill(&c, PACKED, s->block_tokens - 3);
    soq__cache_close(&c);
}

static void check_skip(struct soq__kit *kit)
{
    each_format(kit, 1, try_skip);
}

/* ---- kv_gather */

static void gather(struct soq__cache *c, uint32_t n_src, uint32_t n_keep)
{
    const struct soq__cache_shape *s = &c->shape;
    struct soq__kit *kit = c->rig->kit;
    uint32_t lines = s->layers * s->n_kv_heads, n_dst = (n_keep + s->block_tokens - 1) / s->block_tokens;
    soq_block_ref *src = soq__kit_guard(kit, n_src * sizeof *src, 4), *dst = soq__kit_guard(kit, n_dst * sizeof *dst, 4);
    uint32_t *keep = soq__kit_guard(kit, lines * n_keep * sizeof *keep, 4);
    struct soq_kv_gather_args args = {
        .n_keep = n_keep, .group = c->group, .src = src, .dst = dst, .n_src = n_src, .n_dst = n_dst, .keep = keep};
    struct soq_error *err = soq__kit_error(kit);

    for (uint32_t i = 0; i < n_src; i++)
        src[i] = soq__cache_block(c, i);
    for (uint32_t i = 0; i < n_dst; i++)
        dst[i] = i;
    for (uint32_t i = 0; i < lines * n_keep; i++)
        keep[i] = i % n_keep * 7 + i / n_keep;
    soq__kit_ok(kit, "kv_gather", c->rig->ops->attention->kv_gather(c->rig->self, &args, err), err);
}

/* Destination blocks hold what the codec makes of the entries, in the type of new ones. */
static void try_gather(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders)
{
    enum { KEEP = 41 };
    uint32_t n_dst = (KEEP + s->block_tokens - 1) / s->block_tokens;
    struct soq__cache c;
    uint8_t *slab;

    soq__cache_open_packing(&c, rig, s, N, n_dst, coders);
    soq__cache_fill(&c, PACKED, 0);
    gather(&c, (N + s->block_tokens - 1) / s->block_tokens, KEEP);
    slab = malloc(c.block_bytes * c.n_blocks);
    SOQ__EXPECT(rig->kit, slab, "the kit is out of memory");
    soq__rig_read(rig, c.slab, 0, slab, c.block_bytes * c.n_blocks);
    for (uint32_t i = 0; i < KEEP * s->n_kv_heads * (s->dk + s->dv); i++) {
        uint32_t d = i % (s->dk + s->dv), head = i / (s->dk + s->dv) % s->n_kv_heads, k = i / (s->dk + s->dv) / s->n_kv_heads;
        bool key = d < s->dk;
        uint32_t entry = k * 7 + c.layer * s->n_kv_heads + head, dim = key ? d : d - s->dk;
        double want = (double)*soq__matrix_at(key ? &c.k : &c.v, entry, head * (key ? s->dk : s->dv) + dim);
        double got = soq__cache_stored(&c, slab, key ? SOQ_PLANE_KEY : SOQ_PLANE_VALUE, k / s->block_tokens, c.layer, head,
                                       k % s->block_tokens, dim);

        SOQ__EXPECT(rig->kit, fabs(got - (s->dtype == SOQ_DTYPE_F16 ? soq__ref_half(want) : want)) <= 1e-6,
                    "entry %u, head %u, dim %u of the %s is %g and should be %g", k, head, dim, key ? "keys" : "values", got,
                    want);
    }
    free(slab);
    soq__cache_close(&c);
}

static void check_gather(struct soq__kit *kit)
{
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!soq__cache_gathers(&rig, &shapes[0]))
        soq__kit_skip(kit, "does not have kv_gather");
    each_format(kit, 1, try_gather);
}

/* ---- Segments whose keys stand for other positions: a codec's tiles are those of the positions where keys were, and both its
 * rotation and the segment's meet in the query */

static void try_segments(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders,
                         void (*lay)(struct soq__rig_step *step, uint32_t n_entries))
{
    for (uint32_t n = 1; n <= TRY; n += TRY - 1)
        soq__segments_try(
            rig, s, &(struct soq__segments_try){.n_entries = N, .n_rows = n, .n_packed = PACKED, .coders = coders, .lay = lay});
}

/* Two runs inside of packed blocks move up to a third, by distances of their own; the newest entries are plain. */
static void lay_rotated(struct soq__rig_step *step, uint32_t n_entries)
{
    static const uint32_t runs[][3] = {{3, 41, 110}, {60, 37, 94}}; /* first entry, entries, distance */
    enum { RUNS = 2, LAST = 191 };

    for (uint32_t i = 0; i <= RUNS; i++) {
        struct soq_step_segment *segment = &step->segments[i];

        *segment = step->segments[0];
        segment->first_entry = i < RUNS ? runs[i][0] : LAST;
        segment->n_entries = i < RUNS ? runs[i][1] : n_entries - LAST;
        segment->flags = i < RUNS ? SOQ_SEGMENT_ROTATE : 0;
        segment->rotation = i < RUNS ? runs[i][2] : 0;
        segment->position_offset = (int32_t)segment->rotation;
    }
    step->step.n_segments = step->seqs[0].n_segments = RUNS + 1;
}

static void try_rotated(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders)
{
    try_segments(rig, s, coders, lay_rotated);
}

static void lay_rolling(struct soq__rig_step *step, uint32_t n_entries)
{
    soq__segments_split(step, 9, 170, n_entries);
    step->segments[0].flags = SOQ_SEGMENT_ROLLING;
}

static void try_rolling(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders)
{
    try_segments(rig, s, coders, lay_rolling);
}

static void each_rotated(struct soq__kit *kit, const struct soq__cache_shape *list, size_t n,
                         void (*fn)(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders))
{
    const struct soq__packing_tries tries = {.specs = specs,
                                             .n_specs = FEW,
                                             .shapes = list,
                                             .n_shapes = n,
                                             .flags = SOQ_OPDESC_SEGMENTS | SOQ_OPDESC_ROTATE,
                                             .try = fn};

    soq__packing_try(kit, &tries);
}

static void check_rotate(struct soq__kit *kit)
{
    static const struct soq__cache_shape open[] = {{9, 3, 64, 64, 2, 32, F16, 0, 0, 0, false},
                                                   {4, 2, 20, 12, 1, 16, F32, 0, 0, 0, false}};

    each_rotated(kit, open, SOQ__COUNT(open), try_rotated);
}

static void check_rolling(struct soq__kit *kit)
{
    static const struct soq__cache_shape rolling[] = {{9, 3, 64, 64, 1, 32, F16, 0, 120, 9, false},
                                                      {4, 2, 20, 12, 2, 16, F32, 0, 120, 9, false}};

    each_rotated(kit, rolling, SOQ__COUNT(rolling), try_rolling);
}

static const struct soq__check checks[] = {
    {"packed.reference", SOQ_ROLE_BACKEND, "attention over packed blocks is within tolerance of f64 over what they decode to",
     check_reference, "attention.reference"},
    {"packed.skip", SOQ_ROLE_BACKEND, "entries that hold nothing are filled up before they are packed", check_skip,
     "packed.reference"},
    {"packed.gather", SOQ_ROLE_BACKEND, "entries that stay are taken from packed blocks too", check_gather, "packed.reference"},
    {"packed.rotate", SOQ_ROLE_BACKEND, "packed keys that stand for other positions are met by a rotated query", check_rotate,
     "attention.rotate"},
    {"packed.rolling", SOQ_ROLE_BACKEND, "and row by row, as a window moves on", check_rolling, "attention.rolling"},
};
const struct soq__check_family soq__checks_packed = SOQ__FAMILY(checks);
