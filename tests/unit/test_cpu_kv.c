/* What eviction asks of the CPU backend: attention mass, rotated segments, groups that share slabs, gathered entries; against
 * F64, and that neither threads nor chunks show. */
#include "check/reference.h"
#include "cpu_cache.h"

enum { LINES = 3, ROTATED = 12 };

/* A step over the cache: rows [first, first + n), everything up to them in one segment, blocks in the table. */
static struct cpu_step *step_of(const struct cache *c, uint32_t first, uint32_t n)
{
    struct cpu_step *step = cpu_step(n, first);

    for (uint32_t i = 0; i < c->n_blocks; i++)
        step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 0, i, c->n_blocks - 1 - i};
    step->segments[0] = segment(0, first + n);
    step->step.n_segments = step->seqs[0].n_segments = 1;
    return step;
}

static void append(struct cache *c, uint32_t first, uint32_t n)
{
    struct soq_kv_append_args args = {sizeof args, LAYER, c->group, rows_of(&c->k, first, n), rows_of(&c->v, first, n)};

    cr_assert_eq(c->f.ops->attention->kv_append(c->f.self, &args), 0);
}

static void attend(struct cache *c, const struct soq_attention_args *args)
{
    cr_assert_eq(c->f.ops->attention->attention(c->f.self, args), 0);
}

/* Fills the cache. */
static void fill(struct cache *c)
{
    for (uint32_t first = 0; first < c->n_entries; first += 500) {
        uint32_t n = c->n_entries - first < 500 ? c->n_entries - first : 500;
        struct cpu_step *step = step_of(c, first, n);

        cpu_begin(&c->f, step);
        append(c, first, n);
        cpu_end(&c->f);
        free(step);
    }
}

/* ---- Attention mass ------------------------------------------------------------------------------------------------------ */

/* Probabilities of every entry for a query: each value is the unit vector of its entry. */
static void probabilities(const struct cache *c, uint32_t row, uint32_t head, double *out)
{
    const struct shape *s = &c->s;
    uint32_t kv = head / (s->n_heads / s->n_kv_heads), n = c->n_entries;
    float *units = calloc((size_t)n * n, sizeof *units);
    struct soq__ref_attention a = {.dk = s->dk,
                                   .dv = n,
                                   .scale = (double)0.7f,
                                   .softcap = (double)s->softcap,
                                   .window = s->window,
                                   .sinks = s->sinks,
                                   .sink_logit = s->sink_logits ? &c->sink_values[head] : NULL,
                                   .k = cpu_at(&c->k, 0, kv * s->dk),
                                   .v = units,
                                   .k_stride = c->k.view.row_stride,
                                   .v_stride = n};

    for (uint32_t i = 0; i < n; i++)
        units[(size_t)i * n + i] = 1.0f;
    soq__ref_attend(&a, cpu_at(&c->q, row, head * s->dk), row, out);
    free(units);
}

/* Line of a row: none, 2 or 3. */
static uint32_t line_of(uint32_t row)
{
    return row % 7 == 3 ? 0 : row < 80 ? 2 : 3;
}

/* Mass of all rows but some, in steps of that many rows; sums[line][kv head][entry]. */
static void take_mass(const char *variant, const char *threads, struct shape s, uint32_t n, uint32_t rows, uint64_t *sums)
{
    struct cpu_matrix out = cpu_matrix(n, s.n_heads * s.dv, 3, 4);
    size_t stride = n + 5, total = (size_t)LINES * s.n_kv_heads * stride;
    uint64_t *mass = malloc((total + 1) * sizeof *mass);
    struct cache c;

    open_cache(&c, variant, threads, s, n);
    memset(sums, 0, (size_t)LINES * s.n_kv_heads * n * sizeof *sums);
    for (uint32_t first = 0; first < n; first += rows) {
        uint32_t now = n - first < rows ? n - first : rows;
        struct cpu_step *step = step_of(&c, first, now);
        struct soq_attention_args args = args_of(&c, first, now, &out);
        bool named[LINES] = {false};

        for (uint32_t i = 0; i < now; i++) {
            step->rows[i].mass_line = line_of(first + i);
            if (step->rows[i].mass_line)
                named[step->rows[i].mass_line - 1] = true;
        }
        memset(mass, 0xa5, (total + 1) * sizeof *mass);
        args.mass = (soq_buffer)(uintptr_t)mass;
        args.mass_offset = sizeof *mass;
        args.mass_stride = (uint32_t)stride;
        cpu_begin(&c.f, step);
        append(&c, first, now);
        attend(&c, &args);
        cpu_end(&c.f);
        for (size_t i = 0; i < total; i++) {
            size_t line = i / stride / s.n_kv_heads, head = i / stride % s.n_kv_heads, e = i % stride;

            if (named[line] && e < first + now)
                sums[(line * s.n_kv_heads + head) * n + e] += mass[1 + i];
            else
                cr_assert_eq(mass[1 + i], 0xa5a5a5a5a5a5a5a5u, "%s: line %zu, head %zu, %zu written", variant, line, head, e);
        }
        cr_assert_eq(mass[0], 0xa5a5a5a5a5a5a5a5u);
        free(step);
    }
    close_cache(&c);
    cpu_matrix_done(&out);
    free(mass);
}

