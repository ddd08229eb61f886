/* The items of attention: which queries, and what they see. */
#include "kernels/attention.h"

static size_t padded(uint32_t width)
{
    return ((size_t)width + CPU_LANES - 1) / CPU_LANES * CPU_LANES;
}

/* ---- Scratch ------------------------------------------------------------------------------------------------------------- */

/* A decoded tile of a side, where packed ones must be decoded. */
static size_t decoded_floats(const struct cpu_group *group, uint32_t side)
{
    const struct cpu_plane *plane = &group->classes[CPU_PACKED].planes[side];

    if (!group->classes[CPU_PACKED].block_bytes || plane->format.kind == SOQ_FORMAT_PLAIN || plane->codes.usable)
        return 0;
    return (size_t)group->block_tokens * group->classes[CPU_PLAIN].planes[side].width;
}

/* Sums of values that are stored rotated are kept apart from the others. */
static size_t coded_out(const struct cpu_group *group)
{
    const struct cpu_plane *plane = &group->classes[CPU_PACKED].planes[CPU_VALUE];

    return plane->codes.usable && plane->format.rotation ? padded(group->classes[CPU_PLAIN].planes[CPU_VALUE].width) : 0;
}

static size_t coded_stride(const struct cpu_group *group)
{
    return ((size_t)group->classes[CPU_PLAIN].planes[CPU_KEY].width + CODES_STEP - 1) / CODES_STEP * CODES_STEP;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What an item keeps from split to split: queries, as they are, turned, and rotated and in digits for packed tiles that are
 * computed on as they are; sums; decoded tiles. */
static size_t own_floats(const struct cpu_group *group)
{
    size_t dk = group->classes[CPU_PLAIN].planes[CPU_KEY].width;
    size_t dv = padded(group->classes[CPU_PLAIN].planes[CPU_VALUE].width);
    size_t coded = group->classes[CPU_PACKED].block_bytes ? coded_stride(group) + sizeof(struct digit_row) / sizeof(float) : 0;

    return QUERIES * (2 * dk + dv + coded_out(group) + coded) + decoded_floats(group, CPU_KEY) +
           decoded_floats(group, CPU_VALUE);
}

/* What is of the split in hand: keys and values of a tile, scores, sums; and what meets the codes of packed tiles. */
static size_t split_floats(const struct cpu_group *group)
{
    size_t dk = group->classes[CPU_PLAIN].planes[CPU_KEY].width;
    size_t dv = padded(group->classes[CPU_PLAIN].planes[CPU_VALUE].width);
    size_t coded = group->classes[CPU_PACKED].block_bytes ? cpu_codes_scratch() / sizeof(float) : 0;

    return TOKENS * (dk + dv) + ROWS * most(dk, dv) + QUERIES * (SPLIT + dv + coded_out(group)) + coded;
}

/* Items that are worked on at once. */
static size_t items_of(const struct cpu_group *group)
{
    uint32_t heads = group->classes[CPU_PLAIN].planes[CPU_KEY].heads;

    return heads < HEADS ? heads : HEADS;
}

static size_t scratch_floats(const struct cpu_group *group)
{
    return split_floats(group) + items_of(group) * own_floats(group);
}

uint64_t cpu_attention_scratch(const struct cpu_group *group)
{
    return scratch_floats(group) * sizeof(float);
}

/* An upper bound: slots of weights for any item of the sequence. */
static uint64_t slots_of(const struct cpu_group *group, const struct soq_step *step, const struct soq_step_seq *seq)
{
    uint64_t first = UINT64_MAX, last = 0, n = 0;

    for (uint32_t s = 0; s < seq->n_segments; s++) {
        const struct soq_step_segment *segment = &step_segments(step)[seq->first_segment + s];
        uint64_t end = (uint64_t)segment->first_entry + segment->n_entries;

        if (segment->group != group->index || segment->n_entries == 0)
            continue;
        first = segment->first_entry < first ? segment->first_entry : first;
        last = end > last ? end : last;
        n++;
    }
    return n ? ((last + SPLIT - 1) / SPLIT - first / SPLIT) * n : 0;
}

enum { SLOT_BYTES = (SPLIT + 1) * sizeof(float) }; /* of one query */

uint64_t cpu_attention_mass_scratch(const struct cpu_group *group, const struct soq_step *step)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < step->n_seqs; i++) {
        uint64_t n = slots_of(group, step, &step_seqs(step)[i]);

        most = n > most ? n : most;
    }
    return cpu_attention_scratch(group) + (most * SLOT_BYTES > STORE_BYTES ? most * SLOT_BYTES : STORE_BYTES);
}

