/* Checks of weights against f64: products and look-ups, every type that the backend claims. */
#include <stdio.h>
#include <stdlib.h>

#include "check/reference.h"
#include "check/rig.h"
#include "check/table.h"
#include "check/weights.h"
#include "model/dequant.h"
#include "model/dtype.h"

/* A weight with the numbers that it stands for, and a bias. */
struct product {
    struct soq__rig *rig;
    uint32_t dtype, rows, cols; /* outputs x inputs */
    float *w, *bias;
    soq_weight weight, bias_weight;
};

static float *new_floats(struct soq__rig *rig, size_t n)
{
    float *x = malloc(n * sizeof *x);

    SOQ__EXPECT(rig->kit, x, "the kit is out of memory");
    return x;
}

static void open_product(struct product *p, struct soq__rig *rig, uint32_t dtype, uint32_t rows, uint32_t cols, uint32_t uses)
{
    size_t n = (size_t)rows * cols, bytes = soq__block_bytes(dtype, n);
    uint8_t *data = malloc(bytes);

    *p = (struct product){.rig = rig, .dtype = dtype, .rows = rows, .cols = cols};
    SOQ__EXPECT(rig->kit, data, "the kit is out of memory");
    soq__random_blocks(dtype, n, dtype + 1, data);
    p->w = new_floats(rig, n);
    soq__dequant((enum soq_dtype)dtype)(data, p->w, n / soq__dtype(dtype)->elements);
    p->weight = soq__rig_weight(rig, dtype, data, bytes, rows, cols, uses);
    p->bias = new_floats(rig, rows);
    soq__kit_fill(p->bias, rows, 9);
    p->bias_weight = soq__rig_vector(rig, p->bias, rows);
    free(data);
}

static void close_product(struct product *p)
{
    p->rig->ops->memory->weight_free(p->rig->self, p->weight);
    p->rig->ops->memory->weight_free(p->rig->self, p->bias_weight);
    free(p->w);
    free(p->bias);
}

static void multiply(struct product *p, const struct soq_view *x, const struct soq_view *y, bool bias, bool accumulate)
{
    struct soq_matmul_args args = {
        .accumulate = accumulate, .weight = p->weight, .bias = bias ? p->bias_weight : 0, .x = *x, .y = *y};
    struct soq__rig_step s;

    soq__rig_step_init(&s);
    soq__rig_step_add(&s, 0, 0, x->rows);
    soq__rig_begin(p->rig, &s);
    SOQ__SUBMIT(p->rig, p->rig->ops->matmul->matmul, args);
    soq__rig_end(p->rig);
}

static double largest(const float *x, uint32_t n)
{
    double most = 0;

    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)x[i]));
    return most;
}

/* What the tolerance is a share of: the magnitudes of the terms, and a thousandth of the largest that a term could have, as
 * codes are offsets from a minimum. */
static void compare(struct product *p, const struct soq__matrix *x, const struct soq__matrix *y, bool bias, const float *before)
{
    for (uint32_t r = 0; r < y->view.rows; r++) {
        const float *inputs = soq__matrix_at(x, r, 0);
        double most = 1e-3 * largest(inputs, p->cols);

        for (uint32_t n = 0; n < p->rows; n++) {
            const float *w = p->w + (size_t)n * p->cols;
            double size, want = soq__ref_dot(w, inputs, p->cols, &size);
            double more = (bias ? (double)p->bias[n] : 0) + (before ? (double)before[r * p->rows + n] : 0);

            size += most * largest(w, p->cols) + fabs(more);
            soq__rig_close(p->rig, SOQ_OP_MATMUL, p->dtype, (double)*soq__matrix_at(y, r, n), want + more, size, r, n);
        }
    }
}

static void try_shape(struct soq__rig *rig, const char *how, uint32_t dtype, uint32_t rows, uint32_t cols, uint32_t n)
{
    struct product p;
    struct soq__matrix x = soq__rig_matrix(rig, n, cols, 3, 5), y = soq__rig_matrix(rig, n, rows, 2, 6);
    float *before;

    soq__kit_at(rig->kit, "%s%s%s, %u x %u, %u rows", how, *how ? ", " : "", soq__dtype(dtype)->name, rows, cols, n);
    open_product(&p, rig, dtype, rows, cols, SOQ_USE_MATMUL);
    multiply(&p, &x.view, &y.view, false, false);
    soq__rig_fetch(rig, &y);
    compare(&p, &x, &y, false, NULL);
    before = new_floats(rig, (size_t)n * rows);
    for (uint32_t r = 0; r < n; r++)
        memcpy(before + (size_t)r * rows, soq__matrix_at(&y, r, 0), rows * sizeof *before);
    multiply(&p, &x.view, &y.view, true, true);
    soq__rig_fetch(rig, &y);
    compare(&p, &x, &y, true, before);
    soq__rig_fetch(rig, &x); /* its guards */
    close_product(&p);
    soq__rig_matrix_free(rig, &x);
    soq__rig_matrix_free(rig, &y);
    free(before);
}

