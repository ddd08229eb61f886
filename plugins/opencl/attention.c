/* The ops on KV groups: arguments checked, kernels called. */
#include "opencl.h"

static bool mapped(const struct opencl_group *group, uint32_t slot, uint64_t first_entry, uint64_t n_entries)
{
    uint64_t last = (first_entry + n_entries + group->block_tokens - 1) / group->block_tokens;

    if (n_entries && last > group->max_blocks)
        return false;
    for (uint64_t i = first_entry / group->block_tokens; n_entries && i < last; i++)
        if (!opencl_has_block(group, group->tables[(size_t)slot * group->max_blocks + i]))
            return false;
    return true;
}

/* New entries go to blocks of class 0. */
static bool writable(const struct opencl_group *group, uint32_t slot, uint32_t entry)
{
    return mapped(group, slot, entry, 1) &&
           opencl_class(group->tables[(size_t)slot * group->max_blocks + entry / group->block_tokens]) == 0;
}

static int survey_segment(struct opencl *ocl, uint32_t op, struct opencl_group *group, uint32_t slot,
                          const struct soq_step_segment *segment)
{
    uint32_t end = segment->first_entry + segment->n_entries;

    if (segment->group != group->index || segment->n_entries == 0)
        return 0;
    if (!mapped(group, slot, segment->first_entry, segment->n_entries))
        return opencl_refuse(ocl, op, SOQ_EINVAL, "slot %u of group %u lacks blocks of entries %u to %u", slot, group->index,
                             segment->first_entry, end);
    group->rotated = group->rotated || segment->flags;
    if (group->end_entry == 0 || segment->first_entry < group->first_entry)
        group->first_entry = segment->first_entry;
    if (end > group->end_entry)
        group->end_entry = end;
    return 0;
}

/* Once per step and group: every block that the step may touch is there; where its segments lie. */
static int survey(struct opencl *ocl, uint32_t op, struct opencl_group *group)
{
    const struct soq_step *step = ocl->step;

    if (group->surveyed)
        return 0;
    group->first_entry = group->end_entry = 0;
    group->rotated = false;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct soq_step_seq *seq = &step_seqs(step)[i];

        for (uint32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++)
            if (!writable(group, seq->slot, step_rows(step)[r].entry))
                return opencl_refuse(ocl, op, SOQ_EINVAL, "slot %u of group %u has no block for entry %u", seq->slot,
                                     group->index, step_rows(step)[r].entry);
        for (uint32_t s = 0; s < seq->n_segments; s++)
            if (survey_segment(ocl, op, group, seq->slot, &step_segments(step)[seq->first_segment + s]))
                return ocl->failed;
    }
    group->surveyed = true;
    return 0;
}

static int check_group(struct opencl *ocl, uint32_t op, soq_kv_group handle, uint32_t layer)
{
    struct opencl_group *group = (struct opencl_group *)(uintptr_t)handle;

    if (!group)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "kv group 0");
    if (layer >= group->n_layers)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "layer %u of %u in group %u", layer, group->n_layers, group->index);
    return survey(ocl, op, group);
}

static int append_plane(struct opencl *ocl, const struct opencl_group *group, const struct opencl_plane *plane, uint32_t layer,
                        const struct soq_view *x)
{
    struct opencl_call call = opencl_call(ocl, SOQ_OP_KV_APPEND, group->program, OPENCL_K_kv_append);

    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_mem(&call, group->device_tables);
    opencl_arg_mem(&call, group->storage->device_places);
    opencl_arg_arenas(&call, group);
    opencl_arg_u32(&call, group->max_blocks);
    opencl_arg_u64(&call, opencl_layer_tile(plane, layer));
    opencl_arg_u64(&call, plane->tile_bytes);
    opencl_arg_u32(&call, plane->heads);
    opencl_arg_u32(&call, plane->width);
    opencl_arg_u32(&call, plane->format.dtype);
    opencl_arg_view(&call, x);
    return opencl_launch_items(&call, (uint64_t)plane->heads * plane->width, ocl->step->n_rows);
}

static int kv_append(void *self, const struct soq_kv_append_args *args)
{
    struct opencl *ocl = self;
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;

    if (ocl->failed || check_group(ocl, SOQ_OP_KV_APPEND, args->group, args->layer) ||
        opencl_check_view(ocl, SOQ_OP_KV_APPEND, "k", &args->k, ocl->step->n_rows, group->key.heads * group->key.width) ||
        opencl_check_view(ocl, SOQ_OP_KV_APPEND, "v", &args->v, ocl->step->n_rows, group->value.heads * group->value.width))
        return ocl->failed;
    if (!append_plane(ocl, group, &group->key, args->layer, &args->k))
        append_plane(ocl, group, &group->value, args->layer, &args->v);
    return ocl->failed;
}

