/* Checks of attention mass: the sums that soq_attention_args.mass asks for, against f64. */
#include <stdlib.h>
#include <string.h>

#include "check/packing.h"
#include "check/table.h"

static const struct soq__cache_shape shapes[] = {
    {6, 2, 24, 24, 2, 8, SOQ_DTYPE_F32, 0, 0, 0, false},    {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false},
    {2, 2, 20, 12, 1, 16, SOQ_DTYPE_F32, 0, 0, 0, false},   {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 40, 4, false},
    {4, 2, 16, 16, 1, 16, SOQ_DTYPE_F32, 2, 0, 0, false},   {40, 1, 16, 16, 1, 32, SOQ_DTYPE_F32, 0, 0, 0, true},
    {2, 1, 128, 128, 1, 32, SOQ_DTYPE_F16, 0, 0, 0, false},
};

/* For packed blocks: keys, values. */
static const struct soq__coder_spec specs[][2] = {
    {{"int8", SOQ_FORMAT_AFFINE, 8, 1, 32, 1, 0, SOQ_DTYPE_F16, NULL},
     {"int8", SOQ_FORMAT_AFFINE, 8, 1, 32, 1, 0, SOQ_DTYPE_F16, NULL}},
    {{"int4", SOQ_FORMAT_AFFINE, 4, 1, 32, 1, SOQ_ROTATION_HADAMARD, SOQ_DTYPE_F16, NULL},
     {"int4", SOQ_FORMAT_AFFINE, 4, 1, 32, 1, 0, SOQ_DTYPE_F16, NULL}},
    {{"opaque", SOQ_FORMAT_OPAQUE, 0, 0, 0, 0, 0, SOQ_DTYPE_F32, NULL},
     {"opaque", SOQ_FORMAT_OPAQUE, 0, 0, 0, 0, 0, SOQ_DTYPE_F16, NULL}},
};

enum { N = 100, PACKED = 32 /* entries, before all rows of parts */, LINES = 4, STRIDE = 110, OFFSET = 24 /* bytes */ };
static const uint8_t filler = 0xa7; /* what is not to be written stays this */

/* Rows of a sequence, the last `counted` of which go to a line. */
struct part {
    uint32_t slot, first, n, counted, line;
};

/* Lines 1 and 3 are nobody's. */
static const struct part parts[] = {{0, 60, 11, 6, 2}, {2, N - 8, 8, 8, 0}};

struct mass_buffer {
    soq_buffer buffer;
    uint8_t *host;
    size_t bytes;
};

static struct mass_buffer make_buffer(struct soq__rig *rig, uint32_t heads)
{
    struct mass_buffer m = {.bytes = OFFSET + (size_t)LINES * heads * STRIDE * sizeof(uint64_t) + OFFSET};

    m.host = malloc(m.bytes);
    SOQ__EXPECT(rig->kit, m.host, "the kit is out of memory");
    memset(m.host, filler, m.bytes);
    m.buffer = soq__rig_alloc(rig, m.bytes);
    soq__rig_write(rig, m.buffer, 0, m.host, m.bytes);
    return m;
}

static uint64_t mass_at(const struct soq__cache *c, const struct mass_buffer *m, uint32_t line, uint32_t head, uint32_t entry)
{
    uint64_t value;

    memcpy(&value, m->host + OFFSET + (((size_t)line * c->shape.n_kv_heads + head) * STRIDE + entry) * sizeof value,
           sizeof value);
    return value;
}

/* One step of the given parts; the k and v of all positions are in the cache. */
static void run(struct soq__cache *c, const struct part *list, size_t count, struct mass_buffer *m)
{
    struct soq__matrix q = soq__rig_matrix(c->rig, 24, c->q.view.cols, 0, 4), all = c->q,
                       out = soq__rig_matrix(c->rig, 24, c->shape.n_heads * c->shape.dv, 0, 4);
    struct soq_attention_args args;
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    for (size_t i = 0; i < count; i++) {
        uint32_t row = s.step.n_rows;

        for (uint32_t k = 0; k < list[i].n; k++)
            memcpy(soq__matrix_at(&q, row + k, 0), soq__matrix_at(&all, list[i].first + k, 0), q.view.cols * sizeof(float));
        soq__rig_step_add(&s, list[i].slot, list[i].first, list[i].n);
        soq__cache_map(c, &s, list[i].slot);
        for (uint32_t k = list[i].n - list[i].counted; k < list[i].n; k++)
            s.rows[row + k].mass_line = 1 + list[i].line;
    }
    soq__rig_send(c->rig, &q);
    c->q = q;
    args = soq__cache_attention_args(c, 0, s.step.n_rows, &out, 0);
    args.mass = m->buffer;
    args.mass_offset = OFFSET;
    args.mass_stride = STRIDE;
    soq__rig_begin(c->rig, &s);
    SOQ__SUBMIT(c->rig, c->rig->ops->attention->attention, args);
    soq__rig_end(c->rig);
    c->q = all;
    soq__rig_fetch(c->rig, &out);
    soq__rig_read(c->rig, m->buffer, 0, m->host, m->bytes);
    for (size_t i = 0; i < count; i++)
        soq__cache_compare(c, &out, s.seqs[i].first_row, list[i].first, list[i].n);
    soq__rig_matrix_free(c->rig, &q);
    soq__rig_matrix_free(c->rig, &out);
}

