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

/* A plane of class 0: numbers as they are. */
static int take_plain(const struct soq_kv_group_desc *desc, const struct soq_kv_plane *plane, struct soq_error *err)
{
    uint32_t dtype = plane->format.dtype, size = dtype == SOQ_DTYPE_F32 ? 4 : 2;

    if (plane->format.kind != SOQ_FORMAT_PLAIN || (dtype != SOQ_DTYPE_F32 && dtype != SOQ_DTYPE_F16 && dtype != SOQ_DTYPE_BF16))
        return plugin_fail(err, SOQ_EUNSUPPORTED,
                           "opencl: kv group %u: planes must be plain F32, F16 or BF16, not kind %u of type %u", desc->index,
                           plane->format.kind, dtype);
    if (plane->alias >= 0 || plane->tokens_per_entry != 1 || plane->format.rotation)
        return plugin_fail(err, SOQ_EUNSUPPORTED,
                           "opencl: kv group %u: aliases, several tokens per entry and rotations are not supported",
                           desc->index);
    if (!plane->heads || !plane->width || plane->format.tile_bytes < (uint64_t)desc->block_tokens * plane->width * size)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: tiles of %llu bytes for %u x %u", desc->index,
                           (unsigned long long)plane->format.tile_bytes, desc->block_tokens, plane->width);
    return 0;
}

static const struct soq_kv_plane *plane_at(const struct soq_kv_group_desc *desc, const struct soq_kv_plane *planes, uint32_t i)
{
    return (const struct soq_kv_plane *)((const uint8_t *)planes + (size_t)i * desc->plane_stride);
}

static struct opencl_plane plane_of(const struct soq_kv_plane *plane, uint64_t offset)
{
    return (struct opencl_plane){
        .heads = plane->heads,
        .width = plane->width,
        .bytes = plane->format.dtype == SOQ_DTYPE_F32 ? 4 : 2,
        .offset = offset,
        .tile_bytes = plane->format.tile_bytes,
        .format = plane->format,
    };
}

static int take_planes(struct opencl_group *group, const struct soq_kv_group_desc *desc, struct soq_error *err)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < desc->n_planes; i++) {
        const struct soq_kv_plane *plane = plane_at(desc, desc->planes, i);
        int rc;

        if (plane->role != SOQ_PLANE_KEY && plane->role != SOQ_PLANE_VALUE)
            return plugin_fail(err, SOQ_EUNSUPPORTED, "opencl: kv group %u: plane role %u is not supported", desc->index,
                               plane->role);
        rc = take_plain(desc, plane, err);
        if (rc)
            return rc;
        *(plane->role == SOQ_PLANE_KEY ? &group->key : &group->value) = plane_of(plane, offset);
        offset += plane->format.tile_bytes * desc->n_layers * plane->heads;
    }
    if (!group->key.heads || group->key.heads != group->value.heads || offset > desc->block_bytes)
        return plugin_fail(err, SOQ_EINVAL,
                           "opencl: kv group %u: needs keys and values of the same heads in %llu bytes a block", desc->index,
                           (unsigned long long)desc->block_bytes);
    return 0;
}

static bool has_coder(const struct soq_kv_group_desc *desc, uint32_t plane)
{
    const struct soq_kv_coder *coder = desc->coders ? &desc->coders[plane] : NULL;

    return coder && coder->ops && coder->ops->encode && coder->ops->decode;
}

