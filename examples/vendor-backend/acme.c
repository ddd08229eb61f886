/* acme: the smallest backend, for an accelerator that does not exist. docs/vendor-guide.md walks through it.
 *
 * A backend is memory and matrix products; all else may be left to the next one of `[backend] use`:
 *
 *     use = acme, cpu
 *
 * The host then places each product whose type supports() takes here, and norms, attention and the rest on the CPU, and copies
 * activations between the two memories. To make a real driver of this file, replace what is marked DEVICE.
 *
 * The simulated device has memory of its own: a handle is a number in its table of allocations and means nothing as an address.
 * Host and device bytes meet in buffer_write, buffer_read and weight_prepare, nowhere else. */
#include <soquete/plugin.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    LANES = 16,         /* sums of a product that run side by side */
    COLS_MAX = 1 << 16, /* inputs of a weight */
    PLACES = 1 << 14,   /* allocations */
};

/* An allocation on the device. A weight is one with a shape. */
struct allocation {
    uint8_t *bytes; /* DEVICE; NULL: the place is free */
    uint64_t size;
    uint32_t dtype, rows, cols, uses; /* uses 0: a buffer */
};

/* The instance: the host allocates it, zeroed, and frees it. */
struct acme {
    const struct soq_host *host;
    uint64_t capacity, used; /* bytes of device memory */
    struct soq_error error;  /* of the step; code 0: none so far */
    float row[COLS_MAX];     /* of a weight, decoded */
    struct allocation table[PLACES];
};

/* Every message begins with the plugin's name; whoever detects the failure writes it, callers pass it on. */
__attribute__((format(printf, 3, 4))) static int fail(struct soq_error *err, enum soq_error_code code, const char *fmt, ...)
{
    va_list args;
    int n;

    if (!err)
        return -(int)code;
    err->code = -(int)code;
    n = snprintf(err->text, sizeof err->text, "acme: ");
    va_start(args, fmt);
    vsnprintf(err->text + n, sizeof err->text - (size_t)n, fmt, args);
    va_end(args);
    return -(int)code;
}

/* ---- Weight types -------------------------------------------------------------------------------------------------------- */

/* Finite halves; the factor moves the exponent's bias from 15 to 127. */
static float half(const uint8_t *p)
{
    uint32_t bits = (uint32_t)(p[0] | p[1] << 8);
    float value;

    bits = (bits & 0x8000) << 16 | (bits & 0x7fff) << 13;
    memcpy(&value, &bits, sizeof value);
    return value * 0x1p112f;
}

static void decode_f32(const uint8_t *block, float *out)
{
    memcpy(out, block, sizeof *out);
}

static void decode_f16(const uint8_t *block, float *out)
{
    *out = half(block);
}

static void decode_q8_0(const uint8_t *block, float *out)
{
    float scale = half(block);

    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)(int8_t)block[2 + i];
}

static void decode_q4_0(const uint8_t *block, float *out)
{
    float scale = half(block);

    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)((block[2 + i] & 15) - 8);
        out[i + 16] = scale * (float)((block[2 + i] >> 4) - 8);
    }
}

static void decode_q4_1(const uint8_t *block, float *out)
{
    float scale = half(block), least = half(block + 2);

    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)(block[4 + i] & 15) + least;
        out[i + 16] = scale * (float)(block[4 + i] >> 4) + least;
    }
}

/* The types that this device computes with; soquete/dtype.h has the list of all. */
static const struct format {
    uint32_t dtype, elements, bytes; /* of a block */
    void (*decode)(const uint8_t *block, float *out);
} formats[] = {
    {SOQ_DTYPE_F32, 1, 4, decode_f32},     {SOQ_DTYPE_F16, 1, 2, decode_f16},     {SOQ_DTYPE_Q8_0, 32, 34, decode_q8_0},
    {SOQ_DTYPE_Q4_0, 32, 18, decode_q4_0}, {SOQ_DTYPE_Q4_1, 32, 20, decode_q4_1},
};

static const struct format *format_of(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    return NULL;
}

static uint64_t row_bytes(const struct format *f, uint32_t cols)
{
    return (uint64_t)cols / f->elements * f->bytes;
}

/* ---- Memory table -------------------------------------------------------------------------------------------------------- */