/* One input at a time, so that an input that is left out or exchanged shows whatever the tolerance. */
static void try_single_inputs(struct soq__rig *rig, uint32_t dtype, uint32_t rows, uint32_t cols)
{
    struct product p;
    struct soq__matrix x, y = soq__rig_matrix(rig, SOQ__KIT_MAX_ROWS, rows, 0, 1);

    x = soq__rig_matrix(rig, SOQ__KIT_MAX_ROWS, cols, 0, 1);
    soq__kit_at(rig->kit, "%s, %u x %u, one input at a time", soq__dtype(dtype)->name, rows, cols);
    open_product(&p, rig, dtype, rows, cols, SOQ_USE_MATMUL);
    for (uint32_t first = 0; first < cols; first += SOQ__KIT_MAX_ROWS) {
        for (uint32_t r = 0; r < SOQ__KIT_MAX_ROWS; r++) {
            memset(soq__matrix_at(&x, r, 0), 0, cols * sizeof(float));
            *soq__matrix_at(&x, r, (first + r) % cols) = 1.0f;
        }
        soq__rig_send(rig, &x);
        multiply(&p, &x.view, &y.view, false, false);
        soq__rig_fetch(rig, &y);
        compare(&p, &x, &y, false, NULL);
    }
    close_product(&p);
    soq__rig_matrix_free(rig, &x);
    soq__rig_matrix_free(rig, &y);
}

static struct soq_op_desc desc_of(uint32_t op, uint32_t dtype, uint32_t rows, uint32_t cols)
{
    return (struct soq_op_desc){.op = op, .weight_dtype = dtype, .rows = rows, .cols = cols};
}

/* Outputs, inputs in blocks of the type (or single numbers), rows. */
static const struct {
    uint32_t rows, blocks, numbers, n;
} shapes[] = {{21, 2, 261, 7}, {8, 1, 7, 1}, {1, 3, 1, 4}, {33, 1, 512, SOQ__KIT_MAX_ROWS}, {70, 4, 64, 2}};

static void check_matmul(struct soq__kit *kit)
{
    struct soq__rig rig;
    size_t claimed = 0;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    for (size_t i = 0; i < soq__weight_type_count; i++) {
        uint32_t dtype = soq__weight_types[i], block = soq__dtype(dtype)->elements;

        for (size_t k = 0; k < SOQ__COUNT(shapes); k++) {
            uint32_t cols = block > 1 ? shapes[k].blocks * block : shapes[k].numbers;

            if (!soq__rig_supports(&rig, desc_of(SOQ_OP_MATMUL, dtype, shapes[k].rows, cols)))
                continue;
            claimed++;
            try_shape(&rig, "", dtype, shapes[k].rows, cols, shapes[k].n);
        }
        if (soq__rig_supports(&rig, desc_of(SOQ_OP_MATMUL, dtype, 19, 256)))
            try_single_inputs(&rig, dtype, 19, 256);
    }
    if (!claimed)
        soq__kit_skip(kit, "claims no type of weights");
}

/* ---- The same under every choice that its options have */

static void try_setting(struct soq__kit *kit, const char *key, const char *value)
{
    struct soq__rig rig = {.kit = kit, .ops = kit->role->ops.backend, .self = soq__kit_self(kit)};
    struct soq_error *err = soq__kit_error(kit);
    char setting[256];

    snprintf(setting, sizeof setting, "%s=%s", key, value);
    soq__kit_at(kit, "%s", setting);
    if (soq__kit_init(kit, rig.self, (const char *const[]){setting, NULL}, err))
        return; /* config.valid has seen to it */
    for (size_t i = 0; i < soq__weight_type_count; i++) {
        uint32_t dtype = soq__weight_types[i];

        if (soq__rig_supports(&rig, desc_of(SOQ_OP_MATMUL, dtype, 21, 512)))
            try_shape(&rig, setting, dtype, 21, 512, 7);
    }
    soq__kit_shutdown(kit, rig.self);
}

