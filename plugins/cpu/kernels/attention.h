/* What the files of the attention kernel share.
 *
 * A query is one head of one row. Queries of the same sequence and kv head form an item, up to QUERIES of them, which share
 * what is loaded of keys and values. Entries are taken in splits (SPLIT entries, at multiples of that): first all scores of a
 * split, then their softmax, then the sums of values; the splits are merged in order. Within a split keys and values are loaded
 * in tiles of TOKENS, at multiples of that, whatever the blocks' size. So the result of a query depends on what it sees and
 * where that lies, not on chunks, segments, other rows or threads. */
#ifndef SOQ_CPU_ATTENTION_H
#define SOQ_CPU_ATTENTION_H

#include "cpu.h"
#include "simd/vec.h"
#include "variant.h"

enum {
    TOKENS = 64, /* entries of a tile: bits of a mask */
    SPLIT = 256, /* entries of a softmax */
    TILES = SPLIT / TOKENS,
    ROWS = 16, /* entries that are transposed at once */
    QUERIES = 48,
    HEADS = 4,                           /* items of a sequence that a thread works on at once */
    BLOCK = VEC_REGISTERS >= 32 ? 6 : 3, /* queries whose sums of four vectors fit into registers */
    STORE_BYTES = 2 << 20,               /* of weights that attention mass is taken from, at least one query's */
};

enum {
    FOLD_MAX = CODES_WIDTH_MAX, /* numbers along the axis that products with codes sum over: dims, or entries of a split */
    DIGIT_GROUPS = FOLD_MAX / CODES_STEP, /* of a row */
    PARTS = SPLIT / CODES_STEP,
};

/* A row of numbers as whole ones of one signed digit, or of two, high * 2^8 + low; times the scale of their group. */
struct digit_row {
    union {
        int8_t bytes[2][FOLD_MAX]; /* the only digit; or high, low; or, where sums of bytes are short, */
        int16_t halves[FOLD_MAX];  /* both as one number, of each four in the order 0, 2, 1, 3 */
    };
    float scales[DIGIT_GROUPS];
    float offsets[DIGIT_GROUPS]; /* of products: because codes are counted from the middle one, and what minima along the row
                                    add */
    float totals[DIGIT_GROUPS];  /* sums of the numbers, where lanes have minima */
};

/* Entries of a tile that lie in a packed block. */
struct part {
    const uint8_t *tile;    /* of the block */
    uint32_t at, first, n;  /* entries [at, at + n) of the split, [first, first + n) of the block */
    uint32_t quad, n_quads; /* their codes along the inner axis; */
    uint32_t x;             /* and where in a row lies what meets the first of them */
};

/* Numerator and denominator of a softmax over part of the entries, relative to the largest score. Scores are in units of ln 2,
 * so that weights are powers of two. */
struct sums {
    float max[QUERIES], total[QUERIES]; /* max is -inf where nothing was seen */
    float *out; /* [QUERIES][out_stride]: dv sums of values; where some are stored rotated, dv more of these, as they are */
};

/* Memory that will be read soon. */
struct span {
    const uint8_t *at;
    size_t bytes;
};

/* Keys and values of the split that is taken up next. They are fetched a little at a time all through the split in hand: were
 * they fetched where those of this one are read, memory would have nothing to do in between, and loads would wait for it. */
struct ahead {
    struct span spans[CPU_SIDES * PARTS];
    uint32_t n, i;
    size_t each;   /* bytes for an entry of the split in hand */
    size_t behind; /* bytes that should have been fetched by now */
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
    size_t out_stride, coded_out;             /* sums of values that are stored rotated lie coded_out behind the others, or 0 */
    float *k, *v;                             /* [dk][TOKENS], [TOKENS][dv] */
    float *lines;                             /* ROWS entries of a plane, where they do not lie next to each other */
    float *decoded[CPU_SIDES];                /* [block_tokens][width], of the tile decoded_from, or NULL */
    const uint8_t *decoded_from[CPU_SIDES];
    float *scores;           /* [QUERIES][SPLIT] */
    float *q, *turned;       /* [QUERIES / BLOCK][dk][BLOCK]: scaled; and rotated for a class of segments */
    uint32_t turned_for;     /* 1 + the first segment of the class; 0: none */
    struct sums part, whole; /* of a split; of all */
    float shares[QUERIES];   /* the probability that an entry with the largest score has */
    /* The split in hand. */
    uint64_t at; /* its first entry */
    struct ahead ahead;
    uint32_t tile, end_tile;                         /* those with entries that the item's queries may see */
    uint64_t masks[QUERIES][TILES];                  /* bit t: the query sees entry t of the tile */
    uint64_t seen[TILES];                            /* some query does */
    uint64_t lying;                                  /* of the tile in hand: bit t: the value of entry t is taken as it lies */
    const uint8_t *places[CPU_SIDES][TOKENS / ROWS]; /* of ROWS entries in F16 */
    /* Packed entries that are computed on as they are. */
    uint64_t coded[CPU_SIDES][TILES]; /* bit t: entry t of the tile is one */
    struct part parts[CPU_SIDES][PARTS];
    uint32_t n_parts[CPU_SIDES];
    float *coded_q;           /* [QUERIES][coded_q_stride]: q as the keys are stored, rotated */
    size_t coded_q_stride;    /* dk up to a whole step */
    const float *coded_from;  /* of which q; NULL: none */
    struct digit_row *digits; /* [QUERIES]: of coded_q, where scales are by lane */
    struct folding *folding;  /* room of attention_codes.c */
    /* Where attention mass is wanted of a query: the weights of all splits and classes, a slot for each, which is [n] largest
     * scores (-inf: nothing seen) and [n][SPLIT] weights relative to them. */
    bool mass;
    float *room;  /* the thread's, for a store */
    float *store; /* [splits][classes] slots */
};

