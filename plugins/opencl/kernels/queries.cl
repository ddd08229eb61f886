/* What the kernels of attention share: queries, their rotation, scores and masks.
 *
 * A query is one head of one row. The queries of a sequence and kv head are numbered row by row, heads within; a work-group has
 * up to QUERIES of them in local memory. */
struct attention {
    struct tiles {
        ulong key_first, key_tile, value_first, value_tile; /* bytes: of the layer's first tile in a block, of a tile */
    } plain, packed;                                        /* blocks of class 0 and 1 */
    ulong decoded_values;                                   /* where they begin in what the host decoded */
    ulong q_offset, freq_offset;
    uint q_stride;
    uint group, layer, max_blocks;
    uint ratio; /* heads for each kv head */
    uint first_tile, first_split, n_splits;
    uint at_tile, at_split, at_line; /* of this launch, from the first ones on */
    uint decoded_block;              /* of the sequence: the first of those that the host decoded */
    float scale, softcap;
    uint window, sinks;
    uint rope_kind, n_rot; /* of rotated segments */
};

/* Packed keys are taken four dims at a time, and queries are rotated in their place. Rotations need room for what is rotated.
 */
#define PACKED_STRIDE ((KEY_WIDTH + 3) / 4 * 4)
#define OWN_PACKED_Q (PACKED && (KEY_ROTATION || KEY_WIDTH % 4))
#define MORE_OF(a, b) ((a) > (b) ? (a) : (b))
#define QUERY_NUMBERS                                                                                                          \
    (QUERIES * MORE_OF(KEY_WIDTH + (OWN_PACKED_Q ? PACKED_STRIDE : 0), PACKED && VALUE_ROTATION ? VALUE_WIDTH : 0))
#define PACKED_Q(q) ((q) + (OWN_PACKED_Q ? QUERIES * KEY_WIDTH : 0))

/* The queries of a work-group. */
struct queries {
    uint seq, first, n; /* queries first .. first + n of the sequence and kv head */
};

/* A work-group's local memory: its queries. */
struct shared {
    __local float *q;                  /* [QUERIES][KEY_WIDTH], scaled; zeros behind the last query */
    __local float *packed_q;           /* [QUERIES][PACKED_STRIDE]: for the keys of packed blocks */
    __local uint *entries, *positions; /* [QUERIES] of the queries' rows; those behind the last query repeat it */
};

static inline const __global struct step_row *rows_of(const __global struct step *step, const __global struct step_seq *seq)
{
    return STEP_ARRAY(struct step_row, step, rows) + seq->first_row;
}

static inline bool holds(const __global struct step_segment *segment, uint group, uint layer, uint kv_head)
{
    return segment->group == group && layer - segment->first_layer < segment->n_layers &&
           kv_head - segment->first_head < segment->n_heads;
}

/* The entries and positions that masks need. A barrier must follow. */
static inline void load_rows(const struct queries *mine, uint ratio, const __global struct step_row *rows,
                             const struct shared *s)
{
    uint item = get_local_id(0);

    if (item < QUERIES) {
        uint row = (mine->first + min(item, mine->n - 1)) / ratio;

        s->entries[item] = rows[row].entry;
        s->positions[item] = rows[row].position;
    }
}

/* How far a row is turned back for the keys of a segment. */
static inline uint distance_of(const __global struct step_segment *segment, const struct attention *a, uint position)
{
    if (segment->flags & SEGMENT_ROTATE)
        return segment->rotation;
    if (segment->flags & SEGMENT_ROLLING)
        return position + 1 > a->window + a->sinks ? position + 1 - a->window - a->sinks : 0;
    return 0;
}

/* Element d of a head, rotated by minus the distance. */
static inline float turned(const __global float *head, uint d, uint distance, const struct attention *a,
                           const __global float *inv_freq)
{
    uint n_pairs = a->n_rot / 2, pair = a->rope_kind == ROPE_HALF ? d % n_pairs : d / 2;
    bool first = a->rope_kind == ROPE_HALF ? d < n_pairs : d % 2 == 0;
    uint apart = a->rope_kind == ROPE_HALF ? n_pairs : 1;
    float2 turn = cos_sin(distance, inv_freq[a->freq_offset + pair]);

    return first ? head[d] * turn.x + head[d + apart] * turn.y : head[d] * turn.x - head[d - apart] * turn.y;
}

/* The queries as the keys of a segment want them. x: q of the sequence's first row. A barrier must follow. */
static inline void load_queries(const struct queries *mine, const struct attention *a, const __global float *x,
                                const __global float *inv_freq, uint kv_head, const __global struct step_segment *segment,
                                const __global struct step_row *rows, const struct shared *s)
{
    for (uint i = get_local_id(0); i < QUERIES * KEY_WIDTH; i += ITEMS) {
        uint query = mine->first + i / KEY_WIDTH, row = query / a->ratio, d = i % KEY_WIDTH;
        const __global float *head =
            x + a->q_offset + (ulong)row * a->q_stride + (kv_head * a->ratio + query % a->ratio) * KEY_WIDTH;
        uint distance = 0;
        float v = 0.0f;

        if (i / KEY_WIDTH < mine->n) {
            distance = d < a->n_rot ? distance_of(segment, a, rows[row].position) : 0;
            v = distance ? turned(head, d, distance, a, inv_freq) : head[d];
        }
        s->q[i] = v * a->scale;
    }
}