static void check_mass(const char *variant, struct shape s, uint32_t n, const uint64_t *sums)
{
    double *expected = calloc((size_t)LINES * s.n_kv_heads * n, sizeof *expected), *p = calloc(n, sizeof *p);
    struct cache c;

    open_cache(&c, variant, "1", s, n);
    for (uint32_t row = 0; row < n; row++)
        for (uint32_t h = 0; h < s.n_heads && line_of(row); h++) {
            probabilities(&c, row, h, p);
            for (uint32_t e = 0; e <= row; e++)
                expected[((line_of(row) - 1) * s.n_kv_heads + h / (s.n_heads / s.n_kv_heads)) * n + e] += p[e];
        }
    for (size_t i = 0; i < (size_t)LINES * s.n_kv_heads * n; i++) {
        double got = (double)sums[i] / (double)SOQ_MASS_ONE;

        cr_assert(fabs(got - expected[i]) < 3e-6 * (expected[i] + 0.1), "%s: mass %zu of %u entries is %.9g, not %.9g", variant,
                  i, n, got, expected[i]);
        cr_assert(expected[i] > 0 || sums[i] == 0, "%s: mass %zu of what nobody sees is %.9g", variant, i, got);
    }
    close_cache(&c);
    free(expected);
    free(p);
}

Test(cpu_kv, mass, .timeout = 120)
{
    static const struct shape shapes[] = {
        {6, 2, 24, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, {6, 2, 24, 16, 2, 32, SOQ_DTYPE_F32, 3, 0, 0, true},
        {4, 1, 16, 16, 2, 8, SOQ_DTYPE_F32, 0, 70, 3, true},  {3, 3, 9, 7, 2, 128, SOQ_DTYPE_F32, 0, 20, 0, false},
        {9, 1, 16, 16, 2, 1, SOQ_DTYPE_F32, 0, 0, 0, false},
    };
    enum { N = 150 };
    uint64_t sums[LINES * 3 * N];

    for (const char *const *v = cpu_variants(); *v; v++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            take_mass(*v, "2", shapes[i], N, 64, sums);
            check_mass(*v, shapes[i], N, sums);
        }
}

/* Row by row in splits, in chunks, on any number of threads: the same integers. */
Test(cpu_kv, mass_is_exact, .timeout = 120)
{
    static const struct {
        const char *threads;
        uint32_t rows;
    } ways[] = {{"1", 512}, {"2", 1}, {"3", 7}, {"2", 100}, {"3", 512}};
    static const struct shape shapes[] = {{6, 2, 24, 24, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, true},
                                          {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 300, 4, false}};
    enum { N = 600 };
    uint64_t *first = malloc(LINES * 2 * N * sizeof *first), *again = malloc(LINES * 2 * N * sizeof *again);

    for (const char *const *v = cpu_variants(); *v; v++)
        for (size_t k = 0; k < 2; k++)
            for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
                take_mass(*v, ways[i].threads, shapes[k], N, ways[i].rows, i ? again : first);
                cr_assert(i == 0 || memcmp(again, first, LINES * 2 * N * sizeof *first) == 0, "%s, shape %zu: way %zu differs",
                          *v, k, i);
            }
    free(first);
    free(again);
}

