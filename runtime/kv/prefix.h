/* The prefix index: full blocks that some sequence has computed, found again by their tokens.
 *
 * A block's hash covers its tokens and the hash of the block before it; that of the first one the *root*: what keys and values
 * depend on besides tokens (model, codecs, policy, ...) and a salt. So one salt never sees what another one has computed. On a
 * hit tokens and salt are compared, too: a collision costs nothing but a miss.
 *
 * The index holds a reference to each block, which thus stays when its sequence ends or its policy drops it. Least recently
 * used entries go first, a chain from its tail: when the cap is reached, when the time is up, and whenever sequences need the
 * memory. What is pinned stays. Like the cache: not thread-safe, between steps only. */
#ifndef SOQ_KV_PREFIX_H
#define SOQ_KV_PREFIX_H

#include "base/hash.h"
#include "kv/cache.h"

struct soq__prefix_root; /* a salt */
struct soq__prefix_node; /* a block of tokens behind others */

struct soq__prefix_params {
    uint64_t limit;          /* bytes of blocks and entries together */
    double ttl;              /* seconds without use after which an entry goes; 0: none */
    struct soq__hash domain; /* of all but tokens and salt */
};

struct soq__prefix_stats {
    uint64_t lookups, hits; /* prompts looked up, and found in part */
    uint64_t tokens_saved;
    uint64_t entries, bytes; /* at the moment; blocks that sequences hold, too, count fully */
    uint64_t pinned_bytes;   /* of these */
    uint64_t evictions;      /* entries, whatever the reason */
};

struct soq__prefix {
    struct soq__kv_cache *cache; /* not owned; NULL: there is no index */
    struct soq__prefix_params params;
    struct soq__prefix_stats stats;
    struct soq__prefix_root *roots;
    struct soq__prefix_node **buckets; /* [n_buckets], a power of two */
    uint32_t n_buckets;
    struct soq__prefix_node *newest, *oldest; /* by use; whoever follows is older than whom it follows in its chain */
    struct soq__prefix_node **path;           /* [max_path] scratch: the chain that was walked last */
    uint32_t max_path;
    uint32_t step;          /* blocks; hits are multiples of it: where blocks are packed, all that a row sees before it are */
    uint64_t walk;          /* number of the walk in hand */
    unsigned char *message; /* scratch: what a hash covers */
    bool *added;            /* [n_groups] scratch: what fill() took over */
};

int soq__prefix_init(struct soq__prefix *index, struct soq__kv_cache *cache, const struct soq__prefix_params *params,
                     struct soq_error *err);
void soq__prefix_done(struct soq__prefix *index);

/* The root of a salt, any bytes, held until leave(). */
int soq__prefix_enter(struct soq__prefix *index, const void *salt, size_t n, struct soq__prefix_root **root_out,
                      struct soq_error *err);
void soq__prefix_leave(struct soq__prefix *index, struct soq__prefix_root *root); /* NULL is a no-op */
/* NULL and 0 bytes without a root. */
const void *soq__prefix_salt(const struct soq__prefix_root *root, size_t *n_out);
/* For the statistics: a prompt was looked up and so many tokens of it were taken over. */
void soq__prefix_count(struct soq__prefix *index, uint32_t n_tokens);

/* How many of the first n tokens can be taken over: whole blocks, to where blocks are packed; 0 if none. */
uint32_t soq__prefix_match(struct soq__prefix *index, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n,
                           double now);
/* Gives an empty sequence the first n tokens' entries, as match() has just found them. On failure it is empty again. */
int soq__prefix_take(struct soq__prefix *index, struct soq__kv_seq *seq, uint32_t n, struct soq_error *err);
/* Adds the sequence's full blocks among its first n tokens, packed ones where the cache packs, as far as they are not known yet
 * and fit; never fails: what cannot be added is left out. */
void soq__prefix_publish(struct soq__prefix *index, struct soq__prefix_root *root, const struct soq__kv_seq *seq,
                         const int32_t *tokens, uint32_t n, double now);

/* Drops the entry that was used least recently and is not pinned; false: there is none. */
bool soq__prefix_give_way(struct soq__prefix *index);
/* Drops what has not been used for the ttl. */
void soq__prefix_expire(struct soq__prefix *index, double now);

/* The blocks of the first n tokens stay, as far as they are known, until they are unpinned as often; returns how many tokens
 * that are. */
uint32_t soq__prefix_pin(struct soq__prefix *index, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n);
void soq__prefix_unpin(struct soq__prefix *index, const struct soq__prefix_root *root, const int32_t *tokens, uint32_t n);

#endif
