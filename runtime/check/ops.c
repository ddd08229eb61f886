/* Checks of the small ops against f64: odd widths, strides, in place, no rows. */
#include "check/reference.h"
#include "check/rig.h"
#include "check/table.h"

static const uint32_t widths[] = {1, 7, 8, 24, 33, 576};

enum { ROWS = 5, WIDTH_MAX = 576, RUNS = 3 };

static void begin(struct soq__rig *rig, uint32_t n, uint32_t first)
{
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, first, n);
    soq__rig_begin(rig, &s);
}

static double at(const struct soq__matrix *m, uint32_t row, uint32_t col)
{
    return (double)*soq__matrix_at(m, row, col);
}

/* ---- norm */

struct norm {
    uint32_t kind, width, runs;
    bool bias, in_place;
};

static void try_norm(struct soq__rig *rig, const struct norm *t)
{
    uint32_t cols = t->width * t->runs;
    struct soq__matrix x = soq__rig_matrix(rig, ROWS, cols, 3, 1), y = soq__rig_matrix(rig, ROWS, cols, 1, 2);
    struct soq__matrix *out = t->in_place ? &x : &y, old = soq__rig_matrix(rig, ROWS, cols, 3, 1);
    float weight[WIDTH_MAX], bias[WIDTH_MAX];
    double want[WIDTH_MAX];
    struct soq_norm_args args = {.kind = t->kind, .width = t->width, .eps = 1e-5f, .x = x.view, .y = out->view};

    soq__kit_at(rig->kit, "kind %u, width %u of %u%s%s", t->kind, t->width, cols, t->bias ? ", bias" : "",
                t->in_place ? ", in place" : "");
    soq__kit_fill(weight, t->width, 3);
    soq__kit_fill(bias, t->width, 4);
    args.weight = soq__rig_vector(rig, weight, t->width);
    args.bias = t->bias ? soq__rig_vector(rig, bias, t->width) : 0;
    begin(rig, ROWS, 0);
    SOQ__SUBMIT(rig, rig->ops->elementwise->norm, args);
    soq__rig_end(rig);
    soq__rig_fetch(rig, out);
    for (uint32_t i = 0; i < ROWS * t->runs; i++) {
        uint32_t r = i / t->runs, c = i % t->runs * t->width;

        soq__ref_norm(t->kind, soq__matrix_at(&old, r, c), t->width, (double)1e-5f, weight, t->bias ? bias : NULL, want);
        for (uint32_t k = 0; k < t->width; k++)
            soq__rig_close(rig, SOQ_OP_NORM, SOQ_DTYPE_F32, at(out, r, c + k), want[k], 1 + fabs(want[k]), r, c + k);
    }
}

static void check_norm(struct soq__kit *kit)
{
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    for (uint32_t kind = SOQ_NORM_RMS; kind <= SOQ_NORM_LAYER; kind++) {
        if (!soq__rig_supports(&rig, (struct soq_op_desc){.op = SOQ_OP_NORM, .kind = kind}))
            continue;
        any = true;
        for (size_t i = 0; i < SOQ__COUNT(widths); i++) {
            /* The layer norm of one number is its bias, whatever rounding does to 0 / 0. */
            if (kind == SOQ_NORM_RMS || widths[i] > 1)
                for (uint32_t k = 0; k < 4; k++)
                    try_norm(&rig, &(struct norm){kind, widths[i], k % 2 ? RUNS : 1, k >= 2, k == 1 || k == 2});
        }
    }
    if (!any)
        soq__kit_skip(kit, "does not claim it");
}

/* ---- rope */

enum { HEADS = 3, DIM = 20, ROT = 16 };

