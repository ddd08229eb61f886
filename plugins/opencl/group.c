/* KV groups: planes, resident block tables, and where blocks lie. */
#include "opencl.h"

#include <stdio.h>
#include <string.h>

struct opencl_group *opencl_find_group(struct opencl *ocl, uint32_t index)
{
    struct opencl_group *group = ocl->groups;

    while (group && group->index != index)
        group = group->next;
    return group;
}

static int take_plane(const struct soq_kv_group_desc *desc, const struct soq_kv_plane *plane, uint64_t offset,
                      struct opencl_plane *plane_out, struct soq_error *err)
{
    uint32_t dtype = plane->format.dtype, size = dtype == SOQ_DTYPE_F32 ? 4 : 2;

    if (plane->format.kind != SOQ_FORMAT_PLAIN || (dtype != SOQ_DTYPE_F32 && dtype != SOQ_DTYPE_F16))
        return plugin_fail(err, SOQ_EUNSUPPORTED,
                           "opencl: kv group %u: planes must be plain F32 or F16, not kind %u of type %u", desc->index,
                           plane->format.kind, dtype);
    if (plane->alias >= 0 || plane->tokens_per_entry != 1 || plane->format.pre_rope || plane->format.rotation)
        return plugin_fail(
            err, SOQ_EUNSUPPORTED,
            "opencl: kv group %u: aliases, several tokens per entry, pre-RoPE keys and rotations are not supported",
            desc->index);
    if (!plane->heads || !plane->width || plane->format.tile_bytes < (uint64_t)desc->block_tokens * plane->width * size)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: tiles of %llu bytes for %u x %u", desc->index,
                           (unsigned long long)plane->format.tile_bytes, desc->block_tokens, plane->width);
    *plane_out = (struct opencl_plane){
        .heads = plane->heads,
        .width = plane->width,
        .bytes = size,
        .offset = offset,
        .tile_bytes = plane->format.tile_bytes,
    };
    return 0;
}

static int take_planes(struct opencl_group *group, const struct soq_kv_group_desc *desc, struct soq_error *err)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < desc->n_planes; i++) {
        const struct soq_kv_plane *plane =
            (const struct soq_kv_plane *)((const uint8_t *)desc->planes + (size_t)i * desc->plane_stride);
        int rc;

        if (plane->role != SOQ_PLANE_KEY && plane->role != SOQ_PLANE_VALUE)
            return plugin_fail(err, SOQ_EUNSUPPORTED, "opencl: kv group %u: plane role %u is not supported", desc->index,
                               plane->role);
        rc = take_plane(desc, plane, offset, plane->role == SOQ_PLANE_KEY ? &group->key : &group->value, err);
        if (rc)
            return rc;
        offset += plane->format.tile_bytes * desc->n_layers * plane->heads;
    }
    if (!group->key.heads || group->key.heads != group->value.heads || offset > desc->block_bytes)
        return plugin_fail(err, SOQ_EINVAL,
                           "opencl: kv group %u: needs keys and values of the same heads in %llu bytes a block", desc->index,
                           (unsigned long long)desc->block_bytes);
    return 0;
}

void opencl_group_free(void *self, soq_kv_group handle)
{
    struct opencl *ocl = self;
    struct opencl_group *group = (struct opencl_group *)(uintptr_t)handle;

    if (!group)
        return;
    for (struct opencl_group **p = &ocl->groups; *p; p = &(*p)->next)
        if (*p == group) {
            *p = group->next;
            break;
        }
    opencl_mem_free(ocl, group->device_tables);
    opencl_mem_free(ocl, group->device_places);
    ocl->host->free(ocl->host->ctx, group->tables);
    ocl->host->free(ocl->host->ctx, group->places);
    ocl->host->free(ocl->host->ctx, group);
}

static int build_program(struct opencl *ocl, struct opencl_group *group, struct soq_error *err)
{
    char options[sizeof group->program->options], label[sizeof group->program->label];

    snprintf(options, sizeof options, "-DBLOCK_TOKENS=%u -DKEY_WIDTH=%u -DKEY_BYTES=%u -DVALUE_WIDTH=%u -DVALUE_BYTES=%u",
             group->block_tokens, group->key.width, group->key.bytes, group->value.width, group->value.bytes);
    snprintf(label, sizeof label, "%u/%u", group->key.width, group->value.width);
    return opencl_program(ocl, OPENCL_KV, options, label, &group->program, err);
}

static int fill_group(struct opencl *ocl, struct opencl_group *group, const struct soq_kv_group_desc *desc,
                      struct soq_error *err)
{
    size_t bytes = (size_t)ocl->params.max_slots * desc->max_blocks * sizeof *group->tables;
    int rc = take_planes(group, desc, err);

    if (!rc)
        rc = build_program(ocl, group, err);
    if (rc)
        return rc;
    group->tables = ocl->host->alloc(ocl->host->ctx, bytes, 64);
    if (!group->tables)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: block tables of kv group %u", desc->index);
    memset(group->tables, 0xff, bytes); /* SOQ_BLOCK_NONE */
    rc = opencl_mem_create(ocl, bytes, "block tables", &group->device_tables, err);
    return rc ? rc : opencl_write(ocl, group->device_tables, 0, group->tables, bytes, "block tables", err);
}

