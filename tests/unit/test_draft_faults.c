/* A backend that fails while tokens are drafted, checked or committed, and memory that runs out there: the request ends with
 * the backend's own message, what was told before is right, nothing is held, and the sequence goes on as if nothing had been.
 */
#include "tests/unit/told.h"

#define GQA "kv-golden/models/gqa.gguf"
#define LLAMA256 "golden/llama256/model-q4_k.gguf"

/* ---- A backend that fails at a call -------------------------------------------------------------------------------------- */

static struct fault {
    struct soq_backend_ops ops;
    struct soq_attention_ops attention;
    const struct soq_backend_ops *real;
    uint32_t n_calls, fail_at; /* 0: never */
} fault;

static int fails(struct soq_error *err)
{
    return ++fault.n_calls == fault.fail_at ? soq__fail(err, SOQ_EIO, "the device is gone") : 0;
}

static int failing_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    int rc = fails(err);

    return rc ? rc : fault.real->begin(self, step, err);
}

static int failing_end(void *self, struct soq_error *err)
{
    int rc = fault.real->end(self, err), other = fails(err);

    return rc ? rc : other;
}

static int failing_gather(void *self, const struct soq_kv_gather_args *args, struct soq_error *err)
{
    int rc = fails(err);

    return rc ? rc : fault.real->attention->kv_gather(self, args, err);
}

static int failing_pack(void *self, const struct soq_kv_pack_args *args, struct soq_error *err)
{
    int rc = fails(err);

    return rc ? rc : fault.real->attention->kv_pack(self, args, err);
}

/* From now on calls of the instance are counted. */
static void hook(struct fixture *f, uint32_t instance)
{
    struct soq__engine *e = f->model->engine;
    struct soq__instance *in = &e->exec.instances[instance];

    fault = (struct fault){.real = in->ops, .ops = *in->ops, .attention = *in->ops->attention};
    fault.ops.begin = failing_begin;
    fault.ops.end = failing_end;
    fault.ops.attention = &fault.attention;
    fault.attention.kv_gather = in->ops->attention->kv_gather ? failing_gather : NULL;
    fault.attention.kv_pack = in->ops->attention->kv_pack ? failing_pack : NULL;
    in->ops = &fault.ops;
    for (uint32_t g = 0; g < e->kv.n_groups; g++)
        if (e->kv.groups[g].owner.attention == fault.real)
            e->kv.groups[g].owner.attention = &fault.ops;
}

/* ---- Runs ---------------------------------------------------------------------------------------------------------------- */

static const char *const hows[][6] = {
    {"draft.policy=snapkv capacity:48 window:16", "decoding.draft_tokens=3"},
    {"draft.policy=tova capacity:48 when:always every:8", "decoding.draft_tokens=5"},
    {"draft.policy=full", "decoding.draft_tokens=4", "draft.codec=int4", "kv.pack_grid=16"},
    {"draft.policy=streaming capacity:48 when:always", "decoding.draft_tokens=3"},
};
enum { N_HOWS = sizeof hows / sizeof hows[0] };

static struct fixture open_how(size_t how, const char *const *more)
{
    const char *all[16] = {"kv.block_tokens=8", "kv.prefix_cache=off", "decoding.drafter=self"};
    size_t n = 3;

    for (size_t i = 0; i < 6 && hows[how][i]; i++)
        all[n++] = hows[how][i];
    for (size_t i = 0; more && more[i]; i++)
        all[n++] = more[i];
    return open_model(how == 2 ? LLAMA256 : GQA, all);
}

/* The prompt and its answer on a sequence that has seen nothing, or has lost something. */
static int answer(struct soq__sequence *seq, struct told *t, struct soq_error *err)
{
    struct soq__job job = {.seq = seq,
                           .n_prompt = N_PROMPT,
                           .max_tokens = N_ANSWER,
                           .ignore_eog = true,
                           .sampling = greedy(),
                           .on_sampled = hear,
                           .on_logits = see,
                           .logits_from = N_PROMPT - 1,
                           .arg = t};
    int32_t ids[N_PROMPT];

    make_ids(ids, N_PROMPT, 1);
    job.prompt = ids;
    t->n = 0;
    soq__engine_run(seq->engine, &job, NULL, NULL);
    *err = job.err;
    return job.rc;
}

