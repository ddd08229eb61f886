/* Attention over blocks: softmax(scale q . k) v in one pass over tiles of entries (online softmax: Milakov and Gimelshein, 2018,
 * arXiv:1805.02867), split over entries as in Flash-Decoding (2023). This kernel sums up one split; attention_merge.cl merges.
 *
 * A query is one head of one row. A work-group has up to QUERIES of them, of one sequence and kv head, which share every load of
 * keys and values: the queries of a sequence and kv head are numbered row by row, heads within. Tiles begin at multiples of TILE
 * entries, splits at multiples of SPLIT; what a query does not see adds nothing, not even a rounding. So its result depends on
 * what it sees and where that lies, not on chunks or other rows. */
enum { TOKENS = 32, TILE = BLOCK_TOKENS < TOKENS ? BLOCK_TOKENS : TOKENS, DIMS = (VALUE_WIDTH + ITEMS - 1) / ITEMS };

struct attention {
    ulong key_first, key_tile, value_first, value_tile; /* bytes: of the layer's first tile in a block, of a tile */
    ulong q_offset;
    uint q_stride;
    uint group, layer, max_blocks;
    uint ratio; /* heads for each kv head */
    uint first_tile, n_splits;
    float scale, softcap;
    uint window, sinks, reserved;
};

