/* The engine of a loaded model: sequences, a queue of jobs, and the step that computes rows of many of them at once.
 *
 * A *sequence* is a list of tokens and its cache. A *job* is one request on a sequence: bring its cache up to a prompt, then
 * sample. The thread that waits for a job runs the steps itself, one thread at a time for all jobs: no thread of the engine's
 * own, nothing runs while nobody waits. A step takes one row of every job that decodes, then chunks of prompts, under the token
 * budget.
 *
 * Locking: `lock` guards everything here but what the step in flight owns (the backend, the rows' sequences); it is released
 * while the backend computes. Whoever changes a sequence outside a step waits until none is in flight. */
#ifndef SOQ_ENGINE_ENGINE_H
#define SOQ_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/codecs.h"
#include "engine/net.h"
#include "engine/policies.h"
#include "engine/step.h"
#include "engine/trace.h"
#include "kv/prefix.h"
#include "soquete/soquete.h"

struct soq__engine;

struct soq__sequence {
    struct soq__engine *engine;
    struct soq__kv_seq kv;
    int32_t *tokens; /* [context + 1] known; the first kv.n_committed are computed */
    float *logprobs; /* [context + 1] of sampled tokens */
    uint32_t n_tokens;
    uint32_t n_dropped;            /* so many were computed when a preemption dropped the entries */
    void *sampler_state;           /* owned; NULL if the sampler has none */
    struct soq__job *job;          /* in the queue; NULL: idle */
    atomic_bool cancelled;         /* the job should end */
    struct soq__prefix_root *root; /* of its salt in the prefix index; NULL: there is no index */
    uint64_t used;                 /* engine.n_done when its last job ended */
    uint64_t kept;                 /* the latest engine.preempt.round in which it could not be preempted */
};

/* Called under the lock, on whichever thread runs the step, for each sampled token; nonzero ends the job with that reason,
 * negative with that error. */
typedef int soq__on_sampled(void *arg, const struct soq__job *job, int32_t token, struct soq_error *err);
/* Called likewise for each row whose logits were wanted: those that follow `position`. */
typedef void soq__on_logits(void *arg, uint32_t position, const float *logits, uint32_t n_vocab);

struct soq__job {
    /* The request: filled in by the owner, who keeps it until the job is done. */
    struct soq__sequence *seq;
    const int32_t *prompt; /* [n_prompt], at least one */
    uint32_t n_prompt;
    uint32_t max_tokens;
    int32_t priority; /* larger: sooner */
    bool ignore_eog;
    struct soq_sampling sampling;
    soq__on_sampled *on_sampled; /* or NULL */
    soq__on_logits *on_logits;   /* or NULL */
    uint32_t logits_from;        /* first position wanted, with on_logits; moves up as they are delivered */
    const int32_t *forced;       /* [max_tokens] follow the prompt whatever is sampled; or NULL */
    void *arg;
    /* Progress, under the lock. */
    enum { SOQ__JOB_QUEUED, SOQ__JOB_RUNNING, SOQ__JOB_DONE } state;
    uint32_t n_cached, n_generated;
    uint32_t n_prefix;              /* of n_cached, from the prefix index */
    uint32_t n_steps;               /* that gave tokens */
    uint32_t n_drafted, n_accepted; /* tokens that the lossy view proposed; of these, those that became the answer's */
    struct soq__kv_stats kv_before, kv_after; /* of the sequence when the job was enqueued, and when it ended */
    uint64_t kv_bytes, kv_draft_bytes; /* that the sequence held when the job ended: later it may be preempted at any time */
    int reason;                        /* enum soq_reason */
    int rc;
    struct soq_error err;
    double started, prompt_done, first_token, last_token; /* soq__clock_now */
    /* The engine's. */
    struct soq__job *next;
    bool was_admitted;                              /* it has run, even if it waits again */
    uint32_t n_overtaken;                           /* by jobs that came later */
    uint32_t step_rows, step_outputs, first_output; /* in the step being planned */
    struct soq_sampled drawn;                       /* the token after it, with draw_rc 0 */
    int draw_rc;
    uint32_t n_drafts;   /* of step_rows, the last ones: tokens behind the sequence's known ones */
    uint32_t n_wanted;   /* drafts, next time */
    float *drafted_from; /* [most][n_vocab] distributions of the step's drafts; owned; NULL: they are not needed */
};

struct soq__engine_params {
    const struct soq__model *model; /* must outlive the engine */
    struct soq__registry *registry;
    struct soq__settings *settings;
    uint32_t max_outputs; /* rows with logits in one step, beyond one per sequence; 0: none */
    bool profile;         /* of exec.h */
    bool place_only;      /* decide who runs what and no more: an engine to look at and to free */
    soq__load_progress *progress;
    void *progress_arg;
};

