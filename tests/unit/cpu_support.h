/* What the tests of the CPU backend share: its variants opened as the host does, an instance with given options, steps made of
 * parts, buffers with guards around them, and random numbers. */
#ifndef SOQ_TESTS_CPU_SUPPORT_H
#define SOQ_TESTS_CPU_SUPPORT_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "plugin/host.h"
#include "plugin_open.h"
#include "soquete/plugin.h"

static inline const char *cpu_path(const char *variant)
{
    static char path[4096];
    const char *dir = getenv("SOQ_TEST_PLUGINS");

    snprintf(path, sizeof path, "%s/cpu-%s.so", dir ? dir : "plugins/stage", variant);
    return path;
}

/* The variants that are built and that this machine can run, NULL behind the last. The generic one must be there. */
static inline const char *const *cpu_variants(void)
{
    static const char *variants[4] = {"generic"};
    size_t n = 1;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && access(cpu_path("x86-64-v3"), R_OK) == 0)
        variants[n++] = "x86-64-v3";
    if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && access(cpu_path("avx512"), R_OK) == 0)
        variants[n++] = "avx512";
#endif
    variants[n] = NULL;
    return variants;
}

struct cpu_fixture {
    struct soq__pool *pool;
    struct soq__host host;
    const struct soq_backend_ops *ops;
    void *self;
    int64_t live;
    uint32_t max_rows;
};

static inline const struct soq_role_entry *cpu_open(const char *variant)
{
    const struct soq_plugin *plugin;
    void *object = dlopen(cpu_path(variant), RTLD_NOW | RTLD_LOCAL);

    cr_assert(object, "%s", dlerror());
    plugin = dlsym(object, SOQ_PLUGIN_SYMBOL);
    cr_assert(plugin && plugin->abi_major == SOQ_ABI_MAJOR);
    cr_assert_str_eq(plugin->name, "cpu");
    cr_assert_str_eq(plugin->variant, variant);
    return plugin->roles;
}

static inline void cpu_setup(struct cpu_fixture *f, const char *variant, const char *threads, const char *activations,
                             const char *repack, uint32_t max_rows)
{
    const struct override overrides[] = {{"threads", threads}, {"activations", activations}, {"repack", repack}, {NULL, NULL}};
    struct plugin_values values = {cpu_open(variant), overrides};
    struct soq_config config = plugin_config(&values);
    struct soq_backend_params params = {.struct_size = sizeof params, .max_rows = max_rows, .max_slots = 4};
    struct soq_error err = SOQ_ERROR_INIT;

    f->live = soq__alloc_live();
    f->max_rows = max_rows;
    f->ops = values.entry->ops;
    cr_assert_eq(soq__pool_create(&f->pool, &err), 0);
    soq__host_init(&f->host, f->pool);
    f->self = soq__alloc_aligned(64, f->ops->instance_size);
    memset(f->self, 0, f->ops->instance_size);
    cr_assert_eq(f->ops->init(f->self, &f->host.services, &config, &params, &err), 0, "%s", err.text);
}

static inline void cpu_teardown(struct cpu_fixture *f)
{
    f->ops->shutdown(f->self);
    soq__free(f->self);
    soq__pool_free(f->pool);
    cr_assert_eq(soq__alloc_live(), f->live, "%lld blocks leak", (long long)(soq__alloc_live() - f->live));
}

/* Numbers in about [-1, 1] from a seed. */
static inline float cpu_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(*state >> 32)) * 0x1p-31f;
}

static inline void cpu_fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = cpu_random(&seed);
}

/* A matrix in a buffer of its own: rows of `cols` in a stride of cols + gap, guard numbers in the gaps, before and behind. */
struct cpu_matrix {
    struct soq_view view;
    float *raw;
    size_t n_raw;
};

#define CPU_GUARD 12345.678f
enum { CPU_MARGIN = 19 };

static inline float *cpu_at(const struct cpu_matrix *m, uint32_t row, uint32_t col)
{
    return m->raw + CPU_MARGIN + (size_t)row * m->view.row_stride + col;
}