/* What rotated segments need. */
static int check_rotation(struct opencl *ocl, const struct soq_attention_args *args)
{
    if (args->rope_kind != SOQ_ROPE_INTERLEAVED && args->rope_kind != SOQ_ROPE_HALF)
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, SOQ_EUNSUPPORTED, "rotated segments with rope_kind %u", args->rope_kind);
    if (args->n_rot == 0 || args->n_rot % 2 || args->n_rot > args->head_dim_k)
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, SOQ_EINVAL, "n_rot %u must be even and at most the head's %u", args->n_rot,
                             args->head_dim_k);
    return opencl_check_view(ocl, SOQ_OP_ATTENTION, "inv_freq", &args->inv_freq, 1, args->n_rot / 2);
}

static int check_attention(struct opencl *ocl, const struct soq_attention_args *args)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;

    if (check_group(ocl, SOQ_OP_ATTENTION, args->group, args->layer))
        return ocl->failed;
    if (args->n_kv_heads != group->key.heads || args->n_heads == 0 || args->n_heads % args->n_kv_heads ||
        args->head_dim_k != group->key.width || args->head_dim_v != group->value.width)
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, SOQ_EINVAL,
                             "%u heads over %u kv heads of %u and %u, the group has %u of %u and %u", args->n_heads,
                             args->n_kv_heads, args->head_dim_k, args->head_dim_v, group->key.heads, group->key.width,
                             group->value.width);
    if (opencl_check_view(ocl, SOQ_OP_ATTENTION, "q", &args->q, ocl->step->n_rows, args->n_heads * args->head_dim_k) ||
        opencl_check_view(ocl, SOQ_OP_ATTENTION, "out", &args->out, ocl->step->n_rows, args->n_heads * args->head_dim_v) ||
        (group->rotated && check_rotation(ocl, args)) || (args->mass && opencl_check_mass(ocl, args)))
        return ocl->failed;
    return opencl_check_vector(ocl, SOQ_OP_ATTENTION, "sink_logits", args->sink_logits, args->n_heads, true);
}

/* Tiles of OPENCL_QUERIES queries. */
static uint32_t seq_tiles(const struct soq_step_seq *seq, uint32_t ratio)
{
    return (seq->n_rows * ratio + OPENCL_QUERIES - 1) / OPENCL_QUERIES;
}

/* Over all sequences. */
static uint32_t count_tiles(const struct soq_step *step, uint32_t ratio)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < step->n_seqs; i++)
        n += seq_tiles(&step_seqs(step)[i], ratio);
    return n;
}

/* Room for the splits of at least one tile; *tiles_out is how many fit. */
static int reserve_partials(struct opencl *ocl, uint64_t tile_bytes, uint32_t n_tiles, uint32_t *tiles_out)
{
    uint64_t wanted = tile_bytes * n_tiles;
    struct soq_error err = SOQ_ERROR_INIT;

    if (wanted > OPENCL_PARTIAL_BYTES)
        wanted = tile_bytes > OPENCL_PARTIAL_BYTES ? tile_bytes : OPENCL_PARTIAL_BYTES;
    if (opencl_reserve(ocl, &ocl->partials, wanted, "sums of attention", &err))
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, (enum soq_error_code) - err.code, "%s", err.text);
    *tiles_out = ocl->partials.bytes / tile_bytes < n_tiles ? (uint32_t)(ocl->partials.bytes / tile_bytes) : n_tiles;
    return 0;
}

void opencl_arg_attention(struct opencl_call *call, const struct soq_attention_args *args, const struct opencl_attention *a)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;

    opencl_arg_mem(call, call->ocl->device_step);
    opencl_arg_mem(call, group->device_tables);
    opencl_arg_mem(call, group->storage->device_places);
    opencl_arg_arenas(call, group);
    opencl_arg(call, a, sizeof *a);
    opencl_arg_mem(call, opencl_mem(args->q.buffer));
    opencl_arg_mem(call, group->rotated ? opencl_mem(args->inv_freq.buffer) : NULL);
    opencl_arg_mem(call, group->format_tables);
    opencl_arg_mem(call, opencl_decodes(group) ? call->ocl->decoded.mem : NULL);
}

/* n_tiles tiles and n_splits splits, from those of `a` on. */
static int sum_splits(struct opencl *ocl, const struct soq_attention_args *args, const struct opencl_attention *a,
                      uint32_t n_tiles, uint32_t n_splits)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct opencl_call call = opencl_call(ocl, SOQ_OP_ATTENTION, group->program, OPENCL_K_attention);

    opencl_arg_attention(&call, args, a);
    opencl_arg_mem(&call, ocl->partials.mem);
    return opencl_launch_groups(&call, n_tiles, args->n_kv_heads, n_splits);
}