static void try_choices(struct soq__kit *kit, const char *key, const char *list)
{
    while (*list) {
        size_t n = strcspn(list, "|");
        char value[128];

        snprintf(value, sizeof value, "%.*s", (int)n, list);
        try_setting(kit, key, value);
        list += n + (list[n] == '|');
    }
}

static void check_options(struct soq__kit *kit)
{
    bool any = false;

    soq__kit_open(kit);
    soq__kit_need_device(kit);
    for (uint32_t i = 0; i < kit->role->n_options && kit->role->ops.backend->memory; i++) {
        const struct soq_option *option = &kit->role->options[i];

        if (option->type != SOQ_OPT_BOOL && option->type != SOQ_OPT_ENUM)
            continue;
        any = true;
        try_choices(kit, option->key, option->type == SOQ_OPT_BOOL ? "on|off" : option->choices);
    }
    if (!any)
        soq__kit_skip(kit, "has no options with choices");
}

static void check_no_rows(struct soq__kit *kit)
{
    struct soq__rig rig;
    struct soq__matrix x, y;
    struct product p;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    soq__rig_need(&rig, desc_of(SOQ_OP_MATMUL, SOQ_DTYPE_F32, 8, 8));
    open_product(&p, &rig, SOQ_DTYPE_F32, 8, 8, SOQ_USE_MATMUL);
    x = soq__rig_matrix(&rig, 0, 8, 0, 1);
    y = soq__rig_matrix(&rig, 0, 8, 0, 1);
    multiply(&p, &x.view, &y.view, true, false);
    soq__rig_fetch(&rig, &y);
}

/* A tied embedding: rows come out as dequantised. */
static void check_embed(struct soq__kit *kit)
{
    enum { VOCABULARY = 21, SCALE = 3 };
    struct soq__rig rig;
    size_t claimed = 0;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    for (size_t i = 0; i < soq__weight_type_count; i++) {
        uint32_t dtype = soq__weight_types[i], cols = soq__dtype(dtype)->elements == 1 ? 261 : 512;
        struct soq_embed_args args = {.scale = SCALE};
        struct soq__rig_step s;
        struct soq__matrix y;
        struct product p;

        if (!soq__rig_supports(&rig, desc_of(SOQ_OP_EMBED, dtype, VOCABULARY, cols)))
            continue;
        claimed++;
        soq__kit_at(kit, "%s", soq__dtype(dtype)->name);
        open_product(&p, &rig, dtype, VOCABULARY, cols, SOQ_USE_EMBED | SOQ_USE_MATMUL);
        y = soq__rig_matrix(&rig, VOCABULARY, cols, 1, 1);
        args.weight = p.weight;
        args.y = y.view;
        soq__rig_step_init(&s);
        soq__rig_step_add(&s, 0, 0, VOCABULARY);
        for (uint32_t r = 0; r < VOCABULARY; r++)
            s.rows[r].token = (int32_t)(r * 8 % VOCABULARY);
        soq__rig_begin(&rig, &s);
        SOQ__SUBMIT(&rig, rig.ops->elementwise->embed, args);
        soq__rig_end(&rig);
        soq__rig_fetch(&rig, &y);
        for (uint32_t r = 0; r < VOCABULARY; r++) {
            for (uint32_t c = 0; c < cols; c++) {
                double want = SCALE * (double)p.w[(uint32_t)s.rows[r].token * cols + c];

                soq__rig_close(&rig, SOQ_OP_EMBED, dtype, (double)*soq__matrix_at(&y, r, c), want, fabs(want), r, c);
            }
        }
        close_product(&p);
        soq__rig_matrix_free(&rig, &y);
    }
    if (!claimed)
        soq__kit_skip(kit, "claims no type of weights");
}

