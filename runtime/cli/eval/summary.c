#include "cli/eval/summary.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

/* Of some of a configuration's records, by task: what was measured, and how far it is from the reference. */
struct sample {
    double *values, *differences; /* [n], [n_differences] */
    size_t n, n_differences;
};

typedef double value_of(const struct soq__eval_record *r);

static double mean(const float *values, uint32_t from, uint32_t to)
{
    double sum = 0;

    for (uint32_t i = from; i < to; i++)
        sum += (double)values[i];
    return to > from ? sum / (to - from) : NAN;
}

static double nll_of(const struct soq__eval_record *r)
{
    return mean(r->nll, 0, r->n);
}

static double kl_of(const struct soq__eval_record *r)
{
    return mean(r->kl, 0, r->n);
}

static double score_of(const struct soq__eval_record *r)
{
    return r->score;
}

static double tok_s_of(const struct soq__eval_record *r)
{
    return r->tok_s;
}

/* ---- Going over items */

/* Items of a plan, of one task and one length or all. */
struct walk {
    const struct soq__eval *eval;
    enum soq__eval_task task;
    uint32_t config, length; /* length 0: all */
    uint32_t at;             /* the next */
};

/* The next item that has a record; NULL: there is no more, or the plan has no such task. *reference_out: its record of the full
 * cache, or NULL. */
static const struct soq__eval_record *next(struct walk *w, const struct soq__eval_record **reference_out)
{
    const struct soq__eval_plan *plan = w->eval->plan;
    uint32_t depths = w->task == SOQ__EVAL_PASSKEY ? (uint32_t)plan->n_depths : 1;
    uint32_t each = depths * (w->task == SOQ__EVAL_SPEED ? plan->n_reps : plan->n_items);

    if (!plan->tasks[w->task])
        return NULL;
    for (; w->at < each * plan->n_lengths; w->at++) {
        uint32_t length = (uint32_t)plan->lengths[w->at / each], i = w->at % each;
        uint32_t depth = w->task == SOQ__EVAL_PASSKEY ? (uint32_t)plan->depths[i % depths] : 0;
        struct soq__eval_key key = soq__eval_key(w->eval, w->config, w->task, length, depth, i / depths);
        const struct soq__eval_record *r;

        if ((w->length && w->length != length) || !(r = soq__eval_records_find(w->eval->records, &key)))
            continue;
        key = soq__eval_key(w->eval, 0, w->task, length, depth, i / depths);
        *reference_out = soq__eval_records_find(w->eval->records, &key);
        w->at++;
        return r;
    }
    return NULL;
}

static int collect(struct walk walk, value_of *value, struct sample *out, struct soq_error *err)
{
    const struct soq__eval_record *r, *reference;
    size_t most = walk.eval->records->n;

    *out = (struct sample){soq__alloc_zero(most + 1, sizeof(double)), soq__alloc_zero(most + 1, sizeof(double)), 0, 0};
    if (!out->values || !out->differences)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    while ((r = next(&walk, &reference))) {
        out->values[out->n++] = value(r);
        if (reference)
            out->differences[out->n_differences++] = value(r) - value(reference);
    }
    return 0;
}

static void sample_done(struct sample *s)
{
    soq__free(s->values);
    soq__free(s->differences);
}

/* difference_out NULL: not wanted. */
static int intervals(struct walk walk, value_of *value, struct soq__interval *out, struct soq__interval *difference_out,
                     struct soq_error *err)
{
    struct sample s;
    int rc = collect(walk, value, &s, err);

    if (!rc)
        rc = soq__interval_of(s.values, s.n, out, err);
    if (!rc && difference_out)
        rc = soq__interval_of(s.differences, s.n_differences, difference_out, err);
    sample_done(&s);
    return rc;
}

/* ---- Rows */

