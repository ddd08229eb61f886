#include "cli/eval/measure.h"

#include <stdio.h>

#include "base/alloc.h"
#include "cli/eval/run.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/term.h"
#include "model/fingerprint.h"

/* What the plugins refuse is found out before hours of work. */
static int try_configs(struct soq__eval_run *run, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    int rc = 0;

    for (uint32_t c = 0; !rc && c < run->eval->configs->n; c++)
        for (size_t l = 0; !rc && l < plan->n_lengths && !run->left_out[c]; l++) {
            struct soq__eval_engine_params params = soq__eval_params_for(run, c, SOQ__EVAL_TEXT, (uint32_t)plan->lengths[l]);

            params.try_only = true;
            rc = soq__eval_engine_open(&run->engine, &params, err);
            if (rc == -SOQ_EUNSUPPORTED && c > 0) {
                soq__cli_say("eval kv", "left out: %s", err->text);
                run->left_out[c] = true;
                rc = 0;
            }
        }
    return rc;
}

static int read_text(struct soq__eval_run *run, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    size_t n = run->longest + (plan->tasks[SOQ__EVAL_TEXT] ? (size_t)plan->n_items * plan->n_scored : 0);
    struct soq__eval *e = run->eval;
    int rc = soq__eval_text_read(run->model->tokenizer, plan->text, plan->seed, n, &run->text, err);

    if (rc)
        return rc;
    snprintf(e->items[SOQ__EVAL_TEXT], sizeof e->items[0], "%s, %u cuts of %u behind up to %u", run->text.name, plan->n_items,
             plan->n_scored, run->longest);
    snprintf(e->items[SOQ__EVAL_SPEED], sizeof e->items[0], "%s, %u timed", run->text.name, plan->n_timed);
    for (int t = SOQ__EVAL_PASSKEY; t <= SOQ__EVAL_RECALL; t++)
        snprintf(e->items[t], sizeof e->items[0], "seed %llu", (unsigned long long)plan->seed);
    return 0;
}

static uint32_t count_missing(const struct soq__eval_run *run, uint32_t config, enum soq__eval_task task)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t n = 0;

    for (size_t l = 0; plan->tasks[task] && l < plan->n_lengths; l++)
        for (uint32_t i = 0; i < soq__eval_n_items(plan, task); i++)
            n += soq__eval_is_missing(run, config, task, (uint32_t)plan->lengths[l], i);
    return n;
}

static int run_all(struct soq__eval_run *run, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t texts = 0;
    int rc = 0;

    for (uint32_t c = 0; c < run->eval->configs->n; c++)
        for (int t = 0; t < SOQ__EVAL_TASKS; t++) {
            uint32_t n = count_missing(run, c, (enum soq__eval_task)t);

            run->n_all += n;
            texts += t == SOQ__EVAL_TEXT ? n : 0;
        }
    if (run->n_all)
        rc = try_configs(run, err);
    if (!rc && texts)
        rc = soq__row_store_init(&run->store, plan->n_lengths * plan->n_items * plan->n_scored,
                                 run->model->hparams.dim[SOQ__DIM_VOCAB], err);
    for (uint32_t c = 0; !rc && c < run->eval->configs->n; c++)
        rc = soq__eval_run_items(run, c, c == 0 && texts, err);
    if (!rc && plan->tasks[SOQ__EVAL_SPEED])
        rc = soq__eval_run_speed(run, err);
    soq__progress_clear();
    return rc;
}

static int load_model(struct soq__eval_run *run, struct soq_error *err)
{
    struct soq__eval *e = run->eval;
    struct soq_runtime *runtime = NULL;
    const char *path = NULL;
    struct soq__hash hash;
    int rc = soq__cli_runtime(e->args, &runtime, err);

    if (!rc)
        rc = soq__cli_model_path(runtime, &path, err);
    if (!rc)
        rc = soq__model_load(path, NULL, &run->model, err);
    if (!rc && !run->model->tokenizer)
        rc = soq__fail(err, SOQ_EUNSUPPORTED, "%s has no vocabulary to read a text with", path);
    if (!rc)
        rc = soq__model_fingerprint(run->model->gguf, &hash, err);
    if (!rc) {
        snprintf(e->model, sizeof e->model, "%s", soq__base_name(path));
        for (size_t i = 0; i < sizeof e->fingerprint / 2; i++)
            snprintf(e->fingerprint + 2 * i, 3, "%02x", hash.bytes[i]);
    }
    soq_runtime_free(runtime);
    return rc;
}

int soq__eval_measure(struct soq__eval *eval, struct soq_error *err)
{
    const struct soq__eval_plan *plan = eval->plan;
    struct soq__eval_run run = {.eval = eval};
    int rc;

    run.left_out = soq__alloc_zero(eval->configs->n, sizeof *run.left_out);
    for (size_t l = 0; l < plan->n_lengths; l++)
        run.longest = plan->lengths[l] > run.longest ? (uint32_t)plan->lengths[l] : run.longest;
    rc = run.left_out ? load_model(&run, err) : soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc)
        rc = read_text(&run, err);
    if (!rc)
        rc = run_all(&run, err);
    soq__eval_engine_close(&run.engine);
    soq__row_store_done(&run.store);
    soq__eval_text_done(&run.text);
    soq__model_free(run.model);
    soq__free(run.left_out);
    return rc;
}
