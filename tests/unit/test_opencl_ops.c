/* The small ops on an OpenCL device against F64: odd widths, strides, no rows, in place; and how steps fail. */
#include "device_support.h"

static const uint32_t widths[] = {1, 7, 24, 33, 576};

enum { N_WIDTHS = sizeof widths / sizeof widths[0], ROWS = 3 };

static void check_norm(struct device *d, uint32_t width, uint32_t kind, uint32_t runs, bool with_bias, bool in_place)
{
    struct matrix x = device_matrix(d, ROWS, runs * width, 3, 1), y = device_matrix(d, ROWS, runs * width, 1, 2);
    struct soq_norm_args args = {sizeof args, kind, width, 1e-5f, 0, 0, x.view, in_place ? x.view : y.view};
    struct matrix *out = in_place ? &x : &y, old = device_matrix(d, ROWS, runs * width, 3, 1);
    struct device_step *step = device_step(ROWS, 0);
    float weight[600], bias[600];

    device_fill(weight, width, 3);
    device_fill(bias, width, 4);
    args.weight = device_vector(d, weight, width);
    args.bias = with_bias ? device_vector(d, bias, width) : 0;
    device_begin(d, step);
    cr_assert_eq(d->ops->elementwise->norm(d->self, &args), 0);
    device_end(d);
    device_pull(d, out);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < runs * width; c++) {
            double mean = 0, square = 0, expected;

            for (uint32_t k = 0; k < width; k++)
                mean += kind == SOQ_NORM_LAYER ? (double)*device_at(&old, r, c / width * width + k) / width : 0;
            for (uint32_t k = 0; k < width; k++)
                square += pow((double)*device_at(&old, r, c / width * width + k) - mean, 2) / width;
            expected = (*device_at(&old, r, c) - mean) / sqrt(square + (double)1e-5f) * weight[c % width];
            expected += with_bias ? bias[c % width] : 0;
            cr_assert(fabs(*device_at(out, r, c) - expected) < 3e-6, "width %u: %g is not %g", width,
                      (double)*device_at(out, r, c), expected);
        }
    d->ops->memory->weight_free(d->self, args.weight);
    d->ops->memory->weight_free(d->self, args.bias);
    device_matrix_done(d, &x);
    device_matrix_done(d, &y);
    device_matrix_done(d, &old);
    free(step);
}

Test(opencl_ops, norm)
{
    struct device d;

    device_open(&d, ROWS);
    for (int i = 0; i < 4 * N_WIDTHS; i++)
        check_norm(&d, widths[i / 4], i % 2 ? SOQ_NORM_RMS : SOQ_NORM_LAYER, i % 4 < 2 ? 3 : 1, i % 4 == 0, i % 4 == 1);
    device_close(&d);
}

static void check_rope(struct device *d, uint32_t kind, uint32_t first)
{
    enum { HEADS = 3, DIM = 20, ROT = 16 };
    struct matrix freq = device_matrix(d, 1, ROT / 2, 0, 1), table = device_matrix(d, ROWS, ROT, 2, 2);
    struct matrix x = device_matrix(d, ROWS, HEADS * DIM, 1, 3), old = device_matrix(d, ROWS, HEADS * DIM, 1, 3);
    struct soq_rope_table_args make = {sizeof make, 1.5f, freq.view, table.view};
    struct soq_rope_args args = {sizeof args, kind, HEADS, DIM, x.view, table.view};
    struct device_step *step = device_step(ROWS, first);

    device_begin(d, step);
    cr_assert_eq(d->ops->elementwise->rope_table(d->self, &make), 0);
    cr_assert_eq(d->ops->elementwise->rope(d->self, &args), 0);
    device_end(d);
    device_pull(d, &x);
    device_pull(d, &table);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < HEADS * DIM; i++) {
            uint32_t dim = i % DIM, head = i - dim;
            uint32_t pair = kind == SOQ_ROPE_HALF ? dim % (ROT / 2) : dim / 2;
            uint32_t a = head + (kind == SOQ_ROPE_HALF ? pair : 2 * pair), b = a + (kind == SOQ_ROPE_HALF ? ROT / 2 : 1);
            double expected = *device_at(&old, r, i), angle = 0, x0, x1;

            if (dim < ROT) {
                angle = (double)(first + r) * *device_at(&freq, 0, pair);
                x0 = *device_at(&old, r, a);
                x1 = *device_at(&old, r, b);
                expected = 1.5 * (i == a ? x0 * cos(angle) - x1 * sin(angle) : x0 * sin(angle) + x1 * cos(angle));
            }
            cr_assert(fabs(*device_at(&x, r, i) - expected) < 1e-6, "kind %u, position %u, %u: %g is not %g", kind, first + r,
                      i, (double)*device_at(&x, r, i), expected);
        }
    device_matrix_done(d, &freq);
    device_matrix_done(d, &table);
    device_matrix_done(d, &x);
    device_matrix_done(d, &old);
    free(step);
}

