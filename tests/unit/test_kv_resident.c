/* What the system sees of the cache: the process itself grows with it and shrinks again when a policy lets entries go, while
 * the sequence lives. Pools count their slabs; whether memory is free is for the system to say. */
#include <unistd.h>

#include "tests/unit/engine_fixture.h"

#define MODEL "kv-golden/models/gqa.gguf" /* 4 layers, 2 KV heads of 16 */

enum { N_PROMPT = 5000, ENTRY = 4 * 2 * 16 * 2 * sizeof(float) };

/* Bytes of this process that are in memory. */
static int64_t resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (!file)
        cr_skip("there is no /proc/self/statm");
    cr_assert_eq(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* By how much the process is larger behind a prompt than before it. What a prompt needs besides its cache is there already, and
 * malloc has seen what it needs to become greedy. */
static int64_t growth(const char *const *settings, const struct soq__kv_budget **budget_out, struct fixture *f)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__sequence *seq;
    int32_t *ids = soq__alloc_array(N_PROMPT, sizeof *ids);
    int64_t before = 0, after = 0;

    *f = open_model(MODEL, settings);
    *budget_out = &f->model->engine->kv.budget;
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = 3 + (i * 37 + i * i % 13) % 500;
    for (int round = 0; round < 2; round++) {
        seq = new_sequence(f);
        before = resident();
        cr_assert_eq(run_ids(seq, ids, N_PROMPT, 0, NULL, &err), 0, "%s", err.text);
        after = resident();
        cr_expect_geq((*budget_out)->peak, (uint64_t)N_PROMPT * ENTRY);
        if (!round)
            soq__sequence_free(seq);
    }
    cr_expect_gt((*budget_out)->used, 0);
    soq__sequence_free(seq);
    soq__free(ids);
    return after - before;
}

#define COMMON "model.context=8192", "kv.codec_k=f32", "kv.codec_v=f32", "kv.prefix_cache=off"

Test(kv_resident, entries_that_go_leave_the_process, .timeout = 120)
{
    const struct soq__kv_budget *budget;
    struct fixture f;
    int64_t cache = (int64_t)N_PROMPT * ENTRY, full, few;

    full = growth((const char *[]){COMMON, "kv.policy=full", NULL}, &budget, &f);
    cr_expect_geq(full, cache * 3 / 4, "a cache of %lld bytes makes %lld", (long long)cache, (long long)full);
    close_model(&f);
    few = growth((const char *[]){COMMON, "kv.policy=random", "kv.random.capacity=64", NULL}, &budget, &f);
    cr_expect_leq(few, full - cache / 2, "%lld bytes stay of a cache of %lld, of which 64 of %d entries were kept",
                  (long long)few, (long long)full, N_PROMPT);
    close_model(&f);
}
