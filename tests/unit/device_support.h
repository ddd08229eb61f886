/* What tests of backends share whose memory is not the host's: a plugin opened as the host does it, matrices in its buffers
 * with guard numbers around them, steps made of parts, weights of any type. Everything goes through the ABI, so that the CPU
 * backend can be asked the same. */
#ifndef SOQ_TESTS_DEVICE_SUPPORT_H
#define SOQ_TESTS_DEVICE_SUPPORT_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "model/dequant.h"
#include "model/dtype.h"
#include "plugin/host.h"
#include "plugin_open.h"
#include "soquete/plugin.h"

struct device {
    struct soq__pool *pool;
    struct soq__host host;
    const struct soq_backend_ops *ops;
    void *self;
    int64_t live;
};

/* The backend's role of FILE.so; it is named `name`. */
static inline const struct soq_role_entry *device_plugin(const char *file, const char *name)
{
    const char *dir = getenv("SOQ_TEST_PLUGINS");
    const struct soq_plugin *plugin;
    char path[4096];
    void *object;

    snprintf(path, sizeof path, "%s/%s.so", dir ? dir : "plugins/stage", file);
    object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert(object, "%s", dlerror());
    plugin = dlsym(object, SOQ_PLUGIN_SYMBOL);
    cr_assert(plugin && plugin->abi_major == SOQ_ABI_MAJOR);
    cr_assert_str_eq(plugin->name, name);
    return plugin->roles;
}

/* init with these overrides; its code and message. */
static inline int device_try(struct device *d, const struct soq_role_entry *role, const struct override *overrides,
                             uint32_t max_rows, struct soq_error *err)
{
    struct plugin_values values = {role, overrides};
    struct soq_config config = plugin_config(&values);
    struct soq_backend_params params = {.struct_size = sizeof params, .max_rows = max_rows, .max_slots = 4};
    struct soq_device devices[4];
    uint32_t n = 0;
    int rc;

    d->live = soq__alloc_live();
    d->ops = role->ops;
    cr_assert_eq(soq__pool_create(&d->pool, err), 0);
    soq__host_init(&d->host, d->pool);
    d->self = soq__alloc_aligned(64, d->ops->instance_size);
    memset(d->self, 0, d->ops->instance_size);
    rc = d->ops->devices(&d->host.services, &config, devices, sizeof devices[0], 4, &n, err);
    params.device = n ? devices[0].index : 0;
    return rc ? rc : d->ops->init(d->self, &d->host.services, &config, &params, err);
}

static inline void device_drop(struct device *d)
{
    soq__free(d->self);
    soq__pool_free(d->pool);
    cr_assert_eq(soq__alloc_live(), d->live, "%lld blocks leak", (long long)(soq__alloc_live() - d->live));
}

static inline void device_close(struct device *d)
{
    d->ops->shutdown(d->self);
    device_drop(d);
}

/* The OpenCL backend with these options; skips the test where there is no device for it. */
static inline void device_open_with(struct device *d, const struct override *overrides, uint32_t max_rows)
{
    struct soq_error err = SOQ_ERROR_INIT;
    int rc = device_try(d, device_plugin("opencl", "opencl"), overrides, max_rows, &err);

    if (rc == -SOQ_ENOTFOUND) {
        device_drop(d);
        cr_skip_test("%s", err.text);
    }
    cr_assert_eq(rc, 0, "%s", err.text);
}

/* SOQ_TEST_ARENA=1 gives every buffer memory of its own, so that a checker sees where each one ends. */
static inline void device_open(struct device *d, uint32_t max_rows)
{
    const char *arena = getenv("SOQ_TEST_ARENA");
    const struct override overrides[] = {{"arena", arena ? arena : "65536"}, {NULL, NULL}};

    device_open_with(d, overrides, max_rows);
}

/* The CPU backend as the reference: activations as they are. */
static inline void device_open_cpu(struct device *d, uint32_t max_rows)
{
    static const struct override overrides[] = {{"threads", "1"}, {"activations", "f32"}, {"repack", "1"}, {NULL, NULL}};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(device_try(d, device_plugin("cpu-generic", "cpu"), overrides, max_rows, &err), 0, "%s", err.text);
}

/* Numbers in about [-1, 1] from a seed. */
static inline float device_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*state >> 32)) * 0x1p-31f;
}

static inline void device_fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = device_random(&seed);
}