/* attention_item.c. The item's step, group and scratch, as item number `index` of those that the thread works on at once. */
void cpu_item_prepare(struct item *item, struct cpu *cpu, const struct soq_attention_args *args,
                      const struct cpu_thread *thread, uint32_t index);
/* Item number `number` of the step; false: there is none. Of a sequence those of the last rows, which see most, come first. */
bool cpu_item_select(struct item *item, uint64_t number);
uint32_t cpu_item_head(const struct item *item, uint32_t query);
/* The segment with that number holds for the item and is the first of its class; *class_out: the number of the class. */
bool cpu_item_class(const struct item *item, uint32_t segment, uint32_t *class_out);
/* The item's split number `split` is in hand. */
void cpu_item_begin_split(struct item *item, uint64_t split);
/* Fills masks and seen of the split for the class of that segment; false: nothing is seen. */
bool cpu_item_masks(struct item *item, uint32_t segment);
/* Query i sees something of the split. */
bool cpu_item_sees(const struct item *item, uint32_t i);
uint64_t cpu_item_first_split(const struct item *item);
uint64_t cpu_item_end_split(const struct item *item);
uint64_t cpu_item_store_floats(const struct item *item);
float *cpu_item_slot(const struct item *item, uint64_t split, uint32_t class);

/* attention_load.c. q, scaled, in blocks. */
void cpu_item_load(struct item *item);
/* Of the tile at entry `begin` those that are in `seen`: steps of ROWS keys to item->k, values to item->v. */
void cpu_item_load_keys(struct item *item, uint64_t begin, uint64_t seen);
void cpu_item_load_values(struct item *item, uint64_t begin, uint64_t seen);
/* Those of them that lie as F16 in blocks of at least ROWS; their places go to item->places. */
uint64_t cpu_item_places(struct item *item, uint32_t side, uint64_t begin, uint64_t seen);

/* attention_ahead.c. What is taken up after the split in hand is the split next_split of `next`; NULL: not known. */
void cpu_ahead_begin(struct item *item, const struct item *next, uint64_t next_split);
/* Fetches what is left of it. */
void cpu_ahead_end(struct item *item);

/* What is fetched along with some work on the entries of a split, in 32nds of all. Loads of what is not in the first-level
 * cache yet wait behind what is being fetched: so most goes where there are few. */
enum {
    AHEAD_PLAIN = 15,        /* scores of plain keys; sums of plain values */
    AHEAD_PLAIN_WEIGHTS = 2, /* the softmax between them */
    AHEAD_SCORES = 8,        /* of coded keys */
    AHEAD_WEIGHTS = 8,
    AHEAD_FOLD = 12, /* what meets coded values takes up scales */
    AHEAD_VALUES = 4,
};

/* What should be fetched along with some part of the work on a number of entries. */
VEC_INLINE struct span take_ahead(struct ahead *a, uint32_t entries, uint32_t part)
{
    struct span *s = &a->spans[a->i], taken = {(const uint8_t *)a, 0};
    size_t want = a->each * (entries * part) / 32 + a->behind;

    if (a->i == a->n)
        return taken;
    taken.at = s->at;
    taken.bytes = (want + 63) / 64 * 64 < s->bytes ? (want + 63) / 64 * 64 : s->bytes;
    a->behind = want > taken.bytes ? want - taken.bytes : 0;
    s->at += taken.bytes;
    s->bytes -= taken.bytes;
    a->i += s->bytes == 0;
    return taken;
}

/* Prefetches into the first-level cache occupy the few line buffers in front of it until memory answers, and loads wait for
 * them: two threads that read tiles of 4 KiB here and there got 22 GB/s so, into the second level 33 GB/s. */
VEC_INLINE void fetch(struct span span)
{
    for (size_t i = 0; i < span.bytes; i += 64)
        vec_prefetch_l2(span.at + i);
}

/* attention_split.c. part += the split in hand, as masks say. The weights go to scores [n][SPLIT]. */
void cpu_item_sum_split(struct item *item, const float *q, float *scores);

/* attention_plain.c. Entries of a tile that are not coded: their scores; scores and weights are [n][SPLIT]. */
void cpu_plain_score(struct item *item, const float *q, uint32_t tile, float *scores);
/* part.out += their values, by weights. */
void cpu_plain_add(struct item *item, uint32_t tile, const float *weights);

/* attention_codes.c. Bytes of item->folding. */
size_t cpu_codes_scratch(void);
/* Finds the coded parts of the split in hand. */
void cpu_codes_begin(struct item *item);
/* Their scores for queries [first, first + n_q) of q; scores is [n_q][SPLIT]. */
void cpu_codes_score(struct item *item, const float *q, uint32_t first, uint32_t n_q, float *scores);
/* part.out += their values, by weights [n_q][SPLIT]. */
void cpu_codes_add(struct item *item, uint32_t first, uint32_t n_q, const float *weights);
/* codes_rotate.c. Sums [2][dv]: the second ones are rotated back and added to the first. */
void cpu_item_turn_back(const struct item *item, float *sums);

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
