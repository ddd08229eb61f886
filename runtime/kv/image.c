/* The cache of a sequence as bytes:
 *
 *     u32 n_committed, n_prompt, n_groups, state_size
 *     u8  policy_state[state_size]
 *     of each group:
 *         u32 freed_to, base, n_selected, mass_from, n_positions, n_mass, n_lines
 *         u32 positions[n_layers][n_heads][n_positions]
 *         u64 mass[n_layers][n_heads][n_mass], of entries 0, 1, ...
 *         u32 lines[n_lines], ascending
 *         u8  blocks[n_lines][block_bytes], of a packed block packed_bytes */
#include "kv/image.h"

#include <string.h>

#include "base/alloc.h"
#include "base/cursor.h"
#include "base/error.h"
#include "kv/internal.h"
#include "kv/swap.h"

static size_t heads_of(const struct soq__kv_group *group)
{
    return (size_t)group->layout->n_layers * group->layout->n_heads;
}

/* ---- Saving ------------------------------------------------------------------------------------------------------------- */

struct saving {
    const struct soq__kv_seq *seq;
    soq__put *put;
    void *arg;
    void *scratch; /* a block */
};

static int put_numbers(const struct saving *s, const uint32_t *numbers, size_t n, struct soq_error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < n; i++) {
        unsigned char bytes[4];

        soq__put_number(bytes, numbers[i], sizeof bytes);
        rc = s->put(s->arg, bytes, sizeof bytes, err);
    }
    return rc;
}

static int put_mass(const struct saving *s, const struct soq__kv_seq_group *sg, size_t n_heads, struct soq_error *err)
{
    int rc = 0;

    for (size_t h = 0; h < n_heads; h++)
        for (uint32_t e = 0; !rc && e < s->seq->n_committed; e++) {
            unsigned char bytes[8];

            soq__put_number(bytes, sg->mass[h * sg->mass_cap + e], sizeof bytes);
            rc = s->put(s->arg, bytes, sizeof bytes, err);
        }
    return rc;
}

static int put_blocks(const struct saving *s, uint32_t g, struct soq_error *err)
{
    uint32_t end = soq__kv_blocks(s->seq->cache, s->seq->n_committed);
    int rc = 0;

    for (uint32_t i = 0; !rc && i < end; i++)
        if (soq__kv_line_is_held(s->seq, g, i))
            rc = put_numbers(s, &i, 1, err);
    for (uint32_t i = 0; !rc && i < end; i++) {
        const void *data;

        if (!soq__kv_line_is_held(s->seq, g, i))
            continue;
        rc = soq__kv_line_read(s->seq, g, i, s->scratch, &data, err);
        if (!rc)
            rc = s->put(s->arg, data, soq__kv_line_bytes(s->seq, g, i), err);
    }
    return rc;
}

static int put_group(const struct saving *s, uint32_t g, struct soq_error *err)
{
    const struct soq__kv_seq_group *sg = &s->seq->groups[g];
    size_t heads = heads_of(&s->seq->cache->groups[g]);
    uint32_t n_positions = sg->positions ? sg->n_selected - sg->base : 0, n_lines = 0;
    int rc;

    for (uint32_t i = 0; i < soq__kv_blocks(s->seq->cache, s->seq->n_committed); i++)
        n_lines += soq__kv_line_is_held(s->seq, g, i);
    rc = put_numbers(s,
                     (const uint32_t[]){sg->freed_to, sg->base, sg->n_selected, sg->mass_from, n_positions,
                                        sg->mass ? s->seq->n_committed : 0, n_lines},
                     7, err);
    if (!rc)
        rc = put_numbers(s, sg->positions, heads * n_positions, err);
    if (!rc && sg->mass)
        rc = put_mass(s, sg, heads, err);
    return rc ? rc : put_blocks(s, g, err);
}

static uint64_t largest_block(const struct soq__kv_cache *c)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->n_pools; i++)
        bytes = c->pools[i].block_bytes > bytes ? c->pools[i].block_bytes : bytes;
    return bytes;
}

