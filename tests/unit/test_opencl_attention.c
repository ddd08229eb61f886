/* Attention over blocks on an OpenCL device against a naive F64 softmax: masks, shared kv heads, windows, sinks, soft caps,
 * both plane types, odd sizes, slabs in several arenas; and that results depend on nothing but what a row sees. */
#include "device_cache.h"

static bool sees(const struct shape *s, uint32_t q, uint32_t p)
{
    return p <= q && (s->window == 0 || p + s->window > q || p < s->sinks);
}

static void reference(const struct cache *c, uint32_t row, uint32_t head, double *out)
{
    const struct shape *s = &c->s;
    uint32_t kv = head / (s->n_heads / s->n_kv_heads);
    double total = s->sink_logits ? exp((double)c->sink_values[head]) : 0;

    memset(out, 0, s->dv * sizeof *out);
    for (uint32_t p = 0; p <= row; p++) {
        double score = 0, weight;

        if (!sees(s, row, p))
            continue;
        for (uint32_t d = 0; d < s->dk; d++)
            score += (double)*device_at(&c->q, row, head * s->dk + d) * *device_at(&c->k, p, kv * s->dk + d);
        score *= (double)0.7f;
        score = s->softcap > 0 ? s->softcap * tanh(score / s->softcap) : score;
        weight = exp(score);
        total += weight;
        for (uint32_t d = 0; d < s->dv; d++)
            out[d] += weight * *device_at(&c->v, p, kv * s->dv + d);
    }
    for (uint32_t d = 0; d < s->dv; d++)
        out[d] /= total;
}

/* n positions in chunks of `step`; those before the chunk of `attended` are only appended. */
static void check_shape(struct shape s, uint32_t n, uint32_t step, uint32_t attended, uint32_t n_slabs)
{
    double expected[512], tolerance = s.dtype == SOQ_DTYPE_F32 ? 5e-6 : 4e-3;
    uint32_t first_row = attended / step * step;
    struct matrix out;
    struct cache c;

    cache_open(&c, s, n, n_slabs);
    out = device_matrix(&c.d, n, s.n_heads * s.dv, 3, 4);
    for (uint32_t first = 0; first < n; first += step)
        cache_chunk(&c, first, n - first < step ? n - first : step, first < first_row ? NULL : &out);
    device_pull(&c.d, &out);
    for (uint32_t row = first_row; row < n; row += row % 5 + 1)
        for (uint32_t h = 0; h < s.n_heads; h++) {
            reference(&c, row, h, expected);
            for (uint32_t d = 0; d < s.dv; d++)
                cr_assert(fabs(*device_at(&out, row, h * s.dv + d) - expected[d]) < tolerance,
                          "row %u, head %u, %u: %g is not %g", row, h, d, (double)*device_at(&out, row, h * s.dv + d),
                          expected[d]);
        }
    device_matrix_done(&c.d, &out);
    cache_close(&c);
}

Test(opencl_attention, against_f64)
{
    static const struct shape shapes[] = {
        {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false},   {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false},
        {4, 1, 136, 136, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, {2, 2, 20, 12, 3, 16, SOQ_DTYPE_F32, 0, 0, 0, false},
        {2, 1, 7, 9, 2, 8, SOQ_DTYPE_F16, 0, 0, 0, false},      {6, 2, 24, 24, 2, 64, SOQ_DTYPE_F32, 5, 0, 0, false},
        {6, 2, 24, 24, 2, 1, SOQ_DTYPE_F32, 0, 40, 0, false},   {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 40, 4, false},
        {6, 2, 24, 72, 2, 32, SOQ_DTYPE_F32, 2, 1, 0, true},    {40, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, true},
        {6, 2, 24, 24, 2, 256, SOQ_DTYPE_F32, 0, 33, 35, true},
    };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_shape(shapes[i], 70, 13, 55, 1);
}

/* More entries than a split, slabs in several pieces of memory. */
Test(opencl_attention, splits_and_slabs)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false};

    check_shape(s, 1110, 100, 1100, 6);
    check_shape(s, 1111, 370, 1110, 1);
}

/* One by one, in chunks of any size. */
Test(opencl_attention, chunks_give_the_same_bits)
{
    static const uint32_t steps[] = {70, 1, 7, 50};
    static const struct shape shapes[] = {{6, 2, 24, 24, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, true},
                                          {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 40, 4, false}};
    enum { N = 70, WIDTH = 6 * 24 };

    for (size_t k = 0; k < 2; k++) {
        float first[N * WIDTH];

        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            struct matrix out;
            struct cache c;

            cache_open(&c, shapes[k], N, 2);
            out = device_matrix(&c.d, N, WIDTH, 0, 5);
            for (uint32_t at = 0; at < N; at += steps[i])
                cache_chunk(&c, at, N - at < steps[i] ? N - at : steps[i], &out);
            device_pull(&c.d, &out);
            if (i == 0)
                memcpy(first, device_at(&out, 0, 0), sizeof first);
            cr_assert_eq(memcmp(device_at(&out, 0, 0), first, sizeof first), 0, "shape %zu, by %u", k, steps[i]);
            device_matrix_done(&c.d, &out);
            cache_close(&c);
        }
    }
}

/* The same entries in one segment, in two that leave out what nobody sees, over a copied block, edits that overtake each other.
 */
