/* Attention mass: which rows give it, where a step leaves it, and the sums that policies rank by.
 *
 * A step's buffer holds whole numbers (soq_attention_args), so sums depend on no order: not on how a prompt was cut into
 * chunks, nor on who else was in the step. They are added up per sequence in host memory when a step is committed; what a
 * failed step or a rejected row gave is never seen. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

/* ---- Which rows ---------------------------------------------------------------------------------------------------------- */

static bool is_weighed(const struct soq__kv_policy *p, const struct soq__kv_seq *seq, uint32_t position)
{
    const struct soq_kv_plan *plan = &p->plan;

    if (!soq__kv_weighs(p) || !plan->queries)
        return soq__kv_weighs(p);
    if (position < seq->n_prompt)
        return seq->n_prompt - position <= plan->queries;
    return plan->every && plan->every - position % plan->every <= plan->queries;
}

/* Policies that want the mass of a row, a bit each. */
static uint32_t weighed_by(const struct soq__kv_seq *seq, uint32_t position)
{
    uint32_t bits = 0;

    for (uint32_t i = 0; i < seq->cache->n_policies; i++)
        bits |= is_weighed(&seq->cache->policies[i], seq, position) ? 1u << i : 0;
    return bits;
}

/* Whether the i-th tentative row, which has a line, is the first one on it. */
static bool begins_line(const struct soq__kv_seq *seq, uint32_t i)
{
    uint32_t position = seq->n_committed + i;

    return i == 0 || position >= seq->n_prompt || weighed_by(seq, position) != weighed_by(seq, position - 1);
}

uint32_t soq__kv_mass_line(struct soq__kv_seq *seq, uint32_t i, uint32_t *line)
{
    if (i == 0)
        seq->first_line = *line;
    if (!weighed_by(seq, seq->n_committed + i))
        return 0;
    *line += begins_line(seq, i);
    return *line; /* 1 + its number */
}

/* ---- A step's buffers ---------------------------------------------------------------------------------------------------- */

static bool on_host(const struct soq__kv_group *g)
{
    return strcmp(g->owner.memory->domain, "host") == 0;
}

void soq__kv_mass_free(struct soq__kv_group *g)
{
    if (g->mass.buffer)
        g->owner.memory->memory->buffer_free(g->owner.memory_self, g->mass.buffer);
    if (!on_host(g))
        soq__free(g->mass.host);
    g->mass = (struct soq__kv_mass){0};
}

static uint64_t mass_bytes(const struct soq__kv_group *g, uint32_t n_lines, uint32_t stride)
{
    return (uint64_t)g->layout->n_layers * n_lines * g->layout->n_heads * stride * sizeof(uint64_t);
}

uint64_t soq__kv_mass_offset(const struct soq__kv_cache *c, uint32_t group, uint32_t layer)
{
    const struct soq__kv_group *g = &c->groups[group];

    return mass_bytes(g, c->mass_lines, c->mass_stride) / g->layout->n_layers * layer;
}

static int make_buffer(struct soq__kv_group *g, uint64_t bytes, struct soq_error *err)
{
    int rc;

    soq__kv_mass_free(g);
    rc = g->owner.memory->memory->buffer_alloc(g->owner.memory_self, bytes, &g->mass.buffer, err);
    if (rc) {
        g->mass.buffer = 0;
        soq__fail_prefix(err, "KV cache: attention mass");
        return rc;
    }
    g->mass.bytes = bytes;
    if (on_host(g))
        g->mass.host = (uint64_t *)(uintptr_t)g->mass.buffer;
    else if (!(g->mass.host = soq__alloc(bytes)))
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for attention mass");
    return 0;
}

int soq__kv_mass_begin(struct soq__kv_cache *c, uint32_t n_lines, uint32_t n_entries, struct soq_error *err)
{
    uint32_t stride = soq__kv_blocks(c, n_entries) * c->block_tokens;
    int rc = 0;

    c->mass_lines = n_lines;
    c->mass_stride = stride;
    for (uint32_t i = 0; !rc && n_lines && i < c->n_groups; i++) {
        struct soq__kv_group *g = &c->groups[i];
        uint64_t bytes = mass_bytes(g, n_lines, stride);

        g->mass.is_read = false;
        if (g->tells && (bytes > g->mass.bytes || !g->mass.host))
            rc = make_buffer(g, bytes + bytes / 2, err);
    }
    return rc;
}

/* Brings the latest step's masses to the host. */
static int fetch(struct soq__kv_cache *c, struct soq__kv_group *g, struct soq_error *err)
{
    int rc = 0;

    if (!g->mass.is_read && !on_host(g))
        rc = g->owner.memory->memory->buffer_read(g->owner.memory_self, g->mass.buffer, 0, g->mass.host,
                                                  mass_bytes(g, c->mass_lines, c->mass_stride), err);
    g->mass.is_read = !rc;
    return rc;
}

/* ---- Sums ---------------------------------------------------------------------------------------------------------------- */

void soq__kv_mass_drop(struct soq__kv_seq_group *sg)
{
    soq__free(sg->mass);
    sg->mass = NULL;
    sg->mass_cap = sg->mass_from = 0;
}

void soq__kv_mass_settle(struct soq__kv_seq *seq)
{
    for (uint32_t g = 0; g < seq->cache->n_groups; g++)
        if (seq->groups[g].mass && seq->groups[g].mass_from >= seq->n_committed)
            soq__kv_mass_drop(&seq->groups[g]);
}

