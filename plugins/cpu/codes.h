/* Packed tiles whose codes the attention kernels compute on as they are (kernels/attention_codes.c): what those need to know of
 * a format. */
#ifndef SOQ_CPU_CODES_H
#define SOQ_CPU_CODES_H

#include <stdbool.h>

#include "kvtile.h"

enum {
    CODES_PASSES = 2,
    CODES_STEP = 16,       /* entries and dims are taken so many at a time */
    CODES_WIDTH_MAX = 256, /* numbers of a row: 256 products of 32639 (two digits) and 255 still fit into 32 bits */
};

/* A number of the kind E4M3 is scale * the float that its byte is, else it is scale * (sum over the passes of factor * (byte -
 * zero)) or, where there are minima, that of the only pass plus minimum + zero * scale: codes are counted from the middle one
 * in either case. The byte is the code itself or, with `lookup`, what a table has for it.
 *
 * The inner axis is the one that attention sums over, lanes of vectors go along the outer one. Scales either belong to an outer
 * index each, for groups of inner ones (by lane), or to an inner index each or all of a group, for groups of outer ones (folded
 * into what the codes are multiplied by). */
struct cpu_codes {
    bool usable, folded, lookup;
    bool floats; /* E4M3 */
    struct kvtile layout;
    uint32_t bits;
    uint32_t scale_type, scale_bytes;  /* of scales and minima */
    uint32_t group_tokens, group_dims; /* at most the tile's */
    struct cpu_codes_pass {
        int32_t zero;
        float factor;
        uint8_t table[16];
    } passes[CODES_PASSES];
};

/* usable: whether the kernels know the format. */
struct cpu_codes cpu_codes_of(const struct soq_kv_format *format, uint32_t role, uint32_t tokens, uint32_t width);

#endif
