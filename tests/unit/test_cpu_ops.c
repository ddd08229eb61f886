/* The small ops against F64: odd widths, strides, zero rows, in place; and how failures are reported. */
#include "cpu_support.h"

#include "check/reference.h"

static const uint32_t widths[] = {1, 7, 8, 24, 33, 576};

enum { N_WIDTHS = sizeof widths / sizeof widths[0], ROWS = 5 };

Test(cpu_ops, norm)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (int i = 0; i < 4 * N_WIDTHS; i++) {
            uint32_t width = widths[i / 4], kind = i % 2 ? SOQ_NORM_RMS : SOQ_NORM_LAYER, n = i % 4 < 2 ? 3 : 1;
            struct cpu_matrix x = cpu_matrix(ROWS, n * width, 3, 1), y = cpu_matrix(ROWS, n * width, 1, 2);
            struct soq_norm_args args = {sizeof args, kind, width, 1e-5f, 0, 0, x.view, y.view};
            struct cpu_step *step = cpu_step(ROWS, 0);
            float weight[600], bias[600];
            struct cpu_fixture f;

            cpu_fill(weight, width, 3);
            cpu_fill(bias, width, 4);
            cpu_setup(&f, *v, "2", "q8", "1", ROWS);
            args.weight = cpu_vector(&f, weight, width);
            args.bias = i % 4 == 0 ? cpu_vector(&f, bias, width) : 0;
            cpu_begin(&f, step);
            cr_assert_eq(f.ops->elementwise->norm(f.self, &args), 0);
            cpu_end(&f);
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t c = 0; c < n * width; c++) {
                    double mean = 0, square = 0, expected;

                    for (uint32_t k = 0; k < width; k++)
                        mean += kind == SOQ_NORM_LAYER ? (double)*cpu_at(&x, r, c / width * width + k) / width : 0;
                    for (uint32_t k = 0; k < width; k++)
                        square += pow((double)*cpu_at(&x, r, c / width * width + k) - mean, 2) / width;
                    expected = (*cpu_at(&x, r, c) - mean) / sqrt(square + (double)1e-5f) * weight[c % width];
                    expected += args.bias ? bias[c % width] : 0;
                    cr_assert(fabs(*cpu_at(&y, r, c) - expected) < 2e-6, "width %u: %g is not %g", width,
                              (double)*cpu_at(&y, r, c), expected);
                }
            f.ops->memory->weight_free(f.self, args.weight);
            f.ops->memory->weight_free(f.self, args.bias);
            cpu_teardown(&f);
            cpu_matrix_done(&x);
            cpu_matrix_done(&y);
            free(step);
        }
}

Test(cpu_ops, rope_far_out)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (uint32_t first = 0; first < 200000; first += 100003)
            for (uint32_t kind = SOQ_ROPE_INTERLEAVED; kind <= SOQ_ROPE_HALF; kind++) {
                enum { HEADS = 3, DIM = 20, ROT = 16 };
                struct cpu_matrix freq = cpu_matrix(1, ROT / 2, 0, 1), table = cpu_matrix(ROWS, ROT, 2, 2);
                struct cpu_matrix x = cpu_matrix(ROWS, HEADS * DIM, 1, 3), old = cpu_matrix(ROWS, HEADS * DIM, 1, 3);
                struct soq_rope_table_args make = {sizeof make, 1.5f, freq.view, table.view};
                struct soq_rope_args args = {sizeof args, kind, HEADS, DIM, x.view, table.view};
                struct cpu_step *step = cpu_step(ROWS, first);
                struct cpu_fixture f;

                cpu_setup(&f, *v, "2", "q8", "1", ROWS);
                cpu_begin(&f, step);
                cr_assert_eq(f.ops->elementwise->rope_table(f.self, &make), 0);
                cr_assert_eq(f.ops->elementwise->rope(f.self, &args), 0);
                cpu_end(&f);
                for (uint32_t r = 0; r < ROWS; r++)
                    for (uint32_t h = 0; h < HEADS; h++)
                        for (uint32_t d = 0; d < DIM; d++) {
                            uint32_t pair = kind == SOQ_ROPE_HALF ? d % (ROT / 2) : d / 2;
                            uint32_t a = h * DIM + (kind == SOQ_ROPE_HALF ? pair : 2 * pair);
                            uint32_t b = a + (kind == SOQ_ROPE_HALF ? ROT / 2 : 1);
                            double angle = (double)(first + r) * *cpu_at(&freq, 0, pair % (ROT / 2));
                            double x0 = *cpu_at(&old, r, a), x1 = b < HEADS * DIM ? *cpu_at(&old, r, b) : 0;
                            double expected =
                                h * DIM + d == a ? x0 * cos(angle) - x1 * sin(angle) : x0 * sin(angle) + x1 * cos(angle);

                            expected = d < ROT ? 1.5 * expected : *cpu_at(&old, r, h * DIM + d);
                            cr_assert(fabs(*cpu_at(&x, r, h * DIM + d) - expected) < 1e-6, "kind %u, row %u, head %u, %u", kind,
                                      r, h, d);
                        }
                cpu_teardown(&f);
                cpu_matrix_done(&freq);
                cpu_matrix_done(&table);
                cpu_matrix_done(&x);
                cpu_matrix_done(&old);
                free(step);
            }
}