/* The allocation behind a handle, NULL if there is none: a handle of another backend is caught here. */
static struct allocation *lookup(struct acme *a, uint64_t handle)
{
    return handle && handle <= PLACES && a->table[handle - 1].bytes ? &a->table[handle - 1] : NULL;
}

/* Never called during a step. */
static int buffer_alloc(void *self, uint64_t bytes, soq_buffer *buffer_out, struct soq_error *err)
{
    struct acme *a = self;
    uint64_t at = 0;
    uint8_t *p;

    while (at < PLACES && a->table[at].bytes)
        at++;
    if (at == PLACES)
        return fail(err, SOQ_ELIMIT, "more than %d allocations", PLACES);
    if (bytes > a->capacity - a->used)
        return fail(err, SOQ_ENOMEM, "%llu bytes are wanted, %llu of the device's %llu are free; see [backend.acme] memory",
                    (unsigned long long)bytes, (unsigned long long)(a->capacity - a->used), (unsigned long long)a->capacity);
    p = a->host->alloc(a->host->ctx, bytes ? bytes : 1, 64); /* DEVICE */
    if (!p)
        return fail(err, SOQ_ENOMEM, "the device has no %llu bytes", (unsigned long long)bytes);
    a->table[at] = (struct allocation){.bytes = p, .size = bytes};
    a->used += bytes;
    *buffer_out = at + 1;
    return 0;
}

static void buffer_free(void *self, soq_buffer buffer)
{
    struct acme *a = self;
    struct allocation *mem = lookup(a, buffer);

    if (!mem)
        return;
    a->used -= mem->size;
    a->host->free(a->host->ctx, mem->bytes); /* DEVICE */
    *mem = (struct allocation){0};
}

/* The place of a range, NULL and a message if the handle or the range is wrong. */
static uint8_t *range(struct acme *a, soq_buffer buffer, uint64_t offset, uint64_t bytes, struct soq_error *err)
{
    struct allocation *mem = lookup(a, buffer);

    if (mem && offset <= mem->size && bytes <= mem->size - offset)
        return mem->bytes + offset;
    fail(err, SOQ_EINVAL, "%llu bytes at %llu lie outside buffer %llu", (unsigned long long)bytes, (unsigned long long)offset,
         (unsigned long long)buffer);
    return NULL;
}

static int buffer_write(void *self, soq_buffer dst, uint64_t offset, const void *src, uint64_t bytes, struct soq_error *err)
{
    uint8_t *p = range(self, dst, offset, bytes, err);

    if (p && bytes)
        memcpy(p, src, bytes); /* DEVICE: host to device, finished on return */
    return p ? 0 : -SOQ_EINVAL;
}

static int buffer_read(void *self, soq_buffer src, uint64_t offset, void *dst, uint64_t bytes, struct soq_error *err)
{
    const uint8_t *p = range(self, src, offset, bytes, err);

    if (p && bytes)
        memcpy(dst, p, bytes); /* DEVICE: device to host */
    return p ? 0 : -SOQ_EINVAL;
}

/* The tensor goes to the device as it is. A real device would bring it into its own order here ("repack"). */
static int weight_prepare(void *self, const struct soq_weight_desc *desc, struct soq_weight_info *info_out,
                          struct soq_error *err)
{
    struct acme *a = self;
    const struct format *f = format_of(desc->dtype);
    struct allocation *w;
    soq_buffer handle;
    int rc;

    if (!f || desc->uses & SOQ_USE_EMBED || (desc->uses & SOQ_USE_VECTOR && desc->dtype != SOQ_DTYPE_F32))
        return fail(err, SOQ_EUNSUPPORTED, "tensor %s: type %u for uses %u", desc->name, desc->dtype, desc->uses);
    if (!desc->rows || !desc->cols || desc->cols > COLS_MAX || desc->cols % f->elements ||
        desc->bytes / desc->rows < row_bytes(f, desc->cols))
        return fail(err, SOQ_EINVAL, "tensor %s: %u x %u of type %u in %llu bytes", desc->name, desc->rows, desc->cols,
                    desc->dtype, (unsigned long long)desc->bytes);
    rc = buffer_alloc(a, desc->rows * row_bytes(f, desc->cols), &handle, err);
    if (rc)
        return rc;
    w = lookup(a, handle);
    w->dtype = desc->dtype;
    w->rows = desc->rows;
    w->cols = desc->cols;
    w->uses = desc->uses;
    info_out->flags = 0; /* the host may drop the source; SOQ_WEIGHT_KEEPS_SOURCE would say that it must stay */
    info_out->weight = handle;
    info_out->bytes = w->size;
    return buffer_write(a, handle, 0, desc->data, w->size, err);
}

