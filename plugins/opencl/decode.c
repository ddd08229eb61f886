/* The group's coders at work on the host: packed blocks that entries are gathered from, and tiles for attention in formats
 * that no kernel reads (format.c). */
#include "opencl.h"

#include <string.h>

#include "half.h"

struct soq_kv_tile opencl_tile(const struct opencl_group *group, uint32_t role, uint32_t layer, uint32_t head,
                               uint32_t first_position)
{
    return (struct soq_kv_tile){
        .struct_size = sizeof(struct soq_kv_tile),
        .role = role,
        .layer = group->layers[layer],
        .head = group->first_head + head,
        .tokens = group->block_tokens,
        .width = role == SOQ_PLANE_KEY ? group->key.width : group->value.width,
        .first_position = first_position,
    };
}

void opencl_numbers(const struct opencl_plane *plane, const uint8_t *tile, uint64_t first, uint32_t n, float *numbers)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;

        if (plane->bytes == 4) {
            memcpy(&numbers[i], tile + (first + i) * 4, 4);
            continue;
        }
        memcpy(&half, tile + (first + i) * 2, 2);
        numbers[i] = plane->format.dtype == SOQ_DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
}

/* The other way: a whole tile of class 0. */
static void put_numbers(const struct opencl_plane *plane, const float *numbers, uint64_t n, uint8_t *tile)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half = plane->format.dtype == SOQ_DTYPE_F16 ? f16_from_f32(numbers[i]) : bf16_from_f32(numbers[i]);

        if (plane->bytes == 4)
            memcpy(tile + i * 4, &numbers[i], 4);
        else
            memcpy(tile + i * 2, &half, 2);
    }
}

static uint64_t tile_numbers_bytes(const struct opencl_group *group)
{
    uint32_t width = group->key.width > group->value.width ? group->key.width : group->value.width;

    return (uint64_t)group->block_tokens * width * sizeof(float);
}

/* ---- Whole blocks, for kv_pack and kv_gather --------------------------------------------------------------------- */

uint64_t opencl_image_bytes(const struct opencl_group *group, uint32_t n)
{
    return (n * group->block_bytes + 63) / 64 * 64;
}

int opencl_reserve_rooms(struct opencl *ocl, const struct opencl_group *group, uint32_t n, struct soq_error *err)
{
    int rc = opencl_reserve_room(ocl, &ocl->packed_room, group->packed_bytes, "a packed block", err);

    return rc ? rc
              : opencl_reserve_room(ocl, &ocl->plain_room, opencl_image_bytes(group, n) + tile_numbers_bytes(group), "blocks",
                                    err);
}

static int decode_plane(const struct opencl_group *group, uint32_t role, const uint8_t *packed, uint8_t *plain, float *numbers,
                        struct soq_error *err)
{
    const struct opencl_plane *from = role == SOQ_PLANE_KEY ? &group->packed_key : &group->packed_value;
    const struct opencl_plane *to = role == SOQ_PLANE_KEY ? &group->key : &group->value;
    int rc = 0;

    for (uint32_t i = 0; i < group->n_layers * to->heads && !rc; i++) {
        struct soq_kv_tile tile = opencl_tile(group, role, i / to->heads, i % to->heads, UINT32_MAX);

        rc = from->coder.ops->decode(from->coder.self, &tile, packed + from->offset + i * from->tile_bytes, numbers, err);
        if (!rc)
            put_numbers(to, numbers, (uint64_t)group->block_tokens * to->width, plain + to->offset + i * to->tile_bytes);
    }
    return rc;
}

static int decode_block(struct opencl *ocl, const struct opencl_group *group, soq_block_ref block, uint8_t *plain,
                        float *numbers, struct soq_error *err)
{
    uint8_t *packed = ocl->packed_room.bytes;
    uint64_t from = 0;
    cl_mem mem = opencl_block_mem(group, block, &from);
    int rc = opencl_read(ocl, mem, from, packed, group->packed_bytes, "a packed block", err);

    if (!rc)
        rc = decode_plane(group, SOQ_PLANE_KEY, packed, plain, numbers, err);
    return rc ? rc : decode_plane(group, SOQ_PLANE_VALUE, packed, plain, numbers, err);
}

