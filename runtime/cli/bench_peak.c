/* Peak arithmetic: all threads multiply in registers, with the best instructions that the processor has. */
#include <stdbool.h>

#include "base/clock.h"
#include "base/pool.h"
#include "cli/bench.h"
#include "cli/peak.h"
#include "plugin/cpuid.h"

#define ROUNDS (1u << 20) /* some milliseconds */
#define PASSES 8          /* in the first ones the clock rises */

/* ---- Portable: eight products of 16 bits, four of floats */

typedef uint16_t lanes16 __attribute__((vector_size(16)));
typedef float lanes32 __attribute__((vector_size(16)));

#define LANES_16(i) ((lanes16){(uint16_t)(i)})
#define LANES_32(i) ((lanes32){(float)(i)})
#define MULTIPLY_ADD(c, b) ((c) * (b) + (b))
#define LOW(c) (c)[0]

SOQ__PEAK_KERNEL(, int16_portable, lanes16, LANES_16(rounds), LANES_16, MULTIPLY_ADD, LOW)
SOQ__PEAK_KERNEL(, fp32_portable, lanes32, LANES_32(0.5), LANES_32, MULTIPLY_ADD, LOW)

static const struct soq__peak_kernel portable_int8 = {"portable", NULL, SOQ__PEAK_OPS(8), int16_portable};
static const struct soq__peak_kernel portable_fp32 = {"portable", NULL, SOQ__PEAK_OPS(4), fp32_portable};

/* ---- Timing */

struct timing {
    const struct soq__peak_kernel *kernel;
    double start, seconds;  /* of the best pass; written by thread 0 */
    volatile unsigned sink; /* keeps the products alive */
};

static void run_passes(void *arg, const struct soq_worker *worker)
{
    struct timing *t = arg;

    for (int pass = 0; pass < PASSES; pass++) {
        unsigned sum;

        soq__pool_barrier(worker);
        if (worker->index == 0)
            t->start = soq__clock_now();
        sum = t->kernel->run(ROUNDS);
        soq__pool_barrier(worker);
        if (worker->index == 0) {
            double seconds = soq__clock_now() - t->start;

            t->sink = sum;
            if (pass == 0 || seconds < t->seconds)
                t->seconds = seconds;
        }
    }
}

/* Operations per second; 0: the threads cannot be had. */
static double rate(struct soq__pool *pool, uint32_t threads, const struct soq__peak_kernel *kernel)
{
    struct timing t = {.kernel = kernel};

    return soq__pool_run(pool, threads, run_passes, &t) ? 0 : kernel->ops * ROUNDS * threads / t.seconds;
}

static const struct soq__peak_kernel *choose(const struct soq__peak_kernel *kernels, size_t n,
                                             const struct soq__peak_kernel *portable)
{
    for (size_t i = 0; i < n; i++)
        if (soq__cpu_has(kernels[i].requires_cpu))
            return &kernels[i];
    return portable;
}

int soq__bench_peaks(uint32_t threads, struct soq__bench_peaks *out, struct soq_error *err)
{
    size_t n_int8, n_fp32;
    const struct soq__peak_kernel *int8 = soq__peak_int8(&n_int8), *fp32 = soq__peak_fp32(&n_fp32);
    struct soq__bench_peaks peaks;
    struct soq__pool *pool;
    int rc = soq__pool_create(&pool, err);

    if (rc)
        return rc;
    int8 = choose(int8, n_int8, &portable_int8);
    fp32 = choose(fp32, n_fp32, &portable_fp32);
    peaks = (struct soq__bench_peaks){rate(pool, threads, int8), rate(pool, threads, fp32), int8->name, fp32->name};
    soq__pool_free(pool);
    if (peaks.int8 <= 0 || peaks.fp32 <= 0)
        return soq__fail(err, SOQ_ENOMEM, "cannot start %u threads", threads);
    *out = peaks;
    return 0;
}
