/* Selection by counting: the logits are read as unsigned keys, digit by digit from the top. No sort, no allocation; a pass over
 * the vocabulary costs the same whatever the logits look like. */
#include "pool.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "logits.h"

/* Maps floats to integers of the same order; -0 and 0 are one. */
static uint32_t key_of(float x)
{
    uint32_t bits = f32_bits(x + 0.0f);

    return bits ^ (0x80000000 | (0 - (bits >> 31))); /* no branch: signs are random */
}

static uint32_t candidate(const struct pool *pool, uint32_t i)
{
    return pool->listed ? pool->ids[i] : i;
}

static bool is_in(const struct pool *pool, uint32_t id)
{
    uint32_t key = key_of(pool->logits[id]);

    return key > pool->last_key || (key == pool->last_key && id <= pool->last_id);
}

/* Makes `key` the last one, if that leaves fewer. */
static void raise_to(struct pool *pool, uint32_t key)
{
    if (key <= pool->last_key)
        return;
    pool->last_key = key;
    pool->last_id = UINT32_MAX;
}

void pool_init(struct pool *pool, const float *logits, uint32_t n_vocab, float max)
{
    pool->logits = logits;
    pool->max = max;
    pool->last_key = key_of(-INFINITY) + 1;
    pool->last_id = UINT32_MAX;
    pool->n = n_vocab;
    pool->listed = 0;
}

/* Lists those that are in, if they fit. */
static void list(struct pool *pool)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < pool->n; i++) {
        uint32_t id = candidate(pool, i);

        if (!is_in(pool, id))
            continue;
        if (n == POOL_SHORT)
            return;
        pool->ids[n++] = id; /* n <= i: a listed pool shrinks in place */
    }
    pool->n = n;
    pool->listed = 1;
}

/* ---- The cut: where does the weight, added up from the best token down, reach the goal? */

enum { DIGITS = 3, BUCKETS = 1 << 11 };
static const unsigned digit_shift[DIGITS] = {21, 10, 0}, digit_size[DIGITS] = {11, 11, 10};

static double weight(const struct pool *pool, uint32_t id, bool by_mass)
{
    return by_mass ? (double)exp_negative(pool->logits[id] - pool->max) : 1.0;
}

/* Adds up weights by one digit of the key, over those whose higher digits are `prefix`. */
static void histogram(const struct pool *pool, unsigned digit, uint32_t prefix, bool by_mass, double sums[BUCKETS])
{
    unsigned shift = digit_shift[digit], above = shift + digit_size[digit];
    uint32_t digit_mask = (1u << digit_size[digit]) - 1;

    memset(sums, 0, BUCKETS * sizeof *sums);
    for (uint32_t i = 0; i < pool->n; i++) {
        uint32_t id = candidate(pool, i), key = key_of(pool->logits[id]);

        if ((digit == 0 || key >> above == prefix) && is_in(pool, id))
            sums[key >> shift & digit_mask] += weight(pool, id, by_mass);
    }
}

/* Keeps the shortest run of best tokens whose weights reach `goal`: a number of tokens, or a share of the mass. */
static void cut(struct pool *pool, double goal, bool by_mass)
{
    double sums[BUCKETS], reached = 0;
    uint32_t key = 0;

    for (unsigned digit = 0; digit < DIGITS; digit++) {
        uint32_t bucket = (1u << digit_size[digit]) - 1;

        histogram(pool, digit, key, by_mass, sums);
        if (digit == 0 && by_mass) {
            double total = 0;

            for (uint32_t i = 0; i < BUCKETS; i++)
                total += sums[i];
            goal *= total;
        }
        for (; bucket > 0 && reached + sums[bucket] < goal; bucket--)
            reached += sums[bucket];
        key = key << digit_size[digit] | bucket;
    }
    if (key < pool->last_key)
        return; /* all were needed */
    raise_to(pool, key);
    for (uint32_t i = 0; i < pool->n; i++) {
        uint32_t id = candidate(pool, i);

        if (key_of(pool->logits[id]) != key || !is_in(pool, id))
            continue;
        reached += weight(pool, id, by_mass);
        if (reached >= goal) {
            pool->last_id = id;
            return;
        }
    }
}

/* ---- Filters */

/* A bound for a large vocabulary: of any k or more groups of tokens, the k best group maxima are k tokens, so the k-th best
 * token is not below the k-th best maximum. Few tokens are above it, as a rule, and the rest need no second look. */
static void raise_by_groups(struct pool *pool, double k)
{
    struct pool groups;
    float best[POOL_SHORT];

    memcpy(best, pool->logits, sizeof best);
    for (uint32_t i = POOL_SHORT; i + POOL_SHORT <= pool->n; i += POOL_SHORT) {
        const float *x = pool->logits + i;

        for (uint32_t j = 0; j < POOL_SHORT; j++)
            best[j] = x[j] > best[j] ? x[j] : best[j];
    }
    pool_init(&groups, best, POOL_SHORT, pool->max);
    cut(&groups, k, false);
    raise_to(pool, groups.last_key);
    list(pool);
}

void pool_top_k(struct pool *pool, int32_t k)
{
    if (k <= 0 || (uint32_t)k >= pool->n)
        return;
    if (!pool->listed && k <= POOL_SHORT / 4 && pool->n >= 4 * POOL_SHORT)
        raise_by_groups(pool, k);
    cut(pool, k, false);
    list(pool);
}

void pool_top_p(struct pool *pool, float p)
{
    if (!(p > 0 && p < 1))
        return;
    cut(pool, (double)p, true);
    list(pool);
}

void pool_min_p(struct pool *pool, float min_p)
{
    double bound;
    float rounded;

    if (!(min_p > 0))
        return;
    bound = (double)pool->max + log((double)min_p);
    rounded = (float)bound;
    if ((double)rounded < bound)
        rounded = nextafterf(rounded, INFINITY);
    raise_to(pool, key_of(rounded));
    list(pool);
}

/* ---- The draw */

static double tempered(const struct pool *pool, uint32_t id, double temperature)
{
    return (double)exp_negative((float)(((double)pool->logits[id] - (double)pool->max) / temperature));
}

uint32_t pool_draw(const struct pool *pool, float temperature, double uniform, uint32_t *n_out)
{
    double total = 0, reached = 0;
    uint32_t n = 0, drawn = 0;

    for (uint32_t i = 0; i < pool->n; i++) {
        uint32_t id = candidate(pool, i);

        if (!is_in(pool, id))
            continue;
        total += tempered(pool, id, (double)temperature);
        n++;
    }
    for (uint32_t i = 0; i < pool->n && reached <= uniform * total; i++) {
        uint32_t id = candidate(pool, i);
        double w = is_in(pool, id) ? tempered(pool, id, (double)temperature) : 0;

        reached += w;
        drawn = w > 0 ? id : drawn;
    }
    *n_out = n;
    return drawn;
}

uint32_t pool_probabilities(const struct pool *pool, float temperature, uint32_t n_vocab, float *p)
{
    float listed[POOL_SHORT], *weights = pool->listed ? listed : p;
    double total = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < pool->n; i++) {
        bool in = is_in(pool, candidate(pool, i));

        weights[i] = in ? (float)tempered(pool, candidate(pool, i), (double)temperature) : 0.0f;
        total += (double)weights[i];
        n += in;
    }
    if (pool->listed)
        memset(p, 0, n_vocab * sizeof *p);
    for (uint32_t i = 0; i < pool->n; i++)
        p[candidate(pool, i)] = (float)((double)weights[i] / total);
    return n;
}
