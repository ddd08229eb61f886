/* Percentiles and one-dimensional k-means (C. Hooper et al., "KVQuant", NeurIPS 2024, sections 3.2 to 3.4).
 *
 * Numbers between the thresholds of their vector are mapped to [-1, 1] and counted in fine bins, which keep the sums of what
 * fell into them; k-means then works on the bins. */
#include "cli/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "soquete/plugin.h"

enum { BINS = 1 << 16, ROUNDS = 50 };

static const double low_percentile = 0.5, high_percentile = 99.5, outliers = 0.01;

/* ---- Bins ---------------------------------------------------------------------------------------------------------------- */

struct bins {
    double weight[BINS + 1], sum[BINS + 1]; /* then: of all bins below */
};

static void add(struct bins *b, double z, double weight)
{
    double at = (z + 1) / 2 * BINS;
    int i = at < 0 ? 0 : at >= BINS ? BINS - 1 : (int)at;

    b->weight[i + 1] += weight;
    b->sum[i + 1] += weight * z;
}

static void accumulate(struct bins *b)
{
    for (int i = 0; i < BINS; i++) {
        b->weight[i + 1] += b->weight[i];
        b->sum[i + 1] += b->sum[i];
    }
}

/* The first bin border at or above z. */
static int border(double z)
{
    double at = ceil((z + 1) / 2 * BINS);

    return at < 0 ? 0 : at > BINS ? BINS : (int)at;
}

static double quantile(const struct bins *b, double share)
{
    int low = 0, high = BINS;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (b->weight[middle] < share * b->weight[BINS])
            low = middle;
        else
            high = middle;
    }
    return (low + 0.5) / BINS * 2 - 1;
}

