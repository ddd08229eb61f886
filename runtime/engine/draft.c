/* Drafting with the lossy view, and checking against the full one. */
#include "engine/draft.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/minmax.h"
#include "config/settings.h"
#include "engine/draw.h"
#include "engine/jobs.h"
#include "engine/speculate.h"

#define ADAPTS_MOST 8 /* drafts at a time where their number follows acceptance */
#define ADAPTS_FIRST 4

static const struct soq_sampler_ops *sampler_of(const struct soq__engine *e)
{
    return e->sampler.plugin->ops.sampler;
}

/* Beyond temperature 0 both distributions are needed; at 0, and where the same tokens are wanted, drawing twice is enough. */
static bool by_ratio(const struct soq__engine *e, const struct soq__job *job)
{
    return e->drafting.by_ratio && job->sampling.temperature > 0;
}

/* ---- Settings ------------------------------------------------------------------------------------------------------------ */

uint32_t soq__drafts_most(const struct soq__settings *settings)
{
    enum { NONE, SELF };
    uint32_t most = (uint32_t)soq__settings_int(settings, "decoding", "draft_tokens");

    return soq__settings_choice(settings, "decoding", "drafter") == NONE ? 0 : most ? most : ADAPTS_MOST;
}

void soq__drafting_init(struct soq__engine *e, const struct soq__settings *settings)
{
    enum { RATIO, EQUAL };

    e->drafting.most = soq__drafts_most(settings);
    e->drafting.on = e->drafting.most > 0;
    e->drafting.adapts = !soq__settings_int(settings, "decoding", "draft_tokens");
    e->drafting.by_ratio = soq__settings_choice(settings, "decoding", "draft_accept") == RATIO;
}

/* What keeps a policy from ruling its view; NULL: nothing. */
static const char *policy_problem(const struct soq__kv_policy *p)
{
    if (p->ops->traits & SOQ_POLICY_NO_DRAFTS || p->plan.no_drafts)
        return "it cannot work with drafts; use another policy, or [decoding] drafter = none";
    if (p->view == SOQ__KV_FULL && !soq__kv_keeps_all(p))
        return "with [decoding] drafter = self this view decides, so it must keep everything; use the policy full here, and "
               "this one in [draft]";
    return NULL;
}

int soq__drafting_check_policies(const struct soq__policies *policies, struct soq_error *err)
{
    for (uint32_t i = 0; i < policies->n; i++) {
        const struct soq__kv_policy *p = &policies->kv[i];
        const char *problem = policy_problem(p);

        if (problem)
            return soq__fail(err, SOQ_EUNSUPPORTED, "[%s] policy = %s: %s", soq__kv_section(p->view), p->name, problem);
    }
    return 0;
}

int soq__drafting_check(const struct soq__engine *e, struct soq_error *err)
{
    if (!e->drafting.on)
        return 0;
    if (sampler_of(e)->state_size)
        return soq__fail(
            err, SOQ_EUNSUPPORTED,
            "[decoding] drafter = self with sampler = %s: it keeps a state, which drafts would change; use another "
            "sampler, or drafter = none",
            e->sampler.plugin->name);
    return soq__drafting_check_policies(&e->policies, err);
}

/* As long as the lossy view holds about what the full one does drafts cost what they save. */
static bool is_worth_it(uint64_t full, uint64_t lossy)
{
    return lossy < full - full / 4;
}

/* Whether the lossy view keeps everything, and in hardly fewer bytes. */
static bool is_never_worth_it(const struct soq__engine *e)
{
    const struct soq__kv_layout *layout = &e->layout;
    uint64_t bytes[SOQ__KV_VIEWS] = {0};

    for (uint32_t g = 0; g < layout->n_groups; g++) {
        const struct soq__kv_group_layout *group = &layout->groups[g];

        if (group->policy != SOQ__KV_NO_POLICY && !soq__kv_keeps_all(&e->policies.kv[group->policy]))
            return false;
    }
    for (uint32_t i = 0; i < SOQ__KV_VIEWS * layout->n_layers; i++) {
        uint32_t n;
        const struct soq__kv_part *part = soq__kv_parts(layout, i / layout->n_layers, i % layout->n_layers, &n);

        for (; n--; part++)
            bytes[i / layout->n_layers] +=
                soq__kv_final_bytes(&layout->groups[part->group]) / layout->groups[part->group].n_layers;
    }
    return !is_worth_it(bytes[SOQ__KV_FULL], bytes[SOQ__KV_LOSSY]);
}