static inline soq_buffer device_buffer(struct device *d, uint64_t bytes)
{
    struct soq_error err = SOQ_ERROR_INIT;
    soq_buffer buffer = 0;

    cr_assert_eq(d->ops->memory->buffer_alloc(d->self, bytes, &buffer, &err), 0, "%s", err.text);
    return buffer;
}

/* A matrix in a buffer of its own: rows of `cols` in a stride of cols + gap, guard numbers in the gaps, before and behind. raw
 * is the buffer as the test knows it: device_push writes it, device_pull reads it back and looks at the guards. */
struct matrix {
    struct soq_view view;
    float *raw;
    size_t n_raw;
};

#define DEVICE_GUARD 12345.678f
enum { DEVICE_MARGIN = 19 };

static inline float *device_at(const struct matrix *m, uint32_t row, uint32_t col)
{
    return m->raw + DEVICE_MARGIN + (size_t)row * m->view.row_stride + col;
}

static inline void device_push(struct device *d, const struct matrix *m)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(d->ops->memory->buffer_write(d->self, m->view.buffer, 0, m->raw, m->n_raw * sizeof(float), &err), 0, "%s",
                 err.text);
}

static inline struct matrix device_matrix(struct device *d, uint32_t rows, uint32_t cols, uint32_t gap, uint64_t seed)
{
    struct matrix m = {.n_raw = (size_t)rows * (cols + gap) + 2 * DEVICE_MARGIN};

    m.raw = malloc(m.n_raw * sizeof(float));
    for (size_t i = 0; i < m.n_raw; i++)
        m.raw[i] = DEVICE_GUARD;
    m.view = (struct soq_view){
        device_buffer(d, m.n_raw * sizeof(float)), DEVICE_MARGIN * sizeof(float), rows, cols, cols + gap, SOQ_DTYPE_F32};
    for (uint32_t r = 0; r < rows; r++)
        device_fill(device_at(&m, r, 0), cols, seed + r * 7919);
    device_push(d, &m);
    return m;
}

static inline void device_pull(struct device *d, struct matrix *m)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(d->ops->memory->buffer_read(d->self, m->view.buffer, 0, m->raw, m->n_raw * sizeof(float), &err), 0, "%s",
                 err.text);
    for (size_t i = 0; i < m->n_raw; i++) {
        size_t place = i - DEVICE_MARGIN;
        bool inside = i >= DEVICE_MARGIN && m->view.rows && place / m->view.row_stride < m->view.rows &&
                      place % m->view.row_stride < m->view.cols;

        if (!inside)
            cr_assert_eq(m->raw[i], DEVICE_GUARD, "guard at %zu of %u x %u overwritten", i, m->view.rows, m->view.cols);
    }
}

static inline void device_matrix_done(struct device *d, struct matrix *m)
{
    d->ops->memory->buffer_free(d->self, m->view.buffer);
    free(m->raw);
}

static inline struct soq_view device_rows(const struct matrix *m, uint32_t first, uint32_t n)
{
    struct soq_view view = m->view;

    view.offset += (uint64_t)first * view.row_stride * sizeof(float);
    view.rows = n;
    return view;
}

/* A step of parts; everything lies in one block, as the ABI wants it. */
struct device_step {
    struct soq_step step;
    struct soq_step_row rows[600];
    struct soq_step_seq seqs[8];
    struct soq_step_segment segments[16];
    uint32_t outputs[64];
    struct soq_step_edit edits[256];
    struct soq_step_copy copies[8];
};

static uint64_t device_step_serial;

/* n rows of one sequence in slot 0, at positions first, first + 1, ..., tokens 0, 1, ... */
static inline struct device_step *device_step(uint32_t n_rows, uint32_t first)
{
    struct device_step *s = calloc(1, sizeof *s);

    s->step = (struct soq_step){
        .struct_size = sizeof s->step,
        .total_bytes = sizeof *s,
        .serial = ++device_step_serial,
        .flags = SOQ_STEP_LINEAR,
        .n_rows = n_rows,
        .n_seqs = 1,
        .off_rows = offsetof(struct device_step, rows),
        .off_seqs = offsetof(struct device_step, seqs),
        .off_segments = offsetof(struct device_step, segments),
        .off_outputs = offsetof(struct device_step, outputs),
        .off_edits = offsetof(struct device_step, edits),
        .off_copies = offsetof(struct device_step, copies),
    };
    s->seqs[0] = (struct soq_step_seq){.n_cached = first, .n_rows = n_rows};
    for (uint32_t i = 0; i < n_rows; i++)
        s->rows[i] =
            (struct soq_step_row){.token = (int32_t)i, .position = first + i, .entry = first + i, .parent = (int32_t)i - 1};
    return s;
}