/* The same planes in blocks of class 1. */
static int take_packed(struct opencl_group *group, const struct soq_kv_group_desc *desc, struct soq_error *err)
{
    uint64_t offset = 0;

    for (uint32_t i = 0; i < desc->n_planes && desc->packed; i++) {
        const struct soq_kv_plane *plane = plane_at(desc, desc->packed, i);
        const struct opencl_plane *plain = plane->role == SOQ_PLANE_KEY ? &group->key : &group->value;
        struct opencl_plane *packed = plane->role == SOQ_PLANE_KEY ? &group->packed_key : &group->packed_value;
        int rc;

        if (plane->role != plane_at(desc, desc->planes, i)->role || plane->heads != plain->heads ||
            plane->width != plain->width)
            return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: packed plane %u is another one than the plain one",
                               desc->index, i);
        if (!has_coder(desc, i))
            return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: packed plane %u has no coder that encodes and decodes",
                               desc->index, i);
        *packed = plane_of(plane, offset);
        packed->coder = desc->coders[i];
        packed->decoded = !opencl_format_fused(&plane->format, plane->width);
        rc = opencl_format_check(group, packed, plane->role, err);
        if (rc)
            return rc;
        offset += plane->format.tile_bytes * desc->n_layers * plane->heads;
    }
    if (desc->packed && (offset == 0 || offset > desc->packed_bytes))
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: packed planes need %llu bytes, a block has %llu", desc->index,
                           (unsigned long long)offset, (unsigned long long)desc->packed_bytes);
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
    opencl_mem_free(ocl, group->own.device_places);
    opencl_mem_free(ocl, group->format_tables);
    ocl->host->free(ocl->host->ctx, group->tables);
    ocl->host->free(ocl->host->ctx, group->own.places);
    ocl->host->free(ocl->host->ctx, group);
}

static int build_program(struct opencl *ocl, struct opencl_group *group, struct soq_error *err)
{
    char options[sizeof group->program->options], label[sizeof group->program->label];

    opencl_format_options(group, options, sizeof options);
    snprintf(label, sizeof label, "%u/%u", group->key.width, group->value.width);
    return opencl_program(ocl, OPENCL_KV, options, label, &group->program, err);
}

static bool same_plane(const struct opencl_plane *a, const struct opencl_plane *b)
{
    return a->heads == b->heads && a->width == b->width && a->format.kind == b->format.kind &&
           a->format.dtype == b->format.dtype && a->offset == b->offset && a->tile_bytes == b->tile_bytes;
}

/* Slabs of its own, or those of a group of the same shape. */
static int take_storage(struct opencl_group *group, const struct soq_kv_group_desc *desc, struct soq_error *err)
{
    const struct opencl_group *owner = (const struct opencl_group *)(uintptr_t)desc->storage;

    group->storage = owner ? owner->storage : &group->own;
    if (owner && (!same_plane(&group->key, &owner->key) || !same_plane(&group->value, &owner->value) ||
                  !same_plane(&group->packed_key, &owner->packed_key) ||
                  !same_plane(&group->packed_value, &owner->packed_value) || group->block_tokens != owner->block_tokens ||
                  group->block_bytes != owner->block_bytes || group->packed_bytes != owner->packed_bytes))
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: its storage, group %u, has blocks of another shape",
                           group->index, owner->index);
    return 0;
}

static int fill_group(struct opencl *ocl, struct opencl_group *group, const struct soq_kv_group_desc *desc,
                      struct soq_error *err)
{
    size_t bytes = (size_t)ocl->params.max_slots * desc->max_blocks * sizeof *group->tables;
    int rc = take_planes(group, desc, err);

    if (!rc)
        rc = take_packed(group, desc, err);
    if (!rc)
        rc = take_storage(group, desc, err);
    if (!rc)
        rc = opencl_format_tables(ocl, group, err);
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
        .packed_bytes = desc->packed ? desc->packed_bytes : 0,
        .layers = desc->layers,
        .first_head = desc->first_head,
        .next = ocl->groups,
    };
    ocl->groups = group;
    ocl->serial = 0; /* no step has told this group anything */
    rc = fill_group(ocl, group, desc, err);
    if (rc)
        opencl_group_free(self, (soq_kv_group)(uintptr_t)group);
    else
        *group_out = (soq_kv_group)(uintptr_t)group;
    return rc;
}

/* Places for n blocks of each class at least, here and on the device. */
static int reserve_places(struct opencl *ocl, struct opencl_storage *storage, uint32_t n, struct soq_error *err)
{
    uint32_t n_places = storage->n_places ? storage->n_places : 64;
    cl_mem device_places = NULL;
    uint64_t(*places)[2];
    int rc;

    if (n <= storage->n_places)
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
        for (int c = 0; c < 2; c++)
            places[i][c] = i < storage->n_places ? storage->places[i][c] : OPENCL_NOWHERE;
    ocl->host->free(ocl->host->ctx, storage->places);
    opencl_mem_free(ocl, storage->device_places);
    storage->places = places;
    storage->device_places = device_places;
    storage->n_places = n_places;
    storage->changed = true;
    return 0;
}

