/* What the files of the attention kernel share.
 *
 * A query is one head of one row. Queries of the same sequence and kv head form an item, up to QUERIES of them, which share
 * what is loaded of keys and values. Entries are taken in tiles of TOKENS, at multiples of that, whatever the blocks' size;
 * sums are taken split by split (SPLIT entries, at multiples of that) and the splits merged in order. So the result of a query
 * depends on what it sees and where that lies, not on chunks, segments, other rows or threads. */
#ifndef SOQ_CPU_ATTENTION_H
#define SOQ_CPU_ATTENTION_H

#include "cpu.h"
#include "simd/vec.h"
#include "variant.h"

enum {
    TOKENS = 64, /* entries of a tile: bits of a mask */
    SPLIT = 256, /* entries that are summed up before they are merged */
    SPLIT_TILES = SPLIT / TOKENS,
    ROWS = 16, /* entries that are transposed at once */
    QUERIES = 48,
    BLOCK = VEC_REGISTERS >= 32 ? 6 : 3, /* queries whose sums of four vectors fit into registers */
    STORE_BYTES = 2 << 20,               /* of weights that attention mass is taken from, at least one query's */
};

enum {
    FOLD_MAX = CODES_WIDTH_MAX,           /* numbers along an axis of a packed tile that are taken at once */
    DIGIT_GROUPS = FOLD_MAX / CODES_STEP, /* of a row */
};

/* A row of numbers as whole ones of one signed digit, or of two, high * 2^bits + low; times the scale of their group. */
struct digit_row {
    int8_t bytes[2][FOLD_MAX]; /* the only digit; or high, low */
    float scales[DIGIT_GROUPS];
    float offsets[DIGIT_GROUPS]; /* of products: because codes are counted from the middle one, and what minima along the row
                                    add */
    float totals[DIGIT_GROUPS];  /* sums of the numbers, where lanes have minima */
};

/* Entries of a tile of entries that lie in a packed block. */
struct part {
    const uint8_t *tile;
    ptrdiff_t ahead;        /* bytes to the tile that is wanted next in its place; 0: not known */
    uint32_t at, first, n;  /* entries [at, at + n) of the tile of entries, [first, first + n) of the block */
    uint32_t quad, n_quads; /* their codes along the inner axis */
};

/* Numerator and denominator of a softmax over part of the entries, relative to the largest score. Scores are in units of ln 2,
 * so that weights are powers of two. */
struct sums {
    float max[QUERIES], total[QUERIES]; /* max is -inf where nothing was seen */
    float *out;                         /* [QUERIES][dv] */
    float *coded;                       /* the same of values that are stored rotated, as they are; or `out` */
};

/* An item: where its queries come from, and the thread's scratch. Query i is head i % ratio of row i / ratio of the sequence,
 * counted from `first` on. */
struct item {
    struct cpu *cpu;
    const struct soq_attention_args *args;
    const struct cpu_group *group;
    const struct soq_step *step;
    const struct soq_step_seq *seq;
    uint32_t kv_head, first, n;
    uint32_t first_segment, end_segment;      /* of the sequence: those that hold for the item are among them */
    const struct soq_step_row *rows[QUERIES]; /* of the queries */
    uint32_t ratio;                           /* heads per kv head */
    uint32_t classes;                         /* of segments: those of one class turn the queries alike */
    uint64_t begin, end;                      /* the entries that its queries may see lie here */
    size_t dk, dv;                            /* widths; dv padded to lanes with zeros */
    float *k, *v;                             /* [dk][TOKENS], [TOKENS][dv] */
    float *lines;                             /* ROWS entries of a plane, where they do not lie next to each other */
    float *decoded[CPU_SIDES];                /* [block_tokens][width], of the tile decoded_from, or NULL */
    const uint8_t *decoded_from[CPU_SIDES];
    float *scores;            /* [QUERIES][TOKENS] */
    float *q, *turned;        /* [QUERIES / BLOCK][dk][BLOCK]: scaled; and rotated for a class of segments */
    uint32_t turned_for;      /* 1 + the first segment of the class; 0: none */
    const struct item *ahead; /* the item whose tile at entry ahead_at will be wanted next; NULL: not known */
    uint64_t ahead_at;
    struct sums part, whole;
    float shares[QUERIES];   /* the probability that an entry with the largest score has */
    uint64_t masks[QUERIES]; /* bit t: the query sees entry t of the tile */
    uint64_t lying;          /* bit t: the value of entry t is taken as it lies */
    struct place {
        const uint8_t *rows, *ahead; /* ROWS entries in F16; those that will be wanted next in their place, or themselves */
    } places[CPU_SIDES][TOKENS / ROWS];
    /* Packed entries that are computed on as they are. */
    uint64_t coded[CPU_SIDES]; /* bit t: entry t of the tile is one */
    struct part parts[CPU_SIDES][TOKENS / CODES_STEP];
    uint32_t n_parts[CPU_SIDES];
    float *coded_q;           /* [QUERIES][coded_q_stride]: q as the keys are stored, rotated */
    size_t coded_q_stride;    /* dk up to a whole step */
    const float *coded_from;  /* of which q; NULL: none */
    struct digit_row *digits; /* [QUERIES]: of coded_q, where scales are by lane */
    /* Where attention mass is wanted of a query: the weights of all tiles and classes, a slot for each, which is [n] largest
     * scores (-inf: nothing seen) and [n][TOKENS] weights relative to them. */
    bool mass;
    float *room;  /* the thread's, for a store */
    float *store; /* [tiles][classes] slots */
};