Test(cpu_ops, activation)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (int i = 0; i < 8 * N_WIDTHS; i++) {
            uint32_t width = widths[i / 8], kind = SOQ_ACT_SILU + (uint32_t)i % 4;
            struct cpu_matrix gate = cpu_matrix(ROWS, width, 3, 1), up = cpu_matrix(ROWS, width, 0, 2),
                              old = cpu_matrix(ROWS, width, 3, 1);
            struct soq_activation_args args = {sizeof args, kind, gate.view, up.view, gate.view};
            struct cpu_step *step = cpu_step(ROWS, 0);
            struct cpu_fixture f;

            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t c = 0; c < width; c++)
                    *cpu_at(&gate, r, c) = *cpu_at(&old, r, c) *= r == 0 ? 200.0f : 10.0f;
            if (i % 8 >= 4)
                args.up.buffer = 0;
            cpu_setup(&f, *v, "2", "q8", "1", ROWS);
            cpu_begin(&f, step);
            cr_assert_eq(f.ops->elementwise->activation(f.self, &args), 0);
            cpu_end(&f);
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t c = 0; c < width; c++) {
                    double x = *cpu_at(&old, r, c), expected = soq__ref_activation(kind, x);

                    expected *= args.up.buffer ? *cpu_at(&up, r, c) : 1;
                    /* e^-2u amplifies the rounding of u. */
                    cr_assert(fabs(*cpu_at(&gate, r, c) - expected) <=
                                  1e-6 * fabs(expected) * (1 + fabs(x * x * x) / 4) + 1e-35,
                              "kind %u, %g: %g is not %g", kind, x, (double)*cpu_at(&gate, r, c), expected);
                }
            cpu_teardown(&f);
            cpu_matrix_done(&gate);
            cpu_matrix_done(&up);
            cpu_matrix_done(&old);
            free(step);
        }
}

