/* Attention over blocks: softmax(scale q . k) v in one pass over tiles of entries (online softmax: Milakov and Gimelshein,
 * 2018, arXiv:1805.02867), split over entries as in Flash-Decoding (2023). This kernel sums up one split; attention_merge.cl
 * merges.
 *
 * A work-group has the queries of one sequence and kv head, which share every load of keys and values. Tiles begin at multiples
 * of TILE entries, splits at multiples of SPLIT; what a query does not see adds nothing, not even a rounding. So its result
 * depends on what it sees and where that lies, not on chunks or other rows. */
enum {
    TOKENS = 32,
    TILE = BLOCK_TOKENS < TOKENS ? BLOCK_TOKENS : TOKENS,
    DIMS = (VALUE_WIDTH + ITEMS - 1) / ITEMS,
    QUAD = TILE < 4 ? TILE : 4
};

static inline struct queries find_queries(const __global struct step *step, uint tile, uint ratio)
{
    const __global struct step_seq *seqs = STEP_ARRAY(struct step_seq, step, seqs);
    struct queries found = {0, 0, 0};
    uint n_tiles = (seqs[0].n_rows * ratio + QUERIES - 1) / QUERIES;

    while (tile >= n_tiles) {
        tile -= n_tiles;
        found.seq++;
        n_tiles = (seqs[found.seq].n_rows * ratio + QUERIES - 1) / QUERIES;
    }
    found.first = tile * QUERIES;
    found.n = min(seqs[found.seq].n_rows * ratio - found.first, (uint)QUERIES);
    return found;
}

/* The tile in hand, in local memory. */
struct tile {
    __local float *scores; /* [QUERIES][TOKENS], then weights */
    __local float *tops, *factors;
};

