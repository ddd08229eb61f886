/* Drafting with the lossy view, and checking against the full one. */
#include "engine/draft.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/minmax.h"
#include "config/settings.h"
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
    job->drafted_from = job->decided_from = NULL;
    if (!e->drafting.on || !job->max_tokens || !by_ratio(e, job))
        return 0;
    if (!sampler_of(e)->distribution)
        return soq__fail(err, SOQ_EUNSUPPORTED,
                         "temperature = %g: with drafter = self this needs the probabilities of tokens, which the sampler %s "
                         "does not tell; use temperature 0, or [decoding] draft_accept = equal, or drafter = none",
                         (double)job->sampling.temperature, e->sampler.plugin->name);
    job->drafted_from = soq__alloc_array(n_vocab, e->drafting.most * sizeof(float));
    job->decided_from = soq__alloc_array(n_vocab, sizeof(float));
    if (job->drafted_from && job->decided_from)
        return 0;
    soq__drafts_close(job);
    return soq__fail(err, SOQ_ENOMEM, "out of memory for the distributions of %u drafts", e->drafting.most);
}

void soq__drafts_close(struct soq__job *job)
{
    soq__free(job->drafted_from);
    soq__free(job->decided_from);
    job->drafted_from = job->decided_from = NULL;
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

static struct soq_sampler_row row_of(const struct soq__engine *e, const struct soq__job *job, uint32_t n_tokens, float *logits)
{
    return (struct soq_sampler_row){
        .struct_size = sizeof(struct soq_sampler_row),
        .n_vocab = e->net.logits.cols,
        .logits = logits,
        .scratch = e->draw.scratch,
        .history = job->seq->tokens,
        .n_history = n_tokens,
        .position = n_tokens,
    };
}

/* The i-th draft of a job, from the logits behind the one before. */
static int draw(struct soq__engine *e, struct soq__job *job, uint32_t i, float *logits, int32_t *token_out,
                struct soq_error *err)
{
    const struct soq_sampler_row row = row_of(e, job, job->seq->n_tokens + i, logits);
    struct soq_sampled sampled = {.struct_size = sizeof sampled};
    struct soq_distribution q = {.struct_size = sizeof q};
    int rc;

    if (by_ratio(e, job)) {
        q.p = job->drafted_from + (size_t)i * row.n_vocab;
        rc = sampler_of(e)->distribution(e->sampler.self, NULL, &job->sampling, &row, &q, err);
        if (!rc)
            *token_out = soq__pick(q.p, row.n_vocab, soq__uniform(job->sampling.seed, row.position, SOQ__STREAM_DRAW));
        return rc;
    }
    rc = sampler_of(e)->sample(e->sampler.self, NULL, &job->sampling, &row, &sampled, err);
    if (!rc)
        *token_out = sampled.token;
    return rc;
}

/* A draft that cannot be drawn, of logits that are no numbers, say, is none: the full view decides whether that is an error. */
static void take(struct soq__engine *e, struct soq__job *job, uint32_t i, float *logits)
{
    struct soq__sequence *seq = job->seq;

    if (draw(e, job, i, logits, &seq->tokens[seq->n_tokens + i], NULL) == 0)
        return;
    job->step_rows -= job->n_drafts - i;
    job->step_outputs -= job->n_drafts - i;
    job->n_drafts = i;
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
        for (struct soq__job *job = e->jobs; job; job = job->next)
            if (drafts(job, i))
                take(e, job, i, (float *)(uintptr_t)logits + (size_t)job->first_output * e->net.logits.cols);
    }
}

/* ---- Choosing ------------------------------------------------------------------------------------------------------------ */

/* The token of the row from the distribution p, given that it was drafted from q. */
static int decide(struct soq__engine *e, struct soq__job *job, uint32_t i, const struct soq_sampler_row *row,
                  struct soq_sampled *out, bool *accepted_out)
{
    float *q = job->drafted_from + (size_t)i * row->n_vocab;
    struct soq_distribution p = {.struct_size = sizeof p, .p = job->decided_from};
    int32_t token = job->seq->tokens[row->n_history]; /* the draft */
    int rc = sampler_of(e)->distribution(e->sampler.self, NULL, &job->sampling, row, &p, &job->err);

    if (rc)
        return rc;
    *accepted_out = soq__uniform(job->sampling.seed, row->position, SOQ__STREAM_ACCEPT) < soq__acceptance(p.p, q, token);
    if (!*accepted_out) {
        soq__residual(p.p, q, row->n_vocab);
        token = soq__pick(q, row->n_vocab, soq__uniform(job->sampling.seed, row->position, SOQ__STREAM_RESIDUAL));
    }
    *out = (struct soq_sampled){
        .struct_size = sizeof *out,
        .token = token,
        .logprob = (float)((double)row->logits[token] - p.log_sum),
        .n_candidates = p.n_candidates,
    };
    return 0;
}

int soq__choose(struct soq__engine *e, struct soq__job *job, uint32_t i, float *logits, struct soq_sampled *out,
                bool *goes_on_out)
{
    const struct soq_sampler_row row = row_of(e, job, job->seq->n_tokens, logits);
    bool is_drafted = i < job->n_drafts;
    int rc;

    *goes_on_out = false;
    *out = (struct soq_sampled){.struct_size = sizeof *out};
    if (is_drafted && by_ratio(e, job))
        return decide(e, job, i, &row, out, goes_on_out);
    rc = sampler_of(e)->sample(e->sampler.self, job->seq->sampler_state, &job->sampling, &row, out, &job->err);
    *goes_on_out = !rc && is_drafted && out->token == job->seq->tokens[row.n_history];
    return rc;
}

/* All were good: more next time; else about as many as were. */
void soq__drafts_done(const struct soq__engine *e, struct soq__job *job, uint32_t n_accepted)
{
    job->n_drafted += job->n_drafts;
    job->n_accepted += n_accepted;
    if (e->drafting.adapts && job->n_drafts)
        job->n_wanted = n_accepted < job->n_drafts ? n_accepted + 1 : soq__min_u32(2 * job->n_wanted, e->drafting.most);
}