Test(cpu_ops, add_scale_gather)
{
    for (const char *const *v = cpu_variants(); *v; v++)
        for (int i = 0; i < N_WIDTHS; i++) {
            uint32_t width = widths[i];
            struct cpu_matrix a = cpu_matrix(ROWS, width, 3, 1), b = cpu_matrix(ROWS, width, 1, 2),
                              old = cpu_matrix(ROWS, width, 0, 2);
            struct cpu_matrix g = cpu_matrix(3, width, 2, 4);
            struct soq_add_args add = {sizeof add, 0, a.view, b.view, b.view};
            struct soq_scale_args plain = {sizeof plain, 2.5f, 0, 0, a.view}, capped = {sizeof capped, 3.0f, 2.0f, 0, b.view};
            struct soq_gather_args gather = {sizeof gather, 0, a.view, g.view};
            struct cpu_step *step = cpu_step(ROWS, 0);
            struct cpu_fixture f;
            double x;

            step->step.n_outputs = 3;
            step->outputs[1] = 2;
            step->outputs[2] = 4;
            cpu_setup(&f, *v, "2", "q8", "1", ROWS);
            cpu_begin(&f, step);
            cr_assert_eq(f.ops->elementwise->add(f.self, &add), 0);
            cr_assert_eq(f.ops->elementwise->scale(f.self, &plain), 0);
            cr_assert_eq(f.ops->elementwise->scale(f.self, &capped), 0);
            cr_assert_eq(f.ops->elementwise->gather(f.self, &gather), 0);
            cpu_end(&f);
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t c = 0; c < width; c++) {
                    float sum = *cpu_at(&a, r, c) / 2.5f + *cpu_at(&old, r, c);

                    x = 2 * tanh(3 * (double)sum / 2);
                    cr_assert(fabs(*cpu_at(&b, r, c) - x) < 1e-6, "%g is not %g", (double)*cpu_at(&b, r, c), x);
                }
            for (uint32_t c = 0; c < width; c++) {
                cr_assert_eq(*cpu_at(&g, 0, c), *cpu_at(&a, 0, c));
                cr_assert_eq(*cpu_at(&g, 1, c), *cpu_at(&a, 2, c));
                cr_assert_eq(*cpu_at(&g, 2, c), *cpu_at(&a, 4, c));
            }
            cpu_teardown(&f);
            cpu_matrix_done(&a);
            cpu_matrix_done(&b);
            cpu_matrix_done(&old);
            cpu_matrix_done(&g);
            free(step);
        }
}

Test(cpu_ops, no_rows)
{
    for (const char *const *v = cpu_variants(); *v; v++) {
        struct cpu_step *step = cpu_step(0, 0);
        struct soq_view none = {0, 0, 0, 8, 8, SOQ_DTYPE_F32};
        struct soq_add_args add = {sizeof add, 0, none, none, none};
        struct soq_scale_args scale = {sizeof scale, 1, 0, 0, none};
        struct cpu_fixture f;

        cpu_setup(&f, *v, "2", "q8", "1", ROWS);
        cpu_begin(&f, step);
        cr_assert_eq(f.ops->elementwise->add(f.self, &add), 0);
        cr_assert_eq(f.ops->elementwise->scale(f.self, &scale), 0);
        cpu_end(&f);
        cpu_teardown(&f);
        free(step);
    }
}

/* The first failure stays, names its op and the trouble, and later ops do nothing. */
Test(cpu_ops, failures_stick)
{
    for (const char *const *v = cpu_variants(); *v; v++) {
        struct cpu_matrix a = cpu_matrix(ROWS, 8, 0, 1), b = cpu_matrix(ROWS, 9, 0, 2), same = cpu_matrix(ROWS, 8, 0, 1);
        struct soq_add_args wrong = {sizeof wrong, 0, a.view, b.view, a.view},
                            right = {sizeof right, 0, a.view, a.view, a.view};
        struct soq_embed_args embed = {.struct_size = sizeof embed, .scale = 1, .y = a.view};
        struct cpu_step *step = cpu_step(ROWS, 0);
        struct soq_error err = SOQ_ERROR_INIT;
        struct cpu_fixture f;

        cpu_setup(&f, *v, "2", "q8", "1", ROWS);
        cpu_begin(&f, step);
        cr_assert_eq(f.ops->elementwise->add(f.self, &wrong), -SOQ_EINVAL);
        cr_assert_eq(f.ops->elementwise->add(f.self, &right), -SOQ_EINVAL);
        cr_assert_eq(f.ops->end(f.self, &err), -SOQ_EINVAL);
        cr_assert(strstr(err.text, "cpu: add: b is 5 x 9 and must be 5 x 8"), "%s", err.text);
        cr_assert_eq(memcmp(a.raw, same.raw, a.n_raw * sizeof(float)), 0);

        cpu_begin(&f, step);
        cr_assert_eq(f.ops->elementwise->add(f.self, &right), 0);
        cpu_end(&f);

        embed.weight = cpu_weight(&f, SOQ_DTYPE_F32, same.raw, 4 * 8 * 3, 3, 8, SOQ_USE_EMBED).weight;
        cpu_begin(&f, step);
        cr_assert_eq(f.ops->elementwise->embed(f.self, &embed), -SOQ_EINVAL);
        cr_assert_eq(f.ops->end(f.self, &err), -SOQ_EINVAL);
        cr_assert(strstr(err.text, "token 3, the vocabulary has 3"), "%s", err.text);
        f.ops->memory->weight_free(f.self, embed.weight);

        right.a.buffer = 0;
        cpu_begin(&f, step);
        cr_assert_eq(f.ops->elementwise->add(f.self, &right), -SOQ_EINVAL);
        cr_assert_eq(f.ops->end(f.self, &err), -SOQ_EINVAL);
        cr_assert(strstr(err.text, "in no buffer"), "%s", err.text);
        cpu_teardown(&f);
        cpu_matrix_done(&a);
        cpu_matrix_done(&b);
        cpu_matrix_done(&same);
        free(step);
    }
}

