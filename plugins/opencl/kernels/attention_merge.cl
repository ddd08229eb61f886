/* The splits of attention.cl, merged in order: the output of each query. A sink takes its share of the mass and gives nothing;
 * a query that saw nothing gives zeros. shares[row][head], where wanted: the top and the total that scores are weighed with. A
 * work-group for each tile of queries and kv head. */
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
attention_merge(const __global struct step *step, uint first_tile, uint ratio, uint n_splits, const __global float *partials,
                const __global float *sinks, __global float *y, ulong y_offset, uint y_stride, __global float2 *shares)
{
    struct queries mine = find_queries(step, first_tile + get_group_id(0), ratio);
    uint kv_head = get_group_id(1), first_row = STEP_ARRAY(struct step_seq, step, seqs)[mine.seq].first_row;
    const __global float *part =
        partials + (ulong)(get_group_id(0) * get_num_groups(1) + kv_head) * n_splits * QUERIES * (2 + VALUE_WIDTH);

    for (uint i = get_local_id(0); i < mine.n * VALUE_WIDTH; i += ITEMS) {
        uint query = i / VALUE_WIDTH, dim = i % VALUE_WIDTH, head = kv_head * ratio + (mine.first + query) % ratio;
        ulong row = first_row + (mine.first + query) / ratio;
        float top = -INFINITY, total = 0.0f, sum = 0.0f;

        for (uint s = 0; s < n_splits; s++) {
            const __global float *p = part + (s * QUERIES + query) * (2 + VALUE_WIDTH);

            if (p[0] != -INFINITY) {
                float higher = fmax(top, p[0]), before = exp(top - higher), now = exp(p[0] - higher);

                total = total * before + p[1] * now;
                sum = sum * before + p[2 + dim] * now;
                top = higher;
            }
        }
        if (sinks && top != -INFINITY) {
            float higher = fmax(top, sinks[head]), before = exp(top - higher);

            total = total * before + exp(sinks[head] - higher);
            sum *= before;
            top = higher;
        }
        if (shares && dim == 0)
            shares[row * get_num_groups(1) * ratio + head] = (float2)(top, total);
        y[y_offset + row * y_stride + head * VALUE_WIDTH + dim] = top == -INFINITY ? 0.0f : sum / total;
    }
}