void soq__drafting_warn(const struct soq__engine *e)
{
    for (uint32_t i = 0; e->drafting.on && i < e->policies.n; i++) {
        const struct soq__kv_policy *p = &e->policies.kv[i];

        if (soq__kv_selects(p) && p->plan.every == 1)
            soq__log(SOQ_LOG_WARN,
                     "[decoding] drafter = self drafts nothing: [draft] policy = %s selects behind every token, so a step has "
                     "room for one; give it an `every` of 2 or more, or set drafter = none",
                     p->name);
    }
    if (e->drafting.on && e->drafting.adapts && is_never_worth_it(e))
        soq__log(SOQ_LOG_WARN,
                 "[decoding] drafter = self drafts nothing: the view of [draft] keeps all of a context of %u tokens, in hardly "
                 "fewer bytes than that of [kv]; give [draft] a smaller capacity or another codec, or set draft_tokens, or "
                 "drafter = none",
                 e->context);
}

/* ---- A request ----------------------------------------------------------------------------------------------------------- */

int soq__drafts_open(struct soq__engine *e, struct soq__job *job, struct soq_error *err)
{
    size_t n_vocab = e->net.logits.cols;

    job->n_drafts = job->n_drafted = job->n_accepted = job->n_steps = 0;
    job->n_wanted = e->drafting.adapts ? ADAPTS_FIRST : e->drafting.most;
    job->drafted_from = NULL;
    if (!e->drafting.on || !job->max_tokens || !by_ratio(e, job))
        return 0;
    if (!sampler_of(e)->distribution)
        return soq__fail(err, SOQ_EUNSUPPORTED,
                         "temperature = %g: with drafter = self this needs the probabilities of tokens, which the sampler %s "
                         "does not tell; use temperature 0, or [decoding] draft_accept = equal, or drafter = none",
                         (double)job->sampling.temperature, e->sampler.plugin->name);
    job->drafted_from = soq__alloc_array(n_vocab, e->drafting.most * sizeof(float));
    if (job->drafted_from)
        return 0;
    return soq__fail(err, SOQ_ENOMEM, "out of memory for the distributions of %u drafts", e->drafting.most);
}

void soq__drafts_close(struct soq__job *job)
{
    soq__free(job->drafted_from);
    job->drafted_from = NULL;
}

uint32_t soq__drafts_wanted(const struct soq__engine *e, const struct soq__job *job)
{
    const struct soq__kv_seq *kv = &job->seq->kv;
    uint32_t most = soq__kv_max_rows(kv) - 1, left = job->max_tokens - job->n_generated - 1;

    if (!e->drafting.on || job->forced)
        return 0;
    if (e->drafting.adapts && !is_worth_it(soq__kv_view_bytes(kv, SOQ__KV_FULL), soq__kv_view_bytes(kv, SOQ__KV_LOSSY)))
        return 0;
    return soq__min_u32(job->n_wanted, soq__min_u32(most, left));
}

/* ---- Drafting ------------------------------------------------------------------------------------------------------------ */

/* The probabilities that a token would be drawn with. */
static int tell(struct soq__engine *e, struct soq__draw_row *row, const struct soq_sampler_row *input,
                struct soq_distribution *out)
{
    return sampler_of(e)->distribution(e->sampler.self, NULL, &row->job->sampling, input, out, &row->err);
}

/* The distribution that a job's draft number `ahead` was drawn from. */
static float *drafted_from(const struct soq__engine *e, const struct soq__draw_row *row)
{
    return row->job->drafted_from + (size_t)row->ahead * e->net.logits.cols;
}

/* A draft, from the logits behind the one before. */
static void draw_draft(struct soq__engine *e, struct soq__draw_row *row, uint32_t thread)
{
    const struct soq_sampler_row input = soq__draw_input(e, row, thread);
    struct soq_distribution q = {.struct_size = sizeof q};

    if (!by_ratio(e, row->job)) {
        soq__draw_sample(e, row, thread);
        return;
    }
    q.p = drafted_from(e, row);
    row->rc = tell(e, row, &input, &q);
    if (!row->rc)
        row->sampled.token =
            soq__pick(q.p, input.n_vocab, soq__uniform(row->job->sampling.seed, input.position, SOQ__STREAM_DRAW));
}