Test(cpu_ops, steps_that_make_no_sense)
{
    for (const char *const *v = cpu_variants(); *v; v++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct cpu_step *step = cpu_step(ROWS, 0);
        struct cpu_fixture f;

        cpu_setup(&f, *v, "1", "q8", "1", ROWS);
        step->step.n_rows = ROWS + 1;
        cr_assert_eq(f.ops->begin(f.self, &step->step, &err), -SOQ_EINVAL);
        step->step.n_rows = ROWS;
        step->step.flags = 0;
        cr_assert_eq(f.ops->begin(f.self, &step->step, &err), -SOQ_EUNSUPPORTED);
        step->step.flags = SOQ_STEP_LINEAR;
        step->step.off_outputs = step->step.total_bytes;
        step->step.n_outputs = 1;
        cr_assert_eq(f.ops->begin(f.self, &step->step, &err), -SOQ_EINVAL);
        step->step.off_outputs = offsetof(struct cpu_step, outputs);
        step->outputs[0] = ROWS;
        cr_assert_eq(f.ops->begin(f.self, &step->step, &err), -SOQ_EINVAL);
        step->outputs[0] = 0;
        step->seqs[0].slot = 4;
        cr_assert_eq(f.ops->begin(f.self, &step->step, &err), -SOQ_EINVAL);
        step->seqs[0].slot = 0;
        cr_assert_eq(f.ops->end(f.self, &err), -SOQ_EINVAL);
        step->step.n_edits = step->step.n_copies = 1; /* of a group that is another backend's */
        cpu_begin(&f, step);
        cpu_end(&f);
        cpu_teardown(&f);
        free(step);
    }
}

static int cancel_after_three(void *arg)
{
    return ++*(int *)arg > 3;
}

/* All threads leave at the same op; ops before it have run, those behind not. More ops than the list holds are no trouble. */
Test(cpu_ops, cancel_in_mid_step)
{
    for (const char *const *v = cpu_variants(); *v; v++) {
        struct cpu_matrix a = cpu_matrix(ROWS, 8, 0, 1);
        struct cpu_matrix b = cpu_matrix(1, 8, 0, 1);
        struct soq_scale_args twice = {sizeof twice, 2, 0, 0, a.view};
        struct soq_gather_args gather = {sizeof gather, 0, a.view, b.view};
        struct cpu_step *step = cpu_step(ROWS, 0);
        struct soq_error err = SOQ_ERROR_INIT;
        struct cpu_fixture f;
        float before = *cpu_at(&a, 4, 7);
        int asked = 0;

        cpu_setup(&f, *v, "3", "q8", "1", ROWS);
        step->step.n_outputs = 1;
        cpu_begin(&f, step);
        for (int i = 0; i < 10; i++) {
            cr_assert_eq(f.ops->elementwise->scale(f.self, &twice), 0);
            cr_assert_eq(f.ops->elementwise->gather(f.self, &gather), 0);
        }
        f.host.cancel_arg = &asked;
        f.host.cancel_test = cancel_after_three;
        cr_assert_eq(f.ops->end(f.self, &err), -SOQ_ECANCELLED);
        cr_assert(strstr(err.text, "cpu: gather: cancelled"), "%s", err.text);
        cr_assert_eq(*cpu_at(&a, 4, 7), 4 * before);
        f.host.cancel_test = NULL;
        twice.scale = 1;
        cpu_begin(&f, step);
        for (int i = 0; i < 2500; i++) {
            cr_assert_eq(f.ops->elementwise->scale(f.self, &twice), 0);
            cr_assert_eq(f.ops->elementwise->gather(f.self, &gather), 0);
        }
        cpu_end(&f);
        cpu_teardown(&f);
        cpu_matrix_done(&a);
        cpu_matrix_done(&b);
        free(step);
    }
}

