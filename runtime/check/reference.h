/* What ops must give, in f64: naive, and nothing of it shared with a backend. The unit tests compare with these too. */
#ifndef SOQ_CHECK_REFERENCE_H
#define SOQ_CHECK_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sum of w[i] x[i]; *size_out: of their magnitudes, which rounding errors are proportional to. */
double soq__ref_dot(const float *w, const float *x, uint32_t n, double *size_out);

/* act(x), kind: enum soq_activation_kind. */
double soq__ref_activation(uint32_t kind, double x);

/* One run of `width` numbers; kind: enum soq_norm_kind; bias may be NULL. */
void soq__ref_norm(uint32_t kind, const float *x, uint32_t width, double eps, const float *weight, const float *bias,
                   double *out);

/* One head in place, n_rot of its elements; kind: enum soq_rope_kind; inv_freq [n_rot / 2]. */
void soq__ref_rope(uint32_t kind, double *head, uint32_t n_rot, const float *inv_freq, double position, double mscale);

/* x rounded to the nearest half float, and back. */
double soq__ref_half(double x);

enum { SOQ__REF_POSITIONS = 8192 /* that a row may see */ };

/* Attention of one head. Keys and values of position p begin at k + p * k_stride and v + p * v_stride, for this head. */
struct soq__ref_attention {
    uint32_t dk, dv;
    double scale, softcap; /* softcap 0: none */
    uint32_t window, sinks;
    const float *sink_logit; /* NULL: none */
    const float *k, *v;
    size_t k_stride, v_stride;      /* floats */
    bool halves;                    /* the cache keeps half floats, */
    uint32_t halves_from;           /* from this position on */
    uint32_t hole_first, hole_last; /* these positions are not there; none: 0, 0 */
};

/* The probability of each position up to `position` for the row there, whose query is q [dk]; weights [position + 1]. */
void soq__ref_weigh(const struct soq__ref_attention *a, const float *q, uint32_t position, double *weights);
/* q [dk] is the query of the row at `position`, which sees positions up to itself; out [dv]. */
void soq__ref_attend(const struct soq__ref_attention *a, const float *q, uint32_t position, double *out);

#endif
