/* Attention over blocks against a naive F64 softmax: masks, shared kv heads, windows, sinks, soft caps, both plane types, odd
 * sizes, packed blocks among plain ones; and that results depend on nothing but what a row sees. */
#include "check/coder.h"
#include "check/reference.h"
#include "cpu_cache.h"

/* Appends positions [first, first + n) and attends from them; results go to the same rows of out. */
static void chunk(struct cache *c, uint32_t first, uint32_t n, struct cpu_matrix *out)
{
    struct cpu_step *step = cpu_step(n, first);
    struct soq_kv_append_args append = {sizeof append, LAYER, c->group, rows_of(&c->k, first, n), rows_of(&c->v, first, n)};
    struct soq_attention_args args = args_of(c, first, n, out);

    if (first == 0)
        for (uint32_t i = 0; i < c->n_blocks; i++)
            step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 0, i, c->n_blocks - 1 - i};
    step->segments[0] = segment(0, first + n);
    step->step.n_segments = 1;
    step->seqs[0].n_segments = 1;
    cpu_begin(&c->f, step);
    cr_assert_eq(c->f.ops->attention->kv_append(c->f.self, &append), 0);
    cr_assert_eq(c->f.ops->attention->attention(c->f.self, &args), 0);
    cpu_end(&c->f);
    free(step);
}

static void reference(const struct cache *c, uint32_t row, uint32_t head, double *out)
{
    const struct shape *s = &c->s;
    uint32_t kv = head / (s->n_heads / s->n_kv_heads);
    struct soq__ref_attention a = {.dk = s->dk,
                                   .dv = s->dv,
                                   .scale = (double)0.7f,
                                   .softcap = (double)s->softcap,
                                   .window = s->window,
                                   .sinks = s->sinks,
                                   .sink_logit = s->sink_logits ? &c->sink_values[head] : NULL,
                                   .k = cpu_at(&c->k, 0, kv * s->dk),
                                   .v = cpu_at(&c->v, 0, kv * s->dv),
                                   .k_stride = c->k.view.row_stride,
                                   .v_stride = c->v.view.row_stride};

    soq__ref_attend(&a, cpu_at(&c->q, row, head * s->dk), row, out);
}

/* Of rows [first, first + n), at the same rows of out. */
static void compare(const struct cache *c, const char *variant, const struct cpu_matrix *out, uint32_t first, uint32_t n,
                    double tolerance)
{
    const struct shape *s = &c->s;
    double expected[512];

    for (uint32_t row = first; row < first + n; row += row % 5 + 1)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            reference(c, row, h, expected);
            for (uint32_t d = 0; d < s->dv; d++)
                cr_assert(fabs(*cpu_at(out, row, h * s->dv + d) - expected[d]) < tolerance,
                          "%s: row %u, head %u, %u: %g is not %g", variant, row, h, d, (double)*cpu_at(out, row, h * s->dv + d),
                          expected[d]);
        }
}

static void check_shape(const char *variant, struct shape s, uint32_t n, uint32_t step)
{
    struct cpu_matrix out = cpu_matrix(n, s.n_heads * s.dv, 3, 4);
    struct cache c;

    open_cache(&c, variant, "2", s, n);
    for (uint32_t first = 0; first < n; first += step)
        chunk(&c, first, n - first < step ? n - first : step, &out);
    compare(&c, variant, &out, 0, n, s.dtype == SOQ_DTYPE_F32 ? 5e-6 : 4e-3);
    close_cache(&c);
    cpu_matrix_done(&out);
}