/* What an op reads must be there though barriers are left out: rows in order, rows shifted against each other, columns of one
 * matrix. Each sum is checked against the same chain done by hand. */
Test(cpu_ops, chains)
{
    enum { N = 64, COLS = 16 };

    for (const char *const *v = cpu_variants(); *v; v++)
        for (uint32_t shift = 0; shift < 3; shift++) {
            struct cpu_matrix m = cpu_matrix(N + 2, 3 * COLS, 0, 1), copy = cpu_matrix(N + 2, 3 * COLS, 0, 1);
            struct soq_view left = m.view, middle = m.view, right = m.view;
            struct cpu_step *step = cpu_step(N, 0);
            struct cpu_fixture f;

            left.cols = middle.cols = right.cols = COLS;
            left.rows = middle.rows = right.rows = N;
            middle.offset += (shift * middle.row_stride + COLS) * sizeof(float);
            right.offset += 2 * COLS * sizeof(float);
            cpu_setup(&f, *v, "3", "q8", "1", N + 2);
            cpu_begin(&f, step);
            for (int i = 0; i < 50; i++) {
                struct soq_add_args one = {sizeof one, 0, left, middle, right}, two = {sizeof two, 0, right, middle, left};
                struct soq_scale_args half = {sizeof half, 0.5f, 0, 0, left};
                struct soq_add_args three = {sizeof three, 0, middle, left, middle};

                three.a.offset = three.y.offset = m.view.offset + COLS * sizeof(float);
                cr_assert_eq(f.ops->elementwise->add(f.self, &one), 0);
                cr_assert_eq(f.ops->elementwise->add(f.self, &two), 0);
                cr_assert_eq(f.ops->elementwise->scale(f.self, &half), 0);
                cr_assert_eq(f.ops->elementwise->add(f.self, &three), 0);
                for (uint32_t r = 0; r < N; r++)
                    for (uint32_t c = 0; c < COLS; c++)
                        *cpu_at(&copy, r, 2 * COLS + c) = *cpu_at(&copy, r, c) + *cpu_at(&copy, r + shift, COLS + c);
                for (uint32_t r = 0; r < N; r++)
                    for (uint32_t c = 0; c < COLS; c++)
                        *cpu_at(&copy, r, c) = 0.5f * (*cpu_at(&copy, r, 2 * COLS + c) + *cpu_at(&copy, r + shift, COLS + c));
                for (uint32_t r = 0; r < N; r++)
                    for (uint32_t c = 0; c < COLS; c++)
                        *cpu_at(&copy, r, COLS + c) += *cpu_at(&copy, r, c);
            }
            cpu_end(&f);
            cr_assert_eq(memcmp(m.raw, copy.raw, m.n_raw * sizeof(float)), 0, "%s, shifted by %u", *v, shift);
            cpu_teardown(&f);
            cpu_matrix_done(&m);
            cpu_matrix_done(&copy);
            free(step);
        }
}