static void try_rope(struct soq__rig *rig, uint32_t kind, uint32_t first)
{
    struct soq__matrix freq = soq__rig_matrix(rig, 1, ROT / 2, 0, 1), table = soq__rig_matrix(rig, ROWS, ROT, 2, 2);
    struct soq__matrix x = soq__rig_matrix(rig, ROWS, HEADS * DIM, 1, 3), old = soq__rig_matrix(rig, ROWS, HEADS * DIM, 1, 3);
    struct soq_rope_table_args make = {.mscale = 1.5f, .inv_freq = freq.view, .table = table.view};
    struct soq_rope_args args = {.kind = kind, .n_heads = HEADS, .head_dim = DIM, .x = x.view, .table = table.view};

    soq__kit_at(rig->kit, "kind %u, position %u", kind, first);
    begin(rig, ROWS, first);
    SOQ__SUBMIT(rig, rig->ops->elementwise->rope_table, make);
    SOQ__SUBMIT(rig, rig->ops->elementwise->rope, args);
    soq__rig_end(rig);
    soq__rig_fetch(rig, &table);
    soq__rig_fetch(rig, &x);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < ROT; i++) {
            double angle = (double)(first + r) * at(&freq, 0, i / 2), want = 1.5 * (i % 2 ? sin(angle) : cos(angle));

            soq__rig_close(rig, SOQ_OP_ROPE_TABLE, SOQ_DTYPE_F32, at(&table, r, i), want, 1.5, r, i);
        }
        for (uint32_t h = 0; h < HEADS; h++) {
            double head[DIM];

            for (uint32_t d = 0; d < DIM; d++)
                head[d] = at(&old, r, h * DIM + d);
            soq__ref_rope(kind, head, ROT, soq__matrix_at(&freq, 0, 0), first + r, 1.5);
            for (uint32_t d = 0; d < DIM; d++)
                soq__rig_close(rig, SOQ_OP_ROPE, SOQ_DTYPE_F32, at(&x, r, h * DIM + d), head[d], d < ROT ? 2 : 0, r,
                               h * DIM + d);
        }
    }
}

static void check_rope(struct soq__kit *kit)
{
    struct soq_op_desc desc = {.op = SOQ_OP_ROPE, .head_dim_k = DIM, .n_heads = HEADS, .n_kv_heads = HEADS};
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    soq__rig_need(&rig, (struct soq_op_desc){.op = SOQ_OP_ROPE_TABLE});
    for (desc.kind = SOQ_ROPE_INTERLEAVED; desc.kind <= SOQ_ROPE_HALF; desc.kind++) {
        if (!soq__rig_supports(&rig, desc))
            continue;
        any = true;
        for (uint32_t first = 0; first < 300000; first += 100003)
            try_rope(&rig, desc.kind, first);
    }
    if (!any)
        soq__kit_skip(kit, "does not claim it");
}

/* ---- activation */

static void try_activation(struct soq__rig *rig, uint32_t kind, uint32_t width, bool has_up, bool in_place)
{
    struct soq__matrix gate = soq__rig_matrix(rig, ROWS, width, 3, 1), up = soq__rig_matrix(rig, ROWS, width, 0, 2);
    struct soq__matrix y = soq__rig_matrix(rig, ROWS, width, 2, 3), *out = in_place ? &gate : &y, old;
    struct soq_activation_args args = {.kind = kind, .gate = gate.view, .up = up.view, .y = out->view};

    soq__kit_at(rig->kit, "kind %u, width %u%s%s", kind, width, has_up ? "" : ", no up", in_place ? ", in place" : "");
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t c = 0; c < width; c++)
            *soq__matrix_at(&gate, r, c) *= r == 0 ? 200.0f : 10.0f;
    soq__rig_send(rig, &gate);
    old = soq__rig_matrix(rig, ROWS, width, 3, 1);
    memcpy(old.raw, gate.raw, old.n_raw * sizeof *old.raw);
    if (!has_up)
        args.up = (struct soq_view){.buffer = 0};
    begin(rig, ROWS, 0);
    SOQ__SUBMIT(rig, rig->ops->elementwise->activation, args);
    soq__rig_end(rig);
    soq__rig_fetch(rig, out);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t c = 0; c < width; c++) {
            double x = at(&old, r, c), want = soq__ref_activation(kind, x) * (has_up ? at(&up, r, c) : 1);

            /* e^-2u amplifies the rounding of u; below 1e-30 nobody reads. */
            soq__rig_close(rig, SOQ_OP_ACTIVATION, SOQ_DTYPE_F32, at(out, r, c), want,
                           fabs(want) * (1 + fabs(x * x * x) / 4) + 1e-30, r, c);
        }
    }
}