/* A token that is drawn behind a job's known ones and `ahead` of its drafts. */
struct soq__draw_row {
    struct soq__job *job;
    uint32_t ahead;
    float *logits;              /* [n_vocab] */
    struct soq_sampled sampled; /* with rc 0 */
    bool goes_on;               /* it is what was drafted, so the next row counts, too */
    int rc;
    struct soq_error err;
};

/* Draws a row, with that thread's scratch. */
typedef void soq__draw_fn(struct soq__engine *engine, struct soq__draw_row *row, uint32_t thread);

/* Several at a time: draw.h. */
struct soq__draw {
    uint32_t threads, n;
    struct soq__draw_row *rows; /* [n], room for one per sequence and for one per thread */
    uint32_t *scratch;          /* [threads][n_vocab] for the sampler */
    float *probabilities;       /* [threads][n_vocab] likewise; NULL: they are not needed */
    soq__draw_fn *fn;
};

struct soq__engine {
    const struct soq__model *model;
    struct soq__hash fingerprint; /* of the model */
    struct soq__pool *pool;
    struct soq__host host;
    struct soq__exec exec;
    struct soq__policies policies;
    struct soq__codecs codecs;
    struct soq__role_instance sampler;
    struct soq__kv_layout layout;
    struct soq__kv_cache kv;
    struct soq_buf identity;   /* of the cache's contents, as it was when the model was loaded: identity.h */
    struct soq__trace *trace;  /* NULL: nobody asked */
    struct soq__prefix prefix; /* its cache is NULL where there is no index */
    struct {
        bool swap, recompute; /* what may be done */
        uint64_t n_dropped;   /* sequences whose blocks were dropped so far, to be computed again */
        uint64_t round;       /* searches for room so far */
    } preempt;
    struct {
        bool on;       /* the cache has a lossy view */
        bool adapts;   /* the number of drafts follows their acceptance */
        bool by_ratio; /* of probabilities; else a draft must be the token that is drawn anyway */
        uint32_t most; /* drafts of a sequence at a time */
    } drafting;
    struct soq__net net;
    struct soq__step_builder step;
    uint32_t context, chunk, step_tokens, max_rows, max_outputs, max_sequences;
    uint32_t prompt_rows; /* that a step keeps for prompts, however many sequences decode */
    float *logits;        /* [max_outputs * n_vocab] on the host; NULL when the backend's memory is the host's */
    struct soq__draw draw;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a step ended, a job was drained, queued or done */
    bool stepping;
    uint32_t n_waiting;    /* threads that want the engine between two steps: the next step waits for them */
    uint64_t n_done;       /* jobs that ended so far */
    struct soq__job *jobs; /* queued and running, oldest first */
    struct soq_error step_err;
    const atomic_bool **in_flight; /* [max_sequences] cancel flags of the step's sequences; fixed while it computes */
    uint32_t n_in_flight;
};

int soq__engine_create(const struct soq__engine_params *params, struct soq__engine **out, struct soq_error *err);
void soq__engine_free(struct soq__engine *engine); /* no sequences left */

/* The lock with no step in flight. */
void soq__engine_lock(struct soq__engine *engine);
void soq__engine_unlock(struct soq__engine *engine);

/* salt: n bytes; the sequence shares prefixes with those of the same salt only. */
int soq__sequence_open(struct soq__engine *engine, const void *salt, size_t n, struct soq__sequence **out,
                       struct soq_error *err);
int soq__sequence_create(struct soq__engine *engine, struct soq__sequence **out, struct soq_error *err); /* no salt */
void soq__sequence_free(struct soq__sequence *seq);
int soq__sequence_fork(struct soq__sequence *seq, struct soq__sequence **out, struct soq_error *err);
/* How many of its tokens were computed, whether or not their entries are in memory at the moment. */
uint32_t soq__sequence_computed(const struct soq__sequence *seq); /* under the lock */
uint32_t soq__sequence_length(struct soq__sequence *seq);
int soq__sequence_rollback(struct soq__sequence *seq, uint32_t n_tokens, struct soq_error *err);

/* Runs a job to its end; the caller fills the request part. drain, if given, is called under the lock whenever something
 * changed; it may release the lock in between; it returns true when it did something. The job's outcome is in reason, rc and
 * err. */
typedef bool soq__drain(void *arg);
void soq__engine_run(struct soq__engine *engine, struct soq__job *job, soq__drain *drain, void *drain_arg);

#endif
