#include "cli/eval/logits.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"

struct soq__row_summary soq__row_summary(const float *logits, uint32_t n)
{
    struct soq__row_summary s = {.top = 0};
    double sum = 0;

    for (uint32_t i = 1; i < n; i++)
        s.top = logits[i] > logits[s.top] ? i : s.top;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - logits[s.top]);
    s.log_sum = log(sum) + (double)logits[s.top];
    return s;
}

double soq__row_surprise(const struct soq__row_summary *summary, const float *logits, int32_t token)
{
    return summary->log_sum - (double)logits[token];
}

static float *map_temporary(size_t n_bytes, struct soq_error *err)
{
    FILE *file = tmpfile();
    void *data = MAP_FAILED;

    if (file && ftruncate(fileno(file), (off_t)n_bytes) == 0)
        data = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (data == MAP_FAILED)
        soq__fail(err, SOQ_EIO, "a temporary file of %zu bytes for the logits of the full cache: %s", n_bytes, strerror(errno));
    if (file)
        fclose(file);
    return data == MAP_FAILED ? NULL : data;
}

int soq__row_store_init(struct soq__row_store *store, size_t n_rows, uint32_t n_vocab, struct soq_error *err)
{
    struct soq__row_store s = {.n_rows = n_rows, .n_vocab = n_vocab};

    if (!soq__mul_size(n_rows, (size_t)n_vocab * sizeof(float), &s.n_bytes))
        return soq__fail(err, SOQ_ELIMIT, "%zu rows of logits are too many; give a smaller --scored or --items", n_rows);
    s.summaries = soq__alloc_zero(n_rows, sizeof *s.summaries);
    if (!s.summaries)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    s.rows = map_temporary(s.n_bytes, err);
    if (!s.rows) {
        soq__free(s.summaries);
        return -SOQ_EIO;
    }
    *store = s;
    return 0;
}

void soq__row_store_done(struct soq__row_store *store)
{
    if (store->rows)
        munmap(store->rows, store->n_bytes);
    soq__free(store->summaries);
    *store = (struct soq__row_store){0};
}

void soq__row_store_put(struct soq__row_store *store, size_t row, const float *logits, const struct soq__row_summary *summary)
{
    memcpy(store->rows + row * store->n_vocab, logits, store->n_vocab * sizeof *logits);
    store->summaries[row] = *summary;
}

/* The sum of p is 1, so that what both distributions are divided by comes out of it. A token that the stored row rules out adds
 * nothing, one that only the given row rules out all there is, even where p is less than a float can say: 0 times infinity. */
double soq__row_store_divergence(const struct soq__row_store *store, size_t row, const float *logits,
                                 const struct soq__row_summary *summary)
{
    const float *base = store->rows + row * store->n_vocab;
    const struct soq__row_summary *s = &store->summaries[row];
    double sum = summary->log_sum - s->log_sum;

    for (uint32_t i = 0; i < store->n_vocab; i++)
        if (base[i] != -INFINITY)
            sum += (double)expf(base[i] - (float)s->log_sum) * ((double)base[i] - (double)logits[i]);
    return isnan(sum) ? INFINITY : fmax(sum, 0);
}