/* It failed: nothing wrong was told, and the next request on the sequence gives what it should. */
static void expect_goes_on(struct soq__sequence *seq, const struct told *calm, const struct told *told, uint32_t at)
{
    struct told again = {0};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert(memcmp(told->ids, calm->ids, told->n * sizeof *told->ids) == 0, "call %u: wrong tokens before", at);
    cr_assert(seq->n_tokens == N_PROMPT + told->n || told->n == 0, "call %u: %u tokens kept, %u told", at, seq->n_tokens,
              told->n);
    cr_assert_eq(seq->kv.n_tentative, 0);
    cr_assert_leq(seq->kv.n_committed, seq->n_tokens);
    cr_assert_eq(answer(seq, &again, &err), 0, "call %u: %s", at, err.text);
    expect_same(calm, &again, "after a failure");
}

static void check_faults(size_t how, const char *const *more, uint32_t instance)
{
    struct fixture f = open_how(how, more);
    struct soq__engine *e = f.model->engine;
    struct soq__sequence *seq = new_sequence(&f);
    struct soq_error err = SOQ_ERROR_INIT;
    struct told calm = {0};
    uint32_t n, n_half = 0;

    hook(&f, instance);
    cr_assert_eq(answer(seq, &calm, &err), 0, "%s", err.text);
    n = fault.n_calls;
    cr_assert_gt(n, 60);
    soq__sequence_free(seq);
    for (uint32_t at = 1; at <= n; at += 1 + n / 70) {
        struct told told = {0};

        seq = new_sequence(&f);
        fault.n_calls = 0;
        fault.fail_at = at;
        cr_assert_eq(answer(seq, &told, &err), -SOQ_EIO, "call %u: %s", at, err.text);
        cr_assert(strstr(err.text, "the device is gone"), "call %u: %s", at, err.text);
        n_half += told.n > 0 && told.n < N_ANSWER;
        fault.fail_at = 0;
        expect_goes_on(seq, &calm, &told, at);
        soq__sequence_free(seq);
        cr_assert_eq(e->kv.budget.used, 0, "call %u: something is held", at);
    }
    cr_expect_gt(n_half, 20);
    close_model(&f);
}

Test(draft_faults, one_backend, .timeout = 120)
{
    for (size_t how = 0; how < N_HOWS; how++)
        check_faults(how, NULL, 0);
}

/* The lossy view's backend fails, the full one's does not. */
Test(draft_faults, another_backend, .timeout = 120)
{
    const char *const more[] = {mixed_plugins(), "backend.use=cpu/generic, twin", "backend.place=lossy.attention:twin", NULL};

    check_faults(3, more, 1);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

Test(draft_faults, allocations, .timeout = 300)
{
    for (size_t how = 0; how < N_HOWS; how++) {
        struct fixture f = open_how(how, NULL);
        struct soq__sequence *seq = new_sequence(&f);
        struct soq_error err = SOQ_ERROR_INIT;
        struct told calm = {0};
        uint32_t n_failed = 0;
        uint64_t n;

        n = soq__alloc_count();
        cr_assert_eq(answer(seq, &calm, &err), 0, "%s", err.text);
        n = soq__alloc_count() - n;
        soq__sequence_free(seq);
        for (uint64_t at = 1; at <= n; at++) {
            struct told told = {0};
            int rc;

            seq = new_sequence(&f);
            soq__alloc_fail_at(at, false);
            rc = answer(seq, &told, &err);
            soq__alloc_fail_at(0, false);
            cr_assert(rc == 0 || rc == -SOQ_ENOMEM, "allocation %llu: %d, %s", (unsigned long long)at, rc, err.text);
            n_failed += rc != 0;
            expect_goes_on(seq, &calm, &told, (uint32_t)at);
            soq__sequence_free(seq);
            cr_assert_eq(f.model->engine->kv.budget.used, 0);
        }
        cr_expect_gt(n_failed, 0);
        close_model(&f);
    }
}