/* The number by which kernels know the arena, or OPENCL_ARENAS. */
static uint32_t arena_number(const struct opencl_storage *storage, cl_mem arena)
{
    uint32_t free_number = OPENCL_ARENAS;

    for (uint32_t i = OPENCL_ARENAS; i-- > 0;) {
        if (storage->arenas[i].handle == arena)
            return i;
        if (!storage->arenas[i].handle)
            free_number = i;
    }
    return free_number;
}

static void forget(struct opencl_storage *storage, uint32_t block_class, uint32_t block)
{
    uint64_t place = storage->places[block][block_class];

    if (place == OPENCL_NOWHERE)
        return;
    storage->places[block][block_class] = OPENCL_NOWHERE;
    if (--storage->arenas[place >> OPENCL_ARENA_SHIFT].n_blocks == 0)
        storage->arenas[place >> OPENCL_ARENA_SHIFT].handle = NULL;
}

int opencl_group_slab(void *self, soq_kv_group handle, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                      soq_buffer slab, struct soq_error *err)
{
    struct opencl *ocl = self;
    struct opencl_group *group = (struct opencl_group *)(uintptr_t)handle;
    struct opencl_storage *storage = group->storage;
    uint64_t offset = 0, block_bytes = block_class ? group->packed_bytes : group->block_bytes;
    cl_mem arena;
    uint32_t number;
    int rc;

    if (storage != &group->own)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: slabs go to the group whose storage it shares", group->index);
    if (block_class > 1 || !block_bytes)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u has no blocks of class %u", group->index, block_class);
    if (first_block > SOQ_BLOCK_INDEX_MASK || n_blocks > SOQ_BLOCK_INDEX_MASK - first_block)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: %u blocks from %u on are too many", group->index, n_blocks,
                           first_block);
    rc = reserve_places(ocl, storage, first_block + n_blocks, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n_blocks; i++)
        forget(storage, block_class, first_block + i);
    if (!slab)
        return 0;
    arena = opencl_mem_parent(opencl_mem(slab), &offset);
    number = arena_number(storage, arena);
    if (number == OPENCL_ARENAS)
        return plugin_fail(err, SOQ_ELIMIT,
                           "opencl: kv group %u: its slabs lie in more than %d pieces of memory; raise [backend.opencl] arena",
                           group->index, OPENCL_ARENAS);
    storage->arenas[number].handle = arena;
    storage->arenas[number].n_blocks += n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++)
        storage->places[first_block + i][block_class] = (uint64_t)number << OPENCL_ARENA_SHIFT | (offset + i * block_bytes);
    storage->changed = true;
    return 0;
}

bool opencl_has_block(const struct opencl_group *group, soq_block_ref block)
{
    uint32_t index = block & SOQ_BLOCK_INDEX_MASK;

    return opencl_class(block) <= 1 && index < group->storage->n_places &&
           group->storage->places[index][opencl_class(block)] != OPENCL_NOWHERE;
}

cl_mem opencl_block_mem(const struct opencl_group *group, soq_block_ref block, uint64_t *offset_out)
{
    uint64_t place = group->storage->places[block & SOQ_BLOCK_INDEX_MASK][opencl_class(block)];

    *offset_out = place & (((uint64_t)1 << OPENCL_ARENA_SHIFT) - 1);
    return group->storage->arenas[place >> OPENCL_ARENA_SHIFT].handle;
}

int opencl_upload_places(struct opencl *ocl, struct soq_error *err)
{
    for (struct opencl_group *group = ocl->groups; group; group = group->next) {
        struct opencl_storage *storage = &group->own;
        int rc;

        if (!storage->changed)
            continue;
        rc = opencl_write(ocl, storage->device_places, 0, storage->places, storage->n_places * sizeof *storage->places,
                          "places of blocks", err);
        if (rc)
            return rc;
        storage->changed = false;
    }
    return 0;
}
