/* begin and end: the step is checked and uploaded, tables are edited and blocks copied on the device; then ops run as they
 * come. */
#include "opencl.h"

#include <string.h>

static bool array_fits(const struct soq_step *step, uint32_t offset, uint32_t n, size_t size)
{
    return offset % 8 == 0 && offset <= step->total_bytes && n <= (step->total_bytes - offset) / size;
}

static int check_shape(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    if (step->total_bytes < sizeof *step || !array_fits(step, step->off_rows, step->n_rows, sizeof(struct soq_step_row)) ||
        !array_fits(step, step->off_seqs, step->n_seqs, sizeof(struct soq_step_seq)) ||
        !array_fits(step, step->off_segments, step->n_segments, sizeof(struct soq_step_segment)) ||
        !array_fits(step, step->off_outputs, step->n_outputs, sizeof(uint32_t)) ||
        !array_fits(step, step->off_edits, step->n_edits, sizeof(struct soq_step_edit)) ||
        !array_fits(step, step->off_copies, step->n_copies, sizeof(struct soq_step_copy)))
        return plugin_fail(err, SOQ_EINVAL, "opencl: begin: arrays of the step lie outside its %u bytes", step->total_bytes);
    if (step->n_rows > ocl->params.max_rows)
        return plugin_fail(err, SOQ_EINVAL, "opencl: begin: %u rows, the most is %u", step->n_rows, ocl->params.max_rows);
    if (!(step->flags & SOQ_STEP_LINEAR))
        return plugin_fail(err, SOQ_EUNSUPPORTED, "opencl: begin: steps with trees of rows are not supported");
    return 0;
}

static int check_segments(const struct soq_step *step, const struct soq_step_seq *seq, struct soq_error *err)
{
    const struct soq_step_segment *segments = opencl_segments(step) + seq->first_segment;

    for (uint32_t i = 0; i < seq->n_segments; i++)
        if (segments[i].flags)
            return plugin_fail(err, SOQ_EUNSUPPORTED, "opencl: begin: segments with positions or rotation are not supported");
        else if (segments[i].n_entries > UINT32_MAX - segments[i].first_entry)
            return plugin_fail(err, SOQ_EINVAL, "opencl: begin: a segment of %u entries at %u", segments[i].n_entries,
                               segments[i].first_entry);
    return 0;
}

static int check_rows(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_seq *seqs = opencl_seqs(step);
    const uint32_t *outputs = opencl_outputs(step);
    int rc;

    for (uint32_t i = 0; i < step->n_seqs; i++) {
        if (seqs[i].slot >= ocl->params.max_slots || seqs[i].first_row > step->n_rows ||
            seqs[i].n_rows > step->n_rows - seqs[i].first_row || seqs[i].first_segment > step->n_segments ||
            seqs[i].n_segments > step->n_segments - seqs[i].first_segment)
            return plugin_fail(err, SOQ_EINVAL, "opencl: begin: sequence %u (slot %u) lies outside the step", i, seqs[i].slot);
        rc = check_segments(step, &seqs[i], err);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < step->n_rows; i++)
        if (opencl_rows(step)[i].seq >= step->n_seqs)
            return plugin_fail(err, SOQ_EINVAL, "opencl: begin: row %u belongs to no sequence", i);
    for (uint32_t i = 0; i < step->n_outputs; i++)
        if (outputs[i] >= step->n_rows)
            return plugin_fail(err, SOQ_EINVAL, "opencl: begin: output %u names row %u of %u", i, outputs[i], step->n_rows);
    return 0;
}

/* Checks all edits of groups that are here and applies them to the tables of this side. */
static int note_edits(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_edit *edits = opencl_edits(step);

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

static bool has_block(const struct opencl_group *group, soq_block_ref block)
{
    return block < group->n_places && group->places[block] != OPENCL_NOWHERE;
}

static int check_copies(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_copy *copies = opencl_copies(step);

    for (uint32_t i = 0; i < step->n_copies; i++) {
        const struct opencl_group *group = opencl_find_group(ocl, copies[i].group);

        if (group &&
            (!has_block(group, copies[i].src) || !has_block(group, copies[i].dst) || copies[i].n_tokens > group->block_tokens))
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

    opencl_arg_mem(&call, group->device_places);
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
    const struct soq_step_copy *copies = opencl_copies(step);

    for (uint32_t i = 0; i < step->n_copies && !ocl->failed; i++) {
        const struct opencl_group *group = opencl_find_group(ocl, copies[i].group);

        if (!group || copies[i].src == copies[i].dst)
            continue;
        copy_plane(ocl, group, &group->key, &copies[i]);
        copy_plane(ocl, group, &group->value, &copies[i]);
    }
}

static uint32_t count_splits(const struct soq_step *step)
{
    uint32_t last = 0;

    for (uint32_t i = 0; i < step->n_rows; i++)
        last = opencl_rows(step)[i].entry > last ? opencl_rows(step)[i].entry : last;
    return last / OPENCL_SPLIT + 1;
}

int opencl_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    struct opencl *ocl = self;
    int rc = check_shape(ocl, step, err);

    ocl->step = NULL;
    ocl->failed = 0;
    if (!rc)
        rc = check_rows(ocl, step, err);
    if (!rc)
        rc = check_copies(ocl, step, err);
    if (!rc)
        rc = reserve_step(ocl, step->total_bytes, err);
    if (!rc)
        rc = opencl_upload_places(ocl, err);
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
    if (ocl->failed) {
        *err = ocl->error;
        return ocl->failed;
    }
    for (struct opencl_group *group = ocl->groups; group; group = group->next)
        group->checked = false;
    ocl->n_splits = count_splits(step);
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