/* ---- Rotated segments ---------------------------------------------------------------------------------------------------- */

static uint32_t distance_of(const struct soq_step_segment *segment, uint32_t row, const struct shape *s)
{
    if (segment->flags & SOQ_SEGMENT_ROTATE)
        return segment->rotation;
    return segment->flags && row + 1 > s->window + s->sinks ? row + 1 - s->window - s->sinks : 0;
}

/* The keys of a kv head as the row of that number meets them: moved by what their segment says. */
static void moved_keys(const struct cache *c, const struct soq_step_segment *segments, uint32_t n_segments, uint32_t row,
                       uint32_t kv, uint32_t kind, const float *inv_freq, float *out)
{
    double key[64];

    for (uint32_t i = 0; i < n_segments; i++)
        for (uint32_t e = segments[i].first_entry; e < segments[i].first_entry + segments[i].n_entries; e++) {
            for (uint32_t d = 0; d < c->s.dk; d++)
                key[d] = (double)*cpu_at(&c->k, e, kv * c->s.dk + d);
            soq__ref_rope(kind, key, ROTATED, inv_freq, distance_of(&segments[i], row, &c->s), 1);
            for (uint32_t d = 0; d < c->s.dk; d++)
                out[e * c->s.dk + d] = (float)key[d];
        }
}

static void check_rotated(struct cache *c, const struct soq_step_segment *segments, uint32_t n_segments, uint32_t first,
                          uint32_t kind, const struct cpu_matrix *inv_freq, const struct cpu_matrix *out)
{
    const struct shape *s = &c->s;
    float *keys = calloc((size_t)c->n_entries * s->dk, sizeof *keys);
    double expected[64];

    for (uint32_t row = first; row < c->n_entries; row++)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            uint32_t kv = h / (s->n_heads / s->n_kv_heads);
            struct soq__ref_attention a = {.dk = s->dk,
                                           .dv = s->dv,
                                           .scale = (double)0.7f,
                                           .window = s->window,
                                           .sinks = s->sinks,
                                           .k = keys,
                                           .v = cpu_at(&c->v, 0, kv * s->dv),
                                           .k_stride = s->dk,
                                           .v_stride = c->v.view.row_stride,
                                           .hole_first = segments[0].n_entries,
                                           .hole_last = segments[n_segments - 1].first_entry};

            moved_keys(c, segments, n_segments, row, kv, kind, cpu_at(inv_freq, 0, 0), keys);
            soq__ref_attend(&a, cpu_at(&c->q, row, h * s->dk), row, expected);
            for (uint32_t d = 0; d < s->dv; d++)
                cr_assert(fabs(*cpu_at(out, row, h * s->dv + d) - expected[d]) < 5e-6, "row %u, head %u, %u: %g is not %g", row,
                          h, d, (double)*cpu_at(out, row, h * s->dv + d), expected[d]);
        }
    free(keys);
}

/* Both kinds of RoPE on part of the head; a hole between the segments; one of them begins inside a tile. */
Test(cpu_kv, rotated_segments, .timeout = 120)
{
    static const struct soq_step_segment rotated[] = {
        {.flags = SOQ_SEGMENT_ROTATE, .n_layers = 99, .n_heads = 99, .n_entries = 5, .rotation = 41},
        {.n_layers = 99, .n_heads = 99, .first_entry = 37, .n_entries = 143}};
    static const struct soq_step_segment rolling[] = {
        {.flags = SOQ_SEGMENT_ROLLING, .n_layers = 99, .n_heads = 99, .n_entries = 4},
        {.n_layers = 99, .n_heads = 99, .first_entry = 4, .n_entries = 176}};
    enum { N = 180, FIRST = 30 };
    struct cpu_matrix inv_freq = cpu_matrix(1, ROTATED / 2, 0, 1);

    for (uint32_t i = 0; i < ROTATED / 2; i++)
        *cpu_at(&inv_freq, 0, i) = (float)pow(100, -2.0 * i / ROTATED);
    for (const char *const *v = cpu_variants(); *v; v++)
        for (uint32_t way = 0; way < 4; way++) {
            struct shape s = {6, 2, 20, 16, 2, 32, SOQ_DTYPE_F32, 0, way / 2 ? 50 : 0, 4, false};
            struct cpu_matrix out = cpu_matrix(N, s.n_heads * s.dv, 0, 4);
            const struct soq_step_segment *segments = way / 2 ? rolling : rotated;
            struct soq_attention_args args;
            struct cpu_step *step;
            struct cache c;

            open_cache(&c, *v, "2", s, N);
            fill(&c);
            step = step_of(&c, FIRST, N - FIRST);
            step->step.n_segments = step->seqs[0].n_segments = 2;
            memcpy(step->segments, segments, 2 * sizeof *segments);
            args = args_of(&c, FIRST, N - FIRST, &out);
            args.rope_kind = way % 2 ? SOQ_ROPE_HALF : SOQ_ROPE_INTERLEAVED;
            args.n_rot = ROTATED;
            args.inv_freq = inv_freq.view;
            cpu_begin(&c.f, step);
            attend(&c, &args);
            cpu_end(&c.f);
            check_rotated(&c, segments, 2, FIRST, args.rope_kind, &inv_freq, &out);
            close_cache(&c);
            cpu_matrix_done(&out);
            free(step);
        }
    cpu_matrix_done(&inv_freq);
}