static float *take(float **p, size_t floats)
{
    float *taken = *p;

    *p += floats;
    return taken;
}

void cpu_item_prepare(struct item *item, struct cpu *cpu, const struct soq_attention_args *args,
                      const struct cpu_thread *thread, uint32_t index)
{
    const struct cpu_group *group = (const struct cpu_group *)(uintptr_t)args->group;
    float *p = (float *)thread->scratch;

    item->cpu = cpu;
    item->args = args;
    item->group = group;
    item->step = cpu->step;
    item->ratio = args->n_heads / args->n_kv_heads;
    item->dk = args->head_dim_k;
    item->dv = padded(args->head_dim_v);
    item->coded_out = coded_out(group);
    item->out_stride = item->dv + item->coded_out;
    item->room = p + scratch_floats(group);
    item->k = take(&p, TOKENS * item->dk);
    item->v = take(&p, TOKENS * item->dv);
    item->lines = take(&p, ROWS * most(item->dk, item->dv));
    item->scores = take(&p, QUERIES * SPLIT);
    item->part.out = take(&p, QUERIES * item->out_stride);
    item->folding = group->classes[CPU_PACKED].block_bytes ? (struct folding *)p : NULL;
    p = (float *)thread->scratch + split_floats(group) + index * own_floats(group);
    item->q = take(&p, QUERIES * item->dk);
    item->turned = take(&p, QUERIES * item->dk);
    item->whole.out = take(&p, QUERIES * item->out_stride);
    item->decoded[CPU_KEY] = take(&p, decoded_floats(group, CPU_KEY));
    item->decoded[CPU_VALUE] = take(&p, decoded_floats(group, CPU_VALUE));
    item->coded_q_stride = coded_stride(group);
    item->coded_q = take(&p, QUERIES * item->coded_q_stride);
    item->digits = (struct digit_row *)p;
}

/* ---- Queries ------------------------------------------------------------------------------------------------------------- */

uint32_t cpu_item_head(const struct item *item, uint32_t query)
{
    return item->kv_head * item->ratio + (item->first + query) % item->ratio;
}

static bool wants_mass(const struct item *item, uint32_t first_row, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows && item->args->mass; r++)
        if (step_rows(item->step)[first_row + r].mass_line)
            return true;
    return false;
}

/* Queries of an item of the sequence: as many as the store of weights has room for, where it is needed. */
static uint32_t queries_of(const struct item *item, const struct soq_step_seq *seq)
{
    uint64_t bytes, n;

    if (!wants_mass(item, seq->first_row, seq->n_rows))
        return QUERIES;
    bytes = slots_of(item->group, item->step, seq) * SLOT_BYTES;
    n = bytes ? STORE_BYTES / bytes : QUERIES;
    return n == 0 ? 1 : n < QUERIES ? (uint32_t)n : QUERIES;
}

/* ---- Segments ------------------------------------------------------------------------------------------------------------ */

static const struct soq_step_segment *segment_at(const struct item *item, uint32_t s)
{
    return &step_segments(item->step)[item->seq->first_segment + s];
}

static bool holds(const struct item *item, const struct soq_step_segment *segment)
{
    return segment->group == item->group->index && item->args->layer >= segment->first_layer &&
           item->args->layer - segment->first_layer < segment->n_layers && item->kv_head >= segment->first_head &&
           item->kv_head - segment->first_head < segment->n_heads;
}

