/* Rotary position embedding: the frequencies, with every scaling method resolved once at load.
 *
 * Backends see only inv_freq and mscale: angle of pair i at position p is p * inv_freq[i], cosine and sine are multiplied by
 * mscale. */
#ifndef SOQ_MODEL_ROPE_H
#define SOQ_MODEL_ROPE_H

#include <stdint.h>

enum soq__rope_scaling { SOQ__ROPE_NONE, SOQ__ROPE_LINEAR, SOQ__ROPE_YARN };

struct soq__rope_params {
    uint32_t n_rot; /* elements of a head that are rotated, even */
    float base;
    enum soq__rope_scaling scaling;
    float factor;                                        /* context extension, >= 1 */
    uint32_t original_context;                           /* YaRN */
    float beta_fast, beta_slow, attn_factor, ext_factor; /* YaRN */
    const float *factors; /* [n_rot / 2] divisors stored in the file (llama3's method), or NULL; not owned */
};

/* Fills inv_freq[n_rot / 2] and the factor for cosine and sine. */
void soq__rope_frequencies(const struct soq__rope_params *p, float *inv_freq, float *mscale_out);

#endif