/* The same sequence by sequence, as many splits at a time as the host's decoded tiles have room. */
static int sum_decoded_splits(struct opencl *ocl, const struct soq_attention_args *args, const struct opencl_attention *all,
                              uint32_t n_tiles)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    uint32_t piece = opencl_decodable(ocl, group) / OPENCL_SPLIT, first_tile = 0;
    struct opencl_attention a = *all;

    for (uint32_t i = 0; i < ocl->step->n_seqs && !ocl->failed; i++) {
        const struct soq_step_seq *seq = &step_seqs(ocl->step)[i];
        uint32_t end_tile = first_tile + seq_tiles(seq, a.ratio);
        uint32_t from = first_tile > a.first_tile ? first_tile : a.first_tile;
        uint32_t to = end_tile < a.first_tile + n_tiles ? end_tile : a.first_tile + n_tiles;

        a.at_tile = from - a.first_tile;
        for (a.at_split = 0; from < to && a.at_split < a.n_splits && !ocl->failed;) {
            uint32_t n = a.n_splits - a.at_split < piece ? a.n_splits - a.at_split : piece;
            uint32_t first = (a.first_split + a.at_split) * OPENCL_SPLIT;

            if (!opencl_decode_entries(ocl, group, seq, first, first + n * OPENCL_SPLIT, &a))
                sum_splits(ocl, args, &a, to - from, n);
            a.at_split += n;
        }
        first_tile = end_tile;
    }
    return ocl->failed;
}

static int merge_splits(struct opencl *ocl, const struct soq_attention_args *args, const struct opencl_attention *a,
                        uint32_t n_tiles)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct opencl_call call = opencl_call(ocl, SOQ_OP_ATTENTION, group->program, OPENCL_K_attention_merge);

    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_u32(&call, a->first_tile);
    opencl_arg_u32(&call, a->ratio);
    opencl_arg_u32(&call, a->n_splits);
    opencl_arg_mem(&call, ocl->partials.mem);
    opencl_arg_vector(&call, args->sink_logits);
    opencl_arg_view(&call, &args->out);
    opencl_arg_mem(&call, args->mass ? ocl->shares.mem : NULL);
    return opencl_launch_groups(&call, n_tiles, args->n_kv_heads, 1);
}

static struct opencl_tiles tiles_of(const struct opencl_plane *key, const struct opencl_plane *value, uint32_t layer)
{
    return (struct opencl_tiles){opencl_layer_tile(key, layer), key->tile_bytes, opencl_layer_tile(value, layer),
                                 value->tile_bytes};
}

static struct opencl_attention describe(const struct opencl_group *group, const struct soq_attention_args *args)
{
    uint32_t first_split = group->first_entry / OPENCL_SPLIT;

    return (struct opencl_attention){
        .plain = tiles_of(&group->key, &group->value, args->layer),
        .packed = tiles_of(&group->packed_key, &group->packed_value, args->layer),
        .q_offset = args->q.offset / sizeof(float),
        .freq_offset = args->inv_freq.offset / sizeof(float),
        .q_stride = args->q.row_stride,
        .group = group->index,
        .layer = args->layer,
        .max_blocks = group->max_blocks,
        .ratio = args->n_heads / args->n_kv_heads,
        .first_split = first_split,
        .n_splits = group->end_entry ? (group->end_entry - 1) / OPENCL_SPLIT - first_split + 1 : 1,
        .scale = args->scale,
        .softcap = args->softcap,
        .window = args->window,
        .sinks = args->sinks,
        .rope_kind = args->rope_kind,
        .n_rot = args->n_rot,
    };
}

static int attention(void *self, const struct soq_attention_args *args)
{
    struct opencl *ocl = self;
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct opencl_attention a;
    uint64_t tile_bytes;
    uint32_t n_tiles, at_once = 0;

    if (ocl->failed || check_attention(ocl, args))
        return ocl->failed;
    a = describe(group, args);
    n_tiles = count_tiles(ocl->step, a.ratio);
    tile_bytes = (uint64_t)args->n_kv_heads * a.n_splits * OPENCL_QUERIES * (2 + args->head_dim_v) * sizeof(float);
    if (n_tiles && reserve_partials(ocl, tile_bytes, n_tiles, &at_once))
        return ocl->failed;
    for (; a.first_tile < n_tiles && !ocl->failed; a.first_tile += at_once) {
        uint32_t n = n_tiles - a.first_tile < at_once ? n_tiles - a.first_tile : at_once;

        if (!(opencl_decodes(group) ? sum_decoded_splits(ocl, args, &a, n) : sum_splits(ocl, args, &a, n, a.n_splits)))
            merge_splits(ocl, args, &a, n);
    }
    if (args->mass && !ocl->failed)
        opencl_attention_mass(ocl, args, &a);
    return ocl->failed;
}

const struct soq_attention_ops opencl_attention_ops = {
    .struct_size = sizeof opencl_attention_ops,
    .group_create = opencl_group_create,
    .group_free = opencl_group_free,
    .group_slab = opencl_group_slab,
    .kv_append = kv_append,
    .attention = attention,
    .kv_gather = opencl_kv_gather,
    .kv_pack = opencl_kv_pack,
};