Test(opencl_ops, rope_far_out)
{
    static const uint32_t positions[] = {0, 511, 131071, 1000003, 16000001};
    struct device d;

    device_open(&d, ROWS);
    for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        check_rope(&d, SOQ_ROPE_INTERLEAVED, positions[i]);
        check_rope(&d, SOQ_ROPE_HALF, positions[i]);
    }
    device_close(&d);
}

static double activate(uint32_t kind, double x)
{
    switch (kind) {
    case SOQ_ACT_SILU:
        return x / (1 + exp(-x));
    case SOQ_ACT_GELU_TANH:
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case SOQ_ACT_GELU_ERF:
        return x * 0.5 * erfc(-x * M_SQRT1_2);
    default:
        return x > 0 ? x : 0;
    }
}

static void check_activation(struct device *d, uint32_t width, uint32_t kind, bool with_up)
{
    struct matrix gate = device_matrix(d, ROWS, width, 3, 1), up = device_matrix(d, ROWS, width, 0, 2);
    struct soq_activation_args args = {sizeof args, kind, gate.view, up.view, gate.view};
    struct device_step *step = device_step(ROWS, 0);
    float *old = malloc(ROWS * width * sizeof *old);

    for (uint32_t i = 0; i < ROWS * width; i++)
        old[i] = *device_at(&gate, i / width, i % width) *= i < width ? 200.0f : 10.0f;
    device_push(d, &gate);
    if (!with_up)
        args.up = (struct soq_view){0};
    device_begin(d, step);
    cr_assert_eq(d->ops->elementwise->activation(d->self, &args), 0);
    device_end(d);
    device_pull(d, &gate);
    for (uint32_t i = 0; i < ROWS * width; i++) {
        double x = old[i], expected = activate(kind, x) * (with_up ? *device_at(&up, i / width, i % width) : 1);
        float got = *device_at(&gate, i / width, i % width);

        /* exp multiplies the rounding of its argument. */
        cr_assert(fabs(got - expected) <= 2e-6 * fabs(expected) * (1 + fabs(x * x * x) / 4) + 1e-30,
                  "kind %u, %g: %g is not %g", kind, x, (double)got, expected);
    }
    device_matrix_done(d, &gate);
    device_matrix_done(d, &up);
    free(step);
    free(old);
}

Test(opencl_ops, activation)
{
    struct device d;

    device_open(&d, ROWS);
    for (int i = 0; i < 8 * N_WIDTHS; i++)
        check_activation(&d, widths[i / 8], SOQ_ACT_SILU + (uint32_t)i % 4, i % 8 < 4);
    device_close(&d);
}

static void check_simple(struct device *d, uint32_t width)
{
    struct matrix a = device_matrix(d, ROWS, width, 3, 1), b = device_matrix(d, ROWS, width, 1, 2),
                  old = device_matrix(d, ROWS, width, 0, 2), g = device_matrix(d, 2, width, 2, 4);
    struct soq_add_args add = {sizeof add, 0, a.view, b.view, b.view};
    struct soq_scale_args plain = {sizeof plain, 2.5f, 0, 0, a.view}, capped = {sizeof capped, 3.0f, 2.0f, 0, b.view};
    struct soq_gather_args gather = {sizeof gather, 0, a.view, g.view};
    struct device_step *step = device_step(ROWS, 0);

    step->step.n_outputs = 2;
    step->outputs[1] = 2;
    device_begin(d, step);
    cr_assert_eq(d->ops->elementwise->add(d->self, &add), 0);
    cr_assert_eq(d->ops->elementwise->scale(d->self, &plain), 0);
    cr_assert_eq(d->ops->elementwise->scale(d->self, &capped), 0);
    cr_assert_eq(d->ops->elementwise->gather(d->self, &gather), 0);
    device_end(d);
    device_pull(d, &a);
    device_pull(d, &b);
    device_pull(d, &g);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < width; c++) {
            float sum = *device_at(&a, r, c) / 2.5f + *device_at(&old, r, c);
            double expected = 2 * tanh(3 * (double)sum / 2);

            cr_assert(fabs(*device_at(&b, r, c) - expected) < 2e-6, "%g is not %g", (double)*device_at(&b, r, c), expected);
            cr_assert(r == 1 || *device_at(&g, r / 2, c) == *device_at(&a, r, c));
        }
    device_matrix_done(d, &a);
    device_matrix_done(d, &b);
    device_matrix_done(d, &old);
    device_matrix_done(d, &g);
    free(step);
}