/* However what is seen is cut into segments, the bits are the same. */
Test(cpu_kv, cuts_do_not_show)
{
    static const struct shape s = {6, 2, 24, 24, 2, 16, SOQ_DTYPE_F16, 0, 0, 0, true};
    static const struct soq_step_segment cuts[][3] = {
        {{.n_entries = 400}},
        {{.n_entries = 13}, {.first_entry = 13, .n_entries = 100}, {.first_entry = 113, .n_entries = 287}},
        {{.first_entry = 64, .n_entries = 336}, {.n_entries = 64}},
        {{.n_heads = 1, .n_entries = 400}, {.first_head = 1, .n_heads = 1, .n_entries = 400}}};
    enum { N = 400 };

    for (const char *const *v = cpu_variants(); *v; v++) {
        struct cpu_matrix first = cpu_matrix(N, 6 * 24, 0, 4), again = cpu_matrix(N, 6 * 24, 0, 5);
        struct cache c;

        open_cache(&c, *v, "2", s, N);
        fill(&c);
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            struct cpu_step *step = step_of(&c, 0, N);
            struct soq_attention_args args = args_of(&c, 0, N, i ? &again : &first);

            step->step.n_segments = 0;
            for (uint32_t k = 0; k < 3 && cuts[i][k].n_entries; k++) {
                step->segments[k] = cuts[i][k];
                step->segments[k].n_layers = 99;
                step->segments[k].n_heads = cuts[i][k].n_heads ? cuts[i][k].n_heads : 99;
                step->seqs[0].n_segments = ++step->step.n_segments;
            }
            cpu_begin(&c.f, step);
            attend(&c, &args);
            cpu_end(&c.f);
            cr_assert(i == 0 || memcmp(cpu_at(&again, 0, 0), cpu_at(&first, 0, 0), N * 6 * 24 * sizeof(float)) == 0,
                      "%s: cut %zu differs", *v, i);
            free(step);
        }
        close_cache(&c);
        cpu_matrix_done(&first);
        cpu_matrix_done(&again);
    }
}

/* ---- Groups that share slabs --------------------------------------------------------------------------------------------- */

static struct soq_view columns_of(struct soq_view view, uint32_t first, uint32_t n)
{
    view.offset += first * sizeof(float);
    view.cols = n;
    return view;
}

