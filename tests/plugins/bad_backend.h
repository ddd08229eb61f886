/* The smallest backend, products of F32 and nothing else, with one thing wrong; BAD_PRODUCT is the product of a row with the
 * weight's row. */
#include <string.h>

#include "fail.h"
#include "soquete/plugin.h"

#ifndef BAD_FORGETS
#define BAD_FORGETS
#endif
#ifndef BAD_CANCELLED
#define BAD_CANCELLED b->host->cancelled(b->host->ctx)
#endif
#ifndef BAD_ROWS
#define BAD_ROWS args->x.rows
#endif

struct weight {
    uint32_t rows, cols;
    float numbers[];
};

struct bad {
    const struct soq_host *host;
    int failed; /* the first failure of the step */
};

static int bad_devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices,
                       uint32_t stride, uint32_t capacity, uint32_t *count_out, struct soq_error *err)
{
    (void)host;
    (void)config;
    (void)stride;
    (void)err;
    if (capacity)
        strcpy(devices[0].name, "host");
    *count_out = 1;
    return 0;
}

static int bad_init(void *self, const struct soq_host *host, const struct soq_config *config,
                    const struct soq_backend_params *params, struct soq_error *err)
{
    struct bad *b = self;

    (void)config;
    if (params->device)
        return plugin_fail(err, SOQ_ENOTFOUND, "there is one device, 0");
    b->host = host;
    return 0;
}

static void bad_shutdown(void *self)
{
    (void)self;
}

static int bad_supports(void *self, const struct soq_op_desc *desc, struct soq_error *why)
{
    (void)self;
    if (desc->op == SOQ_OP_MATMUL && desc->weight_dtype == SOQ_DTYPE_F32)
        return 0;
    return plugin_fail(why, SOQ_EUNSUPPORTED, "only products of F32");
}

static int bad_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    struct bad *b = self;

    b->failed = 0;
    if (step->flags & SOQ_STEP_LINEAR)
        return 0;
    return plugin_fail(err, SOQ_EUNSUPPORTED, "no trees");
}

static int bad_end(void *self, struct soq_error *err)
{
    struct bad *b = self;

    return b->failed ? plugin_fail(err, (enum soq_error_code) - b->failed, "matmul: not a weight, or cancelled") : 0;
}

static int bad_alloc(void *self, uint64_t bytes, soq_buffer *buffer_out, struct soq_error *err)
{
    struct bad *b = self;
    void *p = b->host->alloc(b->host->ctx, bytes, 64);

    if (!p)
        return plugin_fail(err, SOQ_ENOMEM, "out of memory");
    *buffer_out = (soq_buffer)(uintptr_t)p;
    return 0;
}

static void bad_free(void *self, soq_buffer buffer)
{
    struct bad *b = self;

    b->host->free(b->host->ctx, (void *)(uintptr_t)buffer);
}

static int bad_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err)
{
    (void)self;
    (void)err;
    memcpy((char *)(uintptr_t)dst + offset, src, bytes);
    return 0;
}

static int bad_read(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err)
{
    (void)self;
    (void)err;
    memcpy(dst, (const char *)(uintptr_t)src + offset, bytes);
    return 0;
}

static int bad_prepare(void *self, const struct soq_weight_desc *desc, struct soq_weight_info *info_out, struct soq_error *err)
{
    struct bad *b = self;
    struct weight *w;

    if (desc->dtype != SOQ_DTYPE_F32)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "only weights of F32");
    w = b->host->alloc(b->host->ctx, sizeof *w + desc->bytes, 8);
    if (!w)
        return plugin_fail(err, SOQ_ENOMEM, "out of memory");
    w->rows = desc->rows;
    w->cols = desc->cols;
    memcpy(w->numbers, desc->data, desc->bytes);
    info_out->weight = (soq_weight)(uintptr_t)w;
    return 0;
}

static float *bad_row(const struct soq_view *view, uint32_t row)
{
    return (float *)((uintptr_t)view->buffer + view->offset) + (size_t)row * view->row_stride;
}

static float product(const float *w, const float *x, uint32_t n, uint32_t rows)
{
    double sum = 0;

    (void)rows;
    BAD_PRODUCT;
    return (float)sum;
}

static int bad_matmul(void *self, const struct soq_matmul_args *args)
{
    struct bad *b = self;
    const struct weight *w = (const struct weight *)(uintptr_t)args->weight, *bias = (const void *)(uintptr_t)args->bias;

    BAD_FORGETS;
    if (!b->failed && !w)
        b->failed = -SOQ_EINVAL;
    if (!b->failed && BAD_CANCELLED)
        b->failed = -SOQ_ECANCELLED;
    if (b->failed)
        return b->failed;
    for (uint32_t r = 0; r < BAD_ROWS; r++) {
        float *y = bad_row(&args->y, r);

        for (uint32_t n = 0; n < w->rows; n++) {
            float sum = product(w->numbers + (size_t)n * w->cols, bad_row(&args->x, r), w->cols, args->x.rows);

            y[n] = (args->accumulate ? y[n] : 0) + (bias ? bias->numbers[n] : 0) + sum;
        }
    }
    return 0;
}

static const struct soq_memory_ops memory = {
    .struct_size = sizeof memory,
    .buffer_alloc = bad_alloc,
    .buffer_free = bad_free,
    .buffer_write = bad_write,
    .buffer_read = bad_read,
    .weight_prepare = bad_prepare,
    .weight_free = bad_free,
};

static const struct soq_matmul_ops matmul = {.struct_size = sizeof matmul, .matmul = bad_matmul};

static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend,
    .flags = SOQ_BACKEND_BATCH_INVARIANT,
    .domain = "host",
    .instance_size = sizeof(struct bad),
    .devices = bad_devices,
    .init = bad_init,
    .shutdown = bad_shutdown,
    .supports = bad_supports,
    .begin = bad_begin,
    .end = bad_end,
    .memory = &memory,
    .matmul = &matmul,
};

static const struct soq_role_entry roles[] = {
    {
        .struct_size = sizeof roles[0],
        .role = SOQ_ROLE_BACKEND,
        .minor = SOQ_BACKEND_MINOR,
        .min_minor = SOQ_BACKEND_MINOR,
        .ops = &backend,
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "bad",
    .variant = "",
    .version = "1",
    .summary = "A backend with one thing wrong",
    .licence = "Apache-2.0",
    .n_roles = sizeof roles / sizeof roles[0],
    .role_stride = sizeof roles[0],
    .roles = roles,
};
