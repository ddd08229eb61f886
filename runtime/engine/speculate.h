/* What becomes of a drafted token, as arithmetic on two distributions: p, of the model that decides, and q, that the draft was
 * drawn from. The emitted token is distributed as p, whatever q is.
 *
 * Y. Leviathan, M. Kalman, Y. Matias: "Fast Inference from Transformers via Speculative Decoding", ICML 2023, algorithm 1 and
 * appendix A.1; C. Chen et al.: "Accelerating Large Language Model Decoding with Speculative Sampling", 2023, algorithm 2. */
#ifndef SOQ_ENGINE_SPECULATE_H
#define SOQ_ENGINE_SPECULATE_H

#include <stdbool.h>
#include <stdint.h>

/* Random numbers at a position, each independent of the others: what a token is drawn with, be it drafted or not, as samplers
 * do; whether a draft is accepted; what takes its place. */
enum soq__stream { SOQ__STREAM_DRAW = 0, SOQ__STREAM_ACCEPT = 1, SOQ__STREAM_RESIDUAL = 2 };

/* Uniform in [0, 1), a function of its arguments. */
double soq__uniform(uint64_t seed, uint32_t position, enum soq__stream stream);

/* The first of n tokens whose running sum of weights exceeds u times their sum; one with a weight above 0. */
int32_t soq__pick(const float *weights, uint32_t n, double u);
/* min(1, p / q) of that token; 0 where p is. */
double soq__acceptance(const float *p, const float *q, int32_t token);
/* q becomes max(0, p - q), not normalised; where that is 0 everywhere, p. */
void soq__residual(const float *p, float *q, uint32_t n);

#endif