/* Heads of a layer in groups of their own, the blocks of both in the first one's slab: the bits and the mass of one group. */
Test(cpu_kv, shared_slabs)
{
    static const struct shape s = {6, 2, 24, 16, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false};
    enum { N = 300, R = 3, BLOCKS = 10 };

    for (const char *const *v = cpu_variants(); *v; v++) {
        struct cpu_matrix whole = cpu_matrix(N, 6 * 16, 0, 4), parts = cpu_matrix(N, 6 * 16, 0, 5);
        struct shape one = {3, 1, 24, 16, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false};
        struct soq_kv_plane planes[2];
        struct soq_kv_group_desc desc = cache_desc(&one, BLOCKS, planes);
        uint64_t mass[2][2][N] = {{{0}}};
        struct soq_error err = SOQ_ERROR_INIT;
        soq_kv_group groups[2] = {0};
        struct soq_attention_args args;
        struct cpu_step *step;
        soq_buffer slab;
        struct cache c;

        open_cache(&c, *v, "2", s, N);
        fill(&c);
        for (uint32_t g = 0; g < 2; g++) {
            desc.index = 5 + g;
            desc.storage = groups[0];
            cr_assert_eq(c.f.ops->attention->group_create(c.f.self, &desc, &groups[g], &err), 0, "%s", err.text);
        }
        desc.block_bytes *= 2;
        cr_assert_eq(c.f.ops->attention->group_create(c.f.self, &desc, &groups[1], &err), -SOQ_EINVAL);
        cr_assert_eq(c.f.ops->memory->buffer_alloc(c.f.self, desc.block_bytes * BLOCKS, &slab, &err), 0);
        cr_assert_eq(c.f.ops->attention->group_slab(c.f.self, groups[1], 0, 0, 2 * BLOCKS, slab, &err), -SOQ_EINVAL);
        cr_assert_eq(c.f.ops->attention->group_slab(c.f.self, groups[0], 0, 0, 2 * BLOCKS, slab, &err), 0, "%s", err.text);
        step = step_of(&c, 0, N);
        for (uint32_t i = 0; i < 2 * BLOCKS; i++)
            step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 5 + i % 2, i / 2, i};
        step->step.n_segments = step->seqs[0].n_segments = 3;
        for (uint32_t i = 0; i < 3; i++) {
            step->segments[i] = segment(0, N);
            step->segments[i].group = i ? 4 + i : 0;
        }
        for (uint32_t r = N - 20; r < N; r++)
            step->rows[r].mass_line = 1;
        cpu_begin(&c.f, step);
        for (uint32_t g = 0; g < 2; g++) {
            struct soq_kv_append_args a = {sizeof a, LAYER, groups[g], columns_of(rows_of(&c.k, 0, N), g * 24, 24),
                                           columns_of(rows_of(&c.v, 0, N), g * 16, 16)};

            cr_assert_eq(c.f.ops->attention->kv_append(c.f.self, &a), 0);
        }
        for (uint32_t g = 0; g < 3; g++) {
            args = args_of(&c, 0, N, g < 2 ? &parts : &whole);
            args.mass = (soq_buffer)(uintptr_t)mass;
            args.mass_offset = g < 2 ? g * sizeof mass[0][0] : sizeof mass[0];
            args.mass_stride = N;
            if (g < 2) {
                args.group = groups[g];
                args.n_heads = R;
                args.n_kv_heads = 1;
                args.q = columns_of(args.q, g * R * 24, R * 24);
                args.out = columns_of(args.out, g * R * 16, R * 16);
            }
            attend(&c, &args);
        }
        cpu_end(&c.f);
        cr_assert_eq(memcmp(cpu_at(&parts, 0, 0), cpu_at(&whole, 0, 0), N * 6 * 16 * sizeof(float)), 0, "%s", *v);
        cr_assert_eq(memcmp(mass[0], mass[1], sizeof mass[0]), 0);
        cr_assert(mass[0][0][0] > 0);
        c.f.ops->attention->group_free(c.f.self, groups[1]);
        c.f.ops->attention->group_free(c.f.self, groups[0]);
        c.f.ops->memory->buffer_free(c.f.self, slab);
        close_cache(&c);
        cpu_matrix_done(&whole);
        cpu_matrix_done(&parts);
        free(step);
    }
}

/* ---- Gathered entries ---------------------------------------------------------------------------------------------------- */

/* Lays in a block of the slab, as the ABI says: [plane][layer][head][entry][width]. */
static uint8_t *place_of(const struct cache *c, uint32_t block, uint32_t plane, uint32_t line, uint32_t entry,
                         size_t *bytes_out)
{
    uint64_t size = c->s.dtype == SOQ_DTYPE_F32 ? 4 : 2, lines = (uint64_t)c->s.layers * c->s.n_kv_heads;
    uint64_t tiles[2] = {(c->s.block_tokens * c->s.dk * size + 7) / 8 * 8, (c->s.block_tokens * c->s.dv * size + 7) / 8 * 8};

    *bytes_out = (plane ? c->s.dv : c->s.dk) * size;
    return (uint8_t *)(uintptr_t)c->slab + block * lines * (tiles[0] + tiles[1]) + plane * lines * tiles[0] +
           line * tiles[plane] + entry * *bytes_out;
}