/* Lloyd's algorithm: each entry goes to the mean of what is nearest to it. */
static void k_means(const struct bins *b, uint32_t k, float *out)
{
    double entry[16];

    for (uint32_t i = 0; i < k; i++) /* without samples: a uniform table */
        entry[i] = b->weight[BINS] > 0 ? quantile(b, (i + 0.5) / k) : (2.0 * i + 1) / k - 1;
    for (int round = 0; round < ROUNDS; round++) {
        double next[16];
        int from = 0;

        for (uint32_t i = 0; i < k; i++) {
            int to = i + 1 < k ? border((entry[i] + entry[i + 1]) / 2) : BINS;
            double weight = b->weight[to] - b->weight[from];

            next[i] = weight > 0 ? (b->sum[to] - b->sum[from]) / weight : entry[i];
            from = to;
        }
        memcpy(entry, next, k * sizeof *entry);
    }
    for (uint32_t i = 0; i < k; i++)
        out[i] = (float)fmax(-1, fmin(1, entry[i]));
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

struct work {
    const struct soq__calibration_layer *layer;
    const struct soq_calibration_header *header;
    struct bins *plain, *weighted;
    float *column, *sorted; /* [n] */
    float *row;             /* [head_dim_v] */
    float *out;
};

/* Channel `dim` of the keys of a head, as it was before RoPE: as codecs undo it. */
static void undo_rope(const struct soq_kv_shape *shape, const struct soq__samples *s, size_t n, uint32_t dim, float *column)
{
    bool interleaved = shape->rope_kind == SOQ_ROPE_INTERLEAVED;
    uint32_t half = shape->n_rot / 2, pair, other;
    double sign, gain = 1 / (double)shape->rope_mscale;

    if (dim >= shape->n_rot)
        return;
    pair = interleaved ? dim / 2 : dim % half;
    other = interleaved ? dim ^ 1 : dim < half ? dim + half : dim - half;
    sign = dim < other ? gain : -gain;
    for (size_t t = 0; t < n; t++) {
        double angle = s->positions[t] * (double)shape->inv_freq[pair];

        column[t] =
            (float)((double)column[t] * cos(angle) * gain + (double)s->keys[t * shape->head_dim + other] * sin(angle) * sign);
    }
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float percentile(const float *sorted, size_t n, double percent)
{
    return sorted[(size_t)floor((double)(n - 1) * percent / 100 + 0.5)];
}

static void add_channel(struct work *w, const struct soq__samples *s, float *low_out, float *high_out)
{
    size_t n = w->layer->n;
    double low, high;

    memcpy(w->sorted, w->column, n * sizeof *w->column);
    qsort(w->sorted, n, sizeof *w->sorted, compare_floats);
    *low_out = percentile(w->sorted, n, low_percentile);
    *high_out = percentile(w->sorted, n, high_percentile);
    low = (double)*low_out;
    high = (double)*high_out;
    for (size_t t = 0; t < n && high > low; t++) {
        double x = (double)w->column[t];

        if (x < low || x > high)
            continue;
        add(w->plain, 2 * (x - low) / (high - low) - 1, 1);
        add(w->weighted, 2 * (x - low) / (high - low) - 1, s->weights[t]);
    }
}

/* Thresholds, and what lies between them, of all channels. roped: 0 or 1. */
static void add_keys(struct work *w, uint32_t roped)
{
    const struct soq_kv_shape *shape = w->layer->shape;
    uint64_t channels = (uint64_t)shape->n_kv_heads * shape->head_dim;

    for (uint64_t i = 0; i < channels; i++) {
        const struct soq__samples *s = &w->layer->heads[i / shape->head_dim];
        uint32_t dim = (uint32_t)(i % shape->head_dim);

        for (size_t t = 0; t < w->layer->n; t++)
            w->column[t] = s->keys[t * shape->head_dim + dim];
        if (!roped)
            undo_rope(shape, s, w->layer->n, dim, w->column);
        add_channel(w, s, &w->out[roped * channels + i], &w->out[(2 + roped) * channels + i]);
    }
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

/* Takes the numbers of x [n] farthest from their mean away, as the codec does; returns how many are left. */
static uint32_t drop_outliers(float *x, uint32_t n)
{
    uint32_t count = (uint32_t)(outliers * n + 0.5), left = n;
    double mean = 0;

    for (uint32_t i = 0; i < n; i++)
        mean += (double)x[i] / n;
    for (uint32_t k = 0; k < (count ? count : 1) && left > 1; k++) {
        uint32_t at = 0;

        for (uint32_t i = 1; i < left; i++)
            if (fabs((double)x[i] - mean) > fabs((double)x[at] - mean))
                at = i;
        x[at] = x[--left];
    }
    return left;
}

static void add_values(struct work *w)
{
    const struct soq_kv_shape *shape = w->layer->shape;

    for (size_t i = 0; i < w->layer->n * shape->n_kv_heads; i++) {
        const struct soq__samples *s = &w->layer->heads[i / w->layer->n];
        size_t t = i % w->layer->n;
        double low = INFINITY, high = -INFINITY;
        uint32_t n;

        memcpy(w->row, s->values + t * shape->head_dim_v, shape->head_dim_v * sizeof *w->row);
        n = drop_outliers(w->row, shape->head_dim_v);
        for (uint32_t d = 0; d < n; d++) {
            low = fmin(low, (double)w->row[d]);
            high = fmax(high, (double)w->row[d]);
        }
        for (uint32_t d = 0; d < n && high > low; d++) {
            double z = 2 * ((double)w->row[d] - low) / (high - low) - 1;

            add(w->plain, z, 1);
            add(w->weighted, z, s->weights[t]);
        }
    }
}

/* ---- A layer ------------------------------------------------------------------------------------------------------------- */

static void write_tables(struct work *w, enum soq_calibration_tensor tensor)
{
    accumulate(w->plain);
    accumulate(w->weighted);
    for (uint32_t bits = 2; bits <= 4; bits++) {
        k_means(w->plain, 1u << bits, w->out + soq_calibration_table(w->header, tensor, 0, bits));
        k_means(w->weighted, 1u << bits, w->out + soq_calibration_table(w->header, tensor, 1, bits));
    }
    memset(w->plain, 0, sizeof *w->plain);
    memset(w->weighted, 0, sizeof *w->weighted);
}

int soq__calibrate_layer(const struct soq__calibration_layer *layer, const struct soq_calibration_header *header, float *out,
                         struct soq_error *err)
{
    struct work w = {
        .layer = layer,
        .header = header,
        .plain = soq__alloc_zero(1, sizeof *w.plain),
        .weighted = soq__alloc_zero(1, sizeof *w.weighted),
        .column = soq__alloc_array(layer->n, sizeof *w.column),
        .sorted = soq__alloc_array(layer->n, sizeof *w.sorted),
        .row = soq__alloc_array(layer->shape->head_dim_v, sizeof *w.row),
        .out = out,
    };
    bool ok = w.plain && w.weighted && w.column && w.sorted && w.row;

    if (ok) {
        add_keys(&w, 0);
        write_tables(&w, SOQ_CALIBRATION_KEYS);
        add_keys(&w, 1);
        write_tables(&w, SOQ_CALIBRATION_ROPED_KEYS);
        add_values(&w);
        write_tables(&w, SOQ_CALIBRATION_VALUES);
    }
    soq__free(w.plain);
    soq__free(w.weighted);
    soq__free(w.column);
    soq__free(w.sorted);
    soq__free(w.row);
    return ok ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory");
}
