/* Entries that stay, copied together into other blocks of their group. */
#include "opencl.h"

#include <string.h>

/* src, dst and keep behind one another, as the kernel reads them. */
static int upload_lists(struct opencl *ocl, const struct soq_kv_gather_args *args, uint64_t n_keep, struct soq_error *err)
{
    uint64_t n = (uint64_t)args->n_src + args->n_dst + n_keep;
    uint32_t *lists = ocl->host->alloc(ocl->host->ctx, n * sizeof *lists, 64);
    int rc;

    if (!lists)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: kv_gather: out of memory: lists of %llu entries",
                           (unsigned long long)n_keep);
    memcpy(lists, args->src, args->n_src * sizeof *lists);
    memcpy(lists + args->n_src, args->dst, args->n_dst * sizeof *lists);
    memcpy(lists + args->n_src + args->n_dst, args->keep, n_keep * sizeof *lists);
    rc = opencl_reserve(ocl, &ocl->lists, n * sizeof *lists, "lists of entries", err);
    if (!rc)
        rc = opencl_write(ocl, ocl->lists.mem, 0, lists, n * sizeof *lists, "lists of entries", err);
    ocl->host->free(ocl->host->ctx, lists);
    return rc;
}

static int check_blocks(const struct opencl_group *group, const struct soq_kv_gather_args *args, struct soq_error *err)
{
    uint64_t first = args->dst_first / group->block_tokens;
    uint64_t end = ((uint64_t)args->dst_first + args->n_keep + group->block_tokens - 1) / group->block_tokens;

    if (end > args->n_dst)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv_gather: %u entries from %u on do not fit into %u blocks of %u",
                           args->n_keep, args->dst_first, args->n_dst, group->block_tokens);
    for (uint64_t i = first; i < end; i++) {
        if (!opencl_has_block(group, args->dst[i]) || opencl_class(args->dst[i]))
            return plugin_fail(err, SOQ_EINVAL, "opencl: kv_gather: group %u has no block %x", group->index, args->dst[i]);
        for (uint32_t k = 0; k < args->n_src; k++)
            if (args->src[k] == args->dst[i])
                return plugin_fail(err, SOQ_EINVAL, "opencl: kv_gather: block %x of group %u is copied to itself", args->dst[i],
                                   group->index);
    }
    return 0;
}

static int check_entries(const struct opencl_group *group, const struct soq_kv_gather_args *args, uint64_t n_keep,
                         struct soq_error *err)
{
    for (uint64_t i = 0; i < n_keep; i++) {
        uint32_t block = args->keep[i] / group->block_tokens;

        if (block >= args->n_src || !opencl_has_block(group, args->src[block]))
            return plugin_fail(err, SOQ_EINVAL, "opencl: kv_gather: group %u has no block for entry %u", group->index,
                               args->keep[i]);
    }
    return 0;
}

/* Entries of one plane whose blocks are src[first ... first + n). */
static void gather_plane(struct opencl *ocl, const struct opencl_group *group, const struct opencl_plane *plane,
                         const struct soq_kv_gather_args *args, uint32_t first, uint32_t n)
{
    struct opencl_call call = opencl_call(ocl, SOQ_OP_KV_GATHER, group->program, OPENCL_K_kv_gather);
    uint32_t entry_units = plane->width * plane->bytes / 2;

    opencl_arg_mem(&call, group->storage->device_places);
    opencl_arg_arenas(&call, group);
    opencl_arg_u64(&call, plane->offset);
    opencl_arg_u64(&call, plane->tile_bytes);
    opencl_arg_u32(&call, entry_units);
    opencl_arg_mem(&call, ocl->lists.mem);
    opencl_arg_u32(&call, args->n_src);
    opencl_arg_u32(&call, args->n_dst);
    opencl_arg_u32(&call, args->dst_first);
    opencl_arg_u32(&call, args->n_keep);
    opencl_arg_u32(&call, first);
    opencl_arg_u32(&call, n);
    opencl_arg_mem(&call, group->packed_bytes ? ocl->decoded.mem : NULL);
    opencl_arg_u64(&call, group->block_bytes);
    opencl_launch_items(&call, (uint64_t)args->n_keep * entry_units, (uint64_t)group->n_layers * plane->heads);
}

/* All at once, or as many blocks at a time as can be decoded. */
static int gather_blocks(struct opencl *ocl, const struct opencl_group *group, const struct soq_kv_gather_args *args,
                         struct soq_error *err)
{
    uint64_t room = ocl->decoded_bytes / group->block_bytes;
    uint32_t piece = args->n_src;
    int rc = 0;

    if (group->packed_bytes && room < piece)
        piece = room ? (uint32_t)room : 1;
    for (uint32_t first = 0; first < args->n_src && !rc && !ocl->failed; first += piece) {
        uint32_t n = args->n_src - first < piece ? args->n_src - first : piece;

        if (group->packed_bytes)
            rc = opencl_decode_blocks(ocl, group, args->src + first, n, err);
        if (!rc)
            gather_plane(ocl, group, &group->key, args, first, n);
        if (!rc && !ocl->failed)
            gather_plane(ocl, group, &group->value, args, first, n);
    }
    return rc;
}

int opencl_kv_gather(void *self, const struct soq_kv_gather_args *args, struct soq_error *err)
{
    struct opencl *ocl = self;
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    uint64_t n_keep = group ? (uint64_t)group->n_layers * group->key.heads * args->n_keep : 0;
    cl_int status;
    int rc;

    if (!group || ocl->step)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv_gather: %s", group ? "inside a step" : "kv group 0");
    if (n_keep == 0)
        return 0;
    rc = check_blocks(group, args, err);
    if (!rc)
        rc = check_entries(group, args, n_keep, err);
    if (!rc)
        rc = opencl_upload_places(ocl, err);
    if (!rc)
        rc = upload_lists(ocl, args, n_keep, err);
    ocl->failed = 0;
    if (!rc)
        rc = gather_blocks(ocl, group, args, err);
    status = opencl_finish(ocl);
    if (rc)
        return rc;
    if (ocl->failed)
        return plugin_fail(err, (enum soq_error_code) - ocl->failed, "%s", ocl->error.text);
    if (status != CL_SUCCESS)
        return plugin_fail(err, SOQ_EDEVICE, "opencl: kv_gather: %s failed while it copied: %s", ocl->device_name,
                           opencl_status_name(status));
    return 0;
}