/* The queries of a work-group. */
struct queries {
    uint seq, first, n; /* queries first .. first + n of the sequence and kv head */
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

/* Dot products of one key with four queries. */
static inline float4 dots(const __global uchar *key, const __local float *q)
{
    float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
    float4 rest = (float4)(0.0f);
    uint d = 0;

    for (; d + 4 <= KEY_WIDTH; d += 4) {
        float4 k = KEY_BYTES == 2 ? vload_half4(0, (const __global half *)key + d) : vload4(0, (const __global float *)key + d);

        for (uint i = 0; i < 4; i++)
            sums[i] = fma(k, vload4(0, q + i * KEY_WIDTH + d), sums[i]);
    }
    for (; d < KEY_WIDTH; d++)
        rest = fma((float4)(number_at(key, d, KEY_BYTES)),
                   (float4)(q[d], q[KEY_WIDTH + d], q[2 * KEY_WIDTH + d], q[3 * KEY_WIDTH + d]), rest);
    return (float4)(sums[0].x + sums[0].y + (sums[0].z + sums[0].w), sums[1].x + sums[1].y + (sums[1].z + sums[1].w),
                    sums[2].x + sums[2].y + (sums[2].z + sums[2].w), sums[3].x + sums[3].y + (sums[3].z + sums[3].w)) +
           rest;
}

static inline bool holds(const __global struct step_segment *segment, uint group, uint layer, uint kv_head)
{
    return segment->group == group && layer - segment->first_layer < segment->n_layers &&
           kv_head - segment->first_head < segment->n_heads;
}

/* A work-group's local memory. */
struct shared {
    __local float *q;      /* [QUERIES][KEY_WIDTH], scaled; zeros behind the last query */
    __local float *scores; /* [QUERIES][TOKENS] of the tile in hand, then weights */
    __local float *tops, *factors;
    __local uint *entries, *positions; /* of the queries' rows */
};

static void load_queries(const struct queries *mine, const struct attention *a, const __global struct step_row *rows,
                         const __global float *x, uint kv_head, const struct shared *s)
{
    uint item = get_local_id(0);

    for (uint i = item; i < QUERIES * KEY_WIDTH; i += ITEMS) {
        uint query = mine->first + i / KEY_WIDTH, head = kv_head * a->ratio + query % a->ratio;
        const __global float *from = x + a->q_offset + (ulong)(query / a->ratio) * a->q_stride + head * KEY_WIDTH;

        s->q[i] = i / KEY_WIDTH < mine->n ? from[i % KEY_WIDTH] * a->scale : 0.0f;
    }
    if (item < QUERIES) {
        uint row = (mine->first + min(item, mine->n - 1)) / a->ratio;

        s->entries[item] = rows[row].entry;
        s->positions[item] = rows[row].position;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Entries [from, to) of the tile at `begin`: scores, capped and masked. A work-item has one key and half of the queries. */
static void score_tile(const __global uchar *keys, uint n_queries, uint begin, uint from, uint to, int position_offset,
                       const struct attention *a, const struct shared *s)
{
    uint token = get_local_id(0) % TOKENS, query = get_local_id(0) / TOKENS * (QUERIES / 2);
    uint entry = begin + token, position = entry + position_offset;
    bool there = entry >= from && entry < to;
    float4 dot = (float4)(0.0f);
    float dot_of[4];

    if (there)
        dot = dots(keys + (ulong)(entry % BLOCK_TOKENS) * KEY_WIDTH * KEY_BYTES, s->q + query * KEY_WIDTH);
    vstore4(dot, 0, dot_of);
    for (uint i = 0; i < QUERIES / 2; i++, query++) {
        bool sees = there && query < n_queries && entry <= s->entries[query] && position <= s->positions[query] &&
                    (a->window == 0 || position + a->window > s->positions[query] || position < a->sinks);
        float score = a->softcap > 0.0f ? a->softcap * tanh(dot_of[i] / a->softcap) : dot_of[i];

        s->scores[query * TOKENS + token] = sees ? score : -INFINITY;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Scores -> weights relative to the largest score so far, which work-item i keeps for query i, with their total; factors are
 * for what was summed before. */
static void weigh_tile(float *top, float *total, const struct shared *s)
{
    uint item = get_local_id(0);

    if (item < QUERIES) {
        float before = *top;

        for (uint t = 0; t < TOKENS; t++)
            *top = fmax(*top, s->scores[item * TOKENS + t]);
        s->factors[item] = before == *top ? 1.0f : exp(before - *top);
        s->tops[item] = *top;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = item; i < QUERIES * TOKENS; i += ITEMS)
        s->scores[i] = s->scores[i] == -INFINITY ? 0.0f : exp(s->scores[i] - s->tops[i / TOKENS]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < QUERIES) {
        *total *= s->factors[item];
        for (uint t = 0; t < TOKENS; t++)
            *total += s->scores[item * TOKENS + t];
    }
}

/* sums[query][d] of dimension d * ITEMS + item: weighted values added. */
static void add_values(const __global uchar *values, uint begin, uint from, uint to, float sums[QUERIES][DIMS],
                       const struct shared *s)
{
    for (uint d = 0; d < DIMS; d++) {
        uint dim = d * ITEMS + get_local_id(0);

        for (uint i = 0; i < QUERIES; i++)
            sums[i][d] *= s->factors[i];
        for (uint e = from; e < to && dim < VALUE_WIDTH; e++) {
            float v = number_at(values, e % BLOCK_TOKENS * VALUE_WIDTH + dim, VALUE_BYTES);

            for (uint i = 0; i < QUERIES; i++) {
                float weight = s->scores[i * TOKENS + e - begin];

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
          const struct attention a, const __global float *x, __global float *partials)
{
    __local float q[QUERIES * KEY_WIDTH], scores[QUERIES * TOKENS], tops[QUERIES], factors[QUERIES];
    __local uint entries[QUERIES], positions[QUERIES];
    const struct shared shared = {q, scores, tops, factors, entries, positions};
    uint kv_head = get_group_id(1), split = get_group_id(2), seen = 0;
    struct queries mine = find_queries(step, a.first_tile + get_group_id(0), a.ratio);
    const __global struct step_seq *seq = STEP_ARRAY(struct step_seq, step, seqs) + mine.seq;
    const __global struct step_segment *segment = STEP_ARRAY(struct step_segment, step, segments) + seq->first_segment;
    float sums[QUERIES][DIMS], top = -INFINITY, total = 0.0f;

    load_queries(&mine, &a, STEP_ARRAY(struct step_row, step, rows) + seq->first_row, x + (ulong)seq->first_row * a.q_stride,
                 kv_head, &shared);
    for (uint i = 0; i < QUERIES; i++) {
        seen = max(seen, entries[i] + 1);
        for (uint d = 0; d < DIMS; d++)
            sums[i][d] = 0.0f;
    }
    for (uint left = seq->n_segments; left; left--, segment++) {
        uint first = max(segment->first_entry, split * SPLIT);
        uint last = min(min(segment->first_entry + segment->n_entries, (split + 1) * SPLIT), seen);

        for (uint begin = first / TILE * TILE; holds(segment, a.group, a.layer, kv_head) && begin < last; begin += TILE) {
            uint from = max(first, begin), to = min(last, begin + TILE);
            ulong place = places[table[(ulong)seq->slot * a.max_blocks + begin / BLOCK_TOKENS]];
            const __global uchar *block = BLOCK_AT(place);

            score_tile(block + a.key_first + kv_head * a.key_tile, mine.n, begin, from, to, segment->position_offset, &a,
                       &shared);
            weigh_tile(&top, &total, &shared);
            add_values(block + a.value_first + kv_head * a.value_tile, begin, from, to, sums, &shared);
        }
    }
    partials += ((ulong)(get_group_id(0) * get_num_groups(1) + kv_head) * a.n_splits + split) * QUERIES * (2 + VALUE_WIDTH);
    store_sums(partials, top, total, sums);
}