/* Looked for once: where each head is a group of its own, most of a sequence's segments are others'. */
static void find_segments(struct item *item)
{
    item->first_segment = item->end_segment = 0;
    for (uint32_t s = 0; s < item->seq->n_segments; s++) {
        if (!holds(item, segment_at(item, s)))
            continue;
        item->first_segment = item->end_segment ? item->first_segment : s;
        item->end_segment = s + 1;
    }
}

static bool same_class(const struct soq_step_segment *a, const struct soq_step_segment *b)
{
    return a->flags == b->flags && (!(a->flags & SOQ_SEGMENT_ROTATE) || a->rotation == b->rotation);
}

static bool first_of_class(const struct item *item, uint32_t segment)
{
    if (!holds(item, segment_at(item, segment)))
        return false;
    for (uint32_t s = item->first_segment; s < segment; s++)
        if (holds(item, segment_at(item, s)) && same_class(segment_at(item, s), segment_at(item, segment)))
            return false;
    return true;
}

bool cpu_item_class(const struct item *item, uint32_t segment, uint32_t *class_out)
{
    uint32_t class = 0;

    if (!first_of_class(item, segment))
        return false;
    for (uint32_t s = item->first_segment; s < segment; s++)
        class += first_of_class(item, s);
    *class_out = class;
    return true;
}

/* What a row sees of a segment: entries [from, last) and [segment's first, sinks). */
struct sight {
    int64_t from, last, sinks;
};

static struct sight sight_of(const struct item *item, const struct soq_step_segment *segment, const struct soq_step_row *row)
{
    const struct soq_attention_args *args = item->args;
    int64_t place = (int64_t)row->position - segment->position_offset; /* the entry at the row's position */
    int64_t end = (int64_t)segment->first_entry + segment->n_entries;
    struct sight sight = {segment->first_entry, (row->entry < place ? row->entry : place) + 1, segment->first_entry};

    sight.last = sight.last < end ? sight.last : end;
    if (!args->window)
        return sight;
    if (place - args->window + 1 > sight.from)
        sight.from = place - args->window + 1;
    if ((int64_t)args->sinks - segment->position_offset > sight.sinks)
        sight.sinks = (int64_t)args->sinks - segment->position_offset;
    sight.sinks = sight.sinks < sight.last ? sight.sinks : sight.last;
    return sight;
}

/* Bits [first, last) of a tile that begins at entry `begin`. */
static uint64_t range_bits(int64_t first, int64_t last, int64_t begin)
{
    int64_t a = first - begin < 0 ? 0 : first - begin, b = last - begin > TOKENS ? TOKENS : last - begin;

    return a < b ? UINT64_MAX << a & UINT64_MAX >> (TOKENS - b) : 0;
}

/* The tiles of the split where a row sees something of the segments of a class. */
static void masks_of_row(const struct item *item, uint32_t segment, const struct soq_step_row *row, uint64_t masks[TILES])
{
    memset(masks, 0, TILES * sizeof *masks);
    for (uint32_t s = segment; s < item->end_segment; s++) {
        const struct soq_step_segment *other = segment_at(item, s);
        struct sight sight;

        if (!holds(item, other) || !same_class(other, segment_at(item, segment)))
            continue;
        sight = sight_of(item, other, row);
        for (uint32_t tile = item->tile; tile < item->end_tile; tile++) {
            int64_t begin = (int64_t)item->at + tile * TOKENS;

            masks[tile] |= range_bits(sight.from, sight.last, begin) | range_bits(other->first_entry, sight.sinks, begin);
        }
    }
}

