/* Attention mass: mass[line][kv head][entry] = the sum, over the rows of the line and the heads of the kv head, of the entry's
 * probability in units of 2^-36, each rounded to a whole one. Scores are computed once more, bit by bit as in attention.cl, and
 * weighed with the shares that attention_merge.cl leaves. A work-item owns an entry of a line and kv head; sums of whole
 * numbers have no order. */
#define MASS_ONE 0x1p36f

/* The line's rows lie among these, from row first_row of the step on. */
struct line {
    uint line, seq, first_row, n_rows;
};

/* Of one key. */
static inline ulong add_mass(const __global uchar *keys, bool packed, const struct queries *mine, uint line, uint kv_head,
                             uint entry, uint position, const struct attention *a, const __global float *tables,
                             const __global struct step_row *rows, const __global float2 *shares, const struct shared *s)
{
    uint n_heads = get_num_groups(1) * a->ratio;
    ulong sum = 0;

    for (uint i = 0; i < mine->n; i += 4) {
        float dot_of[4];

        vstore4(dots(keys, entry % BLOCK_TOKENS, packed, i, tables, s), 0, dot_of);
        for (uint query = i; query < min(i + 4, mine->n); query++) {
            uint row = (mine->first + query) / a->ratio, head = kv_head * a->ratio + (mine->first + query) % a->ratio;

            if (rows[row].mass_line == line + 1 && sees(query, entry, position, a, s)) {
                float2 share = shares[(ulong)row * n_heads + head];

                sum += convert_ulong_rte(exp(capped(dot_of[query - i], a) - share.x) / share.y * MASS_ONE);
            }
        }
    }
    return sum;
}

/* A work-group for ITEMS entries from first_entry on. */
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_mass(const __global struct step *step, const __global uint *table, const __global ulong *places, ARENA_PARAMETERS,
               const struct attention a, const __global float *x, const __global float *inv_freq, const __global float *tables,
               const __global float *decoded, const __global struct line *lines, uint first_entry,
               const __global float2 *shares, __global ulong *mass, ulong mass_offset, uint mass_stride)
{
    __local float q[QUERY_NUMBERS];
    __local uint entries[QUERIES], positions[QUERIES];
    const struct shared shared = {q, PACKED_Q(q), entries, positions};
    struct line line = lines[a.at_line + get_group_id(0)];
    uint kv_head = get_group_id(1), begin = first_entry + get_group_id(2) * ITEMS, entry = begin + get_local_id(0);
    const __global struct step_seq *seq = STEP_ARRAY(struct step_seq, step, seqs) + line.seq;
    const __global struct step_segment *segment = STEP_ARRAY(struct step_segment, step, segments) + seq->first_segment;
    const __global struct step_row *rows = rows_of(step, seq);
    uint first = (line.first_row - seq->first_row) * a.ratio, end = first + line.n_rows * a.ratio;

    for (uint left = seq->n_segments; left; left--, segment++) {
        uint last = segment->first_entry + segment->n_entries;
        bool there = entry >= segment->first_entry && entry < last;
        struct reach reach = {arena0, decoded, entry / BLOCK_TOKENS, false};
        ulong sum = 0;

        if (segment->first_entry >= begin + ITEMS || last <= begin || !holds(segment, a.group, a.layer, kv_head))
            continue;
        if (there) {
            uint block = table[(ulong)seq->slot * a.max_blocks + reach.index];
            ulong place = place_of(places, block);

            reach.block = BLOCK_AT(place);
            reach.packed = PACKED && block >> 28;
        }
        for (uint query = first; query < end; query += QUERIES) {
            struct queries mine = {line.seq, query, min(end - query, (uint)QUERIES)};

            load_rows(&mine, a.ratio, rows, &shared);
            load_queries(&mine, &a, x + (ulong)seq->first_row * a.q_stride, inv_freq, kv_head, segment, rows, &shared);
            barrier(CLK_LOCAL_MEM_FENCE);
            load_packed_queries(tables, &shared);
            if (there)
                sum += add_mass(key_tile(&reach, &a, kv_head), reach.packed, &mine, line.line, kv_head, entry,
                                entry + segment->position_offset, &a, tables, rows,
                                shares + (ulong)seq->first_row * get_num_groups(1) * a.ratio, &shared);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        if (there)
            mass[mass_offset + ((ulong)line.line * get_num_groups(1) + kv_head) * mass_stride + entry] = sum;
    }
}