static inline void device_begin(struct device *d, struct device_step *s)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(d->ops->begin(d->self, &s->step, &err), 0, "%s", err.text);
}

static inline void device_end(struct device *d)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(d->ops->end(d->self, &err), 0, "%s", err.text);
}

static inline struct soq_weight_desc device_weight_desc(uint32_t dtype, const void *data, uint64_t bytes, uint32_t rows,
                                                        uint32_t cols, uint32_t uses)
{
    return (struct soq_weight_desc){
        .struct_size = sizeof(struct soq_weight_desc),
        .dtype = dtype,
        .name = "w",
        .data = data,
        .bytes = bytes,
        .rows = rows,
        .cols = cols,
        .uses = uses,
        .may_repack = 1,
        .n_shards = 1,
    };
}

static inline soq_weight device_weight(struct device *d, uint32_t dtype, const void *data, uint64_t bytes, uint32_t rows,
                                       uint32_t cols, uint32_t uses)
{
    struct soq_weight_desc desc = device_weight_desc(dtype, data, bytes, rows, cols, uses);
    struct soq_weight_info info = {.struct_size = sizeof info};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(d->ops->memory->weight_prepare(d->self, &desc, &info, &err), 0, "%s", err.text);
    return info.weight;
}

static inline soq_weight device_vector(struct device *d, const float *x, uint32_t n)
{
    return device_weight(d, SOQ_DTYPE_F32, x, n * sizeof *x, 1, n, SOQ_USE_VECTOR);
}

static inline void device_put_half(uint8_t *p, float x)
{
    uint32_t bits;
    uint16_t h = 0;

    memcpy(&bits, &x, sizeof bits);
    if ((bits >> 23 & 255) >= 113)
        h = (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10 & 0x7c00) | (bits >> 13 & 0x3ff));
    memcpy(p, &h, sizeof h);
}

/* Random blocks with scales of a sane size in the places where the type keeps its F16 numbers. */
static inline uint8_t *device_random_weight(uint32_t dtype, uint32_t rows, uint32_t cols, uint64_t seed, size_t *bytes_out)
{
    static const struct {
        uint32_t dtype, first, second;
    } halves[] = {
        {SOQ_DTYPE_Q4_0, 0, 0}, {SOQ_DTYPE_Q4_1, 0, 2},     {SOQ_DTYPE_Q5_0, 0, 0},     {SOQ_DTYPE_Q5_1, 0, 2},
        {SOQ_DTYPE_Q8_0, 0, 0}, {SOQ_DTYPE_Q2_K, 80, 82},   {SOQ_DTYPE_Q3_K, 108, 108}, {SOQ_DTYPE_Q4_K, 0, 2},
        {SOQ_DTYPE_Q5_K, 0, 2}, {SOQ_DTYPE_Q6_K, 208, 208}, {SOQ_DTYPE_IQ4_NL, 0, 0},   {SOQ_DTYPE_IQ4_XS, 0, 0},
    };
    const struct soq__dtype *type = soq__dtype(dtype);
    size_t n_blocks = (size_t)rows * cols / type->elements;
    uint8_t *data = malloc(n_blocks * type->bytes);

    *bytes_out = n_blocks * type->bytes;
    for (size_t i = 0; i < *bytes_out; i++)
        data[i] = (uint8_t)(int)(device_random(&seed) * 127.0f);
    for (size_t i = 0; i < n_blocks; i++) {
        uint8_t *block = data + i * type->bytes;
        float x = device_random(&seed);

        if (dtype == SOQ_DTYPE_F32)
            memcpy(block, &x, sizeof x);
        else if (dtype == SOQ_DTYPE_F16)
            device_put_half(block, x);
        else if (dtype == SOQ_DTYPE_BF16)
            memcpy(block, (uint8_t *)&x + 2, 2);
        for (size_t j = 0; j < sizeof halves / sizeof halves[0]; j++)
            if (halves[j].dtype == dtype) {
                device_put_half(block + halves[j].second, device_random(&seed) * 0.02f);
                device_put_half(block + halves[j].first, device_random(&seed) * 0.02f);
            }
    }
    return data;
}

static inline float *device_dequantised(uint32_t dtype, const void *data, size_t n)
{
    float *w = malloc(n * sizeof *w);

    soq__dequant(dtype)(data, w, n / soq__dtype(dtype)->elements);
    return w;
}

#endif