int opencl_group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err)
{
    struct opencl *ocl = self;
    struct opencl_group *group;
    int rc;

    if (desc->kind != SOQ_GROUP_FULL && desc->kind != SOQ_GROUP_WINDOW)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "opencl: kv groups of kind %u are not supported", desc->kind);
    if (!desc->block_tokens || desc->block_tokens & (desc->block_tokens - 1) || !desc->max_blocks || !desc->n_layers)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: %u tokens a block (a power of two?), %u blocks, %u layers",
                           desc->index, desc->block_tokens, desc->max_blocks, desc->n_layers);
    group = ocl->host->alloc(ocl->host->ctx, sizeof *group, 64);
    if (!group)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: kv group %u", desc->index);
    *group = (struct opencl_group){
        .index = desc->index,
        .n_layers = desc->n_layers,
        .block_tokens = desc->block_tokens,
        .max_blocks = desc->max_blocks,
        .block_bytes = desc->block_bytes,
        .next = ocl->groups,
    };
    ocl->groups = group;
    rc = fill_group(ocl, group, desc, err);
    if (rc)
        opencl_group_free(self, (soq_kv_group)(uintptr_t)group);
    else
        *group_out = (soq_kv_group)(uintptr_t)group;
    return rc;
}

/* Places for n blocks at least, here and on the device. */
static int reserve_places(struct opencl *ocl, struct opencl_group *group, uint32_t n, struct soq_error *err)
{
    uint32_t n_places = group->n_places ? group->n_places : 64;
    cl_mem device_places = NULL;
    uint64_t *places;
    int rc;

    if (n <= group->n_places)
        return 0;
    while (n_places < n)
        n_places *= 2;
    places = ocl->host->alloc(ocl->host->ctx, n_places * sizeof *places, 64);
    if (!places)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: places of %u blocks", n_places);
    rc = opencl_mem_create(ocl, n_places * sizeof *places, "places of blocks", &device_places, err);
    if (rc) {
        ocl->host->free(ocl->host->ctx, places);
        return rc;
    }
    for (uint32_t i = 0; i < n_places; i++)
        places[i] = i < group->n_places ? group->places[i] : OPENCL_NOWHERE;
    ocl->host->free(ocl->host->ctx, group->places);
    opencl_mem_free(ocl, group->device_places);
    group->places = places;
    group->device_places = device_places;
    group->n_places = n_places;
    group->places_changed = true;
    return 0;
}

/* The number by which the group's kernels know the arena, or OPENCL_ARENAS. */
static uint32_t arena_number(const struct opencl_group *group, cl_mem arena)
{
    uint32_t free_number = OPENCL_ARENAS;

    for (uint32_t i = OPENCL_ARENAS; i-- > 0;) {
        if (group->arenas[i].handle == arena)
            return i;
        if (!group->arenas[i].handle)
            free_number = i;
    }
    return free_number;
}

static void forget(struct opencl_group *group, uint32_t block)
{
    uint64_t place = group->places[block];

    if (place == OPENCL_NOWHERE)
        return;
    group->places[block] = OPENCL_NOWHERE;
    if (--group->arenas[place >> OPENCL_ARENA_SHIFT].n_blocks == 0)
        group->arenas[place >> OPENCL_ARENA_SHIFT].handle = NULL;
}

int opencl_group_slab(void *self, soq_kv_group handle, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                      soq_buffer slab, struct soq_error *err)
{
    struct opencl *ocl = self;
    struct opencl_group *group = (struct opencl_group *)(uintptr_t)handle;
    uint64_t offset = 0;
    cl_mem arena;
    uint32_t number;
    int rc;

    if (block_class != 0)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "opencl: kv group %u: block class %u is not supported", group->index,
                           block_class);
    if (first_block > SOQ_BLOCK_INDEX_MASK || n_blocks > SOQ_BLOCK_INDEX_MASK - first_block)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: %u blocks from %u on are too many", group->index, n_blocks,
                           first_block);
    rc = reserve_places(ocl, group, first_block + n_blocks, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n_blocks; i++)
        forget(group, first_block + i);
    if (!slab)
        return 0;
    arena = opencl_mem_parent(opencl_mem(slab), &offset);
    number = arena_number(group, arena);
    if (number == OPENCL_ARENAS)
        return plugin_fail(err, SOQ_ELIMIT,
                           "opencl: kv group %u: its slabs lie in more than %d pieces of memory; raise [backend.opencl] arena",
                           group->index, OPENCL_ARENAS);
    group->arenas[number].handle = arena;
    group->arenas[number].n_blocks += n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++)
        group->places[first_block + i] = (uint64_t)number << OPENCL_ARENA_SHIFT | (offset + i * group->block_bytes);
    group->places_changed = true;
    return 0;
}

int opencl_upload_places(struct opencl *ocl, struct soq_error *err)
{
    for (struct opencl_group *group = ocl->groups; group; group = group->next) {
        int rc;

        if (!group->places_changed)
            continue;
        rc = opencl_write(ocl, group->device_places, 0, group->places, group->n_places * sizeof *group->places,
                          "places of blocks", err);
        if (rc)
            return rc;
        group->places_changed = false;
    }
    return 0;
}
