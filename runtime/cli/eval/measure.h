/* Items through engines: everything that is asked for and has no record yet.
 *
 * Weights are loaded once for each configuration and budget, from one mapping of the file. Items of a configuration are
 * computed several at a time, which changes no result: an engine's tokens do not depend on who else is in the batch.
 *
 * A policy acts as in use. The prompt is computed in chunks; where it ends, the policy selects and the codec packs; then the
 * answer is forced token by token, one row of the cache as it is by then for each, and what the model would have said is read
 * off the logits. An answer counts as right where each of its tokens was the likeliest, which is what greedy decoding comes to.
 */
#ifndef SOQ_CLI_EVAL_MEASURE_H
#define SOQ_CLI_EVAL_MEASURE_H

#include "cli/eval/config.h"
#include "cli/eval/item.h"
#include "cli/eval/record.h"
#include "cli/options.h"

enum { SOQ__EVAL_LIST_MAX = 16 };

/* What is asked for. */
struct soq__eval_plan {
    bool tasks[SOQ__EVAL_TASKS];
    int64_t lengths[SOQ__EVAL_LIST_MAX], depths[SOQ__EVAL_LIST_MAX]; /* ascending or not; depths in per cent */
    size_t n_lengths, n_depths;
    uint32_t n_items;  /* text and recall: for each length; passkey: for each length and depth */
    uint32_t n_scored; /* tokens of a text behind the prompt */
    uint32_t n_timed;  /* tokens of a speed test */
    uint32_t n_reps;   /* speed tests of each configuration and length */
    uint32_t parallel; /* items at the same time */
    uint64_t seed;
    const char *text; /* file; NULL: generated */
};

struct soq__eval {
    const struct soq__eval_plan *plan;
    const struct soq__args *args;
    const struct soq__eval_configs *configs;
    struct soq__eval_records *records;
    char model[128], fingerprint[17]; /* the file's name, and what is in it */
    char items[SOQ__EVAL_TASKS][128]; /* what the keys of records say, by task */
};

/* Fills what depends on the model's tokens; then all that is missing is measured. A configuration that the runtime cannot
 * combine (SOQ_EUNSUPPORTED) is said on standard error and left out; all are tried before the first is measured.
 * -SOQ_ECANCELLED after Ctrl-C: what was finished is recorded. */
int soq__eval_measure(struct soq__eval *eval, struct soq_error *err);

/* The key of an item of the plan. */
struct soq__eval_key soq__eval_key(const struct soq__eval *eval, uint32_t config, enum soq__eval_task task, uint32_t length,
                                   uint32_t depth, uint32_t index);

#endif
