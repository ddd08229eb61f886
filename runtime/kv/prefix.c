/* The prefix index: a hash table of chained blocks, and a list of them by use.
 *
 * Whenever an entry is used so are those before it, so in the list an entry is always older than the one that it follows: the
 * oldest is the tail of its chain, and what is dropped never leaves anything behind that cannot be reached. */
#include "kv/prefix.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

#define HASH_BYTES sizeof(struct soq__hash)

struct soq__prefix_root {
    struct soq__prefix_root *next;
    struct soq__hash hash;
    uint64_t n_users; /* whoever entered, and nodes */
    size_t n_salt;
    unsigned char salt[];
};

struct soq__prefix_node {
    struct soq__hash hash;
    struct soq__prefix_root *root;
    struct soq__prefix_node *parent; /* NULL: the first block */
    struct soq__prefix_node *next;   /* in the bucket */
    struct soq__prefix_node *newer, *older;
    double used;    /* time */
    uint64_t walk;  /* the latest that came by */
    uint64_t bytes; /* of the blocks and of this */
    uint32_t pins;
    soq_block_ref blocks[]; /* [n_groups], NONE where the sequence had none any more; then int32_t tokens[block_tokens] */
};

static int32_t *tokens_of(const struct soq__prefix *x, const struct soq__prefix_node *node)
{
    return (int32_t *)(uintptr_t)(node->blocks + x->cache->n_groups);
}

static size_t node_size(const struct soq__prefix *x)
{
    return sizeof(struct soq__prefix_node) + x->cache->n_groups * sizeof(soq_block_ref) +
           x->cache->block_tokens * sizeof(int32_t);
}

int soq__prefix_init(struct soq__prefix *x, struct soq__kv_cache *cache, const struct soq__prefix_params *params,
                     struct soq_error *err)
{
    *x = (struct soq__prefix){.cache = cache, .params = *params, .n_buckets = 64};
    x->max_path = cache->context / cache->block_tokens;
    x->step = cache->layout->grid ? cache->layout->grid / cache->block_tokens : 1;
    x->buckets = soq__alloc_zero(x->n_buckets, sizeof(struct soq__prefix_node *));
    x->path = soq__alloc_array(x->max_path + 1, sizeof(struct soq__prefix_node *));
    x->message = soq__alloc(HASH_BYTES + cache->block_tokens * sizeof(int32_t));
    x->added = soq__alloc_array(cache->n_groups, sizeof *x->added);
    if (x->buckets && x->path && x->message && x->added)
        return 0;
    soq__prefix_done(x);
    return soq__fail(err, SOQ_ENOMEM, "out of memory for the prefix index");
}

/* ---- The list by use ---------------------------------------------------------------------------------------------------- */

static void list_remove(struct soq__prefix *x, struct soq__prefix_node *node)
{
    *(node->newer ? &node->newer->older : &x->newest) = node->older;
    *(node->older ? &node->older->newer : &x->oldest) = node->newer;
}

/* Next to `newer`, on its older side; NULL: in front. */
static void list_insert(struct soq__prefix *x, struct soq__prefix_node *node, struct soq__prefix_node *newer)
{
    node->newer = newer;
    node->older = newer ? newer->older : x->newest;
    *(node->newer ? &node->newer->older : &x->newest) = node;
    *(node->older ? &node->older->newer : &x->oldest) = node;
}

/* The first n nodes of the path are used now. */
static void touch(struct soq__prefix *x, uint32_t n, double now)
{
    for (uint32_t i = n; i-- > 0;) {
        list_remove(x, x->path[i]);
        list_insert(x, x->path[i], NULL);
        x->path[i]->used = now;
        x->path[i]->walk = x->walk;
    }
}

/* ---- Roots -------------------------------------------------------------------------------------------------------------- */

static struct soq__prefix_root *root_find(const struct soq__prefix *x, const void *salt, size_t n)
{
    struct soq__prefix_root *root = x->roots;

