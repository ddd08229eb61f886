/* Blocks out of the pool and back. */
#include "kv/swap.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "kv/internal.h"

/* A block that is out. */
struct line {
    uint32_t group, index;
    const unsigned char *data; /* a block */
};

struct soq__kv_swapped {
    uint64_t bytes; /* of cache->swap; 0: the data are somebody else's */
    uint32_t n;
    struct line lines[]; /* [n] by group and index; then the data, unless they are borrowed */
};

/* ---- One block ---------------------------------------------------------------------------------------------------------- */

struct place {
    const struct soq_backend_ops *ops;
    void *self;
    soq_buffer buffer;
    uint64_t offset;
};

static struct place place_of(const struct soq__kv_group *group, soq_block_ref block)
{
    struct place p = {.ops = group->owner.memory, .self = group->owner.memory_self};

    p.buffer = soq__kv_block_place(soq__kv_pool_of(group, block), block, &p.offset);
    return p;
}

/* Where the contents of a block are: a copy to it may still be pending. */
static soq_block_ref contents_of(const struct soq__kv_cache *c, uint32_t group, soq_block_ref block)
{
    for (uint32_t i = c->n_copies; i-- > 0;)
        if (c->copies[i].group == group && c->copies[i].dst == block)
            block = c->copies[i].src;
    return block;
}

static int compare_lines(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return x->group != y->group ? (x->group < y->group ? -1 : 1) : (x->index > y->index) - (x->index < y->index);
}

static const struct line *line_of(const struct soq__kv_swapped *s, uint32_t group, uint32_t index)
{
    const struct line wanted = {.group = group, .index = index};

    return s ? bsearch(&wanted, s->lines, s->n, sizeof wanted, compare_lines) : NULL;
}

bool soq__kv_line_is_held(const struct soq__kv_seq *seq, uint32_t g, uint32_t index)
{
    return seq->groups[g].table[index] != SOQ_BLOCK_NONE || line_of(seq->swapped, g, index);
}

int soq__kv_line_read(const struct soq__kv_seq *seq, uint32_t g, uint32_t index, void *scratch, const void **data_out,
                      struct soq_error *err)
{
    const struct soq__kv_group *group = &seq->cache->groups[g];
    const struct line *out = line_of(seq->swapped, g, index);
    struct place p;
    int rc;

    if (out) {
        *data_out = out->data;
        return 0;
    }
    p = place_of(group, contents_of(seq->cache, g, seq->groups[g].table[index]));
    if (strcmp(p.ops->domain, "host") == 0) {
        *data_out = (const char *)(uintptr_t)p.buffer + p.offset;
        return 0;
    }
    rc = p.ops->memory->buffer_read(p.self, p.buffer, p.offset, scratch, soq__kv_line_bytes(seq, g, index), err);
    if (!rc)
        *data_out = scratch;
    return rc;
}

/* Gives table line `index`, empty so far, a fresh block with these bytes. */
static int line_write(struct soq__kv_seq *seq, uint32_t g, uint32_t index, const void *data, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    struct soq__kv_group *group = &c->groups[g];
    struct soq__kv_pool *pool = group->pools[soq__kv_is_packed(seq, g, index)];
    soq_block_ref block;
    struct place p;
    int rc = soq__kv_block_alloc(pool, &block, err);

    if (rc)
        return rc;
    p = place_of(group, block);
    rc = p.ops->memory->buffer_write(p.self, p.buffer, p.offset, data, pool->block_bytes, err);
    if (!rc)
        rc = soq__kv_push_edit(c, (struct soq_step_edit){.slot = seq->slot, .group = g, .index = index, .block = block}, err);
    if (rc) {
        soq__kv_block_unref(pool, block);
        return rc;
    }
    soq__kv_hold(seq, g, index, block);
    return 0;
}

/* ---- A sequence --------------------------------------------------------------------------------------------------------- */

bool soq__kv_is_out(const struct soq__kv_seq *seq)
{
    return seq->swapped != NULL;
}

uint64_t soq__kv_swap_bytes(const struct soq__kv_seq *seq)
{
    return seq->swapped ? seq->swapped->bytes : 0;
}

static struct soq__kv_swapped *create(uint64_t n_lines, uint64_t data_bytes)
{
    struct soq__kv_swapped *s = soq__alloc(sizeof *s + n_lines * sizeof s->lines[0] + data_bytes);