bool cpu_item_masks(struct item *item, uint32_t segment)
{
    uint64_t any = 0;

    memset(item->seen, 0, sizeof item->seen);
    for (uint32_t i = 0; i < item->n; i++) {
        if (i && item->rows[i] == item->rows[i - 1])
            memcpy(item->masks[i], item->masks[i - 1], sizeof item->masks[i]);
        else
            masks_of_row(item, segment, item->rows[i], item->masks[i]);
        for (uint32_t tile = 0; tile < TILES; tile++)
            any |= item->seen[tile] |= item->masks[i][tile];
    }
    return any;
}

bool cpu_item_sees(const struct item *item, uint32_t i)
{
    uint64_t any = 0;

    for (uint32_t tile = 0; tile < TILES; tile++)
        any |= item->masks[i][tile];
    return any;
}

/* The entries that some query may see, and the number of classes. */
static void find_bounds(struct item *item)
{
    int64_t begin = INT64_MAX, end = 0;

    item->classes = 0;
    for (uint32_t s = item->first_segment; s < item->end_segment; s++) {
        const struct soq_step_segment *segment = segment_at(item, s);

        item->classes += first_of_class(item, s);
        for (uint32_t i = 0; i < item->n && holds(item, segment); i++) {
            struct sight sight = sight_of(item, segment, item->rows[i]);
            int64_t from = sight.sinks > segment->first_entry ? segment->first_entry : sight.from;

            begin = from < sight.last && from < begin ? from : begin;
            end = sight.last > end ? sight.last : end;
        }
    }
    item->begin = begin < end ? (uint64_t)begin : 0;
    item->end = begin < end ? (uint64_t)end : 0;
}

bool cpu_item_select(struct item *item, uint64_t number)
{
    for (uint32_t s = 0; s < item->step->n_seqs; s++) {
        const struct soq_step_seq *seq = &step_seqs(item->step)[s];
        uint64_t queries = (uint64_t)seq->n_rows * item->ratio, each = queries_of(item, seq), n = (queries + each - 1) / each;
        uint32_t n_kv_heads = item->args->n_kv_heads;

        if (number >= n * n_kv_heads) {
            number -= n * n_kv_heads;
            continue;
        }
        item->seq = seq;
        item->kv_head = (uint32_t)(number % n_kv_heads);
        item->first = (uint32_t)((n - 1 - number / n_kv_heads) * each);
        item->n = (uint32_t)(queries - item->first < each ? queries - item->first : each);
        for (uint32_t i = 0; i < item->n; i++)
            item->rows[i] = &step_rows(item->step)[seq->first_row + (item->first + i) / item->ratio];
        item->turned_for = 0;
        item->decoded_from[CPU_KEY] = item->decoded_from[CPU_VALUE] = NULL;
        item->mass = wants_mass(item, seq->first_row + item->first / item->ratio,
                                (item->first + item->n - 1) / item->ratio - item->first / item->ratio + 1);
        find_segments(item);
        find_bounds(item);
        return true;
    }
    return false;
}

/* ---- Splits -------------------------------------------------------------------------------------------------------------- */

uint64_t cpu_item_first_split(const struct item *item)
{
    return item->begin / SPLIT;
}

uint64_t cpu_item_end_split(const struct item *item)
{
    return (item->end + SPLIT - 1) / SPLIT;
}

void cpu_item_begin_split(struct item *item, uint64_t split)
{
    uint64_t at = split * SPLIT;

    item->at = at;
    item->tile = item->begin > at ? (uint32_t)(item->begin - at) / TOKENS : 0;
    item->end_tile = item->end < at + SPLIT ? (uint32_t)(item->end - at + TOKENS - 1) / TOKENS : TILES;
}

/* ---- The store of weights ------------------------------------------------------------------------------------------------ */

uint64_t cpu_item_store_floats(const struct item *item)
{
    uint64_t splits = cpu_item_end_split(item) - cpu_item_first_split(item);

    return item->mass ? splits * item->classes * item->n * (SPLIT + 1) : 0;
}

float *cpu_item_slot(const struct item *item, uint64_t split, uint32_t class)
{
    return item->store + ((split - cpu_item_first_split(item)) * item->classes + class) * item->n * (SPLIT + 1);
}