    while (root && (root->n_salt != n || (n && memcmp(root->salt, salt, n) != 0)))
        root = root->next;
    return root;
}

static struct soq__prefix_root *root_create(struct soq__prefix *x, const void *salt, size_t n)
{
    struct soq__prefix_root *root = soq__alloc(sizeof *root + n);
    unsigned char both[2 * HASH_BYTES];
    struct soq__hash salted = soq__hash(salt, n);

    if (!root)
        return NULL;
    memcpy(both, x->params.domain.bytes, HASH_BYTES);
    memcpy(both + HASH_BYTES, salted.bytes, HASH_BYTES);
    *root = (struct soq__prefix_root){.next = x->roots, .hash = soq__hash(both, sizeof both), .n_salt = n};
    if (n)
        memcpy(root->salt, salt, n);
    x->roots = root;
    x->stats.bytes += sizeof *root + n;
    return root;
}

int soq__prefix_enter(struct soq__prefix *x, const void *salt, size_t n, struct soq__prefix_root **root_out,
                      struct soq_error *err)
{
    struct soq__prefix_root *root = root_find(x, salt, n);

    if (!root)
        root = root_create(x, salt, n);
    if (!root)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the prefix index");
    root->n_users++;
    *root_out = root;
    return 0;
}

void soq__prefix_leave(struct soq__prefix *x, struct soq__prefix_root *root)
{
    struct soq__prefix_root **at = &x->roots;

    if (!root || --root->n_users)
        return;
    while (*at != root)
        at = &(*at)->next;
    *at = root->next;
    x->stats.bytes -= sizeof *root + root->n_salt;
    soq__free(root);
}

const void *soq__prefix_salt(const struct soq__prefix_root *root, size_t *n_out)
{
    *n_out = root ? root->n_salt : 0;
    return root ? root->salt : NULL;
}

void soq__prefix_count(struct soq__prefix *x, uint32_t n_tokens)
{
    x->stats.lookups++;
    x->stats.hits += n_tokens > 0;
    x->stats.tokens_saved += n_tokens;
}

/* ---- Nodes -------------------------------------------------------------------------------------------------------------- */

static struct soq__prefix_node **bucket_of(const struct soq__prefix *x, const struct soq__hash *hash)
{
    uint32_t low;

    memcpy(&low, hash->bytes + HASH_BYTES - sizeof low, sizeof low);
    return &x->buckets[low & (x->n_buckets - 1)];
}

static struct soq__hash hash_of(const struct soq__prefix *x, const struct soq__hash *before, const int32_t *tokens)
{
    unsigned char *at = x->message + HASH_BYTES;

    memcpy(x->message, before->bytes, HASH_BYTES);
    for (uint32_t i = 0; i < x->cache->block_tokens; i++, at += 4) {
        uint32_t t = (uint32_t)tokens[i];

        at[0] = (unsigned char)t;
        at[1] = (unsigned char)(t >> 8);
        at[2] = (unsigned char)(t >> 16);
        at[3] = (unsigned char)(t >> 24);
    }
    return soq__hash(x->message, (size_t)(at - x->message));
}

static struct soq__prefix_node *node_find(const struct soq__prefix *x, const struct soq__prefix_root *root,
                                          const struct soq__prefix_node *parent, const struct soq__hash *hash,
                                          const int32_t *tokens)
{
    struct soq__prefix_node *node = *bucket_of(x, hash);

    while (node && !(soq__hash_equal(&node->hash, hash) && node->root == root && node->parent == parent &&
                     memcmp(tokens_of(x, node), tokens, x->cache->block_tokens * sizeof *tokens) == 0))
        node = node->next;
    return node;
}

/* Fills path with the chain that is known of the first n blocks; returns its length. */
static uint32_t walk(struct soq__prefix *x, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n)
{
    const struct soq__hash *before = &root->hash;
    struct soq__prefix_node *parent = NULL;

    x->walk++;
    for (uint32_t i = 0; i < n; i++, tokens += x->cache->block_tokens) {
        struct soq__hash hash = hash_of(x, before, tokens);

        parent = node_find(x, root, parent, &hash, tokens);
        if (!parent)
            return i;
        x->path[i] = parent;
        before = &parent->hash;
    }
    return n;
}