int opencl_decode_blocks(struct opencl *ocl, const struct opencl_group *group, const soq_block_ref *src, uint32_t n,
                         struct soq_error *err)
{
    uint64_t bytes = n * group->block_bytes;
    uint8_t *plain;
    int rc = opencl_reserve_rooms(ocl, group, n, err);

    if (!rc)
        rc = opencl_reserve(ocl, &ocl->decoded, bytes, "decoded blocks", err);
    if (rc)
        return rc;
    plain = ocl->plain_room.bytes;
    memset(plain, 0, bytes);
    for (uint32_t i = 0; i < n && !rc; i++)
        if (opencl_class(src[i]) == 1 && opencl_has_block(group, src[i]))
            rc = decode_block(ocl, group, src[i], plain + i * group->block_bytes,
                              (float *)(void *)(plain + opencl_image_bytes(group, n)), err);
    return rc ? rc : opencl_write(ocl, ocl->decoded.mem, 0, plain, bytes, "decoded blocks", err);
}

/* ---- Tiles of a layer, for attention ----------------------------------------------------------------------------- */

/* Of a block in F32, all heads. */
static uint64_t decoded_bytes(const struct opencl_group *group, const struct opencl_plane *packed)
{
    return packed->decoded ? (uint64_t)packed->heads * group->block_tokens * packed->width * sizeof(float) : 0;
}

uint32_t opencl_decodable(const struct opencl *ocl, const struct opencl_group *group)
{
    uint64_t block = decoded_bytes(group, &group->packed_key) + decoded_bytes(group, &group->packed_value);
    uint64_t n = block ? ocl->decoded_bytes / block * group->block_tokens / OPENCL_SPLIT : UINT32_MAX;

    n = n < UINT32_MAX / OPENCL_SPLIT ? n : UINT32_MAX / OPENCL_SPLIT;
    return (uint32_t)(n ? n : 1) * OPENCL_SPLIT;
}

/* Whether attention of the sequence reads block `index` of its table and it is packed; the position of its first token. */
static bool reads_packed(const struct opencl *ocl, const struct opencl_group *group, const struct soq_step_seq *seq,
                         uint32_t index, uint32_t *first_position_out)
{
    soq_block_ref block = group->tables[(size_t)seq->slot * group->max_blocks + index];
    uint64_t first = (uint64_t)index * group->block_tokens, end = first + group->block_tokens;

    for (uint32_t i = 0; i < seq->n_segments && opencl_class(block) == 1; i++) {
        const struct soq_step_segment *segment = &step_segments(ocl->step)[seq->first_segment + i];

        if (segment->group == group->index && segment->first_entry < end &&
            (uint64_t)segment->first_entry + segment->n_entries > first) {
            *first_position_out = (uint32_t)first + (uint32_t)segment->position_offset;
            return true;
        }
    }
    return false;
}

/* Blocks [first, first + n) of the sequence's table: the tiles of a layer, into the room for packed ones. */
static int read_tiles(struct opencl *ocl, const struct opencl_group *group, const struct opencl_plane *plane, uint32_t layer,
                      const struct soq_step_seq *seq, uint32_t first, uint32_t n)
{
    uint64_t bytes = plane->heads * plane->tile_bytes;
    cl_int status = CL_SUCCESS;
    uint32_t position;

    for (uint32_t i = 0; i < n && status == CL_SUCCESS; i++)
        if (reads_packed(ocl, group, seq, first + i, &position)) {
            uint64_t at = 0;
            cl_mem mem = opencl_block_mem(group, group->tables[(size_t)seq->slot * group->max_blocks + first + i], &at);

            status = clEnqueueReadBuffer(ocl->queue, mem, CL_FALSE, at + opencl_layer_tile(plane, layer), bytes,
                                         (uint8_t *)ocl->packed_room.bytes + i * bytes, 0, NULL, NULL);
        }
    status = clFinish(ocl->queue) == CL_SUCCESS ? status : CL_OUT_OF_RESOURCES;
    return status == CL_SUCCESS ? 0
                                : opencl_refuse(ocl, SOQ_OP_ATTENTION, opencl_status_code(status),
                                                "packed blocks cannot be read: %s", opencl_status_name(status));
}