/* attention_item.c. The item's step, group and scratch. */
void cpu_item_prepare(struct item *item, struct cpu *cpu, const struct soq_attention_args *args,
                      const struct cpu_thread *thread);
/* Item number `number` of the step; false: there is none. Of a sequence those of the last rows, which see most, come first. */
bool cpu_item_select(struct item *item, uint64_t number);
uint32_t cpu_item_head(const struct item *item, uint32_t query);
/* The segment with that number holds for the item and is the first of its class; *class_out: the number of the class. */
bool cpu_item_class(const struct item *item, uint32_t segment, uint32_t *class_out);
/* Fills the masks of the tile at entry `begin` for the class of that segment; returns their union. */
uint64_t cpu_item_masks(struct item *item, uint32_t segment, uint64_t begin);
uint64_t cpu_item_store_floats(const struct item *item);
float *cpu_item_slot(const struct item *item, uint64_t tile, uint32_t class);

/* attention_load.c. q, scaled, in blocks. */
void cpu_item_load(struct item *item);
/* ROWS entries next to each other: F16 or F32 [ROWS][width]. */
struct rows {
    const uint8_t *at;
    uint32_t dtype;
};
/* Those from `entry` on: where they are, or widened copies of those that are in `seen`; others may be anything. */
struct rows cpu_item_rows(struct item *item, uint32_t side, uint64_t entry, uint64_t seen);
/* The tile with an entry, and its plane; NULL: its block is not there. */
const uint8_t *cpu_item_tile(const struct item *item, uint32_t side, uint64_t entry, const struct cpu_plane **plane_out);
/* Prefetches the plain entries of the tile at entry `begin`. */
void cpu_item_fetch(const struct item *item, uint64_t begin);
/* Where the ROWS entries lie that will be wanted at place t of the next tile; `rows`, if that is not known. */
const uint8_t *cpu_item_rows_ahead(const struct item *item, uint32_t side, uint32_t t, const uint8_t *rows);
/* Of the tile at entry `begin` those that are in `seen`: steps of ROWS keys to item->k, values to item->v. */
void cpu_item_load_keys(struct item *item, uint64_t begin, uint64_t seen);
void cpu_item_load_values(struct item *item, uint64_t begin, uint64_t seen);
/* Those of them that lie as F16 in blocks of at least ROWS; their places go to item->places. */
uint64_t cpu_item_places(struct item *item, uint32_t side, uint64_t begin, uint64_t seen);

/* For the tile after this one. Prefetches into the first-level cache occupy the few line buffers in front of it until memory
 * answers, and loads wait for them: two threads that read tiles of 4 KiB here and there got 22 GB/s so, into the second level
 * 33 GB/s. */
VEC_INLINE void fetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        vec_prefetch_l2(p + i);
}

/* attention_tile.c. part += the tile at entry `begin`, as masks say; seen is their union. The weights go to scores [n][TOKENS].
 */