/* Twice the buckets where there are as many nodes; without memory the chains just get longer. */
static void grow(struct soq__prefix *x)
{
    struct soq__prefix_node **old = x->buckets, **buckets;
    uint32_t n_old = x->n_buckets;

    if (x->stats.entries < n_old)
        return;
    buckets = soq__alloc_zero((size_t)n_old * 2, sizeof(struct soq__prefix_node *));
    if (!buckets)
        return;
    x->buckets = buckets;
    x->n_buckets = n_old * 2;
    for (uint32_t i = 0; i < n_old; i++)
        for (struct soq__prefix_node *node = old[i], *next; node; node = next) {
            struct soq__prefix_node **bucket = bucket_of(x, &node->hash);

            next = node->next;
            node->next = *bucket;
            *bucket = node;
        }
    soq__free(old);
}

static void node_free(struct soq__prefix *x, struct soq__prefix_node *node)
{
    struct soq__prefix_node **at = bucket_of(x, &node->hash);

    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    list_remove(x, node);
    for (uint32_t g = 0; g < x->cache->n_groups; g++)
        soq__kv_let_go(x->cache, g, node->blocks[g]);
    x->stats.bytes -= node->bytes;
    x->stats.pinned_bytes -= node->pins ? node->bytes : 0;
    x->stats.entries--;
    soq__prefix_leave(x, node->root);
    soq__free(node);
}

void soq__prefix_done(struct soq__prefix *x)
{
    struct soq__prefix_root *next;

    while (x->oldest)
        node_free(x, x->oldest);
    for (struct soq__prefix_root *root = x->roots; root; root = next) {
        next = root->next;
        soq__free(root);
    }
    soq__free(x->buckets);
    soq__free(x->path);
    soq__free(x->message);
    soq__free(x->added);
    *x = (struct soq__prefix){0};
}

static struct soq__prefix_node *oldest_unpinned(const struct soq__prefix *x)
{
    struct soq__prefix_node *node = x->oldest;

    while (node && node->pins)
        node = node->newer;
    return node;
}

static bool evict(struct soq__prefix *x, struct soq__prefix_node *node)
{
    if (!node)
        return false;
    node_free(x, node);
    x->stats.evictions++;
    return true;
}

bool soq__prefix_give_way(struct soq__prefix *x)
{
    return evict(x, oldest_unpinned(x));
}

void soq__prefix_expire(struct soq__prefix *x, double now)
{
    struct soq__prefix_node *node = oldest_unpinned(x);

    while (x->params.ttl > 0 && node && now - node->used > x->params.ttl) {
        evict(x, node);
        node = oldest_unpinned(x);
    }
}

/* ---- Hits --------------------------------------------------------------------------------------------------------------- */

/* The blocks [first, last) are what a row at entry n may see of a group, with those of its sinks. */
static uint32_t first_visible(const struct soq__kv_group_layout *g, uint32_t block_tokens, uint32_t n)
{
    uint32_t from = soq__kv_visible_from(g->window, n) / block_tokens;

    return from > (g->sinks + block_tokens - 1) / block_tokens ? from : 0;
}

static bool is_visible(const struct soq__kv_group_layout *g, uint32_t block_tokens, uint32_t first, uint32_t i)
{
    return i >= first || i < (g->sinks + block_tokens - 1) / block_tokens;
}

/* The chain holds whatever a row behind its first n blocks may see. */
static bool is_usable(const struct soq__prefix *x, uint32_t n)
{
    uint32_t p = x->cache->block_tokens;

    for (uint32_t g = 0; g < x->cache->n_groups; g++) {
        const struct soq__kv_group_layout *layout = x->cache->groups[g].layout;
        uint32_t first = first_visible(layout, p, n * p);

        for (uint32_t i = 0; i < n; i++)
            if (is_visible(layout, p, first, i) && x->path[i]->blocks[g] == SOQ_BLOCK_NONE)
                return false;
    }
    return true;
}

