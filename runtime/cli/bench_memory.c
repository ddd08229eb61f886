/* Memory bandwidth: threads that read a large buffer from end to end, each its own part. */
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/pool.h"
#include "cli/bench.h"

#define MIN_BYTES ((size_t)256 << 20)
#define MAX_BYTES ((size_t)2 << 30)
#define PASSES 6     /* the first one finds the pages */
#define LINE_WORDS 8 /* words of a cache line */

struct reader {
    const uint64_t *data;
    size_t n_lines;
    double start, seconds;  /* of the best pass; written by thread 0 */
    volatile uint64_t sink; /* keeps the reads alive */
};

/* Eight sums, so that additions are no chain and the compiler may use its widest registers. */
static uint64_t read_lines(const uint64_t *data, size_t n_lines)
{
    uint64_t sums[LINE_WORDS] = {0}, sum = 0;

    for (size_t i = 0; i < n_lines; i++)
        for (size_t w = 0; w < LINE_WORDS; w++)
            sums[w] += data[i * LINE_WORDS + w];
    for (size_t w = 0; w < LINE_WORDS; w++)
        sum += sums[w];
    return sum;
}

static void read_passes(void *arg, const struct soq_worker *worker)
{
    struct reader *r = arg;
    size_t first = r->n_lines * worker->index / worker->count, end = r->n_lines * (worker->index + 1) / worker->count;

    for (int pass = 0; pass < PASSES; pass++) {
        uint64_t sum;

        soq__pool_barrier(worker);
        if (worker->index == 0)
            r->start = soq__clock_now();
        sum = read_lines(r->data + first * LINE_WORDS, end - first);
        soq__pool_barrier(worker);
        if (worker->index == 0) {
            double seconds = soq__clock_now() - r->start;

            r->sink = sum;
            if (pass && (r->seconds <= 0 || seconds < r->seconds))
                r->seconds = seconds;
        }
    }
}

/* Four times the last cache, as far as a quarter of the free memory allows. */
static size_t buffer_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = cache > 0 ? 4 * (size_t)cache : 0, room = (size_t)(soq__memory_available() / 4);

    if (bytes < MIN_BYTES)
        bytes = MIN_BYTES;
    if (bytes > MAX_BYTES)
        bytes = MAX_BYTES;
    if (room && bytes > room)
        bytes = room;
    return bytes / (LINE_WORDS * sizeof(uint64_t)) * (LINE_WORDS * sizeof(uint64_t));
}

int soq__bench_bandwidth(uint32_t threads, double *bytes_per_second_out, struct soq_error *err)
{
    size_t bytes = buffer_bytes(), n_words = bytes / sizeof(uint64_t);
    uint64_t *data = soq__alloc_aligned(64, bytes);
    struct reader reader = {.data = data, .n_lines = n_words / LINE_WORDS};
    struct soq__pool *pool;
    int rc;

    if (!data)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the buffer that measures memory bandwidth");
    for (size_t i = 0; i < n_words; i++)
        data[i] = i; /* pages of zeros might all be one */
    rc = soq__pool_create(&pool, err);
    if (!rc) {
        rc = soq__pool_run(pool, threads, read_passes, &reader);
        if (rc)
            soq__fail(err, SOQ_ENOMEM, "cannot start %u threads", threads);
        soq__pool_free(pool);
    }
    soq__free(data);
    if (!rc)
        *bytes_per_second_out = (double)bytes / reader.seconds;
    return rc;
}
