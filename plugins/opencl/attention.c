/* The ops on KV groups: arguments checked, kernels called. */
#include "opencl.h"

/* As in kernels/attention.cl. */
struct attention_arg {
    uint64_t key_first, key_tile, value_first, value_tile;
    uint64_t q_offset;
    uint32_t q_stride;
    uint32_t group, layer, max_blocks;
    uint32_t ratio;
    uint32_t first_tile, n_splits;
    float scale, softcap;
    uint32_t window, sinks;
    uint32_t reserved;
};

static bool mapped(const struct opencl_group *group, uint32_t slot, uint64_t first_entry, uint64_t n_entries)
{
    uint64_t last = (first_entry + n_entries + group->block_tokens - 1) / group->block_tokens;

    if (n_entries && last > group->max_blocks)
        return false;
    for (uint64_t i = first_entry / group->block_tokens; n_entries && i < last; i++) {
        soq_block_ref block = group->tables[(size_t)slot * group->max_blocks + i];

        if (block >= group->n_places || group->places[block] == OPENCL_NOWHERE)
            return false;
    }
    return true;
}

/* Once per step and group: every block that the step may touch is there. */
static int check_blocks(struct opencl *ocl, uint32_t op, struct opencl_group *group)
{
    const struct soq_step *step = ocl->step;

    for (uint32_t i = 0; i < step->n_seqs && !group->checked; i++) {
        const struct soq_step_seq *seq = &step_seqs(step)[i];

        for (uint32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++)
            if (!mapped(group, seq->slot, step_rows(step)[r].entry, 1))
                return opencl_refuse(ocl, op, SOQ_EINVAL, "slot %u of group %u has no block for entry %u", seq->slot,
                                     group->index, step_rows(step)[r].entry);
        for (uint32_t s = 0; s < seq->n_segments; s++) {
            const struct soq_step_segment *segment = &step_segments(step)[seq->first_segment + s];

            if (segment->group == group->index && !mapped(group, seq->slot, segment->first_entry, segment->n_entries))
                return opencl_refuse(ocl, op, SOQ_EINVAL, "slot %u of group %u lacks blocks of entries %u to %u", seq->slot,
                                     group->index, segment->first_entry, segment->first_entry + segment->n_entries);
        }
    }
    group->checked = true;
    return 0;
}

static int check_group(struct opencl *ocl, uint32_t op, soq_kv_group handle, uint32_t layer)
{
    struct opencl_group *group = (struct opencl_group *)(uintptr_t)handle;

    if (!group)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "kv group 0");
    if (layer >= group->n_layers)
        return opencl_refuse(ocl, op, SOQ_EINVAL, "layer %u of %u in group %u", layer, group->n_layers, group->index);
    return check_blocks(ocl, op, group);
}

static uint64_t layer_tile(const struct opencl_plane *plane, uint32_t layer)
{
    return plane->offset + (uint64_t)layer * plane->heads * plane->tile_bytes;
}

static int append_plane(struct opencl *ocl, const struct opencl_group *group, const struct opencl_plane *plane, uint32_t layer,
                        const struct soq_view *x)
{
    struct opencl_call call = opencl_call(ocl, SOQ_OP_KV_APPEND, group->program, OPENCL_K_kv_append);

    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_mem(&call, group->device_tables);
    opencl_arg_mem(&call, group->device_places);
    opencl_arg_arenas(&call, group);
    opencl_arg_u32(&call, group->max_blocks);
    opencl_arg_u64(&call, layer_tile(plane, layer));
    opencl_arg_u64(&call, plane->tile_bytes);
    opencl_arg_u32(&call, plane->heads);
    opencl_arg_u32(&call, plane->width);
    opencl_arg_u32(&call, plane->bytes);
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

static int check_attention(struct opencl *ocl, const struct soq_attention_args *args)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;

    if (check_group(ocl, SOQ_OP_ATTENTION, args->group, args->layer))
        return ocl->failed;
    if (args->mass)
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, SOQ_EUNSUPPORTED, "attention mass");
    if (args->n_kv_heads != group->key.heads || args->n_heads == 0 || args->n_heads % args->n_kv_heads ||
        args->head_dim_k != group->key.width || args->head_dim_v != group->value.width)
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, SOQ_EINVAL,
                             "%u heads over %u kv heads of %u and %u, the group has %u of %u and %u", args->n_heads,
                             args->n_kv_heads, args->head_dim_k, args->head_dim_v, group->key.heads, group->key.width,
                             group->value.width);
    if (opencl_check_view(ocl, SOQ_OP_ATTENTION, "q", &args->q, ocl->step->n_rows, args->n_heads * args->head_dim_k) ||
        opencl_check_view(ocl, SOQ_OP_ATTENTION, "out", &args->out, ocl->step->n_rows, args->n_heads * args->head_dim_v))
        return ocl->failed;
    return opencl_check_vector(ocl, SOQ_OP_ATTENTION, "sink_logits", args->sink_logits, args->n_heads, true);
}

