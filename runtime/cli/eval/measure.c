#include "cli/eval/measure.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/eval/logits.h"
#include "cli/eval/open.h"
#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/term.h"
#include "model/fingerprint.h"

/* An item in work. */
struct lane {
    struct run *run;
    struct soq__eval_item item;
    struct soq__eval_key key;
    struct soq__sequence *seq;
    uint32_t turn;
    size_t first_row; /* text: of the store */
    bool is_new;      /* to be recorded */
    uint32_t n, n_same_top;
    uint32_t n_right; /* answers */
    bool right;       /* the answer in hand, so far */
    float *nll, *kl;  /* [scored tokens of the item] */
};

struct run {
    struct soq__eval *eval;
    struct soq__model *model;
    struct soq__eval_text text;
    struct soq__eval_engine engine;
    struct soq__row_store store; /* of the full cache, where texts are measured */
    bool *left_out;              /* [configs] */
    struct lane *lanes;          /* [plan.parallel] */
    struct soq__job *jobs;       /* [plan.parallel] */
    uint32_t longest;            /* of the plan's lengths */
    uint32_t n_done, n_all;      /* items, for the progress */
};

/* ---- Keys */

struct soq__eval_key soq__eval_key(const struct soq__eval *eval, uint32_t config, enum soq__eval_task task, uint32_t length,
                                   uint32_t depth, uint32_t index)
{
    return (struct soq__eval_key){
        eval->model, eval->fingerprint, eval->configs->items[config].label, eval->items[task], task, length, depth, index};
}

static uint32_t n_depths(const struct soq__eval_plan *plan, enum soq__eval_task task)
{
    return task == SOQ__EVAL_PASSKEY ? (uint32_t)plan->n_depths : 1;
}

static uint32_t n_items(const struct soq__eval_plan *plan, enum soq__eval_task task)
{
    return task == SOQ__EVAL_SPEED ? plan->n_reps : plan->n_items;
}

static struct soq__eval_key key_at(const struct run *run, uint32_t config, enum soq__eval_task task, uint32_t length,
                                   uint32_t i)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t depth = task == SOQ__EVAL_PASSKEY ? (uint32_t)plan->depths[i / plan->n_items] : 0;

    return soq__eval_key(run->eval, config, task, length, depth, task == SOQ__EVAL_PASSKEY ? i % plan->n_items : i);
}

static bool is_missing(const struct run *run, uint32_t config, enum soq__eval_task task, uint32_t length, uint32_t i)
{
    struct soq__eval_key key = key_at(run, config, task, length, i);

    return !run->left_out[config] && !soq__eval_records_find(run->eval->records, &key);
}

static uint32_t count_missing(const struct run *run, uint32_t config, enum soq__eval_task task)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t n = 0;

    for (size_t l = 0; plan->tasks[task] && l < plan->n_lengths; l++)
        for (uint32_t i = 0; i < n_items(plan, task) * n_depths(plan, task); i++)
            n += is_missing(run, config, task, (uint32_t)plan->lengths[l], i);
    return n;
}

/* ---- A lane */

static int make_item(const struct run *run, struct lane *lane, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    const struct soq__tokenizer *tokenizer = run->model->tokenizer;
    const struct soq__eval_key *key = &lane->key;
    uint64_t seed = plan->seed * 1000003 + key->index;

    if (key->task == SOQ__EVAL_PASSKEY)
        return soq__eval_item_passkey(tokenizer, seed, key->length, key->depth, &lane->item, err);
    if (key->task == SOQ__EVAL_RECALL)
        return soq__eval_item_recall(tokenizer, seed, key->length, &lane->item, err);
    return soq__eval_item_text(tokenizer, &run->text,
                               &(struct soq__eval_cut){key->index, plan->n_items, key->length, run->longest, plan->n_scored},
                               &lane->item, err);
}

static void lane_done(struct lane *lane)
{
    soq__sequence_free(lane->seq);
    soq__eval_item_done(&lane->item);
    soq__free(lane->nll);
    soq__free(lane->kl);
    *lane = (struct lane){.run = lane->run};
}

/* Called for each token of an answer but the last; under the engine's lock. */
static void on_logits(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct lane *lane = arg;
    struct soq__row_store *store = &lane->run->store;
    struct soq__row_summary row = soq__row_summary(logits, n_vocab);
    int32_t truth = lane->item.tokens[position + 1];

    lane->nll[lane->n] = (float)soq__row_surprise(&row, logits, truth);
    lane->right = lane->right && (int32_t)row.top == truth;
    if (lane->kl) {
        size_t at = lane->first_row + lane->n;

        if (!strcmp(lane->key.config, lane->run->eval->configs->items[0].label))
            soq__row_store_put(store, at, logits, &row);
        lane->kl[lane->n] = (float)soq__row_store_divergence(store, at, logits, &row);
        lane->n_same_top += store->summaries[at].top == row.top;
    }
    lane->n++;
}

