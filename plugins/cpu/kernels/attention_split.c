/* One split of entries against the queries of an item: all scores, their softmax, the sums of values. */
#include <math.h>

#include "kernels/attention.h"

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

/* Lanes of the mask's lowest eight bits. */
VEC_INLINE i32x8 mask_lanes(uint64_t mask)
{
    return -(i32x8_splat((int32_t)(mask & 255)) >> (i32x8){0, 1, 2, 3, 4, 5, 6, 7} & 1);
}

/* cap tanh(s / cap), then minus infinity for entries of a tile that the query does not see. */
static void cap_and_mask(float cap, uint64_t mask, float *s)
{
    for (uint32_t j = 0; j < TOKENS / 8; j++) {
        f32x8 x = f32x8_load(s + j * 8);

        if (cap > 0.0f)
            x = f32x8_splat((float)(cap * LOG2E)) * f32x8_tanh(x / f32x8_splat(cap));
        f32x8_store(s + j * 8, f32x8_select(mask_lanes(mask >> 8 * j), x, f32x8_splat(-INFINITY)));
    }
}

/* Lanes of up to BLOCK rows are reduced four rows at a time, each in the same way; where there are fewer, the first one again.
 */
VEC_INLINE void reduce_rows(uint32_t n_q, void fn(vf a, vf b, vf c, vf d, float *out), const vf rows[BLOCK], float *out)
{
    VEC_EACH(part, (n_q + 3) / 4) {
        uint32_t i = part * 4;
        float four[4];

        fn(rows[i], rows[i + 1 < n_q ? i + 1 : 0], rows[i + 2 < n_q ? i + 2 : 0], rows[i + 3 < n_q ? i + 3 : 0], four);
        VEC_EACH(j, n_q - i < 4 ? n_q - i : 4)
            out[i + j] = four[j];
    }
}

/* Scores [n_q][SPLIT] of tiles [tile, end) -> weights relative to the largest score so far, zeros where nothing was seen yet;
 * factors: for what was summed before. */
VEC_INLINE void weigh(uint32_t n_q, struct item *item, uint32_t first, float *scores, float factors[BLOCK])
{
    const size_t from = item->tile * TOKENS, end = item->end_tile * TOKENS;
    const uint32_t part = item->n_parts[CPU_KEY] + item->n_parts[CPU_VALUE] ? AHEAD_WEIGHTS : AHEAD_PLAIN_WEIGHTS;
    float *max = item->part.max + first, *total = item->part.total + first, tops[BLOCK], sums[BLOCK];
    vf lanes[BLOCK];

    VEC_EACH(i, n_q)
        lanes[i] = vf_splat(max[i]);
    for (size_t t = from; t < end; t += CPU_LANES)
        VEC_EACH(i, n_q)
            lanes[i] = vf_max(lanes[i], vf_load(scores + i * SPLIT + t));
    reduce_rows(n_q, vf_most4, lanes, tops);
    VEC_EACH(i, n_q) {
        float top = tops[i] == -INFINITY ? 0.0f : tops[i];

        factors[i] = exp2_of1(max[i] - top);
        max[i] = tops[i];
        tops[i] = top;
        lanes[i] = vf_splat(0.0f);
    }
    for (size_t t = from; t < end; t += CPU_LANES) {
        if (t % (2 * CPU_LANES) == 0)
            fetch(take_ahead(&item->ahead, 2 * CPU_LANES, part));
        VEC_EACH(i, n_q) {
            vf x = exp2_of(vf_load(scores + i * SPLIT + t) - vf_splat(tops[i]));

            vf_store(scores + i * SPLIT + t, x);
            lanes[i] += x;
        }
    }
    reduce_rows(n_q, vf_sum4, lanes, sums);
    VEC_EACH(i, n_q)
        total[i] = total[i] * factors[i] + sums[i];
}

static void scale_sums(float *out, size_t n, float factor)
{
    for (size_t d = 0; d < n && factor < 1.0f; d += 8)
        f32x8_store(out + d, f32x8_load(out + d) * f32x8_splat(factor));
}

/* Queries [first, first + n_q), whose scores are there. What other classes of segments left is scaled. */
static void weigh_block(struct item *item, uint32_t first, uint32_t n_q, float *scores)
{
    float factors[BLOCK];

    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t tile = item->tile; tile < item->end_tile; tile++)
            if (item->masks[first + i][tile] != UINT64_MAX || item->args->softcap > 0.0f)
                cap_and_mask(item->args->softcap, item->masks[first + i][tile], scores + i * SPLIT + tile * TOKENS);
    FOR_QUERIES(n_q, weigh, item, first, scores, factors);
    for (uint32_t i = 0; i < n_q && item->classes > 1; i++)
        scale_sums(item->part.out + (first + i) * item->out_stride, item->out_stride, factors[i]);
}

/* ---- A split ------------------------------------------------------------------------------------------------------------- */

void cpu_item_sum_split(struct item *item, const float *q, float *scores)
{
    cpu_codes_begin(item);
    for (uint32_t tile = item->tile; tile < item->end_tile; tile++)
        if (item->seen[tile] & ~item->coded[CPU_KEY][tile])
            cpu_plain_score(item, q, tile, scores);
    for (uint32_t first = 0, n_q; first < item->n; first += n_q) {
        n_q = item->n - first < BLOCK ? item->n - first : BLOCK;
        cpu_codes_score(item, q, first, n_q, scores + first * SPLIT);
        weigh_block(item, first, n_q, scores + first * SPLIT);
        cpu_codes_add(item, first, n_q, scores + first * SPLIT);
    }
    for (uint32_t tile = item->tile; tile < item->end_tile; tile++)
        if (item->seen[tile] & ~item->coded[CPU_VALUE][tile])
            cpu_plain_add(item, tile, scores);
}
