/* RoPE (Su et al. 2021) and its context extensions: linear (Chen et al. 2023), llama3's per-frequency divisors, YaRN (Peng et
 * al. 2023, section 3.2 "NTK-by-parts" and eq. 22 for the temperature). */
#include "model/rope.h"

#include <math.h>

/* The pair whose wavelength makes `rotations` turns over the original context: inverse of wavelength = 2 pi base^(2i/n). */
static double pair_of_rotations(const struct soq__rope_params *p, double rotations)
{
    return p->n_rot * log(p->original_context / (rotations * 2.0 * M_PI)) / (2.0 * log((double)p->base));
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* YaRN: fast pairs keep their frequency, slow pairs are interpolated, those between are mixed along a ramp. */
static double yarn_frequency(const struct soq__rope_params *p, uint32_t i, double freq)
{
    double low = fmax(floor(pair_of_rotations(p, p->beta_fast)), 0.0);
    double high = fmin(ceil(pair_of_rotations(p, p->beta_slow)), p->n_rot - 1.0);
    double ramp = clamp((i - low) / fmax(high - low, 0.001), 0.0, 1.0);
    double keep = (1.0 - ramp) * p->ext_factor;

    return freq / p->factor * (1.0 - keep) + freq * keep;
}

void soq__rope_frequencies(const struct soq__rope_params *p, float *inv_freq, float *mscale_out)
{
    for (uint32_t i = 0; i < p->n_rot / 2; i++) {
        double freq = pow(p->base, -2.0 * i / p->n_rot);

        if (p->factors)
            freq /= p->factors[i];
        if (p->scaling == SOQ__ROPE_LINEAR)
            freq /= p->factor;
        else if (p->scaling == SOQ__ROPE_YARN)
            freq = yarn_frequency(p, i, freq);
        inv_freq[i] = (float)freq;
    }
    *mscale_out = 1.0f;
    if (p->scaling == SOQ__ROPE_YARN)
        *mscale_out = p->attn_factor * (p->ext_factor != 0 ? (float)(1.0 + 0.1 * log(p->factor)) : 1.0f);
}
