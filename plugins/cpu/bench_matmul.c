/* Times matrix products of one variant: bench_matmul PLUGIN.so TYPE OUTPUTS INPUTS ROWS THREADS [COPIES].
 *
 * COPIES weights (64) take turns, so that they come from memory where they do not fit the cache. Prints milliseconds a product,
 * gigabytes of weights and operations (two a product term) a second, the best of several rounds. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "model/dtype.h"
#include "plugin/host.h"
#include "soquete/plugin.h"

enum { ROUNDS = 7, COPIES_MAX = 512 };

static const char *threads;

static int64_t get_int(void *ctx, const char *key)
{
    (void)ctx;
    return strcmp(key, "threads") == 0 ? atoi(threads) : 1;
}

static const char *get_string(void *ctx, const char *key)
{
    (void)ctx;
    (void)key;
    return "q8";
}

struct bench {
    const struct soq_backend_ops *ops;
    void *self;
    uint32_t copies;
    soq_weight weights[COPIES_MAX];
    struct soq_view x, y;
    struct soq_step *step;
};

static double round_of(struct bench *b)
{
    struct soq_error err = SOQ_ERROR_INIT;
    double start = soq__clock_now();

    b->ops->begin(b->self, b->step, &err);
    for (uint32_t i = 0; i < b->copies; i++) {
        struct soq_matmul_args args = {.struct_size = sizeof args, .weight = b->weights[i], .x = b->x, .y = b->y};

        b->ops->matmul->matmul(b->self, &args);
    }
    if (b->ops->end(b->self, &err))
        printf("%s\n", err.text);
    return soq__clock_now() - start;
}

static int prepare(struct bench *b, const struct soq__dtype *type, uint32_t outputs, uint32_t inputs)
{
    uint64_t row_bytes = 0, bytes;
    struct soq_error err = SOQ_ERROR_INIT;
    uint8_t *data;

    soq__dtype_row_bytes(type, inputs, &row_bytes);
    bytes = row_bytes * outputs;
    data = calloc(bytes, 1);
    for (uint32_t i = 0; i < b->copies; i++) {
        struct soq_weight_desc desc = {.struct_size = sizeof desc,
                                       .dtype = type->id,
                                       .name = "w",
                                       .data = data,
                                       .bytes = bytes,
                                       .rows = outputs,
                                       .cols = inputs,
                                       .uses = SOQ_USE_MATMUL,
                                       .may_repack = 1};
        struct soq_weight_info info = {.struct_size = sizeof info};
        int rc = b->ops->memory->weight_prepare(b->self, &desc, &info, &err);

        if (rc) {
            printf("%s\n", err.text);
            return rc;
        }
        b->weights[i] = info.weight;
    }
    free(data);
    return 0;
}

static struct soq_view matrix(uint32_t rows, uint32_t cols)
{
    float *p = malloc((size_t)rows * cols * sizeof *p);

    for (size_t i = 0; i < (size_t)rows * cols; i++)
        p[i] = (float)(i % 251) / 100.0f - 1.2f;
    return (struct soq_view){(soq_buffer)(uintptr_t)p, 0, rows, cols, cols, SOQ_DTYPE_F32};
}

int main(int argc, char **argv)
{
    const struct soq__dtype *type = argc > 2 ? soq__dtype_by_name(argv[2]) : NULL;
    void *object = argc > 6 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct soq_plugin *plugin = object ? dlsym(object, SOQ_PLUGIN_SYMBOL) : NULL;
    struct soq_config config = {.struct_size = sizeof config, .get_int = get_int, .get_string = get_string};
    struct soq_error err = SOQ_ERROR_INIT;
    struct bench b = {.copies = argc > 7 ? (uint32_t)atoi(argv[7]) : 64};
    struct soq_step step = {.struct_size = sizeof step, .total_bytes = sizeof step, .flags = SOQ_STEP_LINEAR};
    struct soq__pool *pool;
    struct soq__host host;
    double best = 1e9, terms;

    if (!plugin || !type || b.copies > COPIES_MAX) {
        fprintf(stderr, "usage: %s PLUGIN.so TYPE OUTPUTS INPUTS ROWS THREADS [COPIES]\n%s\n", argv[0],
                argc > 6 && !object ? dlerror() : "");
        return 2;
    }
    threads = argv[6];
    b.x = matrix((uint32_t)atoi(argv[5]), (uint32_t)atoi(argv[4]));
    b.y = matrix((uint32_t)atoi(argv[5]), (uint32_t)atoi(argv[3]));
    b.ops = plugin->roles->ops;
    b.self = calloc(1, b.ops->instance_size + 64);
    b.step = &step;
    soq__pool_create(&pool, &err);
    soq__host_init(&host, pool);
    if (b.ops->init(b.self, &host.services, &config,
                    &(struct soq_backend_params){
                        .struct_size = sizeof(struct soq_backend_params), .max_rows = b.x.rows, .max_slots = 1},
                    &err) ||
        prepare(&b, type, b.y.cols, b.x.cols)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (int i = 0; i < ROUNDS; i++) {
        double t = round_of(&b) / b.copies;

        best = t < best ? t : best;
    }
    terms = (double)b.x.cols * b.y.cols;
    printf("%-7s %5u x %5u, %3u rows, %s threads: %9.4f ms %7.2f GB/s %8.1f GOPS\n", type->name, b.y.cols, b.x.cols, b.x.rows,
           threads, best * 1e3, terms / type->elements * type->bytes / best * 1e-9, 2 * terms * b.x.rows / best * 1e-9);
    return 0;
}
