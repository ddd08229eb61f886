/* A model on an OpenCL device whose cache goes elsewhere and comes back: prefixes that another sequence computed, sequences
 * that are swapped out to the host, sessions in files. The tokens and logits are those of an undisturbed run to the last bit;
 * the backend is batch-invariant. */
#include <unistd.h>

#include "tests/unit/told.h"

#define LLAMA "golden/llama/model.gguf"

enum { N_MORE = 30 };

/* Plain blocks; entries that were selected; packed blocks, survivors in packed blocks. */
static const char *const cases[][6] = {
    {"kv.policy=full"},
    {"kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16"},
    {"kv.codec=int4", "kv.pack_grid=32"},
    {"kv.codec=int8", "kv.pack_grid=16", "kv.policy=snapkv", "kv.snapkv.capacity=48", "kv.snapkv.window=16"},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static struct fixture open_case(size_t i, const char *more)
{
    const char *settings[16] = {"backend.use=opencl", "kv.block_tokens=8", "engine.chunk=24", "kv.preempt=swap", more};
    size_t n = 5;

    for (size_t k = 0; k < 6 && cases[i][k]; k++)
        settings[n++] = cases[i][k];
    return open_model(LLAMA, settings);
}

/* ---- In the pool, out of it, shared ------------------------------------------------------------------------------ */

/* A second sequence takes the prefix of the first one, is swapped out again and again, and answers the same. */
Test(opencl_engine, prefixes_and_swaps, .timeout = 300)
{
    int32_t ids[N_PROMPT];

    skip_without_device("opencl");
    make_ids(ids, N_PROMPT, 1);
    for (size_t i = 0; i < N_CASES; i++) {
        struct fixture f = open_case(i, "kv.prefix_cache=on");
        struct soq__sequence *a = new_sequence(&f), *b = new_sequence(&f);
        struct told one = {0}, two = {.preempt_every = 12};

        cr_expect_eq(run(a, ids, N_PROMPT, &one).n_prefix, 0);
        cr_expect_gt(run(b, ids, N_PROMPT, &two).n_prefix, 60, "%s", cases[i][0]);
        cr_expect_gt(two.n_preempted, 2);
        cr_expect_gt(f.model->engine->kv.swap.peak, 0);
        expect_same(&one, &two, cases[i][0]);
        soq__sequence_free(a);
        soq__sequence_free(b);
        cr_expect_eq(f.model->engine->kv.swap.used, 0);
        close_model(&f);
    }
}

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

/* n ids, and an answer of N_ANSWER tokens behind them. */
static void ask(struct soq_session *s, int32_t *ids, uint32_t n)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_request req = SOQ_REQUEST_INIT;
    struct soq_sampling sampling = greedy();

    req.ids = ids;
    req.n_ids = n;
    req.max_tokens = N_ANSWER;
    req.ignore_eog = 1;
    req.sampling = &sampling;
    cr_assert_eq(soq_generate(s, &req, NULL, &err), 0, "%s", err.text);
    memcpy(ids + n, s->seq->tokens + n, N_ANSWER * sizeof *ids);
}

/* Saved from the device or from where it was swapped out to, loaded into another instance: both go on alike. */
Test(opencl_engine, sessions, .timeout = 300)
{
    char path[] = "/tmp/soquete-opencl-XXXXXX";
    int fd;

    skip_without_device("opencl");
    fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    for (size_t i = 0; i < N_CASES; i++) {
        struct fixture f = open_case(i, "kv.prefix_cache=off"), g = open_case(i, "kv.prefix_cache=off");
        struct soq_session *s = NULL, *t = NULL;
        struct soq_error err = SOQ_ERROR_INIT;
        int32_t ids[N_PROMPT + 2 * N_ANSWER + N_MORE], again[N_PROMPT + 2 * N_ANSWER + N_MORE];
        uint32_t n = N_PROMPT + N_ANSWER + N_MORE;

        make_ids(ids, n, 3);
        cr_assert_eq(soq_session_create(f.model, &s, &err), 0, "%s", err.text);
        ask(s, ids, N_PROMPT);
        if (i % 2)
            cr_assert_eq(soq__preempt(s->seq, &err), 0, "%s", err.text);
        cr_assert_eq(soq_session_save(s, path, NULL, 0, &err), 0, "%s", err.text);
        cr_assert_eq(soq_session_load(g.model, NULL, path, &t, &err), 0, "%s", err.text);
        cr_expect_eq(soq_session_length(t), N_PROMPT + N_ANSWER - 1);
        memcpy(again, ids, sizeof ids);
        ask(s, ids, n);
        ask(t, again, n);
        cr_expect_eq(memcmp(ids, again, sizeof ids), 0, "%s: other tokens after the session was loaded", cases[i][0]);
        cr_expect_eq(soq__kv_seq_bytes(&s->seq->kv), soq__kv_seq_bytes(&t->seq->kv));
        soq_session_free(s);
        soq_session_free(t);
        close_model(&f);
        close_model(&g);
    }
    unlink(path);
}