static void check_activation(struct soq__kit *kit)
{
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    for (uint32_t kind = SOQ_ACT_SILU; kind <= SOQ_ACT_RELU; kind++) {
        if (!soq__rig_supports(&rig, (struct soq_op_desc){.op = SOQ_OP_ACTIVATION, .kind = kind}))
            continue;
        any = true;
        for (size_t i = 0; i < SOQ__COUNT(widths); i++)
            for (uint32_t k = 0; k < 4; k++)
                try_activation(&rig, kind, widths[i], k % 2, k / 2);
    }
    if (!any)
        soq__kit_skip(kit, "does not claim it");
}

/* ---- add, scale, gather */

static void check_add(struct soq__kit *kit)
{
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    soq__rig_need(&rig, (struct soq_op_desc){.op = SOQ_OP_ADD});
    for (size_t i = 0; i < 3 * SOQ__COUNT(widths); i++) {
        uint32_t width = widths[i / 3];
        struct soq__matrix a = soq__rig_matrix(&rig, ROWS, width, 3, 1), b = soq__rig_matrix(&rig, ROWS, width, 1, 2);
        struct soq__matrix y = soq__rig_matrix(&rig, ROWS, width, 0, 3), *outs[] = {&y, &a, &b}, *out = outs[i % 3];
        struct soq__matrix old[2] = {soq__rig_matrix(&rig, ROWS, width, 3, 1), soq__rig_matrix(&rig, ROWS, width, 1, 2)};
        struct soq_add_args args = {.a = a.view, .b = b.view, .y = out->view};

        soq__kit_at(kit, "width %u, y is %s", width, i % 3 == 0 ? "neither" : i % 3 == 1 ? "a" : "b");
        begin(&rig, ROWS, 0);
        SOQ__SUBMIT(&rig, rig.ops->elementwise->add, args);
        soq__rig_end(&rig);
        soq__rig_fetch(&rig, out);
        for (uint32_t r = 0; r < ROWS; r++) {
            for (uint32_t c = 0; c < width; c++) {
                double want = at(&old[0], r, c) + at(&old[1], r, c);

                soq__rig_close(&rig, SOQ_OP_ADD, SOQ_DTYPE_F32, at(out, r, c), want, fabs(want), r, c);
            }
        }
    }
}

static void check_scale(struct soq__kit *kit)
{
    static const float caps[] = {0, 2, 30};
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    soq__rig_need(&rig, (struct soq_op_desc){.op = SOQ_OP_SCALE});
    for (size_t i = 0; i < SOQ__COUNT(caps) * SOQ__COUNT(widths); i++) {
        uint32_t width = widths[i / SOQ__COUNT(caps)];
        double cap = (double)caps[i % SOQ__COUNT(caps)];
        struct soq__matrix x = soq__rig_matrix(&rig, ROWS, width, 3, 1), old = soq__rig_matrix(&rig, ROWS, width, 3, 1);
        struct soq_scale_args args = {.scale = 2.5f, .cap = caps[i % SOQ__COUNT(caps)], .x = x.view};

        soq__kit_at(kit, "width %u, cap %g", width, cap);
        begin(&rig, ROWS, 0);
        SOQ__SUBMIT(&rig, rig.ops->elementwise->scale, args);
        soq__rig_end(&rig);
        soq__rig_fetch(&rig, &x);
        for (uint32_t r = 0; r < ROWS; r++) {
            for (uint32_t c = 0; c < width; c++) {
                double want = 2.5 * at(&old, r, c);

                want = cap > 0 ? cap * tanh(want / cap) : want;
                soq__rig_close(&rig, SOQ_OP_SCALE, SOQ_DTYPE_F32, at(&x, r, c), want, fabs(want) + 1e-3, r, c);
            }
        }
    }
}