    if (s)
        *s = (struct soq__kv_swapped){0};
    return s;
}

/* Room for everything that the sequence holds, its lines listed. */
static int make_room(const struct soq__kv_seq *seq, struct soq__kv_swapped **out, struct soq_error *err)
{
    const struct soq__kv_cache *c = seq->cache;
    uint64_t n = 0, bytes = 0;
    struct soq__kv_swapped *s = NULL;
    unsigned char *data;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        n += seq->groups[g].n_held;
        bytes += seq->groups[g].n_held * sizeof s->lines[0] + soq__kv_held_bytes(seq, g);
    }
    bytes += sizeof *s;
    if (bytes > c->swap.limit || c->swap.used > c->swap.limit - bytes)
        return soq__fail(err, SOQ_ELIMIT,
                         "KV cache: %s do not fit into the swap memory, of which %s of %s are in use; raise "
                         "[kv] swap_memory",
                         SOQ__SIZE(bytes), SOQ__SIZE(c->swap.used), SOQ__SIZE(c->swap.limit));
    s = create(n, bytes - sizeof *s - n * sizeof s->lines[0]);
    if (!s)
        return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for %s that are to be swapped out", SOQ__SIZE(bytes));
    s->bytes = bytes;
    data = (unsigned char *)(s->lines + n);
    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t i = 0; i < c->groups[g].max_blocks; i++)
            if (seq->groups[g].table[i] != SOQ_BLOCK_NONE) {
                s->lines[s->n++] = (struct line){g, i, data};
                data += soq__kv_line_bytes(seq, g, i);
            }
    *out = s;
    return 0;
}

int soq__kv_swap_out(struct soq__kv_seq *seq, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    struct soq__kv_swapped *s = NULL;
    int rc;

    if (seq->swapped)
        return 0;
    rc = make_room(seq, &s, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; !rc && i < s->n; i++) {
        const struct line *l = &s->lines[i];
        void *to = (void *)(uintptr_t)l->data;
        const void *data;

        rc = soq__kv_line_read(seq, l->group, l->index, to, &data, err);
        if (!rc && data != to)
            memcpy(to, data, soq__kv_line_bytes(seq, l->group, l->index));
    }
    if (rc) {
        soq__free(s);
        return rc;
    }
    for (uint32_t g = 0; g < c->n_groups; g++)
        soq__kv_drop_blocks(seq, g, 0, c->groups[g].max_blocks);
    soq__kv_drop_edits(seq);
    seq->swapped = s;
    c->swap.used += s->bytes;
    c->swap.peak = c->swap.used > c->swap.peak ? c->swap.used : c->swap.peak;
    c->n_swapped_out++;
    return 0;
}

int soq__kv_swap_borrow(struct soq__kv_seq *seq, uint32_t n_lines, struct soq_error *err)
{
    seq->swapped = create(n_lines, 0);
    return seq->swapped ? 0 : soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for a list of blocks");
}

void soq__kv_swap_add(struct soq__kv_seq *seq, uint32_t group, uint32_t index, const void *data)
{
    seq->swapped->lines[seq->swapped->n++] = (struct line){group, index, data};
}

/* Lines beyond what is committed were rolled back meanwhile. */
int soq__kv_swap_in(struct soq__kv_seq *seq, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    const struct soq__kv_swapped *s = seq->swapped;
    uint32_t end = soq__kv_blocks(c, seq->n_committed);
    int rc = 0;

    if (!s)
        return 0;
    for (uint32_t i = 0; !rc && i < s->n; i++)
        if (s->lines[i].index < end)
            rc = line_write(seq, s->lines[i].group, s->lines[i].index, s->lines[i].data, err);
    if (rc) {
        for (uint32_t g = 0; g < c->n_groups; g++)
            soq__kv_drop_blocks(seq, g, 0, end);
        return rc;
    }
    c->n_swapped_in += s->bytes > 0;
    soq__kv_swap_drop(seq);
    return 0;
}

void soq__kv_swap_drop(struct soq__kv_seq *seq)
{
    if (!seq->swapped)
        return;
    seq->cache->swap.used -= seq->swapped->bytes;
    soq__free(seq->swapped);
    seq->swapped = NULL;
}