uint32_t soq__prefix_match(struct soq__prefix *x, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n,
                           double now)
{
    uint32_t n_blocks;

    soq__prefix_expire(x, now);
    n_blocks = walk(x, root, tokens, n / x->cache->block_tokens);
    n_blocks -= n_blocks % x->step;
    while (n_blocks && !is_usable(x, n_blocks))
        n_blocks -= x->step;
    touch(x, n_blocks, now);
    return n_blocks * x->cache->block_tokens;
}

static int take_group(struct soq__prefix *x, struct soq__kv_seq *seq, uint32_t g, uint32_t n_blocks, struct soq_error *err)
{
    struct soq__kv_group *group = &x->cache->groups[g];
    struct soq__kv_seq_group *sg = &seq->groups[g];
    uint32_t p = x->cache->block_tokens, first = first_visible(group->layout, p, n_blocks * p);

    for (uint32_t i = 0; i < n_blocks; i++) {
        struct soq_step_edit edit = {.slot = seq->slot, .group = g, .index = i, .block = x->path[i]->blocks[g]};
        int rc;

        if (!is_visible(group->layout, p, first, i))
            continue;
        rc = soq__kv_push_edit(x->cache, edit, err);
        if (rc)
            return rc;
        soq__kv_hold(seq, g, i, edit.block);
        soq__kv_block_ref(soq__kv_pool_of(group, edit.block), edit.block);
    }
    sg->freed_to = first * p;
    return 0;
}

int soq__prefix_take(struct soq__prefix *x, struct soq__kv_seq *seq, uint32_t n, struct soq_error *err)
{
    int rc = 0;

    for (uint32_t g = 0; !rc && g < x->cache->n_groups; g++)
        rc = take_group(x, seq, g, n / x->cache->block_tokens, err);
    if (rc) {
        soq__kv_empty(seq);
        return rc;
    }
    seq->n_committed = n;
    return 0;
}

/* ---- Publishing --------------------------------------------------------------------------------------------------------- */

/* What a selection left is no prefix any more. */
static bool is_whole(const struct soq__kv_seq *seq)
{
    for (uint32_t g = 0; g < seq->cache->n_groups; g++)
        if (seq->groups[g].base)
            return false;
    return true;
}

/* Drops old entries until `bytes` more fit under the cap; false: they never do, unless the chain in hand went. */
static bool make_room(struct soq__prefix *x, uint64_t bytes)
{
    while (x->stats.bytes + bytes > x->params.limit) {
        struct soq__prefix_node *victim = oldest_unpinned(x);

        if (!victim || victim->walk == x->walk)
            return false;
        evict(x, victim);
    }
    return true;
}

/* Old entries go until all promises fit again beside what is held now; false: only the chain in hand is left. */
static bool keep_promises(struct soq__prefix *x)
{
    while (!soq__kv_promises_fit(x->cache)) {
        struct soq__prefix_node *victim = oldest_unpinned(x);

        if (!victim || victim->walk == x->walk)
            return false;
        evict(x, victim);
    }
    return true;
}

static uint64_t block_bytes(const struct soq__prefix *x, uint32_t g, soq_block_ref block)
{
    return soq__kv_pool_of(&x->cache->groups[g], block)->block_bytes;
}

/* The blocks that `added` marks count for the node, or no longer. */
static void account(struct soq__prefix *x, struct soq__prefix_node *node, bool in)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < x->cache->n_groups; g++)
        bytes += x->added[g] ? block_bytes(x, g, node->blocks[g]) : 0;
    node->bytes += in ? bytes : -bytes;
    x->stats.bytes += in ? bytes : -bytes;
    if (node->pins)
        x->stats.pinned_bytes += in ? bytes : -bytes;
}

