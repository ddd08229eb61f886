/* Hashes that are the same in every process and on every machine: XXH3 with 128 bits (libxxhash), most significant byte first.
 *
 * Not meant against an adversary who chooses the bytes: whoever looks something up by hash compares what was hashed, too. */
#ifndef SOQ_BASE_HASH_H
#define SOQ_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>

struct soq__hash {
    unsigned char bytes[16];
};

struct soq__hash soq__hash(const void *data, size_t n);
bool soq__hash_equal(const struct soq__hash *a, const struct soq__hash *b);

/* The same piece by piece. */
struct soq__hasher {
    void *state; /* owned */
};

bool soq__hasher_init(struct soq__hasher *hasher); /* false: out of memory */
void soq__hasher_done(struct soq__hasher *hasher);
void soq__hasher_add(struct soq__hasher *hasher, const void *data, size_t n);
struct soq__hash soq__hasher_sum(const struct soq__hasher *hasher); /* of everything added so far */

#endif
