/* begin and end: the step is checked and uploaded, tables are edited and blocks copied on the device; then ops run as they
 * come. */
#include "opencl.h"

#include <string.h>

static bool holds(void *self, uint32_t group)
{
    return opencl_find_group(self, group);
}

static int check_step(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    const struct plugin_step_rules rules = {
        .plugin = "opencl",
        .max_rows = ocl->params.max_rows,
        .max_slots = ocl->params.max_slots,
        .segment_flags = SOQ_SEGMENT_ROTATE | SOQ_SEGMENT_ROLLING,
        .holds = holds,
        .self = ocl,
    };

    return step_check(&rules, step, err);
}

/* Checks all edits of groups that are here and applies them to the tables of this side. */
static int note_edits(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_edit *edits = step_edits(step);

    for (uint32_t i = 0; i < step->n_edits; i++) {
        struct opencl_group *group = opencl_find_group(ocl, edits[i].group);

        if (group && (edits[i].slot >= ocl->params.max_slots || edits[i].index >= group->max_blocks))
            return plugin_fail(err, SOQ_EINVAL, "opencl: begin: edit %u names group %u, slot %u, index %u", i, edits[i].group,
                               edits[i].slot, edits[i].index);
    }
    for (uint32_t i = 0; i < step->n_edits; i++) {
        struct opencl_group *group = opencl_find_group(ocl, edits[i].group);

        if (group)
            group->tables[(size_t)edits[i].slot * group->max_blocks + edits[i].index] = edits[i].block;
    }
    return 0;
}

static int check_copies(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_copy *copies = step_copies(step);

    for (uint32_t i = 0; i < step->n_copies; i++) {
        const struct opencl_group *group = opencl_find_group(ocl, copies[i].group);

        if (group && (!opencl_has_block(group, copies[i].src) || !opencl_has_block(group, copies[i].dst) ||
                      opencl_class(copies[i].src) || opencl_class(copies[i].dst) || copies[i].n_tokens > group->block_tokens))
            return plugin_fail(err, SOQ_EINVAL, "opencl: begin: copy %u of block %x to %x in group %u", i, copies[i].src,
                               copies[i].dst, copies[i].group);
    }
    return 0;
}

/* Room for the step here and on the device; grows with the largest step seen. */
static int reserve_step(struct opencl *ocl, uint32_t total_bytes, struct soq_error *err)
{
    uint64_t capacity = (uint64_t)total_bytes * 2;
    cl_mem device_step = NULL;
    uint8_t *bytes;
    int rc;

    if (total_bytes <= ocl->step_capacity)
        return 0;
    bytes = ocl->host->alloc(ocl->host->ctx, capacity, 64);
    if (!bytes)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: begin: out of memory: a step of %u bytes", total_bytes);
    rc = opencl_mem_create(ocl, capacity, "a step", &device_step, err);
    if (rc) {
        ocl->host->free(ocl->host->ctx, bytes);
        return rc;
    }
    ocl->host->free(ocl->host->ctx, ocl->step_bytes);
    opencl_mem_free(ocl, ocl->device_step);
    ocl->step_bytes = bytes;
    ocl->device_step = device_step;
    ocl->step_capacity = capacity < UINT32_MAX ? (uint32_t)capacity : UINT32_MAX;
    return 0;
}

static void edit_tables(struct opencl *ocl, const struct soq_step *step)
{
    for (struct opencl_group *group = ocl->groups; group && step->n_edits && !ocl->failed; group = group->next) {
        struct opencl_call call = opencl_call(ocl, 0, ocl->ops, OPENCL_K_edit_table);

        opencl_arg_mem(&call, ocl->device_step);
        opencl_arg_u32(&call, group->index);
        opencl_arg_mem(&call, group->device_tables);
        opencl_arg_u32(&call, group->max_blocks);
        opencl_launch_items(&call, step->n_edits, 1);
    }
}

static void copy_plane(struct opencl *ocl, const struct opencl_group *group, const struct opencl_plane *plane,
                       const struct soq_step_copy *copy)
{
    struct opencl_call call = opencl_call(ocl, 0, group->program, OPENCL_K_copy_block);
    uint32_t n = copy->n_tokens * plane->width * plane->bytes / 2;

    opencl_arg_mem(&call, group->storage->device_places);
    opencl_arg_arenas(&call, group);
    opencl_arg_u32(&call, copy->src);
    opencl_arg_u32(&call, copy->dst);
    opencl_arg_u64(&call, plane->offset);
    opencl_arg_u64(&call, plane->tile_bytes);
    opencl_arg_u32(&call, n);
    opencl_launch_items(&call, n, (uint64_t)group->n_layers * plane->heads);
}

static void copy_blocks(struct opencl *ocl, const struct soq_step *step)
{
    const struct soq_step_copy *copies = step_copies(step);

    for (uint32_t i = 0; i < step->n_copies && !ocl->failed; i++) {
        const struct opencl_group *group = opencl_find_group(ocl, copies[i].group);

        if (!group || copies[i].src == copies[i].dst)
            continue;
        copy_plane(ocl, group, &group->key, &copies[i]);
        copy_plane(ocl, group, &group->value, &copies[i]);
    }
}

/* The step and what belongs to it, to the device; then its edits and copies there. */
static int take_step(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    int rc = check_copies(ocl, step, err);

    if (!rc)
        rc = reserve_step(ocl, step->total_bytes, err);
    if (!rc)
        rc = opencl_upload_places(ocl, err);
    if (!rc)
        rc = opencl_upload_lines(ocl, step, err);
    if (!rc)
        rc = note_edits(ocl, step, err);
    if (!rc) {
        memcpy(ocl->step_bytes, step, step->total_bytes);
        rc = opencl_write(ocl, ocl->device_step, 0, ocl->step_bytes, step->total_bytes, "begin: the step", err);
    }
    if (rc)
        return rc;
    edit_tables(ocl, step);
    copy_blocks(ocl, step);
    if (ocl->failed)
        *err = ocl->error;
    for (struct opencl_group *group = ocl->groups; group; group = group->next)
        group->surveyed = false;
    return ocl->failed;
}

int opencl_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    struct opencl *ocl = self;
    int rc = check_step(ocl, step, err);

    ocl->step = NULL;
    ocl->failed = 0;
    if (!rc && step->serial != ocl->serial) { /* else it comes back from another backend */
        ocl->serial = 0;
        rc = take_step(ocl, step, err);
    }
    if (rc)
        return rc;
    ocl->serial = step->serial;
    ocl->step = (const struct soq_step *)ocl->step_bytes;
    return 0;
}

int opencl_end(void *self, struct soq_error *err)
{
    struct opencl *ocl = self;
    cl_int status;

    if (!ocl->step)
        return plugin_fail(err, SOQ_EINVAL, "opencl: end without begin");
    status = opencl_finish(ocl);
    ocl->step = NULL;
    if (ocl->failed)
        return plugin_fail(err, (enum soq_error_code) - ocl->failed, "%s", ocl->error.text);
    if (status != CL_SUCCESS)
        return plugin_fail(err, SOQ_EDEVICE, "opencl: end: %s failed while it computed: %s", ocl->device_name,
                           opencl_status_name(status));
    return 0;
}