/* Sums of probabilities [entries] of one part and kv head. */
static void reference(const struct soq__cache *c, const struct part *part, uint32_t kv, double *sums)
{
    uint32_t group = c->shape.n_heads / c->shape.n_kv_heads;
    double weights[N];

    memset(sums, 0, N * sizeof *sums);
    for (uint32_t r = part->first + part->n - part->counted; r < part->first + part->n; r++) {
        for (uint32_t h = kv * group; h < (kv + 1) * group; h++) {
            struct soq__ref_attention a = soq__cache_reference(c, h);

            soq__ref_weigh(&a, soq__matrix_at(&c->q, r, h * c->shape.dk), r, weights);
            for (uint32_t e = 0; e <= r; e++)
                sums[e] += weights[e];
        }
    }
}

static void expect_part(struct soq__cache *c, const struct part *part, const struct mass_buffer *m)
{
    uint32_t terms = part->counted * (c->shape.n_heads / c->shape.n_kv_heads);
    double sums[N], tolerance = soq__tolerance(SOQ_OP_ATTENTION, soq__cache_tolerance(c));

    for (uint32_t kv = 0; kv < c->shape.n_kv_heads; kv++) {
        reference(c, part, kv, sums);
        for (uint32_t e = 0; e < part->first + part->n; e++) {
            double got = (double)mass_at(c, m, part->line, kv, e) / (double)SOQ_MASS_ONE;
            double bound = tolerance * sums[e] + terms * 0x1p-24;

            SOQ__EXPECT(c->rig->kit, sums[e] > 0 || got == 0, "line %u, head %u: entry %u has mass %.9g, and no row sees it",
                        part->line, kv, e, got);
            SOQ__EXPECT(c->rig->kit, fabs(got - sums[e]) <= bound,
                        "line %u, head %u: entry %u has mass %.9g, but f64 gives %.9g (off by %.3g, allowed %.3g)", part->line,
                        kv, e, got, sums[e], fabs(got - sums[e]), bound);
        }
    }
}

static bool is_filler(const uint8_t *bytes, size_t n)
{
    while (n--)
        if (*bytes++ != filler)
            return false;
    return true;
}

static void expect_rest(const struct soq__cache *c, const struct mass_buffer *m)
{
    size_t line = (size_t)c->shape.n_kv_heads * STRIDE * sizeof(uint64_t);

    SOQ__EXPECT(c->rig->kit, is_filler(m->host, OFFSET) && is_filler(m->host + m->bytes - OFFSET, OFFSET),
                "wrote in front of the lines of mass, or behind them");
    for (uint32_t i = 1; i < LINES; i += 2)
        SOQ__EXPECT(c->rig->kit, is_filler(m->host + OFFSET + i * line, line), "wrote to line %u, which no row names", i);
}

/* The same rows without the other sequence give the same integers. */
static void expect_alone(struct soq__cache *c, const struct mass_buffer *m)
{
    struct mass_buffer alone = make_buffer(c->rig, c->shape.n_kv_heads);

    run(c, &parts[1], 1, &alone);
    for (uint32_t kv = 0; kv < c->shape.n_kv_heads; kv++)
        for (uint32_t e = 0; e < N; e++)
            SOQ__EXPECT(c->rig->kit, mass_at(c, m, 0, kv, e) == mass_at(c, &alone, 0, kv, e),
                        "head %u: the mass of entry %u is another when its sequence is alone in the step", kv, e);
    soq__rig_free(c->rig, alone.buffer);
    free(alone.host);
}

static void try_shape(struct soq__rig *rig, const struct soq__cache_shape *s, struct soq__coder *coders)
{
    struct mass_buffer m = make_buffer(rig, s->n_kv_heads);
    struct soq__cache c;

    soq__cache_open_packing(&c, rig, s, N, 0, coders);
    soq__cache_fill(&c, coders ? PACKED : 0, 0);
    run(&c, parts, SOQ__COUNT(parts), &m);
    for (size_t i = 0; i < SOQ__COUNT(parts); i++)
        expect_part(&c, &parts[i], &m);
    expect_rest(&c, &m);
    if (rig->ops->flags & SOQ_BACKEND_BATCH_INVARIANT)
        expect_alone(&c, &m);
    soq__rig_free(rig, m.buffer);
    free(m.host);
    soq__cache_close(&c);
}

static void check_mass(struct soq__kit *kit)
{
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    for (size_t i = 0; i < SOQ__COUNT(shapes); i++) {
        if (!soq__cache_claimed_with(&rig, &shapes[i], SOQ_OPDESC_MASS))
            continue;
        any = true;
        soq__kit_at(kit, "%s, %u heads over %u of %u and %u, window %u, sinks %u, cap %g",
                    shapes[i].dtype == SOQ_DTYPE_F32 ? "F32" : "F16", shapes[i].n_heads, shapes[i].n_kv_heads, shapes[i].dk,
                    shapes[i].dv, shapes[i].window, shapes[i].sinks, (double)shapes[i].softcap);
        try_shape(&rig, &shapes[i], NULL);
    }
    if (!any)
        soq__kit_skip(kit, "does not claim attention mass");
}

static void check_packed(struct soq__kit *kit)
{
    const struct soq__packing_tries tries = {.specs = specs,
                                             .n_specs = SOQ__COUNT(specs),
                                             .shapes = shapes,
                                             .n_shapes = SOQ__COUNT(shapes),
                                             .flags = SOQ_OPDESC_MASS,
                                             .try = try_shape};

    soq__packing_try(kit, &tries);
}

static const struct soq__check checks[] = {
    {"attention.mass", SOQ_ROLE_BACKEND, "attention mass is within tolerance of f64, in the lines that rows name", check_mass,
     "attention.batch"},
    {"packed.mass", SOQ_ROLE_BACKEND, "attention mass over packed blocks is that of what they decode to", check_packed,
     "packed.reference"},
};
const struct soq__check_family soq__checks_mass = SOQ__FAMILY(checks);