/* What needs no interval: by position, likeliest tokens, bytes. */
static void add_plain(struct walk walk, struct soq__eval_row *row)
{
    const struct soq__eval_record *r, *reference;
    double same = 0, scored = 0, bytes = 0;
    uint32_t n = 0;

    for (; (r = next(&walk, &reference)); n++) {
        same += r->n_same_top;
        scored += r->n;
        bytes += (double)r->kv_bytes;
        for (uint32_t b = 0; walk.task == SOQ__EVAL_TEXT && b < SOQ__EVAL_BINS; b++)
            row->kl_by_position[b] += mean(r->kl, r->n * b / SOQ__EVAL_BINS, r->n * (b + 1) / SOQ__EVAL_BINS);
        if (walk.task == SOQ__EVAL_SPEED)
            row->kv_peak = isnan(row->kv_peak) ? (double)r->kv_peak : fmax(row->kv_peak, (double)r->kv_peak);
    }
    for (uint32_t b = 0; walk.task == SOQ__EVAL_TEXT && b < SOQ__EVAL_BINS; b++)
        row->kl_by_position[b] /= n;
    if (walk.task == SOQ__EVAL_TEXT)
        row->same_top = same / scored;
    if (n && isnan(row->kv_bytes))
        row->kv_bytes = bytes / n;
}

/* Of pass keys, by depth. */
static void add_depths(struct walk walk, struct soq__eval_row *row)
{
    const struct soq__eval_plan *plan = walk.eval->plan;
    const struct soq__eval_record *r, *reference;
    uint32_t n[SOQ__EVAL_LIST_MAX] = {0};

    while ((r = next(&walk, &reference)))
        for (size_t d = 0; d < plan->n_depths; d++)
            if (r->key.depth == plan->depths[d]) {
                row->passkey_at[d] += r->score;
                n[d]++;
            }
    for (size_t d = 0; d < plan->n_depths; d++)
        row->passkey_at[d] = n[d] ? row->passkey_at[d] / n[d] : NAN;
}

static int fill(const struct soq__eval *eval, uint32_t config, uint32_t length, struct soq__eval_row *row,
                struct soq_error *err)
{
    struct walk walks[SOQ__EVAL_TASKS];
    struct soq__interval nll = {0};
    int rc;

    *row =
        (struct soq__eval_row){.config = eval->configs->items[config].label, .length = length, .kv_bytes = NAN, .kv_peak = NAN};
    for (int t = 0; t < SOQ__EVAL_TASKS; t++)
        walks[t] = (struct walk){eval, (enum soq__eval_task)t, config, length, 0};
    rc = intervals(walks[SOQ__EVAL_TEXT], nll_of, &nll, &row->log_ppl, err);
    if (!rc)
        rc = intervals(walks[SOQ__EVAL_TEXT], kl_of, &row->kl, NULL, err);
    if (!rc)
        rc = intervals(walks[SOQ__EVAL_PASSKEY], score_of, &row->passkey, &row->passkey_difference, err);
    if (!rc)
        rc = intervals(walks[SOQ__EVAL_RECALL], score_of, &row->recall, &row->recall_difference, err);
    if (!rc)
        rc = intervals(walks[SOQ__EVAL_SPEED], tok_s_of, &row->tok_s, NULL, err);
    row->ppl = nll.n ? exp(nll.mean) : NAN;
    for (int t = 0; t < SOQ__EVAL_TASKS; t++)
        add_plain(walks[t], row);
    add_depths(walks[SOQ__EVAL_PASSKEY], row);
    return rc;
}

int soq__eval_summary_init(struct soq__eval_summary *summary, const struct soq__eval *eval, struct soq_error *err)
{
    const struct soq__eval_plan *plan = eval->plan;
    size_t each = plan->n_lengths + (plan->n_lengths > 1);
    int rc = 0;

    *summary = (struct soq__eval_summary){.eval = eval};
    summary->rows = soq__alloc_zero(eval->configs->n * each, sizeof *summary->rows);
    if (!summary->rows)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    for (uint32_t c = 0; !rc && c < eval->configs->n; c++)
        for (size_t l = 0; !rc && l < each; l++)
            rc = fill(eval, c, l < plan->n_lengths ? (uint32_t)plan->lengths[l] : 0, &summary->rows[summary->n++], err);
    return rc;
}

void soq__eval_summary_done(struct soq__eval_summary *summary)
{
    soq__free(summary->rows);
    *summary = (struct soq__eval_summary){0};
}

const struct soq__eval_row *soq__eval_summary_row(const struct soq__eval_summary *summary, const char *config, uint32_t length)
{
    for (size_t i = 0; i < summary->n; i++)
        if (summary->rows[i].length == length && strcmp(summary->rows[i].config, config) == 0)
            return &summary->rows[i];
    return NULL;
}