static const struct soq_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_write = buffer_write,
    .buffer_read = buffer_read,
    .weight_prepare = weight_prepare,
    .weight_free = buffer_free,
};

/* ---- Matmul table -------------------------------------------------------------------------------------------------------- */

/* An op of a step: its first failure is kept, and end() returns it. */
static const struct allocation *weight(struct acme *a, soq_weight handle, uint32_t use)
{
    const struct allocation *w = lookup(a, handle);

    if (w && w->uses & use)
        return w;
    fail(&a->error, SOQ_EINVAL, "matmul: weight %llu was not prepared for that", (unsigned long long)handle);
    return NULL;
}

/* The first element of a view of n x cols, NULL after a failure. */
static float *view(struct acme *a, const struct soq_view *v, uint32_t rows, uint32_t cols)
{
    uint64_t bytes = ((uint64_t)(rows - 1) * v->row_stride + cols) * sizeof(float);

    if (v->rows == rows && v->cols == cols && v->dtype == SOQ_DTYPE_F32 && v->offset % sizeof(float) == 0 &&
        (rows == 1 || v->row_stride >= cols))
        return (float *)(void *)range(a, v->buffer, v->offset, bytes, &a->error);
    fail(&a->error, SOQ_EINVAL, "matmul: a matrix of %u x %u (type %u) where %u x %u is due", v->rows, v->cols, v->dtype, rows,
         cols);
    return NULL;
}

/* Always in the same order, whatever else the step computes: the backend is batch-invariant. */
static float dot(const float *w, const float *x, uint32_t n)
{
    float sums[LANES] = {0}, sum = 0.0f;
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            sums[k] += w[i + k] * x[i + k];
    for (uint32_t k = 0; k < LANES; k++)
        sum += sums[k];
    for (; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

/* DEVICE: y[r][o] = W[o] . x[r] (+ bias[o]) (+ y[r][o]) */
static void multiply(struct acme *a, const struct soq_matmul_args *args, const struct allocation *w, const float *bias,
                     const float *x, float *y)
{
    const struct format *f = format_of(w->dtype);

    for (uint32_t o = 0; o < w->rows; o++) {
        const uint8_t *blocks = w->bytes + o * row_bytes(f, w->cols);

        for (uint32_t c = 0; c < w->cols; c += f->elements, blocks += f->bytes)
            f->decode(blocks, a->row + c);
        for (uint32_t r = 0; r < args->x.rows; r++) {
            float *out = y + (size_t)r * args->y.row_stride + o;

            *out = dot(a->row, x + (size_t)r * args->x.row_stride, w->cols) + (bias ? bias[o] : 0.0f) +
                   (args->accumulate ? *out : 0.0f);
        }
    }
}

static int matmul(void *self, const struct soq_matmul_args *args)
{
    struct acme *a = self;
    const struct allocation *w, *bias = NULL;
    const float *x;
    float *y;

    if (!a->error.code && a->host->cancelled(a->host->ctx))
        fail(&a->error, SOQ_ECANCELLED, "matmul: cancelled");
    if (a->error.code || !args->x.rows)
        return a->error.code;
    w = weight(a, args->weight, SOQ_USE_MATMUL);
    if (args->bias)
        bias = weight(a, args->bias, SOQ_USE_VECTOR);
    if (!w || (args->bias && !bias))
        return a->error.code;
    if (bias && bias->cols != w->rows)
        return fail(&a->error, SOQ_EINVAL, "matmul: a bias of %u for %u outputs", bias->cols, w->rows);
    x = view(a, &args->x, args->x.rows, w->cols);
    y = x ? view(a, &args->y, args->x.rows, w->rows) : NULL;
    if (y)
        multiply(a, args, w, bias ? (const float *)(const void *)bias->bytes : NULL, x, y);
    return a->error.code;
}

static const struct soq_matmul_ops matmul_ops = {
    .struct_size = sizeof matmul_ops,
    .matmul = matmul,
};

/* ---- The backend --------------------------------------------------------------------------------------------------------- */

static int devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *list, uint32_t stride,
                   uint32_t capacity, uint32_t *count_out, struct soq_error *err)
{
    uint32_t count = (uint32_t)config->get_int(config->ctx, "devices"); /* DEVICE: ask the driver */
    uint64_t memory = (uint64_t)config->get_int(config->ctx, "memory");

    (void)host;
    *count_out = count;
    if (!count)
        return fail(err, SOQ_ENOTFOUND, "the machine has no accelerator ([backend.acme] devices = 0)");
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        struct soq_device d = {.struct_size = sizeof d, .index = i, .memory_total = memory, .memory_free = memory};

        snprintf(d.name, sizeof d.name, "Acme Imaginary %u", i);
        snprintf(d.id, sizeof d.id, "acme-%04u", i);
        memcpy((char *)list + (size_t)i * stride, &d, stride < sizeof d ? stride : sizeof d);
    }
    return 0;
}