/* Tiles of OPENCL_QUERIES queries over all sequences. */
static uint32_t count_tiles(const struct soq_step *step, uint32_t ratio)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < step->n_seqs; i++)
        n += (step_seqs(step)[i].n_rows * ratio + OPENCL_QUERIES - 1) / OPENCL_QUERIES;
    return n;
}

/* Room for the splits of at least one tile; *tiles_out is how many fit. */
static int reserve_partials(struct opencl *ocl, uint64_t tile_bytes, uint32_t n_tiles, uint32_t *tiles_out)
{
    uint64_t wanted = tile_bytes * n_tiles;
    struct soq_error err = SOQ_ERROR_INIT;

    if (wanted > OPENCL_PARTIAL_BYTES)
        wanted = tile_bytes > OPENCL_PARTIAL_BYTES ? tile_bytes : OPENCL_PARTIAL_BYTES;
    if (wanted > ocl->partial_bytes) {
        opencl_mem_free(ocl, ocl->partials);
        ocl->partials = NULL;
        ocl->partial_bytes = 0;
        if (opencl_mem_create(ocl, wanted, "sums of attention", &ocl->partials, &err))
            return opencl_refuse(ocl, SOQ_OP_ATTENTION, (enum soq_error_code) - err.code, "%s", err.text);
        ocl->partial_bytes = wanted;
    }
    *tiles_out = ocl->partial_bytes / tile_bytes < n_tiles ? (uint32_t)(ocl->partial_bytes / tile_bytes) : n_tiles;
    return 0;
}

static int sum_splits(struct opencl *ocl, const struct soq_attention_args *args, const struct attention_arg *arg,
                      uint32_t n_tiles)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct opencl_call call = opencl_call(ocl, SOQ_OP_ATTENTION, group->program, OPENCL_K_attention);

    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_mem(&call, group->device_tables);
    opencl_arg_mem(&call, group->device_places);
    opencl_arg_arenas(&call, group);
    opencl_arg(&call, arg, sizeof *arg);
    opencl_arg_mem(&call, opencl_mem(args->q.buffer));
    opencl_arg_mem(&call, ocl->partials);
    return opencl_launch_groups(&call, n_tiles, args->n_kv_heads, arg->n_splits);
}

static int merge_splits(struct opencl *ocl, const struct soq_attention_args *args, const struct attention_arg *arg,
                        uint32_t n_tiles)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct opencl_call call = opencl_call(ocl, SOQ_OP_ATTENTION, group->program, OPENCL_K_attention_merge);

    opencl_arg_mem(&call, ocl->device_step);
    opencl_arg_u32(&call, arg->first_tile);
    opencl_arg_u32(&call, arg->ratio);
    opencl_arg_u32(&call, arg->n_splits);
    opencl_arg_mem(&call, ocl->partials);
    opencl_arg_vector(&call, args->sink_logits);
    opencl_arg_view(&call, &args->out);
    return opencl_launch_groups(&call, n_tiles, args->n_kv_heads, 1);
}

static int attention(void *self, const struct soq_attention_args *args)
{
    struct opencl *ocl = self;
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct attention_arg arg;
    uint64_t tile_bytes;
    uint32_t n_tiles, at_once = 0;

    if (ocl->failed || check_attention(ocl, args))
        return ocl->failed;
    arg = (struct attention_arg){
        .key_first = layer_tile(&group->key, args->layer),
        .key_tile = group->key.tile_bytes,
        .value_first = layer_tile(&group->value, args->layer),
        .value_tile = group->value.tile_bytes,
        .q_offset = args->q.offset / sizeof(float),
        .q_stride = args->q.row_stride,
        .group = group->index,
        .layer = args->layer,
        .max_blocks = group->max_blocks,
        .ratio = args->n_heads / args->n_kv_heads,
        .n_splits = ocl->n_splits,
        .scale = args->scale,
        .softcap = args->softcap,
        .window = args->window,
        .sinks = args->sinks,
    };
    n_tiles = count_tiles(ocl->step, arg.ratio);
    tile_bytes = (uint64_t)args->n_kv_heads * arg.n_splits * OPENCL_QUERIES * (2 + args->head_dim_v) * sizeof(float);
    if (n_tiles && reserve_partials(ocl, tile_bytes, n_tiles, &at_once))
        return ocl->failed;
    for (; arg.first_tile < n_tiles && !ocl->failed; arg.first_tile += at_once) {
        uint32_t n = n_tiles - arg.first_tile < at_once ? n_tiles - arg.first_tile : at_once;

        if (!sum_splits(ocl, args, &arg, n))
            merge_splits(ocl, args, &arg, n);
    }
    return ocl->failed;
}

const struct soq_attention_ops opencl_attention_ops = {
    .struct_size = sizeof opencl_attention_ops,
    .group_create = opencl_group_create,
    .group_free = opencl_group_free,
    .group_slab = opencl_group_slab,
    .kv_append = kv_append,
    .attention = attention,
};
