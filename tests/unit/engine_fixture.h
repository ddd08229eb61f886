/* What tests of the engine share: a model opened with settings, token lists run through it, logits collected. */
#ifndef SOQ_TESTS_ENGINE_FIXTURE_H
#define SOQ_TESTS_ENGINE_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/runtime.h"
#include "tests/unit/support.h"

/* Settings under which results are compared with float32 references. */
#define REFERENCE_SETTINGS "kv.codec_k=f32", "kv.codec_v=f32", "backend.cpu.activations=f32"

struct fixture {
    struct soq_runtime *rt;
    struct soq_model *model;
};

static inline struct soq_runtime *open_runtime(const char *const *settings, struct soq_error *err)
{
    const char *dirs[] = {getenv("SOQ_TEST_PLUGINS"), NULL};
    struct soq_runtime_params p = SOQ_RUNTIME_PARAMS_INIT;
    struct soq_runtime *rt = NULL;

    p.config = "/dev/null"; /* nobody's own configuration takes part */
    p.plugin_dirs = dirs;
    p.settings = settings;
    return soq_runtime_create(&p, &rt, err) ? NULL : rt;
}

/* A setting that brings in the backends of tests/plugins/mixed.am. */
static inline const char *mixed_plugins(void)
{
    static char text[4096];

    snprintf(text, sizeof text, "runtime.plugin_dir=%s", getenv("SOQ_TEST_MIXED"));
    return text;
}

/* path: under tests/data, or absolute. settings: NULL-terminated. Fails the test if it cannot be opened. */
static inline struct fixture open_model(const char *path, const char *const *settings)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct fixture f = {0};

    f.rt = open_runtime(settings, &err);
    cr_assert(f.rt != NULL, "%s", err.text);
    if (soq__model_open(f.rt, path[0] == '/' ? path : soq__test_data(path), NULL, 64, &f.model, &err))
        cr_assert(0, "%s", err.text);
    return f;
}

static inline void close_model(struct fixture *f)
{
    soq_model_free(f->model);
    soq_runtime_free(f->rt);
}

/* n tokens for any of the golden models; those of different seeds have no beginning in common. */
static inline void make_ids(int32_t *ids, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(3 + (i * 37 + seed * 101 + i * i % 13) % 280);
}

/* h and what a selection kept. */
static inline uint64_t hash_kept(uint64_t h, const struct soq__kv_kept *kept)
{
    const uint64_t prime = UINT64_C(0x100000001b3);

    for (uint32_t i = 0; i < kept->n_kept; i++)
        h = (h ^ kept->kept[i]) * prime;
    return (h ^ kept->position << 8 ^ kept->layer << 4 ^ kept->head) * prime;
}

/* Logits of positions [from, from + rows) of one job. */
struct collected {
    uint32_t from, rows, n_vocab;
    float *logits; /* [rows][n_vocab]; freed with soq__free */
};

static inline void collect(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct collected *c = arg;

    if (position - c->from < c->rows)
        memcpy(c->logits + (size_t)(position - c->from) * n_vocab, logits, n_vocab * sizeof *logits);
}

static inline struct soq_sampling greedy(void)
{
    return (struct soq_sampling){.struct_size = sizeof(struct soq_sampling), .temperature = 0, .top_p = 1, .repeat_penalty = 1};
}

/* Runs ids on the sequence, then n_generate greedy tokens. If c is given it collects the logits of [c->from, c->from +
 * c->rows). */
static inline int run_ids(struct soq__sequence *seq, const int32_t *ids, uint32_t n, uint32_t n_generate, struct collected *c,
                          struct soq_error *err)
{
    struct soq__job job = {
        .seq = seq, .prompt = ids, .n_prompt = n, .max_tokens = n_generate, .ignore_eog = true, .sampling = greedy()};

    if (c) {
        c->n_vocab = seq->engine->net.logits.cols;
        c->logits = soq__alloc_zero((size_t)c->rows * c->n_vocab, sizeof(float));
        job.on_logits = collect;
        job.logits_from = c->from;
        job.arg = c;
    }
    soq__engine_run(seq->engine, &job, NULL, NULL);
    if (job.rc && err)
        *err = job.err;
    return job.rc;
}

/* A sequence that must come into being. */
static inline struct soq__sequence *new_sequence(struct fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__sequence *seq = NULL;

    if (soq__sequence_create(f->model->engine, &seq, &err))
        cr_assert(0, "%s", err.text);
    return seq;
}

/* Before anything is in the cache: each block becomes a slab of its own, so that the budget counts blocks. A slab of 2 MiB is
 * more than a small model ever needs. */
static inline void split_slabs(struct soq__kv_cache *c)
{
    for (uint32_t i = 0; i < c->n_pools; i++) {
        struct soq__kv_pool *pool = &c->pools[i];

        cr_assert_eq(pool->n_slabs, 0);
        soq__free(pool->slabs);
        pool->max_slabs *= pool->blocks_per_slab;
        pool->blocks_per_slab = 1;
        pool->slab_bytes = pool->block_bytes;
        pool->slabs = soq__alloc_zero(pool->max_slabs, sizeof *pool->slabs);
        cr_assert_not_null(pool->slabs);
    }
}

/* A driver and a device are there for it. */
static inline bool has_device(struct soq_runtime *rt, const char *id)
{
    struct soq__backend_choice choice;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__host host;
    size_t n = 0;

    soq__host_init(&host, NULL);
    return soq__registry_choose_backends(rt->registry, &id, 1, rt->settings, &host.services, &choice, &n, &err) == 0 && n == 1;
}

static inline void skip_without_device(const char *id)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *rt = open_runtime(NULL, &err);
    bool there;

    cr_assert_not_null(rt, "%s", err.text);
    there = has_device(rt, id);
    soq_runtime_free(rt);
    if (!there)
        cr_skip_test("no device for %s", id);
}

/* Calls test("backend.use=NAME/VARIANT") for every backend of the tree that this machine can run. */
static inline int for_each_backend(void (*test)(const char *use))
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *rt = open_runtime(NULL, &err);
    char use[8][160];
    int n = 0;

    cr_assert(rt != NULL, "%s", err.text);
    cr_assert_eq(soq__registry_try_all(rt->registry, &err), 0, "%s", err.text);
    for (size_t i = 0; i < soq__registry_count(rt->registry) && n < 8; i++) {
        const struct soq__candidate *c = soq__registry_candidate(rt->registry, i);

        if (c->readable && c->manifest.roles >> SOQ_ROLE_BACKEND & 1 && c->state != SOQ_CANDIDATE_REFUSED &&
            has_device(rt, c->id))
            snprintf(use[n++], sizeof use[0], "backend.use=%s", c->id);
    }
    soq_runtime_free(rt);
    for (int i = 0; i < n; i++)
        test(use[i]);
    return n;
}

#endif