/* The queries as packed keys want them; behind load_queries and its barrier. A barrier comes after. */
static inline void load_packed_queries(const __global float *tables, const struct shared *s)
{
    if (!OWN_PACKED_Q)
        return;
    for (uint i = get_local_id(0); i < QUERIES * PACKED_STRIDE; i += ITEMS) {
        uint d = i % PACKED_STRIDE;
        float v = d < KEY_WIDTH ? s->q[i / PACKED_STRIDE * KEY_WIDTH + d] : 0.0f;

        s->packed_q[i] = KEY_ROTATION && d < KEY_WIDTH ? v * tables[KEY_SIGNS + d] : v;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (KEY_ROTATION)
        hadamard(s->packed_q, QUERIES * PACKED_STRIDE, KEY_ROTATION);
}

/* Where tiles of a sequence, of one kv head, lie. */
struct reach {
    const __global uchar *block; /* in hand */
    const __global float *decoded;
    uint index; /* of the block in the sequence's table */
    bool packed;
};

static inline const __global uchar *key_tile(const struct reach *r, const struct attention *a, uint kv_head)
{
    if (!r->packed)
        return r->block + a->plain.key_first + kv_head * a->plain.key_tile;
    if (KEY_DECODED)
        return (const __global uchar *)(r->decoded + ((ulong)(r->index - a->decoded_block) * get_num_groups(1) + kv_head) *
                                                         (BLOCK_TOKENS * KEY_WIDTH));
    return r->block + a->packed.key_first + kv_head * a->packed.key_tile;
}

static inline const __global uchar *value_tile(const struct reach *r, const struct attention *a, uint kv_head)
{
    if (!r->packed)
        return r->block + a->plain.value_first + kv_head * a->plain.value_tile;
    if (VALUE_DECODED)
        return (const __global uchar *)(r->decoded + a->decoded_values +
                                        ((ulong)(r->index - a->decoded_block) * get_num_groups(1) + kv_head) *
                                            (BLOCK_TOKENS * VALUE_WIDTH));
    return r->block + a->packed.value_first + kv_head * a->packed.value_tile;
}

static inline float4 sum_lanes(const float4 *sums)
{
    return (float4)(sums[0].x + sums[0].y + (sums[0].z + sums[0].w), sums[1].x + sums[1].y + (sums[1].z + sums[1].w),
                    sums[2].x + sums[2].y + (sums[2].z + sums[2].w), sums[3].x + sums[3].y + (sums[3].z + sums[3].w));
}

/* Dot products of one key with four queries. */
static inline float4 plain_dots(const __global uchar *key, const __local float *q)
{
    float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
    float4 rest = (float4)(0.0f);
    uint d = 0;

    for (; d + 4 <= KEY_WIDTH; d += 4) {
        float4 k = numbers_at(key, d, KEY_DTYPE);

        for (uint i = 0; i < 4; i++)
            sums[i] = fma(k, vload4(0, q + i * KEY_WIDTH + d), sums[i]);
    }
    for (; d < KEY_WIDTH; d++)
        rest = fma((float4)(number_at(key, d, KEY_DTYPE)),
                   (float4)(q[d], q[KEY_WIDTH + d], q[2 * KEY_WIDTH + d], q[3 * KEY_WIDTH + d]), rest);
    return sum_lanes(sums) + rest;
}

static inline float4 packed_dots(const __global uchar *tile, uint token, const __local float *q, const __global float *tables)
{
    float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};

    for (uint d = 0; d < KEY_WIDTH; d += 4) {
        float4 k = packed_at(tile, &key_format, tables, d, token);

        for (uint i = 0; i < 4; i++)
            sums[i] = fma(k, vload4(0, q + i * PACKED_STRIDE + d), sums[i]);
    }
    return sum_lanes(sums);
}

/* Of the key of a token of a tile with queries query .. query + 3. */
static inline float4 dots(const __global uchar *tile, uint token, bool packed, uint query, const __global float *tables,
                          const struct shared *s)
{
    if (PACKED && packed)
        return packed_dots(tile, token, s->packed_q + query * PACKED_STRIDE, tables);
    return plain_dots(tile + (ulong)token * KEY_WIDTH * number_bytes(KEY_DTYPE), s->q + query * KEY_WIDTH);
}

static inline float capped(float score, const struct attention *a)
{
    return a->softcap > 0.0f ? a->softcap * tanh(score / a->softcap) : score;
}

/* Whether a query sees the entry of that position. */
static inline bool sees(uint query, uint entry, uint position, const struct attention *a, const struct shared *s)
{
    return entry <= s->entries[query] && position <= s->positions[query] &&
           (a->window == 0 || position + a->window > s->positions[query] || position < a->sinks);
}