static inline struct cpu_matrix cpu_matrix(uint32_t rows, uint32_t cols, uint32_t gap, uint64_t seed)
{
    struct cpu_matrix m = {.n_raw = (size_t)rows * (cols + gap) + 2 * CPU_MARGIN};

    m.raw = malloc(m.n_raw * sizeof(float));
    for (size_t i = 0; i < m.n_raw; i++)
        m.raw[i] = CPU_GUARD;
    m.view = (struct soq_view){(soq_buffer)(uintptr_t)m.raw, CPU_MARGIN * sizeof(float), rows, cols, cols + gap, SOQ_DTYPE_F32};
    for (uint32_t r = 0; r < rows; r++)
        cpu_fill(cpu_at(&m, r, 0), cols, seed + r * 7919);
    return m;
}

/* Frees it after a look at the guards. */
static inline void cpu_matrix_done(struct cpu_matrix *m)
{
    for (size_t i = 0; i < m->n_raw; i++) {
        size_t place = i - CPU_MARGIN;
        bool inside = i >= CPU_MARGIN && m->view.rows && place / m->view.row_stride < m->view.rows &&
                      place % m->view.row_stride < m->view.cols;

        if (!inside)
            cr_assert_eq(m->raw[i], CPU_GUARD, "guard at %zu of %u x %u overwritten", i, m->view.rows, m->view.cols);
    }
    free(m->raw);
}

/* A step of parts; everything lies in one block, as the ABI wants it. */
struct cpu_step {
    struct soq_step step;
    struct soq_step_row rows[600];
    struct soq_step_seq seqs[8];
    struct soq_step_segment segments[16];
    uint32_t outputs[64];
    struct soq_step_edit edits[256];
    struct soq_step_copy copies[8];
};

/* n rows of one sequence in slot 0, at positions first, first + 1, ..., tokens 0, 1, ... */
static inline struct cpu_step *cpu_step(uint32_t n_rows, uint32_t first)
{
    struct cpu_step *s = calloc(1, sizeof *s);

    s->step = (struct soq_step){
        .struct_size = sizeof s->step,
        .total_bytes = sizeof *s,
        .serial = 1,
        .flags = SOQ_STEP_LINEAR,
        .n_rows = n_rows,
        .n_seqs = 1,
        .off_rows = offsetof(struct cpu_step, rows),
        .off_seqs = offsetof(struct cpu_step, seqs),
        .off_segments = offsetof(struct cpu_step, segments),
        .off_outputs = offsetof(struct cpu_step, outputs),
        .off_edits = offsetof(struct cpu_step, edits),
        .off_copies = offsetof(struct cpu_step, copies),
    };
    s->seqs[0] = (struct soq_step_seq){.n_cached = first, .n_rows = n_rows};
    for (uint32_t i = 0; i < n_rows; i++)
        s->rows[i] =
            (struct soq_step_row){.token = (int32_t)i, .position = first + i, .entry = first + i, .parent = (int32_t)i - 1};
    return s;
}

static inline void cpu_begin(struct cpu_fixture *f, struct cpu_step *s)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(f->ops->begin(f->self, &s->step, &err), 0, "%s", err.text);
}

static inline void cpu_end(struct cpu_fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(f->ops->end(f->self, &err), 0, "%s", err.text);
}

static inline struct soq_weight_info cpu_weight(struct cpu_fixture *f, uint32_t dtype, const void *data, uint64_t bytes,
                                                uint32_t rows, uint32_t cols, uint32_t uses)
{
    struct soq_weight_desc desc = {
        .struct_size = sizeof desc,
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
    struct soq_weight_info info = {.struct_size = sizeof info};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(f->ops->memory->weight_prepare(f->self, &desc, &info, &err), 0, "%s", err.text);
    return info;
}

static inline soq_weight cpu_vector(struct cpu_fixture *f, const float *x, uint32_t n)
{
    return cpu_weight(f, SOQ_DTYPE_F32, x, n * sizeof *x, 1, n, SOQ_USE_VECTOR).weight;
}

#endif