/* Every allocation of init, a weight and a group fails in turn: a clean error each time, nothing left behind. */
Test(cpu_ops, out_of_memory)
{
    for (const char *const *v = cpu_variants(); *v; v++) {
        const struct override overrides[] = {{"threads", "1"}, {"activations", "q8"}, {"repack", "1"}, {NULL, NULL}};
        struct plugin_values values = {cpu_open(*v), overrides};
        struct soq_config config = plugin_config(&values);
        const struct soq_backend_ops *ops = values.entry->ops;
        struct soq_backend_params params = {sizeof params, 0, ROWS, 4};
        struct soq_kv_plane planes[2] = {
            {sizeof planes[0], SOQ_PLANE_KEY, 1, 8, 1, -1, {sizeof planes[0].format, SOQ_FORMAT_PLAIN, .tile_bytes = 1024}},
            {sizeof planes[0], SOQ_PLANE_VALUE, 1, 8, 1, -1, {sizeof planes[0].format, SOQ_FORMAT_PLAIN, .tile_bytes = 1024}}};
        struct soq_kv_group_desc group = {.struct_size = sizeof group,
                                          .kind = SOQ_GROUP_FULL,
                                          .n_layers = 1,
                                          .block_tokens = 32,
                                          .max_blocks = 4,
                                          .n_planes = 2,
                                          .plane_stride = sizeof planes[0],
                                          .planes = planes,
                                          .block_bytes = 2048};
        static const float data[64 * 8];
        struct soq_weight_desc desc = {.struct_size = sizeof desc,
                                       .name = "w",
                                       .data = data,
                                       .bytes = sizeof data,
                                       .rows = 8,
                                       .cols = 64,
                                       .uses = SOQ_USE_MATMUL,
                                       .may_repack = 1};
        struct soq__host host;
        int64_t live = soq__alloc_live();
        int rc = -1;

        soq__host_init(&host, NULL);
        for (uint64_t n = 1; rc; n++) {
            void *self = soq__alloc_aligned(64, ops->instance_size);
            struct soq_weight_info info = {.struct_size = sizeof info};
            struct soq_error err = SOQ_ERROR_INIT;
            soq_kv_group handle = 0;

            cr_assert(n < 100);
            memset(self, 0, ops->instance_size);
            soq__alloc_fail_at(n, false);
            rc = ops->init(self, &host.services, &config, &params, &err);
            if (!rc) {
                rc = ops->memory->weight_prepare(self, &desc, &info, &err);
                rc = rc ? rc : ops->attention->group_create(self, &group, &handle, &err);
                ops->memory->weight_free(self, info.weight);
                ops->attention->group_free(self, handle);
                ops->shutdown(self);
            }
            soq__alloc_fail_at(0, false);
            cr_assert(rc == 0 || (rc == -SOQ_ENOMEM && strstr(err.text, "out of memory")), "%d %s", rc, err.text);
            soq__free(self);
            cr_assert_eq(soq__alloc_live(), live, "allocation %llu leaks", (unsigned long long)n);
        }
    }
}

Test(cpu_ops, supports_says_why)
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
        {.op = 99},
    };

    for (const char *const *v = cpu_variants(); *v; v++) {
        struct soq_op_desc yes = {.op = SOQ_OP_ATTENTION,
                                  .key_format = SOQ_FORMAT_PLAIN,
                                  .value_format = SOQ_FORMAT_PLAIN,
                                  .key_dtype = SOQ_DTYPE_F16,
                                  .value_dtype = SOQ_DTYPE_F32,
                                  .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .flags = SOQ_OPDESC_SOFTCAP | SOQ_OPDESC_WINDOW};
        struct soq_error err = SOQ_ERROR_INIT;
        struct cpu_fixture f;

        cpu_setup(&f, *v, "1", "q8", "1", ROWS);
        cr_assert_eq(f.ops->supports(f.self, &yes, &err), 0, "%s", err.text);
        for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
            cr_assert_eq(f.ops->supports(f.self, &no[i], &err), -SOQ_EUNSUPPORTED);
            cr_assert(strstr(err.text, "supported"), "%s", err.text);
        }
        cpu_teardown(&f);
    }
}