static uint32_t n_answers(const struct soq__eval_item *item)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < item->n_turns; t++)
        n += item->turns[t].end - item->turns[t].ask;
    return n;
}

static int lane_init(struct run *run, struct lane *lane, const struct soq__eval_key *key, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t n, l = 0;
    int rc;

    lane->run = run;
    lane->key = *key;
    rc = make_item(run, lane, err);
    if (rc)
        return rc;
    while (plan->lengths[l] != (int64_t)key->length)
        l++;
    n = n_answers(&lane->item);
    lane->first_row = ((size_t)l * plan->n_items + key->index) * plan->n_scored;
    lane->nll = soq__alloc_zero(n, sizeof *lane->nll);
    if (key->task == SOQ__EVAL_TEXT)
        lane->kl = soq__alloc_zero(n, sizeof *lane->kl);
    if (!lane->nll || (key->task == SOQ__EVAL_TEXT && !lane->kl))
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    return soq__sequence_create(run->engine.engine, &lane->seq, err);
}

static int start_turn(struct lane *lane, uint32_t t, struct soq__job *job, struct soq_error *err)
{
    const struct soq__eval_turn *turn = &lane->item.turns[t];
    int rc = soq__job_init(job, lane->seq, lane->item.tokens, turn->ask, err);

    if (rc)
        return rc;
    job->forced = lane->item.tokens + turn->ask;
    job->max_tokens = turn->end - turn->ask;
    job->on_logits = on_logits;
    job->logits_from = turn->ask - 1;
    job->arg = lane;
    lane->right = true;
    return 0;
}

static int record(struct run *run, struct lane *lane, struct soq_error *err)
{
    struct soq__eval_record r = {
        .key = lane->key,
        .score = (double)lane->n_right / lane->item.n_turns,
        .kv_bytes = soq__kv_seq_bytes(&lane->seq->kv),
        .n = lane->n,
        .n_same_top = lane->n_same_top,
        .nll = lane->nll,
        .kl = lane->kl,
    };

    if (!lane->is_new)
        return 0;
    lane->nll = lane->kl = NULL;
    return soq__eval_records_add(run->eval->records, &r, err);
}

/* The first n lanes, turn by turn. All have as many: they are of one task. */
static int run_lanes(struct run *run, uint32_t n, struct soq_error *err)
{
    int rc = 0;

    for (uint32_t t = 0; !rc && t < run->lanes[0].item.n_turns; t++) {
        for (uint32_t i = 0; !rc && i < n; i++)
            rc = start_turn(&run->lanes[i], t, &run->jobs[i], err);
        if (!rc)
            rc = soq__jobs_run(run->jobs, n, err);
        for (uint32_t i = 0; !rc && i < n; i++)
            run->lanes[i].n_right += run->lanes[i].right;
    }
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = record(run, &run->lanes[i], err);
    return rc;
}

/* ---- Tasks */

static struct soq__eval_engine_params engine_params(const struct run *run, uint32_t config, enum soq__eval_task task,
                                                    uint32_t length)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t after = plan->n_scored > plan->n_timed ? plan->n_scored : plan->n_timed;

    return (struct soq__eval_engine_params){
        .args = run->eval->args,
        .model = run->model,
        .config = &run->eval->configs->items[config],
        .n_prompt = length,
        .context = run->longest + after + 128, /* recall asks on behind the prompt */
        .sequences = task == SOQ__EVAL_SPEED ? 1 : plan->parallel,
        .prefixes = task == SOQ__EVAL_PASSKEY || task == SOQ__EVAL_RECALL,
    };
}

static int open_for(struct run *run, uint32_t config, enum soq__eval_task task, uint32_t length, struct soq_error *err)
{
    struct soq__eval_engine_params params = engine_params(run, config, task, length);

    return soq__eval_engine_open(&run->engine, &params, err);
}

static void show_progress(const struct run *run, const struct soq__eval_key *key)
{
    soq__progress("%u of %u: %s, %s %u", run->n_done, run->n_all, key->config, soq__eval_task_names[key->task], key->length);
}

/* again: records that exist are computed once more, for the store. Keys of different depths follow each other, so that prompts
 * find what the one before them has in common with them. */
static int run_items(struct run *run, uint32_t config, enum soq__eval_task task, uint32_t length, bool again,
                     struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    uint32_t all = n_items(plan, task) * n_depths(plan, task), next = 0;
    int rc = 0;

    while (!rc && next < all) {
        uint32_t n = 0, n_new = 0;

        for (; !rc && next < all && n < plan->parallel; next++) {
            struct soq__eval_key key = key_at(run, config, task, length, next);
            bool is_new = is_missing(run, config, task, length, next);

            if (!is_new && !again)
                continue;
            if (n && key.depth != run->lanes[0].key.depth)
                break;
            rc = n ? 0 : open_for(run, config, task, length, err);
            if (rc)
                break;
            run->lanes[n].is_new = is_new;
            rc = lane_init(run, &run->lanes[n++], &key, err);
            n_new += is_new;
        }
        if (!rc && soq__interrupted())
            rc = soq__fail(err, SOQ_ECANCELLED, "interrupted");
        if (!rc && n) {
            show_progress(run, &run->lanes[0].key);
            rc = run_lanes(run, n, err);
        }
        for (uint32_t i = 0; i < n; i++)
            lane_done(&run->lanes[i]);
        run->n_done += n_new;
    }
    return rc;
}