/* Takes over what the sequence holds of block `index` and the node does not yet; false, and nothing, if it does not fit. */
static bool fill(struct soq__prefix *x, struct soq__prefix_node *node, const struct soq__kv_seq *seq, uint32_t index)
{
    const struct soq__kv_cache *c = x->cache;
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        x->added[g] = node->blocks[g] == SOQ_BLOCK_NONE && seq->groups[g].table[index] != SOQ_BLOCK_NONE;
        bytes += x->added[g] ? block_bytes(x, g, seq->groups[g].table[index]) : 0;
    }
    if (!bytes || !make_room(x, bytes))
        return !bytes;
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (x->added[g]) {
            node->blocks[g] = seq->groups[g].table[index];
            soq__kv_block_ref(soq__kv_pool_of(&c->groups[g], node->blocks[g]), node->blocks[g]);
        }
    account(x, node, true);
    if (keep_promises(x))
        return true;
    account(x, node, false);
    for (uint32_t g = 0; g < c->n_groups; g++)
        if (x->added[g]) {
            soq__kv_let_go(x->cache, g, node->blocks[g]);
            node->blocks[g] = SOQ_BLOCK_NONE;
        }
    return false;
}

static struct soq__prefix_node *node_create(struct soq__prefix *x, struct soq__prefix_root *root,
                                            struct soq__prefix_node *parent, const int32_t *tokens, double now)
{
    size_t bytes = node_size(x);
    struct soq__prefix_node *node = make_room(x, bytes) ? soq__alloc(bytes) : NULL, **bucket;

    if (!node)
        return NULL;
    *node = (struct soq__prefix_node){
        .hash = hash_of(x, parent ? &parent->hash : &root->hash, tokens),
        .root = root,
        .parent = parent,
        .used = now,
        .walk = x->walk,
        .bytes = bytes,
    };
    memset(node->blocks, 0xff, x->cache->n_groups * sizeof(soq_block_ref)); /* SOQ_BLOCK_NONE */
    memcpy(tokens_of(x, node), tokens, x->cache->block_tokens * sizeof *tokens);
    root->n_users++;
    x->stats.entries++;
    x->stats.bytes += bytes;
    grow(x);
    bucket = bucket_of(x, &node->hash);
    node->next = *bucket;
    *bucket = node;
    list_insert(x, node, parent);
    return node;
}

void soq__prefix_publish(struct soq__prefix *x, struct soq__prefix_root *root, const struct soq__kv_seq *seq,
                         const int32_t *tokens, uint32_t n, double now)
{
    uint32_t p = x->cache->block_tokens, n_blocks = n / p, known;

    if (!is_whole(seq))
        return;
    known = walk(x, root, tokens, n_blocks);
    touch(x, known, now);
    for (uint32_t i = 0; i < n_blocks; i++) {
        struct soq__prefix_node *parent = i ? x->path[i - 1] : NULL;

        if (i >= known && !(x->path[i] = node_create(x, root, parent, tokens + (size_t)i * p, now)))
            return;
        if (fill(x, x->path[i], seq, i))
            continue;
        if (i >= known)
            node_free(x, x->path[i]); /* the last of its chain */
        return;
    }
}

/* ---- Pins --------------------------------------------------------------------------------------------------------------- */

static uint32_t pin(struct soq__prefix *x, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n, int by)
{
    uint32_t n_blocks = walk(x, root, tokens, n / x->cache->block_tokens);

    for (uint32_t i = 0; i < n_blocks; i++) {
        struct soq__prefix_node *node = x->path[i];
        bool before = node->pins > 0;

        if (by > 0 || before)
            node->pins += (uint32_t)by;
        if (before != (node->pins > 0))
            x->stats.pinned_bytes += before ? -node->bytes : node->bytes;
    }
    return n_blocks * x->cache->block_tokens;
}

uint32_t soq__prefix_pin(struct soq__prefix *x, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n)
{
    return pin(x, root, tokens, n, 1);
}

void soq__prefix_unpin(struct soq__prefix *x, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n)
{
    pin(x, root, tokens, n, -1);
}