int soq__kv_image_save(const struct soq__kv_seq *seq, soq__put *put, void *arg, struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    struct saving s = {.seq = seq, .put = put, .arg = arg, .scratch = soq__alloc_aligned(64, largest_block(c))};
    const uint32_t head[] = {seq->n_committed, seq->n_prompt, c->n_groups, (uint32_t)c->state_size};
    int rc;

    if (!s.scratch)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for a block");
    rc = put_numbers(&s, head, 4, err);
    if (!rc && c->state_size)
        rc = put(arg, seq->policy_state, c->state_size, err);
    for (uint32_t g = 0; !rc && g < c->n_groups; g++)
        rc = put_group(&s, g, err);
    soq__free(s.scratch);
    return rc;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------ */

/* What is said of a group before its data. */
struct group_head {
    uint32_t freed_to, base, n_selected, mass_from, n_positions, n_mass, n_lines;
};

static int corrupt(uint32_t g, const char *what, uint32_t value, struct soq_error *err)
{
    return soq__fail(err, SOQ_ECORRUPT, "KV group %u: %s is %u, which cannot be", g, what, value);
}

static struct group_head read_head(struct soq__cursor *c)
{
    struct group_head h;

    h.freed_to = soq__cursor_u32(c);
    h.base = soq__cursor_u32(c);
    h.n_selected = soq__cursor_u32(c);
    h.mass_from = soq__cursor_u32(c);
    h.n_positions = soq__cursor_u32(c);
    h.n_mass = soq__cursor_u32(c);
    h.n_lines = soq__cursor_u32(c);
    return h;
}

static int check_head(const struct soq__kv_seq *seq, uint32_t g, const struct group_head *h, struct soq_error *err)
{
    const struct soq__kv_group *group = &seq->cache->groups[g];
    uint32_t n = seq->n_committed, from = soq__kv_visible_from(group->layout->window, n);

    if (h->freed_to % seq->cache->block_tokens || h->freed_to > from)
        return corrupt(g, "freed_to", h->freed_to, err);
    if (h->n_selected > n || (h->n_selected && !group->selects))
        return corrupt(g, "n_selected", h->n_selected, err);
    if (h->base > h->n_selected)
        return corrupt(g, "base", h->base, err);
    if (h->n_positions != h->n_selected - h->base)
        return corrupt(g, "the number of positions", h->n_positions, err);
    if (h->n_mass && (h->n_mass != n || !group->weighs))
        return corrupt(g, "the number of sums", h->n_mass, err);
    if (h->mass_from > n)
        return corrupt(g, "mass_from", h->mass_from, err);
    return 0;
}

/* Survivors' positions ascend, and lie before whatever came after the selection. */
static int read_positions(struct soq__kv_seq *seq, uint32_t g, const struct group_head *h, struct soq__cursor *c,
                          struct soq_error *err)
{
    size_t heads = heads_of(&seq->cache->groups[g]);
    uint32_t *positions;

    if (!h->n_selected)
        return 0;
    if (heads * h->n_positions > c->left / sizeof *positions)
        return corrupt(g, "the number of positions", h->n_positions, err);
    positions = soq__alloc_array(heads * h->n_positions, sizeof *positions);
    if (!positions)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for positions");
    seq->groups[g].positions = positions;
    for (size_t i = 0; i < heads * h->n_positions; i++) {
        positions[i] = soq__cursor_u32(c);
        if (positions[i] >= h->n_selected || (i % h->n_positions && positions[i] <= positions[i - 1]))
            return corrupt(g, "a position", positions[i], err);
    }
    return 0;
}

static int read_mass(struct soq__kv_seq *seq, uint32_t g, const struct group_head *h, struct soq__cursor *c,
                     struct soq_error *err)
{
    struct soq__kv_seq_group *sg = &seq->groups[g];
    size_t heads = heads_of(&seq->cache->groups[g]);

    if (!h->n_mass)
        return 0;
    if (heads * h->n_mass > c->left / sizeof *sg->mass)
        return corrupt(g, "the number of sums", h->n_mass, err);
    sg->mass = soq__alloc_array(heads * h->n_mass, sizeof *sg->mass);
    if (!sg->mass)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for sums of attention mass");
    sg->mass_cap = h->n_mass;
    sg->mass_from = h->mass_from;
    for (size_t i = 0; i < heads * h->n_mass; i++)
        sg->mass[i] = soq__cursor_u64(c);
    return 0;
}

/* Line i must be there: it holds entries that rows may see. The sinks' lines are there as well, where anything was freed. */
static bool is_needed(const struct soq__kv_seq *seq, uint32_t g, uint32_t i)
{
    const struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t p = seq->cache->block_tokens, from = sg->base > sg->freed_to ? sg->base : sg->freed_to;

    return i >= from / p || (sg->freed_to && i * p < seq->cache->groups[g].layout->sinks);
}

static int read_lines(struct soq__kv_seq *seq, uint32_t g, uint32_t n_lines, struct soq__cursor *c, struct soq_error *err)
{
    uint32_t n = 0, end = soq__kv_blocks(seq->cache, seq->n_committed);
    struct soq__cursor lines = *c;

    for (uint32_t i = 0; i < end; i++)
        n += is_needed(seq, g, i);
    if (n_lines != n)
        return corrupt(g, "the number of blocks", n_lines, err);
    soq__cursor_take(c, (uint64_t)n * sizeof(uint32_t));
    for (uint32_t i = 0; i < end; i++) {
        const unsigned char *block;

        if (!is_needed(seq, g, i))
            continue;
        n = soq__cursor_u32(&lines);
        block = soq__cursor_take(c, soq__kv_line_bytes(seq, g, i));
        if (n != i || !block)
            return corrupt(g, "the place of a block", n, err);
        soq__kv_swap_add(seq, g, i, block);
    }
    return 0;
}

static int read_group(struct soq__kv_seq *seq, uint32_t g, struct soq__cursor *c, struct soq_error *err)
{
    struct soq__kv_seq_group *sg = &seq->groups[g];
    struct group_head h = read_head(c);
    int rc = check_head(seq, g, &h, err);

    if (!rc)
        rc = read_positions(seq, g, &h, c, err);
    if (!rc)
        rc = read_mass(seq, g, &h, c, err);
    if (rc)
        return rc;
    sg->freed_to = h.freed_to;
    sg->base = h.base;
    sg->n_selected = h.n_selected;
    return read_lines(seq, g, h.n_lines, c, err);
}

static int read_all(struct soq__kv_seq *seq, struct soq__cursor *c, struct soq_error *err)
{
    const struct soq__kv_cache *cache = seq->cache;
    uint32_t n = soq__cursor_u32(c), n_prompt = soq__cursor_u32(c), n_groups = soq__cursor_u32(c);
    uint32_t state_size = soq__cursor_u32(c);
    const unsigned char *state;
    int rc = 0;

    if (c->truncated || n > cache->context || n_prompt > n || n_groups != cache->n_groups || state_size != cache->state_size)
        return soq__fail(err, SOQ_ECORRUPT, "%u entries, %u of them a prompt, in %u groups, and %u bytes of state: cannot be",
                         n, n_prompt, n_groups, state_size);
    state = soq__cursor_take(c, state_size);
    if (state && state_size)
        memcpy(seq->policy_state, state, state_size);
    seq->n_committed = n;
    seq->n_prompt = n_prompt;
    rc = soq__kv_swap_borrow(seq, n_groups * soq__kv_blocks(cache, n), err);
    for (uint32_t g = 0; !rc && !c->truncated && g < n_groups; g++)
        rc = read_group(seq, g, c, err);
    if (!rc && (c->truncated || c->left))
        rc = soq__fail(err, SOQ_ECORRUPT, c->truncated ? "the data end too early" : "%zu bytes are left over", c->left);
    return rc;
}

int soq__kv_image_load(struct soq__kv_seq *seq, const void *data, size_t n, struct soq_error *err)
{
    struct soq__cursor c = {.at = data, .left = n};
    int rc = read_all(seq, &c, err);

    if (rc)
        soq__kv_empty(seq);
    return rc;
}