Test(opencl_ops, add_scale_gather)
{
    struct device d;

    device_open(&d, ROWS);
    for (int i = 0; i < N_WIDTHS; i++)
        check_simple(&d, widths[i]);
    device_close(&d);
}

Test(opencl_ops, no_rows)
{
    struct device_step *step = device_step(0, 0);
    struct soq_view none = {0, 0, 0, 8, 8, SOQ_DTYPE_F32};
    struct soq_add_args add = {sizeof add, 0, none, none, none};
    struct soq_scale_args scale = {sizeof scale, 1, 0, 0, none};
    struct device d;

    device_open(&d, ROWS);
    device_begin(&d, step);
    cr_assert_eq(d.ops->elementwise->add(d.self, &add), 0);
    cr_assert_eq(d.ops->elementwise->scale(d.self, &scale), 0);
    device_end(&d);
    device_close(&d);
    free(step);
}

/* The first failure stays, names its op and the trouble, and later ops do nothing. */
Test(opencl_ops, failures_stick)
{
    struct matrix a, b;
    struct soq_error err = SOQ_ERROR_INIT;
    struct device_step *step = device_step(ROWS, 0);
    struct device d;
    float before;

    device_open(&d, ROWS);
    a = device_matrix(&d, ROWS, 8, 0, 1);
    b = device_matrix(&d, ROWS, 9, 0, 2);
    before = *device_at(&a, 2, 7);
    device_begin(&d, step);
    cr_assert_eq(
        d.ops->elementwise->add(d.self, &(struct soq_add_args){sizeof(struct soq_add_args), 0, a.view, b.view, a.view}),
        -SOQ_EINVAL);
    cr_assert_eq(
        d.ops->elementwise->add(d.self, &(struct soq_add_args){sizeof(struct soq_add_args), 0, a.view, a.view, a.view}),
        -SOQ_EINVAL);
    cr_assert_eq(d.ops->end(d.self, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "opencl: add: b is 3 x 9 and must be 3 x 8"), "%s", err.text);
    device_pull(&d, &a);
    cr_assert_eq(*device_at(&a, 2, 7), before);

    device_begin(&d, step);
    cr_assert_eq(
        d.ops->elementwise->add(d.self, &(struct soq_add_args){sizeof(struct soq_add_args), 0, a.view, a.view, a.view}), 0);
    device_end(&d);
    device_pull(&d, &a);
    cr_assert_eq(*device_at(&a, 2, 7), 2 * before);
    cr_assert_eq(d.ops->end(d.self, &err), -SOQ_EINVAL);
    device_matrix_done(&d, &a);
    device_matrix_done(&d, &b);
    device_close(&d);
    free(step);
}

