#include "cli/eval/lanes.h"

#include <string.h>

#include "base/alloc.h"
#include "cli/job.h"

struct soq__eval_lane {
    struct soq__eval_run *run;
    struct soq__eval_item item;
    struct soq__eval_key key;
    struct soq__sequence *seq;
    size_t first_row; /* text: of the store */
    bool is_new;      /* to be recorded */
    uint32_t n, n_same_top;
    uint32_t n_right; /* answers */
    bool right;       /* the answer in hand, so far */
    float *nll, *kl;  /* [scored tokens of the item] */
};

/* ---- An item */

static int make_item(const struct soq__eval_run *run, const struct soq__eval_key *key, struct soq__eval_item *out,
                     struct soq_error *err)
{
    const struct soq__eval_plan *plan = run->eval->plan;
    const struct soq__tokenizer *tokenizer = run->model->tokenizer;
    uint64_t seed = plan->seed * 1000003 + key->index;

    if (key->task == SOQ__EVAL_PASSKEY)
        return soq__eval_item_passkey(tokenizer, seed, key->length, key->depth, out, err);
    if (key->task == SOQ__EVAL_RECALL)
        return soq__eval_item_recall(tokenizer, seed, key->length, out, err);
    return soq__eval_item_text(tokenizer, &run->text,
                               &(struct soq__eval_cut){key->index, plan->n_items, key->length, run->longest, plan->n_scored},
                               out, err);
}

static uint32_t n_answers(const struct soq__eval_item *item)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < item->n_turns; t++)
        n += item->turns[t].end - item->turns[t].ask;
    return n;
}

/* Of the store: rows of a text follow each other, texts of a length do. */
static size_t first_row(const struct soq__eval_plan *plan, const struct soq__eval_key *key)
{
    size_t l = 0;

    while (plan->lengths[l] != (int64_t)key->length)
        l++;
    return (l * plan->n_items + key->index) * plan->n_scored;
}

/* ---- A lane */

static int lane_init(struct soq__eval_lane *lane, struct soq__eval_run *run, const struct soq__eval_key *key,
                     struct soq_error *err)
{
    bool is_text = key->task == SOQ__EVAL_TEXT;
    uint32_t n;
    int rc;

    lane->run = run;
    lane->key = *key;
    rc = make_item(run, key, &lane->item, err);
    if (rc)
        return rc;
    n = n_answers(&lane->item);
    lane->first_row = first_row(run->eval->plan, key);
    lane->nll = soq__alloc_zero(n, sizeof *lane->nll);
    lane->kl = is_text ? soq__alloc_zero(n, sizeof *lane->kl) : NULL;
    if (!lane->nll || (is_text && !lane->kl))
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    return soq__sequence_create(run->engine.engine, &lane->seq, err);
}

static void lane_done(struct soq__eval_lane *lane)
{
    soq__sequence_free(lane->seq);
    soq__eval_item_done(&lane->item);
    soq__free(lane->nll);
    soq__free(lane->kl);
    *lane = (struct soq__eval_lane){0};
}

/* Called for each token of an answer but the last; under the engine's lock. */
static void on_logits(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct soq__eval_lane *lane = arg;
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

static int start_turn(struct soq__eval_lane *lane, uint32_t t, struct soq__job *job, struct soq_error *err)
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

/* last: its last turn, which knows what the sequence held: by now it may have given way to others. */
static int record(struct soq__eval_lane *lane, const struct soq__job *last, struct soq_error *err)
{
    struct soq__eval_record r = {
        .key = lane->key,
        .score = (double)lane->n_right / lane->item.n_turns,
        .kv_bytes = last->kv_bytes,
        .n = lane->n,
        .n_same_top = lane->n_same_top,
        .nll = lane->nll,
        .kl = lane->kl,
    };

    if (!lane->is_new)
        return 0;
    lane->nll = lane->kl = NULL;
    lane->run->n_done++;
    return soq__eval_records_add(lane->run->eval->records, &r, err);
}

/* ---- All */

int soq__eval_lanes_init(struct soq__eval_lanes *lanes, struct soq__eval_run *run, struct soq_error *err)
{
    uint32_t most = run->eval->plan->parallel;

    *lanes = (struct soq__eval_lanes){
        .run = run,
        .items = soq__alloc_zero(most, sizeof *lanes->items),
        .jobs = soq__alloc_zero(most, sizeof *lanes->jobs),
    };
    return lanes->items && lanes->jobs ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");
}

void soq__eval_lanes_done(struct soq__eval_lanes *lanes)
{
    soq__eval_lanes_clear(lanes);
    soq__free(lanes->jobs);
    soq__free(lanes->items);
}

int soq__eval_lanes_add(struct soq__eval_lanes *lanes, const struct soq__eval_key *key, bool is_new, struct soq_error *err)
{
    struct soq__eval_lane *lane = &lanes->items[lanes->n++];

    lane->is_new = is_new;
    return lane_init(lane, lanes->run, key, err);
}

const struct soq__eval_key *soq__eval_lanes_first(const struct soq__eval_lanes *lanes)
{
    return lanes->n ? &lanes->items[0].key : NULL;
}

int soq__eval_lanes_run(struct soq__eval_lanes *lanes, struct soq_error *err)
{
    int rc = 0;

    for (uint32_t t = 0; !rc && t < lanes->items[0].item.n_turns; t++) {
        for (uint32_t i = 0; !rc && i < lanes->n; i++)
            rc = start_turn(&lanes->items[i], t, &lanes->jobs[i], err);
        if (!rc)
            rc = soq__jobs_run(lanes->jobs, lanes->n, err);
        for (uint32_t i = 0; !rc && i < lanes->n; i++)
            lanes->items[i].n_right += lanes->items[i].right;
    }
    for (uint32_t i = 0; !rc && i < lanes->n; i++)
        rc = record(&lanes->items[i], &lanes->jobs[i], err);
    return rc;
}

void soq__eval_lanes_clear(struct soq__eval_lanes *lanes)
{
    while (lanes->n)
        lane_done(&lanes->items[--lanes->n]);
}