/* Texts, then stories, in each case length by length. */
static int run_config(struct run *run, uint32_t config, bool fill_store, struct soq_error *err)
{
    static const enum soq__eval_task tasks[] = {SOQ__EVAL_TEXT, SOQ__EVAL_PASSKEY, SOQ__EVAL_RECALL};
    const struct soq__eval_plan *plan = run->eval->plan;
    int rc = 0;

    for (size_t t = 0; t < sizeof tasks / sizeof tasks[0]; t++)
        for (size_t l = 0; plan->tasks[tasks[t]] && !rc && l < plan->n_lengths; l++)
            rc = run_items(run, config, tasks[t], (uint32_t)plan->lengths[l], fill_store && tasks[t] == SOQ__EVAL_TEXT, err);
    return rc;
}

/* ---- Speed */

/* The prompt and one token more than is timed, alone in a cache whose peak is counted from here. */
static int time_one(struct run *run, const struct soq__eval_key *key, struct soq_error *err)
{
    struct soq__engine *e = run->engine.engine;
    struct soq__eval_record r = {.key = *key};
    struct soq__sequence *seq = NULL;
    struct soq__job job;
    int rc;

    e->kv.budget.peak = e->kv.budget.used;
    rc = soq__sequence_create(e, &seq, err);
    if (!rc)
        rc = soq__job_init(&job, seq, run->text.ids.data, key->length, err);
    if (!rc) {
        job.max_tokens = run->eval->plan->n_timed + 1;
        rc = soq__job_run(&job, err);
    }
    if (!rc) {
        r.kv_bytes = soq__kv_seq_bytes(&seq->kv);
        r.kv_peak = e->kv.budget.peak;
        r.tok_s = run->eval->plan->n_timed / (job.last_token - job.first_token);
        rc = soq__eval_records_add(run->eval->records, &r, err);
    }
    soq__sequence_free(seq);
    return rc;
}

/* In turns, so that what else the machine does meets all alike. */
static int run_speed(struct run *run, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < plan->n_reps; i++)
        for (uint32_t c = 0; !rc && c < run->eval->configs->n; c++)
            for (size_t l = 0; !rc && l < plan->n_lengths; l++) {
                struct soq__eval_key key = key_at(run, c, SOQ__EVAL_SPEED, (uint32_t)plan->lengths[l], i);

                if (!is_missing(run, c, SOQ__EVAL_SPEED, key.length, i))
                    continue;
                show_progress(run, &key);
                rc = open_for(run, c, SOQ__EVAL_SPEED, key.length, err);
                if (!rc && soq__interrupted())
                    rc = soq__fail(err, SOQ_ECANCELLED, "interrupted");
                if (!rc)
                    rc = time_one(run, &key, err);
                run->n_done++;
            }
    return rc;
}

/* ---- The whole */

/* What the plugins refuse is found out before hours of work. */
static int try_configs(struct run *run, struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    int rc = 0;

    for (uint32_t c = 0; !rc && c < run->eval->configs->n; c++)
        for (size_t l = 0; !rc && l < plan->n_lengths && !run->left_out[c]; l++) {
            struct soq__eval_engine_params params = engine_params(run, c, SOQ__EVAL_TEXT, (uint32_t)plan->lengths[l]);

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

static int read_text(struct run *run, struct soq_error *err)
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

static int run_all(struct run *run, struct soq_error *err)
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
        rc = run_config(run, c, c == 0 && texts, err);
    if (!rc && plan->tasks[SOQ__EVAL_SPEED])
        rc = run_speed(run, err);
    soq__progress_clear();
    return rc;
}

static int load_model(struct run *run, struct soq_error *err)
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
    struct run run = {.eval = eval};
    int rc;

    run.left_out = soq__alloc_zero(eval->configs->n, sizeof *run.left_out);
    run.lanes = soq__alloc_zero(plan->parallel, sizeof *run.lanes);
    run.jobs = soq__alloc_zero(plan->parallel, sizeof *run.jobs);
    for (size_t l = 0; l < plan->n_lengths; l++)
        run.longest = plan->lengths[l] > run.longest ? (uint32_t)plan->lengths[l] : run.longest;
    rc = run.left_out && run.lanes && run.jobs ? load_model(&run, err) : soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (!rc)
        rc = read_text(&run, err);
    if (!rc)
        rc = run_all(&run, err);
    soq__eval_engine_close(&run.engine);
    soq__row_store_done(&run.store);
    soq__eval_text_done(&run.text);
    soq__model_free(run.model);
    soq__free(run.jobs);
    soq__free(run.lanes);
    soq__free(run.left_out);
    return rc;
}