Test(cpu_attention, against_f64)
{
    static const struct shape shapes[] = {
        {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false},   {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false},
        {4, 1, 256, 256, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, {2, 2, 20, 12, 3, 16, SOQ_DTYPE_F32, 0, 0, 0, false},
        {2, 1, 7, 9, 2, 8, SOQ_DTYPE_F16, 0, 0, 0, false},      {6, 2, 24, 24, 2, 64, SOQ_DTYPE_F32, 5, 0, 0, false},
        {6, 2, 24, 24, 2, 1, SOQ_DTYPE_F32, 0, 40, 0, false},   {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 40, 4, false},
        {6, 2, 24, 72, 2, 32, SOQ_DTYPE_F32, 2, 1, 0, true},    {40, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, true},
        {6, 2, 24, 24, 2, 256, SOQ_DTYPE_F32, 0, 33, 35, true},
    };

    for (const char *const *v = cpu_variants(); *v; v++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            check_shape(*v, shapes[i], 150, 150);
            check_shape(*v, shapes[i], 70, 13);
        }
}

Test(cpu_attention, several_splits)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        check_shape(*v, (struct shape){2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, 1300, 500);
}

/* One by one (splits in parallel), in chunks, on any number of threads. */
Test(cpu_attention, chunks_and_threads_give_the_same_bits)
{
    static const struct {
        const char *threads;
        uint32_t step;
    } ways[] = {{"1", 512}, {"2", 1}, {"3", 1}, {"2", 7}, {"3", 100}};
    static const struct shape shapes[] = {{6, 2, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, true},
                                          {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 600, 4, false}};
    enum { N = 1100 };

    for (const char *const *v = cpu_variants(); *v; v++)
        for (size_t k = 0; k < 2; k++) {
            uint32_t cols = shapes[k].n_heads * shapes[k].dv;
            struct cpu_matrix first = cpu_matrix(N, cols, 0, 4);

            for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
                struct cpu_matrix out = cpu_matrix(N, cols, 0, 5);
                struct cache c;

                open_cache(&c, *v, ways[i].threads, shapes[k], N);
                for (uint32_t at = 0; at < N; at += ways[i].step)
                    chunk(&c, at, N - at < ways[i].step ? N - at : ways[i].step, i ? &out : &first);
                cr_assert(i == 0 || memcmp(cpu_at(&out, 0, 0), cpu_at(&first, 0, 0), N * cols * sizeof(float)) == 0,
                          "%s, shape %zu: way %zu differs", *v, k, i);
                close_cache(&c);
                cpu_matrix_done(&out);
            }
            cpu_matrix_done(&first);
        }
}

/* The last rows of up to four sequences over the same blocks; results go to rows of out. */
static void attend_last(struct cache *c, const uint32_t *positions, uint32_t first, uint32_t n, struct cpu_matrix *out)
{
    struct cpu_step *step = cpu_step(n, 0);
    struct soq_attention_args args = args_of(c, first, n, out);

    step->step.n_seqs = step->step.n_segments = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = positions[first + i];

        for (uint32_t b = 0; b < c->n_blocks; b++)
            step->edits[step->step.n_edits++] = (struct soq_step_edit){i, 0, b, c->n_blocks - 1 - b};
        step->rows[i] = (struct soq_step_row){.seq = i, .position = position, .entry = position, .parent = -1};
        step->segments[i] = segment(0, position + 1);
        step->seqs[i] = (struct soq_step_seq){
            .slot = i, .n_cached = position, .first_row = i, .n_rows = 1, .first_segment = i, .n_segments = 1};
    }
    cpu_begin(&c->f, step);
    cr_assert_eq(c->f.ops->attention->attention(c->f.self, &args), 0);
    cpu_end(&c->f);
    free(step);
}