static void check_gather(const char *variant, struct shape s, uint32_t n, uint32_t n_keep, uint32_t dst_first)
{
    uint32_t n_lines = s.layers * s.n_kv_heads, tokens = s.block_tokens, n_src = (n + tokens - 1) / tokens;
    uint32_t n_dst = (dst_first + n_keep + tokens - 1) / tokens;
    uint32_t *keep = malloc((size_t)n_lines * n_keep * sizeof *keep), src[256], dst[256];
    struct soq_kv_gather_args args = {sizeof args, n_keep, 0, src, dst, n_src, n_dst, dst_first, 0, keep};
    struct soq_error err = SOQ_ERROR_INIT;
    uint64_t seed = n;
    struct cache c;

    open_cache(&c, variant, "2", s, (n_src + n_dst) * tokens);
    args.group = c.group;
    for (size_t i = 0; i < (size_t)c.n_blocks * n_lines * (s.dk + s.dv) * tokens; i++)
        ((uint8_t *)(uintptr_t)c.slab)[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint32_t i = 0; i < n_src; i++)
        src[i] = n_src - 1 - i;
    for (uint32_t i = 0; i < n_dst; i++)
        dst[i] = n_src + (i * 7 + 3) % n_dst;
    for (uint32_t i = 0; n_dst % 7 == 0 && i < n_dst; i++)
        dst[i] = n_src + i;
    for (uint32_t line = 0; line < n_lines; line++)
        for (uint32_t e = 0, i = 0; i < n_keep; e++)
            if (n - e <= n_keep - i || cpu_random(&seed) > 0)
                keep[line * n_keep + i++] = e;
    cr_assert_eq(c.f.ops->attention->kv_gather(c.f.self, &args, &err), 0, "%s", err.text);
    for (uint32_t plane = 0; plane < 2; plane++)
        for (uint32_t line = 0; line < n_lines; line++)
            for (uint32_t i = 0; i < n_keep; i++) {
                uint32_t from = keep[line * n_keep + i], to = dst_first + i;
                size_t bytes;
                const uint8_t *a = place_of(&c, src[from / tokens], plane, line, from % tokens, &bytes);
                const uint8_t *b = place_of(&c, dst[to / tokens], plane, line, to % tokens, &bytes);

                cr_assert_eq(memcmp(a, b, bytes), 0, "%s: plane %u, line %u, kept %u", variant, plane, line, i);
            }
    keep[n_keep - 1] = n_src * tokens;
    cr_assert_eq(c.f.ops->attention->kv_gather(c.f.self, &args, &err), -SOQ_EINVAL);
    keep[n_keep - 1] = keep[0];
    cr_assert_eq(c.f.ops->attention->kv_gather(c.f.self, &args, &err), -SOQ_EINVAL);
    src[0] = c.n_blocks;
    cr_assert_eq(c.f.ops->attention->kv_gather(c.f.self, &args, &err), -SOQ_EINVAL);
    close_cache(&c);
    free(keep);
}

/* Small ones on one thread, the large one on two. */
Test(cpu_kv, gather)
{
    static const struct shape shapes[] = {{2, 2, 24, 16, 3, 8, SOQ_DTYPE_F16, 0, 0, 0, false},
                                          {1, 1, 7, 9, 2, 1, SOQ_DTYPE_F16, 0, 0, 0, false},
                                          {3, 3, 64, 64, 6, 32, SOQ_DTYPE_F32, 0, 0, 0, false}};

    for (const char *const *v = cpu_variants(); *v; v++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check_gather(*v, shapes[i], 117, 50, 5);
            check_gather(*v, shapes[i], 100, 100, 0);
        }
}