/* Entries [from, to) of the tile at `begin`: scores, capped and masked. A work-item has one key and half of the queries. */
static void score_tile(const __global uchar *keys, bool packed, uint n_queries, uint begin, uint from, uint to,
                       int position_offset, const struct attention *a, const __global float *tables, const struct shared *s,
                       const struct tile *t)
{
    uint token = get_local_id(0) % TOKENS, query = get_local_id(0) / TOKENS * (QUERIES / 2);
    uint entry = begin + token;
    bool there = entry >= from && entry < to;
    float4 dot = (float4)(0.0f);
    float dot_of[4];

    if (there)
        dot = dots(keys, entry % BLOCK_TOKENS, packed, query, tables, s);
    vstore4(dot, 0, dot_of);
    for (uint i = 0; i < QUERIES / 2; i++, query++) {
        bool seen = there && query < n_queries && sees(query, entry, entry + position_offset, a, s);

        t->scores[query * TOKENS + token] = seen ? capped(dot_of[i], a) : -INFINITY;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Scores -> weights relative to the largest score so far, which work-item i keeps for query i, with their total; factors are
 * for what was summed before. */
static void weigh_tile(float *top, float *total, const struct tile *t)
{
    uint item = get_local_id(0);

    if (item < QUERIES) {
        float before = *top;

        for (uint i = 0; i < TOKENS; i++)
            *top = fmax(*top, t->scores[item * TOKENS + i]);
        t->factors[item] = before == *top ? 1.0f : exp(before - *top);
        t->tops[item] = *top;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item; i < QUERIES * TOKENS; i += ITEMS)
        t->scores[i] = t->scores[i] == -INFINITY ? 0.0f : exp(t->scores[i] - t->tops[i / TOKENS]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < QUERIES) {
        *total *= t->factors[item];
        for (uint i = 0; i < TOKENS; i++)
            *total += t->scores[item * TOKENS + i];
    }
}

/* What was summed before, by the factors of the tile. */
static void scale_sums(float sums[QUERIES][DIMS], const struct tile *t)
{
    for (uint d = 0; d < DIMS; d++)
        for (uint i = 0; i < QUERIES; i++)
            sums[i][d] *= t->factors[i];
}

/* sums[query][d] of dimension d * ITEMS + item: a value added with the entry's weights. */
static void add_value(float v, uint entry, uint d, float sums[QUERIES][DIMS], const struct tile *t)
{
    for (uint i = 0; i < QUERIES; i++) {
        float weight = t->scores[i * TOKENS + entry];

        sums[i][d] = weight != 0.0f ? fma(weight, v, sums[i][d]) : sums[i][d];
    }
}

static void add_values(const __global uchar *values, uint begin, uint from, uint to, float sums[QUERIES][DIMS],
                       const struct tile *t)
{
    for (uint d = 0; d < DIMS; d++) {
        uint dim = d * ITEMS + get_local_id(0);

        for (uint e = from; e < to && dim < VALUE_WIDTH; e++)
            add_value(number_at(values, e % BLOCK_TOKENS * VALUE_WIDTH + dim, VALUE_DTYPE), e - begin, d, sums, t);
    }
}

/* The same, four tokens at a time; those outside of from .. to have no weight. */
static void add_packed_values(const __global uchar *values, uint begin, uint from, uint to, float sums[QUERIES][DIMS],
                              const __global float *tables, const struct tile *t)
{
    for (uint d = 0; d < DIMS; d++) {
        uint dim = d * ITEMS + get_local_id(0);

        for (uint e = from / QUAD * QUAD; e < to && dim < VALUE_WIDTH; e += QUAD) {
            float v[4];

            vstore4(packed_at(values, &value_format, tables, e % BLOCK_TOKENS, dim), 0, v);
            for (uint i = 0; i < QUAD; i++)
                add_value(v[i], e + i - begin, d, sums, t);
        }
    }
}

/* What was summed of rotated values, rotated back by way of `room`, which nobody uses any more. */
static void turn_back(__local float *room, float turned[QUERIES][DIMS], float sums[QUERIES][DIMS], const __global float *tables)
{
    for (uint i = 0; i < QUERIES; i++)
        for (uint d = 0, dim = get_local_id(0); dim < VALUE_WIDTH; d++, dim += ITEMS)
            room[i * VALUE_WIDTH + dim] = turned[i][d];
    barrier(CLK_LOCAL_MEM_FENCE);
    hadamard(room, QUERIES * VALUE_WIDTH, VALUE_ROTATION);
    for (uint i = 0; i < QUERIES; i++)
        for (uint d = 0, dim = get_local_id(0); dim < VALUE_WIDTH; d++, dim += ITEMS)
            sums[i][d] = fma(room[i * VALUE_WIDTH + dim], tables[VALUE_SIGNS + dim], sums[i][d]);
}

/* [query]: top, total, sums */
static void store_sums(__global float *to, float top, float total, float sums[QUERIES][DIMS])
{
    uint item = get_local_id(0);

    if (item < QUERIES) {
        to[item * (2 + VALUE_WIDTH)] = top;
        to[item * (2 + VALUE_WIDTH) + 1] = total;
    }
    for (uint i = 0; i < QUERIES; i++)
        for (uint d = 0; d < DIMS; d++)
            if (d * ITEMS + item < VALUE_WIDTH)
                to[i * (2 + VALUE_WIDTH) + 2 + d * ITEMS + item] = sums[i][d];
}

/* partials[tile][kv head][split][query]: what store_sums writes. */
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention(const __global struct step *step, const __global uint *table, const __global ulong *places, ARENA_PARAMETERS,
          const struct attention a, const __global float *x, const __global float *inv_freq, const __global float *tables,
          const __global float *decoded, __global float *partials)
{
    __local float q[QUERY_NUMBERS], scores[QUERIES * TOKENS], tops[QUERIES], factors[QUERIES];
    __local uint entries[QUERIES], positions[QUERIES];
    const struct shared shared = {q, PACKED_Q(q), entries, positions};
    const struct tile tile = {scores, tops, factors};
    uint kv_head = get_group_id(1), split = a.first_split + a.at_split + get_group_id(2), seen = 0;
    struct queries mine = find_queries(step, a.first_tile + a.at_tile + get_group_id(0), a.ratio);
    const __global struct step_seq *seq = STEP_ARRAY(struct step_seq, step, seqs) + mine.seq;
    const __global struct step_segment *segment = STEP_ARRAY(struct step_segment, step, segments) + seq->first_segment;
    const __global struct step_row *rows = rows_of(step, seq);
    float sums[QUERIES][DIMS], turned[QUERIES][DIMS], top = -INFINITY, total = 0.0f;

    load_rows(&mine, a.ratio, rows, &shared);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < QUERIES; i++) {
        seen = max(seen, entries[i] + 1);
        for (uint d = 0; d < DIMS; d++)
            sums[i][d] = turned[i][d] = 0.0f;
    }
    for (uint left = seq->n_segments; left; left--, segment++) {
        uint first = max(segment->first_entry, split * SPLIT);
        uint last = min(min(segment->first_entry + segment->n_entries, (split + 1) * SPLIT), seen);

        if (first >= last || !holds(segment, a.group, a.layer, kv_head))
            continue;
        load_queries(&mine, &a, x + (ulong)seq->first_row * a.q_stride, inv_freq, kv_head, segment, rows, &shared);
        barrier(CLK_LOCAL_MEM_FENCE);
        load_packed_queries(tables, &shared);
        for (uint begin = first / TILE * TILE; begin < last; begin += TILE) {
            uint from = max(first, begin), to = min(last, begin + TILE);
            uint block = table[(ulong)seq->slot * a.max_blocks + begin / BLOCK_TOKENS];
            ulong place = place_of(places, block);
            const struct reach reach = {BLOCK_AT(place), decoded, begin / BLOCK_TOKENS, PACKED && block >> 28};
            const __global uchar *values = value_tile(&reach, &a, kv_head);

            score_tile(key_tile(&reach, &a, kv_head), reach.packed, mine.n, begin, from, to, segment->position_offset, &a,
                       tables, &shared, &tile);
            weigh_tile(&top, &total, &tile);
            scale_sums(sums, &tile);
            if (VALUE_ROTATION)
                scale_sums(turned, &tile);
            if (!reach.packed)
                add_values(values, begin, from, to, sums, &tile);
            else if (VALUE_ROTATION)
                add_packed_values(values, begin, from, to, turned, tables, &tile);
            else
                add_packed_values(values, begin, from, to, sums, tables, &tile);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
    if (VALUE_ROTATION)
        turn_back(q, turned, sums, tables);
    partials +=
        ((ulong)((a.at_tile + get_group_id(0)) * get_num_groups(1) + kv_head) * a.n_splits + a.at_split + get_group_id(2)) *
        QUERIES * (2 + VALUE_WIDTH);
    store_sums(partials, top, total, sums);
}
