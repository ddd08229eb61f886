/* Results, one for each item, in memory and as lines of JSON in a file that grows while they are measured.
 *
 * A file may hold results of several models and of other items; a record is found again by everything that it depends on but
 * the settings that all configurations share. Lines without a fingerprint are of any model of that name. A last line that was
 * not finished is dropped. */
#ifndef SOQ_CLI_EVAL_RECORD_H
#define SOQ_CLI_EVAL_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum soq__eval_task { SOQ__EVAL_TEXT, SOQ__EVAL_PASSKEY, SOQ__EVAL_RECALL, SOQ__EVAL_SPEED, SOQ__EVAL_TASKS };

/* "text", "passkey", "recall", "speed" */
extern const char *const soq__eval_task_names[SOQ__EVAL_TASKS];

struct soq__eval_key {
    const char *model;       /* the file's name */
    const char *fingerprint; /* of what is in it, in hex; NULL: not known, so any of that name */
    const char *config;      /* label */
    const char *items;       /* of which kind the item is: "seed 1", "kjv.txt 3f2a901c, 8 cuts of 64 behind up to 2048" */
    enum soq__eval_task task;
    uint32_t length; /* tokens of the prompt */
    uint32_t depth;  /* passkey: per cent of the prompt before it */
    uint32_t index;  /* among its like */
};

struct soq__eval_record {
    struct soq__eval_key key; /* strings owned */
    double score;             /* passkey, recall: share of the answers that are right */
    uint64_t kv_bytes;        /* of the blocks that the sequence held at the end */
    uint64_t kv_peak;         /* speed: the most that the pools took, prompt included */
    double tok_s;             /* speed: tokens per second of the answer */
    uint32_t n;               /* scored tokens; text: all, passkey and recall: of the answers */
    uint32_t n_same_top;      /* text: of these, how often the likeliest token is the full cache's */
    float *nll;               /* [n] owned; NULL: speed */
    float *kl;                /* [n] owned; text: from the full cache, nats; else NULL */
};

struct soq__eval_records {
    struct soq__eval_record *items; /* [n] */
    size_t n, cap;
    FILE *file; /* NULL: there is none */
    char *path;
};

/* Reads what the file has, which may be nothing, and opens it to append; path NULL: no file. Needs done() in any case. */
int soq__eval_records_open(struct soq__eval_records *records, const char *path, struct soq_error *err);
void soq__eval_records_done(struct soq__eval_records *records);
/* NULL: there is none; valid until the next add. */
const struct soq__eval_record *soq__eval_records_find(const struct soq__eval_records *records, const struct soq__eval_key *key);
/* Takes the arrays in any case, copies the strings, and writes the line. */
int soq__eval_records_add(struct soq__eval_records *records, const struct soq__eval_record *record, struct soq_error *err);

#endif
