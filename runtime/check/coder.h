/* A KV codec for checks, of any format that soquete/kv.h describes: written after the description there, slowly, and sharing
 * nothing with plugins. Backends are given it; tiles of codecs are read with it. */
#ifndef SOQ_CHECK_CODER_H
#define SOQ_CHECK_CODER_H

#include <stdbool.h>

#include "soquete/kv.h"

/* The parts of a format that are chosen; the rest follows from them and the tile's shape. OPAQUE tiles hold the numbers negated
 * and backwards, and at their end whose they are: struct soq__coder_name. */
struct soq__coder_spec {
    const char *name;
    uint32_t kind, bits, group_tokens, group_dims, symmetric, rotation, dtype;
    const float *codebook; /* [1 << bits] */
};

struct soq__coder {
    struct soq_kv_format format;
    uint32_t role, tokens, width;
    float signs[512];
    double levels[256]; /* the values of codes before their scale */
};

/* Of which tile the codec was told that it is. */
struct soq__coder_name {
    uint32_t layer, head, first_position, reserved;
};

/* group_tokens, group_dims 0: all of the tile's. */
void soq__coder_init(struct soq__coder *coder, const struct soq__coder_spec *spec, uint32_t role, uint32_t tokens,
                     uint32_t width);
/* For tiles of a format that a codec describes, of a kind that soquete/kv.h lays out; width at most 512. */
void soq__coder_read(struct soq__coder *coder, const struct soq_kv_format *format, uint32_t role, uint32_t tokens,
                     uint32_t width);
/* Of a tile, by the layout. */
uint64_t soq__coder_tile_bytes(const struct soq__coder *coder);
/* What backends get. An OPAQUE tile that is decoded as another layer's or head's than it was encoded as is refused. */
struct soq_kv_coder soq__coder_view(struct soq__coder *coder);
/* [tokens][width] and back, as the view does, but for names; false: out of memory. */
bool soq__coder_encode(const struct soq__coder *coder, const float *src, uint8_t *dst);
void soq__coder_decode(const struct soq__coder *coder, const uint8_t *src, float *dst);
/* What an OPAQUE tile was encoded as. Tiles of other formats have no name: the second function leaves them alone. */
struct soq__coder_name soq__coder_name_of(const struct soq__coder *coder, const uint8_t *tile);
void soq__coder_set_name(const struct soq__coder *coder, const struct soq__coder_name *name, uint8_t *tile);

#endif
