/* XXH3-128 of libxxhash in its canonical order of bytes. */
#include "base/hash.h"

#include <string.h>
#include <xxhash.h>

static struct soq__hash canonical(XXH128_hash_t value)
{
    XXH128_canonical_t bytes;
    struct soq__hash out;

    XXH128_canonicalFromHash(&bytes, value);
    memcpy(out.bytes, bytes.digest, sizeof out.bytes);
    return out;
}

struct soq__hash soq__hash(const void *data, size_t n)
{
    return canonical(XXH3_128bits(data, n));
}

bool soq__hash_equal(const struct soq__hash *a, const struct soq__hash *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

bool soq__hasher_init(struct soq__hasher *h)
{
    h->state = XXH3_createState();
    if (h->state)
        XXH3_128bits_reset(h->state);
    return h->state != NULL;
}

void soq__hasher_done(struct soq__hasher *h)
{
    XXH3_freeState(h->state);
    h->state = NULL;
}

void soq__hasher_add(struct soq__hasher *h, const void *data, size_t n)
{
    XXH3_128bits_update(h->state, data, n);
}

struct soq__hash soq__hasher_sum(const struct soq__hasher *h)
{
    return canonical(XXH3_128bits_digest(h->state));
}