void soq__kv_mass_new_prompt(struct soq__kv_seq *seq)
{
    const struct soq__kv_cache *c = seq->cache;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        struct soq__kv_seq_group *sg = &seq->groups[g];
        uint32_t queries = c->groups[g].weighs ? c->policies[c->groups[g].layout->policy].plan.queries : 0;

        if (queries && sg->mass && sg->mass_from + queries < seq->n_prompt)
            soq__kv_mass_drop(sg);
    }
}

/* Sums for entries below `cap`; those that are there are kept. */
static int reserve_group(struct soq__kv_seq *seq, uint32_t g, uint32_t cap, uint32_t from, struct soq_error *err)
{
    struct soq__kv_seq_group *sg = &seq->groups[g];
    size_t lines = (size_t)seq->cache->groups[g].layout->n_layers * seq->cache->groups[g].layout->n_heads;
    uint64_t *sums;

    if (sg->mass && sg->mass_cap >= cap)
        return 0;
    sums = soq__alloc_zero(lines * cap, sizeof *sums);
    if (!sums)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for sums of attention mass");
    for (size_t i = 0; sg->mass && i < lines; i++)
        memcpy(sums + i * cap, sg->mass + i * sg->mass_cap, sg->mass_cap * sizeof *sums);
    sg->mass_from = sg->mass ? sg->mass_from : from;
    soq__free(sg->mass);
    sg->mass = sums;
    sg->mass_cap = cap;
    return 0;
}

int soq__kv_mass_reserve(struct soq__kv_seq *seq, uint32_t n_rows, struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    uint32_t end = seq->n_committed + n_rows, cap = end > seq->n_promised ? end : seq->n_promised, done = 0;
    int rc = 0;

    for (uint32_t position = seq->n_committed; !rc && position < end; position++) {
        uint32_t bits = weighed_by(seq, position) & ~done;

        for (uint32_t g = 0; !rc && bits && g < c->n_groups; g++)
            if (c->groups[g].weighs && bits >> c->groups[g].layout->policy & 1)
                rc = reserve_group(seq, g, cap, position, err);
        done |= bits;
    }
    return rc;
}

/* The group whose attention tells the mass of head h of layer l of group g, and the layer in it. */
static struct soq__kv_group *teller_of(const struct soq__kv_cache *c, uint32_t g, uint32_t l, uint32_t h, uint32_t *layer_out)
{
    const struct soq__kv_part *part = soq__kv_teller(c->layout, g, l, h);

    *layer_out = part ? part->index : l;
    return &c->groups[part ? part->group : g];
}

/* sums += sign * what the line of the latest step holds for entries [base, end). In the full view entries are positions. */
static void add_line(struct soq__kv_seq *seq, uint32_t g, uint32_t line, uint32_t end, bool undo)
{
    const struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_group_layout *layout = c->groups[g].layout;
    struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t layer;

    for (uint32_t l = 0; l < layout->n_layers; l++)
        for (uint32_t h = 0; h < layout->n_heads; h++) {
            const struct soq__kv_group *teller = teller_of(c, g, l, h, &layer);
            uint32_t n_heads = teller->layout->n_heads, head = layout->first_head + h - teller->layout->first_head;
            const uint64_t *from =
                teller->mass.host + ((size_t)(layer * c->mass_lines + line) * n_heads + head) * c->mass_stride;
            uint64_t *to = sg->mass + (size_t)(l * layout->n_heads + h) * sg->mass_cap;

            for (uint32_t e = sg->base; e < end; e++) {
                uint64_t mass = from[teller == &c->groups[g] ? e : soq__kv_position(seq, g, l, h, e)];

                to[e] += undo ? 0 - mass : mass;
            }
        }
}

/* Brings what a group's sums are made of to the host. */
static int fetch_for(struct soq__kv_cache *c, uint32_t g, struct soq_error *err)
{
    const struct soq__kv_group_layout *layout = c->groups[g].layout;
    uint32_t layer;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < layout->n_layers * layout->n_heads; i++)
        rc = fetch(c, teller_of(c, g, i / layout->n_heads, i % layout->n_heads, &layer), err);
    return rc;
}

static int add_row(struct soq__kv_seq *seq, uint32_t bits, uint32_t line, uint32_t end, bool undo, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    int rc = 0;

    for (uint32_t g = 0; !rc && g < c->n_groups; g++) /* all are fetched before any is added */
        if (c->groups[g].weighs && bits >> c->groups[g].layout->policy & 1)
            rc = fetch_for(c, g, err);
    for (uint32_t g = 0; !rc && g < c->n_groups; g++)
        if (c->groups[g].weighs && bits >> c->groups[g].layout->policy & 1)
            add_line(seq, g, line, end, undo);
    return rc;
}

int soq__kv_mass_add(struct soq__kv_seq *seq, uint32_t n_rows, bool undo, struct soq_error *err)
{
    uint32_t line = seq->first_line,
             end = seq->n_committed + n_rows; /* the step may have been shorter than what is tentative */
    int rc = 0;

    if (n_rows < seq->n_tentative && n_rows && weighed_by(seq, seq->n_committed + n_rows) && !begins_line(seq, n_rows))
        return soq__fail(err, SOQ_EINTERNAL, "KV cache: rows of a prompt are committed together, not %u of %u", n_rows,
                         seq->n_tentative);
    for (uint32_t i = 0; !rc && i < n_rows; i++) {
        uint32_t bits = weighed_by(seq, seq->n_committed + i);

        if (bits && begins_line(seq, i))
            rc = add_row(seq, bits, line++, end, undo, err);
    }
    return rc;
}
