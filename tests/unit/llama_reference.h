/* A llama by the textbook, in double precision and with any mask in any head: every row anew, no cache, no batches, no blocks.
 * For tiny models in F32 only. */
#ifndef SOQ_TESTS_LLAMA_REFERENCE_H
#define SOQ_TESTS_LLAMA_REFERENCE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

enum { UNSEEN = -1 };

/* What the row at position q sees of position p <= q in a kv head: UNSEEN, or how many positions the row stands before q. */
typedef int reference_view(uint32_t head, uint32_t q, uint32_t p);

/* y[rows] = W x */
static inline void ref_matmul(const struct soq__gguf_tensor *w, const double *x, double *y)
{
    const float *row = w->data;

    for (uint64_t r = 0; r < w->ne[1]; r++, row += w->ne[0]) {
        y[r] = 0;
        for (uint64_t c = 0; c < w->ne[0]; c++)
            y[r] += (double)row[c] * x[c];
    }
}

static inline void ref_norm(const struct soq__gguf_tensor *w, double eps, const double *x, double *y)
{
    double sum = 0;

    for (uint64_t i = 0; i < w->ne[0]; i++)
        sum += x[i] * x[i];
    for (uint64_t i = 0; i < w->ne[0]; i++)
        y[i] = x[i] / sqrt(sum / (double)w->ne[0] + eps) * (double)((const float *)w->data)[i];
}

/* x[heads][head_dim]: neighbours are rotated. */
static inline void ref_rope(double *x, uint32_t heads, uint32_t head_dim, double base, int position)
{
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < head_dim; i += 2) {
            double *pair = x + h * head_dim + i, a = pair[0], b = pair[1];
            double angle = position * pow(base, -(double)i / head_dim);

            pair[0] = a * cos(angle) - b * sin(angle);
            pair[1] = a * sin(angle) + b * cos(angle);
        }
}

/* q . k for a query of the row at some position, which stands `back` positions before it */
static inline double ref_score(const struct soq__hparams *hp, int back, const double *q, const double *k)
{
    double turned[256], score = 0;

    memcpy(turned, q, hp->head_dim_k * sizeof *q);
    ref_rope(turned, 1, hp->head_dim_k, (double)hp->rope.base, -back);
    for (uint32_t i = 0; i < hp->head_dim_k; i++)
        score += turned[i] * k[i];
    return score;
}

/* out[heads][d] for the row at position q; k and v: [positions][kv_heads][d] */
static inline void ref_attention(const struct soq__hparams *hp, reference_view *sees, uint32_t q_at, const double *q,
                                 const double *k, const double *v, double *out)
{
    uint32_t d = hp->head_dim_k, per = hp->n_heads / hp->n_kv_heads, row = hp->n_kv_heads * d;

    for (uint32_t h = 0; h < hp->n_heads; h++) {
        double sum = 0;

        memset(out + h * d, 0, d * sizeof *out);
        for (uint32_t p = 0; p <= q_at; p++) {
            int back = sees(h / per, q_at, p);
            double score;

            if (back == UNSEEN)
                continue;
            score = exp(ref_score(hp, back, q + h * d, k + p * row + h / per * d) / sqrt(d));
            sum += score;
            for (uint32_t i = 0; i < d; i++)
                out[h * d + i] += score * v[p * row + h / per * d + i];
        }
        for (uint32_t i = 0; i < d; i++)
            out[h * d + i] /= sum;
    }
}

/* One layer over all rows of x [n][width]. */
static inline void ref_layer(const struct soq__model *m, uint32_t l, reference_view *sees, uint32_t n, double *x)
{
    const struct soq__hparams *hp = &m->hparams;
    const struct soq__gguf_tensor *const *w = m->layers[l].tensors;
    uint32_t width = hp->dim[SOQ__DIM_EMBD], kv = hp->dim[SOQ__DIM_K], ff = hp->dim[SOQ__DIM_FF];
    double *k = malloc(sizeof *k * n * kv), *v = malloc(sizeof *v * n * kv);
    double *h = malloc(sizeof *h * (width + ff) * 4), *q = h + width, *a = q + width, *o = a + width, *up = o + width;

    for (uint32_t r = 0; r < n; r++) {
        ref_norm(w[SOQ__W_ATTN_NORM], (double)hp->norm_eps, x + r * width, h);
        ref_matmul(w[SOQ__W_K], h, k + r * kv);
        ref_matmul(w[SOQ__W_V], h, v + r * kv);
        ref_rope(k + r * kv, hp->n_kv_heads, hp->head_dim_k, (double)hp->rope.base, (int)r);
        ref_matmul(w[SOQ__W_Q], h, q);
        ref_rope(q, hp->n_heads, hp->head_dim_k, (double)hp->rope.base, (int)r);
        ref_attention(hp, sees, r, q, k, v, a);
        ref_matmul(w[SOQ__W_O], a, o);
        for (uint32_t i = 0; i < width; i++)
            x[r * width + i] += o[i];
        ref_norm(w[SOQ__W_FFN_NORM], (double)hp->norm_eps, x + r * width, h);
        ref_matmul(w[SOQ__W_GATE], h, up);
        ref_matmul(w[SOQ__W_UP], h, up + ff);
        for (uint32_t i = 0; i < ff; i++)
            up[i] *= up[ff + i] / (1 + exp(-up[i]));
        ref_matmul(w[SOQ__W_DOWN], up, o);
        for (uint32_t i = 0; i < width; i++)
            x[r * width + i] += o[i];
    }
    free(h);
    free(k);
    free(v);
}

/* logits[n][n_vocab] */
static inline void reference_logits(const struct soq__model *m, reference_view *sees, const int32_t *ids, uint32_t n,
                                    double *logits)
{
    uint32_t width = m->hparams.dim[SOQ__DIM_EMBD], n_vocab = m->hparams.dim[SOQ__DIM_VOCAB];
    double *x = malloc(sizeof *x * n * width), *h = malloc(sizeof *h * width);

    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < width; i++)
            x[r * width + i] = (double)((const float *)m->token_embd->data)[(uint32_t)ids[r] * width + i];
    for (uint32_t l = 0; l < m->hparams.n_layers; l++)
        ref_layer(m, l, sees, n, x);
    for (uint32_t r = 0; r < n; r++) {
        ref_norm(m->output_norm, (double)m->hparams.norm_eps, x + r * width, h);
        ref_matmul(m->output ? m->output : m->token_embd, h, logits + r * n_vocab);
    }
    free(x);
    free(h);
}

#endif
