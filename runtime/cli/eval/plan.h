/* What is asked for, and which items that comes to. */
#ifndef SOQ_CLI_EVAL_PLAN_H
#define SOQ_CLI_EVAL_PLAN_H

#include "cli/eval/config.h"
#include "cli/eval/record.h"
#include "cli/options.h"

enum { SOQ__EVAL_LIST_MAX = 16 };

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

/* The key of an item. */
struct soq__eval_key soq__eval_key(const struct soq__eval *eval, uint32_t config, enum soq__eval_task task, uint32_t length,
                                   uint32_t depth, uint32_t index);
/* Items of a configuration, of one task and one length; pass keys of all depths. */
uint32_t soq__eval_n_items(const struct soq__eval_plan *plan, enum soq__eval_task task);
/* The key of the i-th of them. Those of a depth follow each other. */
struct soq__eval_key soq__eval_key_at(const struct soq__eval *eval, uint32_t config, enum soq__eval_task task, uint32_t length,
                                      uint32_t i);

#endif