/* A draft that cannot be drawn, of logits that are no numbers, say, is none: the full view decides whether that is an error. */
static void take(const struct soq__draw_row *row)
{
    struct soq__job *job = row->job;
    struct soq__sequence *seq = job->seq;

    if (!row->rc) {
        seq->tokens[seq->n_tokens + row->ahead] = row->sampled.token;
        return;
    }
    job->step_rows -= job->n_drafts - row->ahead;
    job->step_outputs -= job->n_drafts - row->ahead;
    job->n_drafts = row->ahead;
}

static bool drafts(const struct soq__job *job, uint32_t i)
{
    return job->step_rows && i < job->n_drafts;
}

int soq__draft(struct soq__engine *e)
{
    for (uint32_t i = 0;; i++) {
        const float *logits;
        int rc;

        soq__step_reset(&e->step);
        for (struct soq__job *job = e->jobs; job; job = job->next)
            if (drafts(job, i))
                job->first_output =
                    soq__step_add_draft(&e->step, &job->seq->kv, job->seq->tokens[job->seq->kv.n_committed + i], i);
        if (!e->step.n_rows)
            return 0;
        rc = soq__step_compute(e, SOQ__KV_LOSSY, &logits);
        if (rc)
            return rc;
        soq__draw_begin(&e->draw);
        for (struct soq__job *job = e->jobs; job; job = job->next)
            if (drafts(job, i))
                soq__draw_add(&e->draw, job, i, (float *)(uintptr_t)logits + (size_t)job->first_output * e->net.logits.cols);
        soq__draw_run(e, draw_draft);
        for (uint32_t n = 0; n < e->draw.n; n++)
            take(&e->draw.rows[n]);
    }
}

/* ---- Choosing ------------------------------------------------------------------------------------------------------------ */

/* The token from the distribution p, given that `token` was drafted from q. */
static void decide(struct soq__engine *e, struct soq__draw_row *row, uint32_t thread, int32_t token)
{
    const struct soq_sampler_row input = soq__draw_input(e, row, thread);
    struct soq_distribution p = {.struct_size = sizeof p, .p = e->draw.probabilities + (size_t)thread * input.n_vocab};
    float *q = drafted_from(e, row);
    uint64_t seed = row->job->sampling.seed;

    row->rc = tell(e, row, &input, &p);
    if (row->rc)
        return;
    row->goes_on = soq__uniform(seed, input.position, SOQ__STREAM_ACCEPT) < soq__acceptance(p.p, q, token);
    if (!row->goes_on) {
        soq__residual(p.p, q, input.n_vocab);
        token = soq__pick(q, input.n_vocab, soq__uniform(seed, input.position, SOQ__STREAM_RESIDUAL));
    }
    row->sampled.token = token;
    row->sampled.logprob = (float)((double)input.logits[token] - p.log_sum);
    row->sampled.n_candidates = p.n_candidates;
}

static void choose(struct soq__engine *e, struct soq__draw_row *row, uint32_t thread)
{
    const struct soq__job *job = row->job;
    bool is_drafted = row->ahead < job->n_drafts;
    int32_t draft = is_drafted ? job->seq->tokens[job->seq->kv.n_committed + 1 + row->ahead] : -1;

    if (is_drafted && by_ratio(e, job)) {
        decide(e, row, thread, draft);
        return;
    }
    soq__draw_sample(e, row, thread);
    row->goes_on = is_drafted && !row->rc && row->sampled.token == draft;
}

uint32_t soq__choose(struct soq__engine *e, struct soq__job *job, uint32_t ahead, float *logits)
{
    uint32_t n = job->on_logits ? 1 : soq__min_u32(e->draw.threads, job->n_drafts + 1 - ahead);

    soq__draw_begin(&e->draw);
    for (uint32_t i = 0; i < n; i++)
        soq__draw_add(&e->draw, job, ahead + i, logits + (size_t)i * e->net.logits.cols);
    soq__draw_run(e, choose);
    return n;
}

/* All were good: more next time; else about as many as were. */
void soq__drafts_done(const struct soq__engine *e, struct soq__job *job, uint32_t n_accepted)
{
    job->n_drafted += job->n_drafts;
    job->n_accepted += n_accepted;
    if (e->drafting.adapts && job->n_drafts)
        job->n_wanted = n_accepted < job->n_drafts ? n_accepted + 1 : soq__min_u32(2 * job->n_wanted, e->drafting.most);
}
