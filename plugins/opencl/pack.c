/* Full blocks, packed: read back, encoded on the host by the group's coders, written. */
#include "opencl.h"

#include <string.h>

#include "half.h"

/* Tokens of a tile of class 0 as F32; those below `skip` are the first one behind them. */
static void unpack(const struct opencl_group *group, const struct opencl_plane *plane, const uint8_t *tile, uint32_t skip,
                   float *numbers)
{
    for (uint32_t t = 0; t < group->block_tokens; t++)
        opencl_numbers(plane, tile, (uint64_t)(t < skip ? skip : t) * plane->width, plane->width,
                       numbers + (size_t)t * plane->width);
}

/* One plane of a block, all its tiles. */
static int encode_plane(struct opencl_group *group, uint32_t role, const uint8_t *plain, uint8_t *packed, float *numbers,
                        uint32_t skip, uint32_t first_position, struct soq_error *err)
{
    const struct opencl_plane *from = role == SOQ_PLANE_KEY ? &group->key : &group->value;
    const struct opencl_plane *to = role == SOQ_PLANE_KEY ? &group->packed_key : &group->packed_value;
    int rc = 0;

    for (uint32_t i = 0; i < group->n_layers * from->heads && !rc; i++) {
        struct soq_kv_tile tile = opencl_tile(group, role, i / from->heads, i % from->heads, first_position);

        unpack(group, from, plain + from->offset + i * from->tile_bytes, skip, numbers);
        rc = to->coder.ops->encode(to->coder.self, &tile, numbers, packed + to->offset + i * to->tile_bytes, err);
    }
    return rc;
}

static int pack_block(struct opencl *ocl, struct opencl_group *group, const struct soq_kv_pack_args *args, uint32_t i,
                      struct soq_error *err)
{
    uint8_t *plain = ocl->plain_room.bytes, *packed = ocl->packed_room.bytes;
    float *numbers = (float *)(void *)(plain + opencl_image_bytes(group, 1));
    uint64_t from = 0, to = 0;
    cl_mem src = opencl_block_mem(group, args->src[i], &from), dst = opencl_block_mem(group, args->dst[i], &to);
    int rc = opencl_read(ocl, src, from, plain, group->block_bytes, "kv_pack: a block", err);

    memset(packed, 0, group->packed_bytes);
    if (!rc)
        rc = encode_plane(group, SOQ_PLANE_KEY, plain, packed, numbers, args->skip[i], args->first_position[i], err);
    if (!rc)
        rc = encode_plane(group, SOQ_PLANE_VALUE, plain, packed, numbers, args->skip[i], args->first_position[i], err);
    return rc ? rc : opencl_write(ocl, dst, to, packed, group->packed_bytes, "kv_pack: a block", err);
}

static int check_pack(const struct opencl *ocl, const struct opencl_group *group, const struct soq_kv_pack_args *args,
                      struct soq_error *err)
{
    if (!group || ocl->step)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv_pack: %s", group ? "inside a step" : "kv group 0");
    if (!group->packed_bytes)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv_pack: group %u has no packed blocks", group->index);
    for (uint32_t i = 0; i < args->n; i++) {
        if (!opencl_has_block(group, args->src[i]) || opencl_class(args->src[i]) != 0 ||
            !opencl_has_block(group, args->dst[i]) || opencl_class(args->dst[i]) != 1)
            return plugin_fail(err, SOQ_EINVAL, "opencl: kv_pack: block %x to %x of group %u", args->src[i], args->dst[i],
                               group->index);
        if (args->skip[i] >= group->block_tokens)
            return plugin_fail(err, SOQ_EINVAL, "opencl: kv_pack: block %x of group %u: %u of %u entries hold nothing",
                               args->src[i], group->index, args->skip[i], group->block_tokens);
    }
    return 0;
}

int opencl_kv_pack(void *self, const struct soq_kv_pack_args *args, struct soq_error *err)
{
    struct opencl *ocl = self;
    struct opencl_group *group = (struct opencl_group *)(uintptr_t)args->group;
    int rc = check_pack(ocl, group, args, err);

    if (!rc)
        rc = opencl_reserve_rooms(ocl, group, 1, err);
    for (uint32_t i = 0; i < args->n && !rc; i++)
        rc = pack_block(ocl, group, args, i, err);
    return rc;
}