static void check_gather(struct soq__kit *kit)
{
    static const uint32_t outputs[] = {0, 2, 4};
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    soq__rig_need(&rig, (struct soq_op_desc){.op = SOQ_OP_GATHER});
    for (size_t i = 0; i < 4 * SOQ__COUNT(widths); i++) {
        uint32_t width = widths[i / 4], n = (uint32_t)(i % 4);
        struct soq__matrix x = soq__rig_matrix(&rig, ROWS, width, 1, 1), y = soq__rig_matrix(&rig, n, width, 2, 2);
        struct soq_gather_args args = {.x = x.view, .y = y.view};
        struct soq__rig_step s;

        soq__kit_at(kit, "width %u, %u outputs", width, n);
        soq__rig_step_init(&s);
        soq__rig_step_add(&s, 0, 0, ROWS);
        s.step.n_outputs = n;
        memcpy(s.outputs, outputs, sizeof outputs);
        soq__rig_begin(&rig, &s);
        SOQ__SUBMIT(&rig, rig.ops->elementwise->gather, args);
        soq__rig_end(&rig);
        soq__rig_fetch(&rig, &y);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t c = 0; c < width; c++)
                soq__rig_close(&rig, SOQ_OP_GATHER, SOQ_DTYPE_F32, at(&y, r, c), at(&x, outputs[r], c), 1, r, c);
    }
}

/* ---- No rows */

static void check_no_rows(struct soq__kit *kit)
{
    struct soq_view none = {.cols = 8, .row_stride = 8, .dtype = SOQ_DTYPE_F32};
    struct soq_add_args add = {.a = none, .b = none, .y = none};
    struct soq_scale_args scale = {.scale = 2, .x = none};
    struct soq_activation_args act = {.kind = SOQ_ACT_SILU, .gate = none, .y = none};
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    begin(&rig, 0, 0);
    if (soq__rig_supports(&rig, (struct soq_op_desc){.op = SOQ_OP_ADD}))
        SOQ__SUBMIT(&rig, rig.ops->elementwise->add, add);
    if (soq__rig_supports(&rig, (struct soq_op_desc){.op = SOQ_OP_SCALE}))
        SOQ__SUBMIT(&rig, rig.ops->elementwise->scale, scale);
    if (soq__rig_supports(&rig, (struct soq_op_desc){.op = SOQ_OP_ACTIVATION, .kind = SOQ_ACT_SILU}))
        SOQ__SUBMIT(&rig, rig.ops->elementwise->activation, act);
    soq__rig_end(&rig);
}

static const struct soq__check checks[] = {
    {"ops.norm", SOQ_ROLE_BACKEND, "norms are within tolerance of f64", check_norm, "skew.exact"},
    {"ops.rope", SOQ_ROLE_BACKEND, "rotations too, far out as well", check_rope, "skew.exact"},
    {"ops.activation", SOQ_ROLE_BACKEND, "activations too, of large numbers as well", check_activation, "skew.exact"},
    {"ops.add", SOQ_ROLE_BACKEND, "sums too, in place as well", check_add, "skew.exact"},
    {"ops.scale", SOQ_ROLE_BACKEND, "scales and soft caps too", check_scale, "skew.exact"},
    {"ops.gather", SOQ_ROLE_BACKEND, "gathered rows are the outputs of the step", check_gather, "skew.exact"},
    {"ops.no_rows", SOQ_ROLE_BACKEND, "steps and ops of no rows are no trouble", check_no_rows, "skew.exact"},
};
const struct soq__check_family soq__checks_ops = SOQ__FAMILY(checks);