static int init(void *self, const struct soq_host *host, const struct soq_config *config,
                const struct soq_backend_params *params, struct soq_error *err)
{
    struct acme *a = self;

    if (params->device >= (uint32_t)config->get_int(config->ctx, "devices"))
        return fail(err, SOQ_ENOTFOUND, "there is no device %u", params->device);
    a->host = host;
    a->capacity = (uint64_t)config->get_int(config->ctx, "memory");
    return 0;
}

static void shutdown(void *self)
{
    (void)self; /* buffers and weights were freed one by one before */
}

/* Asked once, at load. What is refused here goes to the next backend; nothing is found out in mid-step. */
static int supports(void *self, const struct soq_op_desc *desc, struct soq_error *why)
{
    (void)self;
    if (desc->op != SOQ_OP_MATMUL)
        return fail(why, SOQ_EUNSUPPORTED, "matrix products are all that it computes");
    if (!format_of(desc->weight_dtype) || desc->cols > COLS_MAX)
        return fail(why, SOQ_EUNSUPPORTED, "matmul: weights of type %u with %u inputs", desc->weight_dtype, desc->cols);
    return 0;
}

/* Ops here run at once, so a step is no more than where failures begin to count. KV tables are for those with attention. */
static int begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    struct acme *a = self;

    (void)step, (void)err;
    a->error = (struct soq_error)SOQ_ERROR_INIT;
    return 0;
}

static int end(void *self, struct soq_error *err)
{
    const struct acme *a = self;

    if (a->error.code && err) {
        err->code = a->error.code;
        snprintf(err->text, sizeof err->text, "%s", a->error.text);
    }
    return a->error.code;
}

static const struct soq_option options[] = {
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_INT,
        .key = "devices",
        .default_value = "1",
        .min = 0,
        .max = 4,
        .help = "How many accelerators the machine is imagined to have.",
    },
    {
        .struct_size = sizeof(struct soq_option),
        .type = SOQ_OPT_SIZE,
        .key = "memory",
        .default_value = "16GiB",
        .min = 0,
        .max = 0x1p50,
        .help = "Memory of each of them.",
    },
};

static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend,
    .flags = SOQ_BACKEND_BATCH_INVARIANT,
    .domain = "acme",
    .instance_size = sizeof(struct acme),
    .devices = devices,
    .init = init,
    .shutdown = shutdown,
    .supports = supports,
    .begin = begin,
    .end = end,
    .memory = &memory_ops,
    .matmul = &matmul_ops,
};

static const struct soq_role_entry roles[] = {
    {
        .struct_size = sizeof roles[0],
        .role = SOQ_ROLE_BACKEND,
        .minor = SOQ_BACKEND_MINOR,
        .min_minor = SOQ_BACKEND_MINOR,
        .ops = &backend,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .option_stride = sizeof options[0],
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "acme",
    .variant = "",
    .version = "1.0.0",
    .summary = "Matrix products on an accelerator that does not exist",
    .licence = "Apache-2.0",
    .n_roles = 1,
    .role_stride = sizeof roles[0],
    .roles = roles,
};