Test(opencl_ops, steps_that_make_no_sense)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct device_step *step = device_step(ROWS, 0);
    struct device d;

    device_open(&d, ROWS);
    step->step.n_rows = ROWS + 1;
    cr_assert_eq(d.ops->begin(d.self, &step->step, &err), -SOQ_EINVAL);
    step->step.n_rows = ROWS;
    step->step.flags = 0;
    cr_assert_eq(d.ops->begin(d.self, &step->step, &err), -SOQ_EUNSUPPORTED);
    step->step.flags = SOQ_STEP_LINEAR;
    step->step.off_outputs = step->step.total_bytes;
    step->step.n_outputs = 1;
    cr_assert_eq(d.ops->begin(d.self, &step->step, &err), -SOQ_EINVAL);
    step->step.off_outputs = offsetof(struct device_step, outputs);
    step->outputs[0] = ROWS;
    cr_assert_eq(d.ops->begin(d.self, &step->step, &err), -SOQ_EINVAL);
    step->outputs[0] = 0;
    step->seqs[0].slot = 4;
    cr_assert_eq(d.ops->begin(d.self, &step->step, &err), -SOQ_EINVAL);
    step->seqs[0].slot = 0;
    cr_assert_eq(d.ops->end(d.self, &err), -SOQ_EINVAL);
    step->step.n_edits = step->step.n_copies = 1; /* of a group that is another backend's */
    device_begin(&d, step);
    device_end(&d);
    device_close(&d);
    free(step);
}

static int cancel_after_three(void *arg)
{
    return ++*(int *)arg > 3;
}

/* A step that nobody wants any more ends early, and the next one is whole. */
Test(opencl_ops, cancel_in_mid_step)
{
    struct device_step *step = device_step(ROWS, 0);
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_scale_args twice;
    struct matrix a;
    struct device d;
    int asked = 0, rc = 0, n = 0;

    device_open(&d, ROWS);
    a = device_matrix(&d, ROWS, 8, 0, 1);
    twice = (struct soq_scale_args){sizeof twice, 1, 0, 0, a.view};
    d.host.cancel_arg = &asked;
    d.host.cancel_test = cancel_after_three;
    device_begin(&d, step);
    for (; n < 1000 && !rc; n++)
        rc = d.ops->elementwise->scale(d.self, &twice);
    cr_assert_eq(rc, -SOQ_ECANCELLED);
    cr_assert_lt(n, 200);
    cr_assert_eq(d.ops->end(d.self, &err), -SOQ_ECANCELLED);
    cr_assert(strstr(err.text, "scale"), "%s", err.text);
    d.host.cancel_test = NULL;
    device_begin(&d, step);
    for (n = 0; n < 1000; n++)
        cr_assert_eq(d.ops->elementwise->scale(d.self, &twice), 0);
    device_end(&d);
    device_matrix_done(&d, &a);
    device_close(&d);
    free(step);
}

Test(opencl_ops, supports_says_why)
{
    static const struct soq_op_desc no[] = {
        {.op = SOQ_OP_MATMUL, .weight_dtype = 9},
        {.op = SOQ_OP_NORM, .kind = 7},
        {.op = SOQ_OP_ATTENTION,
         .key_format = SOQ_FORMAT_AFFINE,
         .value_format = SOQ_FORMAT_PLAIN,
         .n_heads = 1,
         .n_kv_heads = 1},
        {.op = SOQ_OP_ATTENTION,
         .key_format = SOQ_FORMAT_PLAIN,
         .value_format = SOQ_FORMAT_PLAIN,
         .n_heads = 1,
         .n_kv_heads = 1,
         .flags = SOQ_OPDESC_TREE},
        {.op = SOQ_OP_ATTENTION,
         .key_format = SOQ_FORMAT_PLAIN,
         .value_format = SOQ_FORMAT_PLAIN,
         .head_dim_k = 1 << 28,
         .n_heads = 1,
         .n_kv_heads = 1},
        {.op = 99},
    };
    struct soq_op_desc yes = {.op = SOQ_OP_ATTENTION,
                              .key_format = SOQ_FORMAT_PLAIN,
                              .value_format = SOQ_FORMAT_PLAIN,
                              .key_dtype = SOQ_DTYPE_F16,
                              .value_dtype = SOQ_DTYPE_F32,
                              .head_dim_k = 256,
                              .head_dim_v = 256,
                              .n_heads = 4,
                              .n_kv_heads = 2,
                              .flags = SOQ_OPDESC_SOFTCAP | SOQ_OPDESC_WINDOW};
    struct soq_error err = SOQ_ERROR_INIT;
    struct device d;

    device_open(&d, ROWS);
    cr_assert_eq(d.ops->supports(d.self, &yes, &err), 0, "%s", err.text);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        cr_assert_eq(d.ops->supports(d.self, &no[i], &err), -SOQ_EUNSUPPORTED);
        cr_assert(strstr(err.text, "supported"), "%s", err.text);
    }
    device_close(&d);
}