/* The same tiles decoded: `numbers` gets those of a block behind those of the one before. */
static int decode_tiles(struct opencl *ocl, const struct opencl_group *group, uint32_t role, uint32_t layer,
                        const struct soq_step_seq *seq, uint32_t first, uint32_t n, float *numbers)
{
    const struct opencl_plane *plane = role == SOQ_PLANE_KEY ? &group->packed_key : &group->packed_value;
    const uint8_t *packed = ocl->packed_room.bytes;
    struct soq_error err = SOQ_ERROR_INIT;
    uint32_t position = 0;
    int rc = read_tiles(ocl, group, plane, layer, seq, first, n);

    for (uint32_t i = 0; i < n * plane->heads && !rc; i++) {
        struct soq_kv_tile tile = opencl_tile(group, role, layer, i % plane->heads, 0);

        if (!reads_packed(ocl, group, seq, first + i / plane->heads, &position))
            continue;
        tile.first_position = position;
        rc = plane->coder.ops->decode(plane->coder.self, &tile, packed + i * plane->tile_bytes,
                                      numbers + (size_t)i * group->block_tokens * plane->width, &err);
        if (rc)
            return opencl_refuse(ocl, SOQ_OP_ATTENTION, (enum soq_error_code) - rc, "%s", err.text);
    }
    return rc;
}

int opencl_decode_entries(struct opencl *ocl, const struct opencl_group *group, const struct soq_step_seq *seq, uint32_t first,
                          uint32_t end, struct opencl_attention *a)
{
    uint32_t block = first / group->block_tokens, last = (end + group->block_tokens - 1) / group->block_tokens;
    uint32_t n = (last < group->max_blocks ? last : group->max_blocks) - block;
    uint64_t keys = n * decoded_bytes(group, &group->packed_key), values = n * decoded_bytes(group, &group->packed_value);
    uint64_t key_tiles = keys ? n * group->packed_key.heads * group->packed_key.tile_bytes : 0;
    uint64_t value_tiles = values ? n * group->packed_value.heads * group->packed_value.tile_bytes : 0;
    struct soq_error err = SOQ_ERROR_INIT;
    uint8_t *numbers;

    a->decoded_block = block;
    a->decoded_values = keys / sizeof(float);
    if (opencl_reserve(ocl, &ocl->decoded, keys + values, "decoded tiles", &err) ||
        opencl_reserve_room(ocl, &ocl->packed_room, key_tiles > value_tiles ? key_tiles : value_tiles, "packed tiles", &err) ||
        opencl_reserve_room(ocl, &ocl->plain_room, keys + values, "decoded tiles", &err))
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, (enum soq_error_code) - err.code, "%s", err.text);
    numbers = ocl->plain_room.bytes;
    memset(numbers, 0, keys + values);
    if ((keys && decode_tiles(ocl, group, SOQ_PLANE_KEY, a->layer, seq, block, n, (float *)(void *)numbers)) ||
        (values && decode_tiles(ocl, group, SOQ_PLANE_VALUE, a->layer, seq, block, n, (float *)(void *)(numbers + keys))))
        return ocl->failed;
    if (opencl_write(ocl, ocl->decoded.mem, 0, numbers, keys + values, "decoded tiles", &err))
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, (enum soq_error_code) - err.code, "%s", err.text);
    return 0;
}