/* The rows outside of what is gathered stay as they are. */
Test(cpu_kv, gather_touches_nothing_else)
{
    static const struct shape s = {1, 1, 8, 8, 2, 16, SOQ_DTYPE_F32, 0, 0, 0, false};
    const uint32_t keep[2][3] = {{1, 2, 9}, {0, 14, 15}}, src[] = {0}, dst[] = {1};
    struct soq_error err = SOQ_ERROR_INIT;

    for (const char *const *v = cpu_variants(); *v; v++) {
        struct soq_kv_gather_args args = {sizeof args, 3, 0, src, dst, 1, 1, 13, 0, keep[0]};
        struct cache c;

        open_cache(&c, *v, "2", s, 32);
        fill(&c);
        args.group = c.group;
        memset(place_of(&c, 1, 0, 0, 0, &(size_t){0}), 0xee, 2 * 2 * 16 * 8 * 4);
        cr_assert_eq(c.f.ops->attention->kv_gather(c.f.self, &args, &err), 0, "%s", err.text);
        for (uint32_t plane = 0; plane < 2; plane++)
            for (uint32_t line = 0; line < 2; line++)
                for (uint32_t e = 0; e < 13; e++) {
                    size_t bytes;
                    const uint8_t *p = place_of(&c, 1, plane, line, e, &bytes);

                    for (size_t i = 0; i < bytes; i++)
                        cr_assert_eq(p[i], 0xee);
                }
        close_cache(&c);
    }
}

/* ---- What is said and refused -------------------------------------------------------------------------------------------- */

Test(cpu_kv, supports)
{
    struct soq_op_desc desc = {
        .struct_size = sizeof desc,
        .op = SOQ_OP_ATTENTION,
        .head_dim_k = 64,
        .head_dim_v = 64,
        .n_heads = 9,
        .n_kv_heads = 3,
        .key_format = SOQ_FORMAT_PLAIN,
        .value_format = SOQ_FORMAT_PLAIN,
        .key_dtype = SOQ_DTYPE_F16,
        .value_dtype = SOQ_DTYPE_F16,
        .flags = SOQ_OPDESC_SOFTCAP | SOQ_OPDESC_WINDOW | SOQ_OPDESC_MASS | SOQ_OPDESC_SEGMENTS | SOQ_OPDESC_ROTATE,
    };
    struct soq_error why = SOQ_ERROR_INIT;
    struct cpu_fixture f;

    cpu_setup(&f, "generic", "1", "f32", "1", 8);
    cr_assert_eq(f.ops->supports(f.self, &desc, &why), 0, "%s", why.text);
    desc.op = SOQ_OP_KV_GATHER;
    cr_assert_eq(f.ops->supports(f.self, &desc, &why), 0, "%s", why.text);
    desc.value_format = SOQ_FORMAT_AFFINE;
    cr_assert_eq(f.ops->supports(f.self, &desc, &why), -SOQ_EUNSUPPORTED);
    cpu_teardown(&f);
}

Test(cpu_kv, refusals)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false};
    enum { N = 40 };
    struct cpu_matrix out = cpu_matrix(N, 32, 0, 4);
    uint64_t mass[N];
    struct cache c;

    open_cache(&c, "generic", "1", s, N);
    fill(&c);
    for (uint32_t way = 0; way < 4; way++) {
        struct soq_attention_args args = args_of(&c, 0, N, &out);
        struct cpu_step *step = step_of(&c, 0, N);
        struct soq_error err = SOQ_ERROR_INIT;

        args.mass = way < 2 ? (soq_buffer)(uintptr_t)mass : 0;
        args.mass_offset = way == 0 ? 4 : 0;
        args.mass_stride = way == 1 ? N - 1 : N;
        step->segments[0].flags = way < 2 ? 0 : SOQ_SEGMENT_ROLLING;
        args.rope_kind = way == 2 ? 0 : SOQ_ROPE_HALF;
        args.n_rot = 16;
        cpu_begin(&c.f, step);
        cr_assert_eq(c.f.ops->attention->attention(c.f.self, &args), -SOQ_EINVAL, "way %u", way);
        cr_assert_eq(c.f.ops->end(c.f.self, &err), -SOQ_EINVAL);
        cr_assert(strstr(err.text, "attention"), "%s", err.text);
        free(step);
    }
    close_cache(&c);
    cpu_matrix_done(&out);
}