/* A thread takes the heads of a sequence together where there are many sequences, and splits where there is one. */
Test(cpu_attention, sequences_do_not_meet)
{
    static const struct {
        struct shape shape;
        const char *alone, *together; /* threads */
        uint32_t positions[4];
    } cases[] = {{{9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false}, "2", "1", {1099, 1000, 999, 777}},
                 {{8, 4, 16, 24, 2, 64, SOQ_DTYPE_F32, 0, 90, 4, false}, "3", "1", {1098, 1024, 1099, 1023}},
                 {{16, 8, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, "2", "2", {1099, 1099, 1099, 1099}},
                 {{9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false}, "1", "1", {1099, 255, 3, 256}}};
    enum { N = 1100 };

    for (const char *const *v = cpu_variants(); *v; v++)
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            uint32_t cols = cases[k].shape.n_heads * cases[k].shape.dv;
            struct cpu_matrix all = cpu_matrix(N, cols, 0, 4),
                              results[2] = {cpu_matrix(4, cols, 0, 5), cpu_matrix(4, cols, 0, 6)};

            for (int together = 0; together < 2; together++) {
                struct cache c;

                open_cache(&c, *v, together ? cases[k].together : cases[k].alone, cases[k].shape, N);
                for (uint32_t at = 0; at < N; at += 500)
                    chunk(&c, at, N - at < 500 ? N - at : 500, &all);
                for (uint32_t i = 0; i < 4; i += together ? 4 : 1)
                    attend_last(&c, cases[k].positions, i, together ? 4 : 1, &results[together]);
                close_cache(&c);
            }
            cr_assert(memcmp(cpu_at(&results[0], 0, 0), cpu_at(&results[1], 0, 0), 4 * cols * sizeof(float)) == 0,
                      "%s, case %zu", *v, k);
            cpu_matrix_done(&all);
            cpu_matrix_done(&results[0]);
            cpu_matrix_done(&results[1]);
        }
}

/* The same entries in one segment, in two that leave out what nobody sees, in one of a length that ends in a tile. */
Test(cpu_attention, segments_and_copies)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 50, 4, false};
    enum { N = 700 };

    for (const char *const *v = cpu_variants(); *v; v++) {
        struct cpu_matrix out = cpu_matrix(N, 32, 0, 4), again = cpu_matrix(1, 32, 0, 4);
        struct soq_attention_args args = {.struct_size = sizeof args, .layer = LAYER, .n_heads = 2, .n_kv_heads = 1};
        struct cpu_step *step = cpu_step(1, N - 1);
        struct cache c;

        open_cache(&c, *v, "2", s, N);
        chunk(&c, 0, 500, &out);
        chunk(&c, 500, N - 500, &out);
        /* Slot 2 gets the same blocks but for the last, which is a copy in the place of the first, whose entries moved. */
        for (uint32_t i = 0; i < c.n_blocks; i++)
            step->edits[step->step.n_edits++] = (struct soq_step_edit){2, 0, i, i > 3 ? c.n_blocks - 1 - i : SOQ_BLOCK_NONE};
        step->edits[step->step.n_edits++] = (struct soq_step_edit){2, 0, 0, c.n_blocks - 1};
        step->edits[step->step.n_edits++] = (struct soq_step_edit){2, 0, c.n_blocks - 1, c.n_blocks - 3};
        step->copies[step->step.n_copies++] = (struct soq_step_copy){0, c.n_blocks - 3, 0, N % 32};
        step->seqs[0].slot = 2;
        step->seqs[0].n_segments = step->step.n_segments = 2;
        step->segments[0] = segment(0, 20);
        step->segments[1] = segment(640, N - 640);
        args.group = c.group;
        args.head_dim_k = args.head_dim_v = 16;
        args.scale = 0.7f;
        args.window = s.window;
        args.sinks = s.sinks;
        args.q = rows_of(&c.q, N - 1, 1);
        args.out = again.view;
        cpu_begin(&c.f, step);
        cr_assert_eq(c.f.ops->attention->attention(c.f.self, &args), 0);
        cpu_end(&c.f);
        cr_assert_eq(memcmp(cpu_at(&again, 0, 0), cpu_at(&out, N - 1, 0), 32 * sizeof(float)), 0);
        close_cache(&c);
        cpu_matrix_done(&out);
        cpu_matrix_done(&again);
        free(step);
    }
}

