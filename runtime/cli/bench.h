/* `soquete bench`: what its parts share. */
#ifndef SOQ_CLI_BENCH_H
#define SOQ_CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/profile.h"

#define SOQ__BENCH_REPS_MAX 64

/* One test: prefill ("pp") or decode ("tg") of `tokens` tokens behind `depth` others. */
struct soq__bench_test {
    char name[32]; /* "pp512" */
    bool decode;
    int64_t tokens, depth;
    uint32_t parallel;
    double rates[SOQ__BENCH_REPS_MAX]; /* tokens per second, of all sequences together */
    size_t n;
    bool profiled;
    struct soq__profile profile; /* of all repetitions together */
    bool op_timed;
    struct soq__op_times ops;          /* of one more repetition */
    double memory_share;               /* of the memory bandwidth that decode reached; 0: unknown */
    uint64_t steps, drafted, accepted; /* of all repetitions and sequences: with a drafter */
    double matmul_share;               /* of the int8 peak that the matmuls of a prefill reached; 0: unknown */
};

/* Operations per second, of which a multiply-add is two, and the instructions that gave them. */
struct soq__bench_peaks {
    double int8, fp32; /* 0: not measured */
    const char *int8_by, *fp32_by;
};

enum soq__bench_format { SOQ__BENCH_TABLE, SOQ__BENCH_CSV, SOQ__BENCH_MD, SOQ__BENCH_JSON, SOQ__BENCH_FORMATS };

struct soq__bench_report {
    enum soq__bench_format format;
    const char *model, *backend;  /* names */
    const struct soq__exec *exec; /* for profiles */
    double bandwidth;             /* bytes per second; 0: not measured */
    struct soq__bench_peaks peaks;
};

/* "table", "csv", "md", "json"; false: no such format. */
bool soq__bench_format_parse(const char *text, enum soq__bench_format *out);
void soq__bench_report_begin(const struct soq__bench_report *report);
void soq__bench_report_test(const struct soq__bench_report *report, const struct soq__bench_test *test);

/* Bytes per second that `threads` threads read from a buffer that no cache holds: the best of a few passes. */
int soq__bench_bandwidth(uint32_t threads, double *bytes_per_second_out, struct soq_error *err);
/* What that many threads multiply and add in their registers, together: a limit of the machine, not of a backend. */
int soq__bench_peaks(uint32_t threads, struct soq__bench_peaks *out, struct soq_error *err);

#endif
