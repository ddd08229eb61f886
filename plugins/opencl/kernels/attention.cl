/* Attention over blocks: softmax(scale q . k) v in one pass over tiles of entries (online softmax: Milakov and Gimelshein,
 * 2018, arXiv:1805.02867), split over entries as in Flash-Decoding (2023). This kernel sums up one split; attention_merge.cl
 * merges.
 *
 * A work-group has the queries of one sequence and kv head, which share every load of keys and values. Tiles begin at multiples
 * of TILE entries, splits at multiples of SPLIT; what a query does not see adds nothing, not even a rounding. So its result
 * depends on what it sees and where that lies, not on chunks or other rows. */
enum { TOKENS = 32, TILE = BLOCK_TOKENS < TOKENS ? BLOCK_TOKENS : TOKENS, DIMS = (VALUE_WIDTH + ITEMS - 1) / ITEMS };

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
static void score_tile(const __global uchar *keys, uint n_queries, uint begin, uint from, uint to, int position_offset,
                       const struct attention *a, const struct shared *s, const struct tile *t)
{
    uint token = get_local_id(0) % TOKENS, query = get_local_id(0) / TOKENS * (QUERIES / 2);
    uint entry = begin + token;
    bool there = entry >= from && entry < to;
    float4 dot = (float4)(0.0f);
    float dot_of[4];

    if (there)
        dot = dots(keys + (ulong)(entry % BLOCK_TOKENS) * KEY_WIDTH * KEY_BYTES, s->q + query * KEY_WIDTH);
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

/* sums[query][d] of dimension d * ITEMS + item: weighted values added. */
static void add_values(const __global uchar *values, uint begin, uint from, uint to, float sums[QUERIES][DIMS],
                       const struct tile *t)
{
    for (uint d = 0; d < DIMS; d++) {
        uint dim = d * ITEMS + get_local_id(0);

        for (uint i = 0; i < QUERIES; i++)
            sums[i][d] *= t->factors[i];
        for (uint e = from; e < to && dim < VALUE_WIDTH; e++) {
            float v = number_at(values, e % BLOCK_TOKENS * VALUE_WIDTH + dim, VALUE_BYTES);

            for (uint i = 0; i < QUERIES; i++) {
                float weight = t->scores[i * TOKENS + e - begin];

                sums[i][d] = weight != 0.0f ? fma(weight, v, sums[i][d]) : sums[i][d];
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
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
          const struct attention a, const __global float *x, const __global float *inv_freq, __global float *partials)
{
    __local float q[QUERIES * KEY_WIDTH], scores[QUERIES * TOKENS], tops[QUERIES], factors[QUERIES];
    __local uint entries[QUERIES], positions[QUERIES];
    const struct shared shared = {q, entries, positions};
    const struct tile tile = {scores, tops, factors};
    uint kv_head = get_group_id(1), split = a.first_split + get_group_id(2), seen = 0;
    struct queries mine = find_queries(step, a.first_tile + get_group_id(0), a.ratio);
    const __global struct step_seq *seq = STEP_ARRAY(struct step_seq, step, seqs) + mine.seq;
    const __global struct step_segment *segment = STEP_ARRAY(struct step_segment, step, segments) + seq->first_segment;
    const __global struct step_row *rows = rows_of(step, seq);
    float sums[QUERIES][DIMS], top = -INFINITY, total = 0.0f;

    load_rows(&mine, a.ratio, rows, &shared);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < QUERIES; i++) {
        seen = max(seen, entries[i] + 1);
        for (uint d = 0; d < DIMS; d++)
            sums[i][d] = 0.0f;
    }
    for (uint left = seq->n_segments; left; left--, segment++) {
        uint first = max(segment->first_entry, split * SPLIT);
        uint last = min(min(segment->first_entry + segment->n_entries, (split + 1) * SPLIT), seen);

        if (first >= last || !holds(segment, a.group, a.layer, kv_head))
            continue;
        load_queries(&mine, &a, x + (ulong)seq->first_row * a.q_stride, inv_freq, kv_head, segment, rows, &shared);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint begin = first / TILE * TILE; begin < last; begin += TILE) {
            uint from = max(first, begin), to = min(last, begin + TILE);
            ulong place = places[table[(ulong)seq->slot * a.max_blocks + begin / BLOCK_TOKENS]];
            const __global uchar *block = BLOCK_AT(place);

            score_tile(block + a.key_first + kv_head * a.key_tile, mine.n, begin, from, to, segment->position_offset, &a,
                       &shared, &tile);
            weigh_tile(&top, &total, &tile);
            add_values(block + a.value_first + kv_head * a.value_tile, begin, from, to, sums, &tile);
        }
    }
    partials +=
        ((ulong)(get_group_id(0) * get_num_groups(1) + kv_head) * a.n_splits + get_group_id(2)) * QUERIES * (2 + VALUE_WIDTH);
    store_sums(partials, top, total, sums);
}