Test(cpu_attention, sees_nothing)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, true};

    for (const char *const *v = cpu_variants(); *v; v++) {
        struct cpu_matrix out = cpu_matrix(10, 32, 0, 4);
        struct soq_attention_args args = {.struct_size = sizeof args, .layer = LAYER, .n_heads = 2, .n_kv_heads = 1};
        struct cpu_step *step = cpu_step(10, 0);
        struct cache c;

        open_cache(&c, *v, "2", s, 10);
        step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 0, 0, 0};
        step->step.n_segments = step->seqs[0].n_segments = 1;
        step->segments[0] = segment(0, 0);
        args.group = c.group;
        args.head_dim_k = args.head_dim_v = 16;
        args.scale = 1;
        args.sink_logits = c.sinks;
        args.q = c.q.view;
        args.out = out.view;
        cpu_begin(&c.f, step);
        cr_assert_eq(c.f.ops->attention->attention(c.f.self, &args), 0);
        cpu_end(&c.f);
        for (uint32_t r = 0; r < 10; r++)
            for (uint32_t d = 0; d < 32; d++)
                cr_assert_eq(*cpu_at(&out, r, d), 0.0f);
        close_cache(&c);
        cpu_matrix_done(&out);
        free(step);
    }
}

/* ---- Packed blocks among plain ones. The engine packs from the front; the ABI says of each block alone what it is. */

struct mixture {
    struct cache c;
    struct soq__coder coders[2]; /* keys, values */
    struct soq_kv_coder views[2];
    struct soq_kv_plane planes[2]; /* of packed blocks */
    soq_buffer slab;               /* theirs */
    uint64_t block_bytes;
    uint32_t parity; /* of the places that are packed, as far as no step writes to them */
};

enum { NEWEST = 40 /* rows of a step at most */ };

static bool is_packed(const struct mixture *m, uint32_t place)
{
    return place % 2 == m->parity && (place + 1) * m->c.s.block_tokens <= m->c.n_entries - NEWEST;
}

/* The cache gets a group that also has blocks of codes of 8 bits. */
static void add_packed_class(struct mixture *m)
{
    static const struct soq__coder_spec int8 = {"int8", SOQ_FORMAT_AFFINE, 8, 1, 32, 1, 0, SOQ_DTYPE_F16, NULL};
    static const uint32_t layers[] = {0, LAYER};
    const struct soq_attention_ops *ops = m->c.f.ops->attention;
    struct soq_kv_plane plain[2];
    struct soq_kv_group_desc desc = cache_desc(&m->c.s, m->c.n_blocks, plain);
    struct soq_error err = SOQ_ERROR_INIT;

    for (int i = 0; i < 2; i++) {
        soq__coder_init(&m->coders[i], &int8, plain[i].role, desc.block_tokens, plain[i].width);
        m->views[i] = soq__coder_view(&m->coders[i]);
        m->planes[i] = plain[i];
        m->planes[i].format = m->coders[i].format;
        m->block_bytes += m->planes[i].format.tile_bytes * desc.n_layers * plain[i].heads;
    }
    desc.packed = m->planes;
    desc.packed_bytes = m->block_bytes;
    desc.coders = m->views;
    desc.layers = layers;
    ops->group_free(m->c.f.self, m->c.group);
    cr_assert_eq(ops->group_create(m->c.f.self, &desc, &m->c.group, &err), 0, "%s", err.text);
    cr_assert_eq(m->c.f.ops->memory->buffer_alloc(m->c.f.self, m->block_bytes * m->c.n_blocks, &m->slab, &err), 0);
    cr_assert_eq(ops->group_slab(m->c.f.self, m->c.group, 0, 0, m->c.n_blocks, m->c.slab, &err), 0, "%s", err.text);
    cr_assert_eq(ops->group_slab(m->c.f.self, m->c.group, 1, 0, m->c.n_blocks, m->slab, &err), 0, "%s", err.text);
}

