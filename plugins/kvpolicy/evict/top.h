/* The best entries of a head by score, in the order of their positions; of equal scores the lower position first.
 *
 * No sort: a radix selection finds the k-th largest score, eight bits at a time from the top, and one pass in the order of
 * positions takes what lies above it. */
#ifndef KVPOLICY_TOP_H
#define KVPOLICY_TOP_H

#include <stdbool.h>
#include <string.h>

#include "soquete/plugin.h"

/* Where a selection cuts: scores above `key` are taken, and of those equal to it the first `ties`. */
struct top {
    uint64_t key;
    uint32_t ties;
};

/* Doubles as integers that sort alike; -0 is 0. */
static inline uint64_t top_key(double score)
{
    uint64_t bits;

    score += 0.0;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

/* The cut that takes the k largest of scores [n]; all of them where k >= n. */
static inline struct top top_cut(const double *scores, uint32_t n, uint32_t k)
{
    struct top cut = {.key = 0, .ties = k};

    if (k >= n)
        return cut;
    if (k == 0)
        return (struct top){.key = UINT64_MAX, .ties = 0};
    for (uint32_t shift = 64; shift > 0;) {
        uint32_t count[256] = {0}, digit = 255;
        uint64_t above = shift == 64 ? 0 : ~UINT64_C(0) << shift;

        shift -= 8;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t key = top_key(scores[i]);

            if (((key ^ cut.key) & above) == 0)
                count[key >> shift & 255]++;
        }
        for (; count[digit] < cut.ties; digit--)
            cut.ties -= count[digit];
        cut.key |= (uint64_t)digit << shift;
        if (count[digit] == cut.ties)
            break; /* all that share these digits are taken, whatever the others */
    }
    return cut;
}

/* Whether the selection takes this score; to be asked once for each, in order. */
static inline bool top_takes(struct top *cut, double score)
{
    uint64_t key = top_key(score);

    if (key == cut->key && cut->ties) {
        cut->ties--;
        return true;
    }
    return key > cut->key;
}

static inline struct soq_kv_head *selection_head(const struct soq_kv_selection *selection, uint32_t index)
{
    return (struct soq_kv_head *)((char *)selection->heads + (size_t)index * selection->head_stride);
}

/* Keeps `capacity` entries of a head: the last `tail` (<= capacity), and of those before them the best by scores [n - tail]. A
 * head that holds no more than `capacity` is left as it is. */
static inline void keep_best(struct soq_kv_head *head, const double *scores, uint32_t capacity, uint32_t tail)
{
    uint32_t n_keep = 0;
    struct top cut;

    if (head->n <= capacity)
        return;
    cut = top_cut(scores, head->n - tail, capacity - tail);
    for (uint32_t i = 0; i < head->n; i++) {
        if (i >= head->n - tail || top_takes(&cut, scores[i]))
            head->keep[n_keep++] = i;
    }
    head->n_keep = n_keep;
}

#endif