/* What is no number in an input is none in the outputs that it goes into, and in no other row. */
static void check_nan(struct soq__kit *kit)
{
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    for (size_t i = 0; i < soq__weight_type_count; i++) {
        uint32_t dtype = soq__weight_types[i];
        struct soq__matrix x, y;
        struct product p;

        if (!soq__rig_supports(&rig, desc_of(SOQ_OP_MATMUL, dtype, 8, 256)))
            continue;
        soq__kit_at(kit, "%s", soq__dtype(dtype)->name);
        open_product(&p, &rig, dtype, 8, 256, SOQ_USE_MATMUL);
        x = soq__rig_matrix(&rig, 3, 256, 0, 1);
        y = soq__rig_matrix(&rig, 3, 8, 0, 1);
        *soq__matrix_at(&x, 1, 40) = NAN;
        *soq__matrix_at(&x, 2, 40) = INFINITY;
        soq__rig_send(&rig, &x);
        multiply(&p, &x.view, &y.view, false, false);
        soq__rig_fetch(&rig, &y);
        SOQ__EXPECT(kit, isfinite(*soq__matrix_at(&y, 0, 0)), "a NaN in row 1 makes row 0 %g",
                    (double)*soq__matrix_at(&y, 0, 0));
        SOQ__EXPECT(kit, isnan(*soq__matrix_at(&y, 1, 0)), "a NaN among the inputs gives %g",
                    (double)*soq__matrix_at(&y, 1, 0));
        SOQ__EXPECT(kit, !isfinite(*soq__matrix_at(&y, 2, 0)), "an infinity among the inputs gives %g",
                    (double)*soq__matrix_at(&y, 2, 0));
        close_product(&p);
    }
}

/* ---- A row's result does not depend on the other rows */

static void one_by_one(struct product *p, const struct soq__matrix *x, const struct soq__matrix *y, uint32_t step)
{
    for (uint32_t r = 0; r < x->view.rows; r += step) {
        uint32_t n = x->view.rows - r < step ? x->view.rows - r : step;
        struct soq_view xs = soq__matrix_rows(x, r, n), ys = soq__matrix_rows(y, r, n);

        multiply(p, &xs, &ys, false, false);
    }
}

static void check_invariant(struct soq__kit *kit)
{
    static const uint32_t steps[] = {1, 2, 3, 7};
    enum { N = 61, ROWS = 28 };
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    soq__rig_need_memory(&rig);
    if (!(rig.ops->flags & SOQ_BACKEND_BATCH_INVARIANT))
        soq__kit_skip(kit, "does not claim to be invariant");
    for (size_t i = 0; i < soq__weight_type_count; i++) {
        uint32_t dtype = soq__weight_types[i];
        struct soq__matrix x, all, y;
        struct product p;

        if (!soq__rig_supports(&rig, desc_of(SOQ_OP_MATMUL, dtype, ROWS, 512)))
            continue;
        open_product(&p, &rig, dtype, ROWS, 512, SOQ_USE_MATMUL);
        x = soq__rig_matrix(&rig, N, 512, 1, 5);
        all = soq__rig_matrix(&rig, N, ROWS, 0, 1);
        y = soq__rig_matrix(&rig, N, ROWS, 0, 2);
        one_by_one(&p, &x, &all, N);
        soq__rig_fetch(&rig, &all);
        for (size_t k = 0; k < SOQ__COUNT(steps); k++) {
            soq__kit_at(kit, "%s, %u rows at a time", soq__dtype(dtype)->name, steps[k]);
            one_by_one(&p, &x, &y, steps[k]);
            soq__rig_fetch(&rig, &y);
            SOQ__EXPECT(kit, memcmp(y.raw, all.raw, y.n_raw * sizeof *y.raw) == 0, "other bits than %d rows at once", N);
        }
        close_product(&p);
        soq__rig_matrix_free(&rig, &x);
        soq__rig_matrix_free(&rig, &all);
        soq__rig_matrix_free(&rig, &y);
    }
}

static const struct soq__check checks[] = {
    {"matmul.reference", SOQ_ROLE_BACKEND, "products of every claimed type are within tolerance of f64", check_matmul,
     "skew.exact"},
    {"matmul.options", SOQ_ROLE_BACKEND, "and under every choice of its options", check_options, "matmul.reference"},
    {"matmul.no_rows", SOQ_ROLE_BACKEND, "a product of no rows is no trouble", check_no_rows, "skew.exact"},
    {"matmul.nan", SOQ_ROLE_BACKEND, "NaN and infinity come out where they go in", check_nan, "matmul.reference"},
    {"matmul.invariant", SOQ_ROLE_BACKEND, "rows alone and together give the same bits, if claimed", check_invariant,
     "matmul.reference"},
    {"matmul.embed", SOQ_ROLE_BACKEND, "look-ups of every claimed type give the weight's numbers", check_embed, "skew.exact"},
};
const struct soq__check_family soq__checks_matmul = SOQ__FAMILY(checks);
