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
    QUERIES = 48,
    BLOCK = VEC_REGISTERS >= 32 ? 6 : 3, /* queries whose sums of four vectors fit into registers */
    STORE_BYTES = 2 << 20,               /* of weights that attention mass is taken from, at least one query's */
};

/* Numerator and denominator of a softmax over part of the entries, relative to the largest score. */
struct sums {
    float max[QUERIES], total[QUERIES]; /* max is -inf where nothing was seen */
    float *out;                         /* [QUERIES][dv] */
};

/* An item: where its queries come from, and the thread's scratch. Query i is head i % ratio of row i / ratio of the sequence,
 * counted from `first` on. */
struct item {
    const struct soq_attention_args *args;
    const struct cpu_group *group;
    const struct soq_step *step;
    const struct soq_step_seq *seq;
    uint32_t kv_head, first, n;
    uint32_t ratio;      /* heads per kv head */
    uint32_t classes;    /* of segments: those of one class turn the queries alike */
    uint64_t begin, end; /* the entries that its queries may see lie here */
    size_t dk, dv;       /* widths; dv padded to lanes with zeros */
    float *k, *v;        /* [dk][TOKENS], [TOKENS][dv] */
    float *scores;       /* [QUERIES][TOKENS] */
    float *q, *turned;   /* [QUERIES / BLOCK][dk][BLOCK]: scaled; and rotated for a class of segments */
    uint32_t turned_for; /* 1 + the first segment of the class; 0: none */
    struct sums part, whole;
    float shares[QUERIES];   /* the probability that an entry with the largest score has */
    uint64_t masks[QUERIES]; /* bit t: the query sees entry t of the tile */
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
const struct soq_step_row *cpu_item_row(const struct item *item, uint32_t query);
uint32_t cpu_item_head(const struct item *item, uint32_t query);
/* The segment with that number holds for the item and is the first of its class; *class_out: the number of the class. */
bool cpu_item_class(const struct item *item, uint32_t segment, uint32_t *class_out);
/* Fills the masks of the tile at entry `begin` for the class of that segment; returns their union. */
uint64_t cpu_item_masks(struct item *item, uint32_t segment, uint64_t begin);
uint64_t cpu_item_store_floats(const struct item *item);
float *cpu_item_slot(const struct item *item, uint64_t tile, uint32_t class);

/* attention_tile.c. q, scaled, in blocks. */
void cpu_item_load(struct item *item);
/* part += the tile at entry `begin`, as masks say; seen is their union. The weights go to scores [n][TOKENS]. */
void cpu_item_sum_tile(struct item *item, const float *q, float *scores, uint64_t begin, uint64_t seen);

/* attention_turn.c. The queries for the class of that segment. */
const float *cpu_item_turned(struct item *item, uint32_t segment);

/* attention_mass.c. Zeros for the lines that the step's rows name; by all threads together. */
void cpu_mass_clear(const struct cpu *cpu, const struct soq_attention_args *args, const struct cpu_thread *thread);
/* Adds the probabilities of the item's queries; whole.max and shares are known. */
void cpu_mass_add(const struct item *item);

#endif