/* A tile of a packed block. The test's keys or values become what it stands for. */
static void put_tile(const struct mixture *m, uint32_t side, uint32_t place, uint32_t head)
{
    const struct soq__coder *coder = &m->coders[side];
    const struct cpu_matrix *rows = side ? &m->c.v : &m->c.k;
    uint64_t heads = m->c.s.n_kv_heads, tiles = m->c.s.layers * heads, bytes = coder->format.tile_bytes;
    uint8_t *block = (uint8_t *)(uintptr_t)m->slab + (m->c.n_blocks - 1 - place) * m->block_bytes;
    uint8_t *tile = block + (side ? tiles * m->coders[0].format.tile_bytes : 0) + (LAYER * heads + head) * bytes;
    uint32_t n = coder->tokens * coder->width;
    float x[32 * 64];

    cr_assert_leq(n, 32 * 64);
    for (uint32_t i = 0; i < n; i++)
        x[i] = *cpu_at(rows, place * coder->tokens + i / coder->width, head * coder->width + i % coder->width);
    cr_assert(soq__coder_encode(coder, x, tile));
    soq__coder_decode(coder, tile, x);
    for (uint32_t i = 0; i < n; i++)
        *cpu_at(rows, place * coder->tokens + i / coder->width, head * coder->width + i % coder->width) = x[i];
}

static void pack(const struct mixture *m)
{
    for (uint32_t place = 0; place < m->c.n_blocks; place++)
        for (uint32_t i = 0; i < 2 * m->c.s.n_kv_heads && is_packed(m, place); i++)
            put_tile(m, i % 2, place, i / 2);
}

/* From the last n positions; results go to the same rows of out. */
static void attend_mixture(struct mixture *m, uint32_t n, struct cpu_matrix *out)
{
    uint32_t first = m->c.n_entries - n, last = m->c.n_blocks - 1;
    struct cpu_step *step = cpu_step(n, first);
    struct soq_attention_args args = args_of(&m->c, first, n, out);

    for (uint32_t i = 0; i <= last; i++)
        step->edits[step->step.n_edits++] =
            (struct soq_step_edit){0, 0, i, (last - i) | (is_packed(m, i) ? 1u << SOQ_BLOCK_CLASS_SHIFT : 0)};
    step->segments[0] = segment(0, m->c.n_entries);
    step->step.n_segments = step->seqs[0].n_segments = 1;
    cpu_begin(&m->c.f, step);
    cr_assert_eq(m->c.f.ops->attention->attention(m->c.f.self, &args), 0);
    cpu_end(&m->c.f);
    free(step);
}

static void check_mixture(const char *variant, struct shape s, uint32_t parity)
{
    enum { N = 300 };
    static const uint32_t rows[] = {1, NEWEST}; /* numbers lie where they are, or are loaded */
    struct cpu_matrix out = cpu_matrix(N, s.n_heads * s.dv, 0, 4);
    struct mixture m = {.parity = parity};

    open_cache_with(&m.c, variant, "2", "q8", s, N); /* codes are computed on, not decoded */
    add_packed_class(&m);
    chunk(&m.c, 0, N, &out);
    pack(&m);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        attend_mixture(&m, rows[i], &out);
        compare(&m.c, variant, &out, N - rows[i], rows[i], 4e-3);
    }
    m.c.f.ops->memory->buffer_free(m.c.f.self, m.slab);
    close_cache(&m.c);
    cpu_matrix_done(&out);
}

Test(cpu_attention, packed_blocks_before_and_behind_plain_ones)
{
    static const struct shape shapes[] = {{6, 2, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false},
                                          {6, 2, 64, 64, 2, 16, SOQ_DTYPE_F16, 0, 0, 0, false},
                                          {6, 2, 32, 64, 2, 32, SOQ_DTYPE_F32, 0, 90, 7, false},
                                          {2, 1, 64, 32, 2, 16, SOQ_DTYPE_F32, 0, 0, 0, true}};

    for (const char *const *v = cpu_variants(); *v; v++)
        for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++)
            check_mixture(*v, shapes[i / 2], i % 2);
}