void cpu_item_sum_tile(struct item *item, const float *q, float *scores, uint64_t begin, uint64_t seen);

/* attention_codes.c. Finds the parts of the tile at entry `begin`, some of whose entries are in `seen`. */
void cpu_codes_begin(struct item *item, uint64_t begin, uint64_t seen);
/* Their scores for queries [first, first + n_q) of q; scores is [n_q][TOKENS]. */
void cpu_codes_score(struct item *item, const float *q, uint32_t first, uint32_t n_q, float *scores);
/* part.coded += their values, by weights [n_q][TOKENS]. */
void cpu_codes_add(struct item *item, uint32_t first, uint32_t n_q, const float *weights);
/* codes_rotate.c. part.out += part.coded, rotated back. */
void cpu_item_turn_back(struct item *item);

/* attention_turn.c. The queries for the class of that segment. */
const float *cpu_item_turned(struct item *item, uint32_t segment);

/* attention_mass.c. Zeros for the lines that the step's rows name; by all threads together. */
void cpu_mass_clear(const struct cpu *cpu, const struct soq_attention_args *args, const struct cpu_thread *thread);
/* Adds the probabilities of the item's queries; whole.max and shares are known. */
void cpu_mass_add(const struct item *item);

/* fn(n, ...) for n = n_q as a constant. */
#define FOR_QUERIES(n_q, fn, ...)                                                                                              \
    do {                                                                                                                       \
        switch (n_q) {                                                                                                         \
        case 1:                                                                                                                \
            fn(1, __VA_ARGS__);                                                                                                \
            break;                                                                                                             \
        case 2:                                                                                                                \
            fn(2, __VA_ARGS__);                                                                                                \
            break;                                                                                                             \
        case 3:                                                                                                                \
            fn(3, __VA_ARGS__);                                                                                                \
            break;                                                                                                             \
        case 4:                                                                                                                \
            fn(BLOCK < 4 ? BLOCK : 4, __VA_ARGS__);                                                                            \
            break;                                                                                                             \
        case 5:                                                                                                                \
            fn(BLOCK < 5 ? BLOCK : 5, __VA_ARGS__);                                                                            \
            break;                                                                                                             \
        default:                                                                                                               \
            fn(BLOCK, __VA_ARGS__);                                                                                            \
        }                                                                                                                      \
    } while (0)

/* ---- Lanes of rows ------------------------------------------------------------------------------------------------------- */

/* Lanes of up to BLOCK rows are reduced four rows at a time, each in the same way; where there are fewer, the first one again.
 */
VEC_INLINE void reduce_rows(uint32_t n_q, void fn(vf a, vf b, vf c, vf d, float *out), const vf rows[BLOCK], float *out)
{
    VEC_EACH(part, (n_q + 3) / 4) {
        uint32_t i = part * 4;
        float four[4];

        fn(rows[i], rows[i + 1 < n_q ? i + 1 : 0], rows[i + 2 < n_q ? i + 2 : 0], rows[i + 3 < n_q ? i + 3 : 0], four);
        VEC_EACH(j, n_q - i < 4 ? n_q - i : 4)
            out[i + j] = four[j];
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------- */

#define LOG2E 0x1.71547652b82fep0

/* 2^x for x <= 0 with a relative error below 2e-7 down to -126: exactly 1 for 0. From -127 on it is 0; in between, where
 * exponents end, some number below 2^-126. */
VEC_INLINE vf exp2_of(vf x)
{
    vf z = vf_max(vf_splat(-127.0f), x), up = z + vf_splat(0x1.8p23f), r = z - (up - vf_splat(0x1.8p23f));
    vf p = vf_madd(r, vf_splat(0x1.5bba14p-10f), vf_splat(0x1.3cea88p-7f));

    p = vf_madd(p, r, vf_splat(0x1.c6b752p-5f));
    p = vf_madd(p, r, vf_splat(0x1.ebf9bcp-3f));
    p = vf_madd(p, r, vf_splat(0x1.62e42ap-1f));
    p = vf_madd(p, r, vf_splat(1.0f));
    return (vf)((vi)p + ((vi)up << 23));
}

VEC_INLINE float exp2_of1(float x)
{
    return exp2_of(vf_splat(x))[0];
}

#endif
