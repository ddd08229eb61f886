/* Means of items with their uncertainty.
 *
 * Two configurations are compared by the mean of their items' differences. The interval is the percentile bootstrap of that
 * mean (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13): 95 % of the means of 2000 samples, drawn
 * with replacement from the items, lie in it. Nothing is assumed about the distribution; the same items give the same interval.
 */
#ifndef SOQ_CLI_EVAL_PAIRED_H
#define SOQ_CLI_EVAL_PAIRED_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { SOQ__BOOTSTRAP_SAMPLES = 2000, SOQ__BOOTSTRAP_SEED = 1 };

struct soq__interval {
    size_t n;               /* items; 0: nothing is known */
    double mean, low, high; /* with one item all three are equal */
};

/* values [n]: one for each item. 0 or -SOQ_ENOMEM. */
int soq__interval_of(const double *values, size_t n, struct soq__interval *out, struct soq_error *err);

#endif