Test(opencl_attention, segments_edits_and_copies)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 50, 4, false};
    enum { N = 700 };
    struct device_step *step = device_step(1, N - 1);
    struct soq_attention_args args;
    struct matrix out, again;
    struct cache c;

    cache_open(&c, s, N, 3);
    out = device_matrix(&c.d, N, 32, 0, 4);
    again = device_matrix(&c.d, 1, 32, 0, 4);
    cache_chunk(&c, 0, 500, NULL);
    cache_chunk(&c, 500, N - 501, NULL);
    cache_chunk(&c, N - 1, 1, &out);
    /* Slot 2 gets the same blocks but for the last, which is a copy in the place of the first, whose entries moved. */
    for (uint32_t i = 0; i < c.n_blocks; i++)
        step->edits[step->step.n_edits++] = (struct soq_step_edit){2, 0, i, i > 3 ? c.n_blocks - 1 - i : SOQ_BLOCK_NONE};
    step->edits[step->step.n_edits++] = (struct soq_step_edit){2, 0, 0, c.n_blocks - 1};
    step->edits[step->step.n_edits++] = (struct soq_step_edit){2, 0, c.n_blocks - 1, c.n_blocks - 3};
    step->copies[step->step.n_copies++] = (struct soq_step_copy){0, c.n_blocks - 3, 0, N % 32};
    step->seqs[0].slot = 2;
    step->seqs[0].n_segments = step->step.n_segments = 2;
    step->segments[0] = cache_segment(0, 20);
    step->segments[1] = cache_segment(640, N - 640);
    args = cache_args(&c);
    args.q = device_rows(&c.q, N - 1, 1);
    args.out = again.view;
    device_begin(&c.d, step);
    cr_assert_eq(c.d.ops->attention->attention(c.d.self, &args), 0);
    device_end(&c.d);
    device_pull(&c.d, &out);
    device_pull(&c.d, &again);
    cr_assert_eq(memcmp(device_at(&again, 0, 0), device_at(&out, N - 1, 0), 32 * sizeof(float)), 0);
    device_matrix_done(&c.d, &out);
    device_matrix_done(&c.d, &again);
    cache_close(&c);
    free(step);
}

Test(opencl_attention, sees_nothing)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, true};
    struct device_step *step = device_step(10, 0);
    struct soq_attention_args args;
    struct matrix out;
    struct cache c;

    cache_open(&c, s, 10, 1);
    out = device_matrix(&c.d, 10, 32, 0, 4);
    step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 0, 0, 0};
    step->step.n_segments = step->seqs[0].n_segments = 1;
    step->segments[0] = cache_segment(0, 0);
    args = cache_args(&c);
    args.q = c.q.view;
    args.out = out.view;
    device_begin(&c.d, step);
    cr_assert_eq(c.d.ops->attention->attention(c.d.self, &args), 0);
    device_end(&c.d);
    device_pull(&c.d, &out);
    for (uint32_t i = 0; i < 320; i++)
        cr_assert_eq(*device_at(&out, i / 32, i % 32), 0.0f);
    device_matrix_done(&c.d, &out);
    cache_close(&c);
    free(step);
}

/* What a kernel cannot reach is refused, and works again when there is room. */
Test(opencl_attention, too_many_pieces_of_memory)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false};
    struct soq_kv_plane planes[2];
    struct soq_kv_group_desc desc;
    struct soq_error err = SOQ_ERROR_INIT;
    soq_kv_group group;
    soq_buffer slabs[9];
    struct device d;

    setenv("SOQ_TEST_ARENA", "1", 1);
    device_open(&d, 1);
    cache_describe(&s, 9, planes, &desc);
    cr_assert_eq(d.ops->attention->group_create(d.self, &desc, &group, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < 9; i++) {
        slabs[i] = device_buffer(&d, desc.block_bytes);
        cr_assert_eq(d.ops->attention->group_slab(d.self, group, 0, i, 1, slabs[i], &err), i < 8 ? 0 : -SOQ_ELIMIT);
    }
    cr_assert(strstr(err.text, "arena"), "%s", err.text);
    cr_assert_eq(d.ops->attention->group_slab(d.self, group, 0, 3, 1, 0, &err), 0);
    cr_assert_eq(d.ops->attention->group_slab(d.self, group, 0, 8, 1, slabs[8], &err), 0, "%s", err.text);
    d.ops->attention->group_free(d.self, group);
    for (uint32_t i = 0; i < 9; i++)
        d.ops->memory->buffer_free(d.self, slabs[i]);
    device_close(&d);
}

/* A block that is not there is an error of the step, not of the device; so is one whose slab was taken back. */
Test(opencl_attention, missing_blocks)
{
    static const struct shape s = {2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false};
    struct device_step *step = device_step(1, 40);
    struct soq_kv_append_args append;
    struct soq_error err = SOQ_ERROR_INIT;
    struct cache c;

    cache_open(&c, s, 64, 2);
    cache_chunk(&c, 0, 40, NULL);
    append = (struct soq_kv_append_args){sizeof append, LAYER, c.group, device_rows(&c.k, 40, 1), device_rows(&c.v, 40, 1)};
    cr_assert_eq(c.d.ops->attention->group_slab(c.d.self, c.group, 0, 0, 1, 0, &err), 0);
    device_begin(&c.d, step);
    cr_assert_eq(c.d.ops->attention->kv_append(c.d.self, &append), -SOQ_EINVAL);
    cr_assert_eq(c.d.ops->end(c.d.self, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "kv_append: slot 0 of group 0 has no block for entry 40"), "%s", err.text);
    step->step.serial++;
    step->step.n_copies = 1;
    step->copies[0] = (struct soq_step_copy){0, 0, 1, 3};
    cr_assert_eq(c.d.ops->begin(c.d.self, &step->step, &err), -SOQ_EINVAL);
    step->step.n_copies = 0;
    step->step.n_edits = 1;
    step->edits[0] = (struct soq_step_edit){0, 0, c.n_blocks, 0};
    cr_assert_eq(c.d.ops->begin(c.d.self, &step->step, &err), -SOQ_EINVAL);
    cache_close(&c);
    free(step);
}
