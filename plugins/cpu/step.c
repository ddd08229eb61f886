/* begin and end: the step is copied and checked, tables are edited, blocks copied; then the recorded ops run. */
#include <string.h>

#include "cpu.h"

static struct cpu_group *find_group(struct cpu *cpu, uint32_t index)
{
    struct cpu_group *group = cpu->groups;

    while (group && group->index != index)
        group = group->next;
    return group;
}

static bool array_fits(const struct soq_step *step, uint32_t offset, uint32_t n, size_t size)
{
    return offset % 8 == 0 && offset <= step->total_bytes && n <= (step->total_bytes - offset) / size;
}

static int check_shape(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    if (step->total_bytes < sizeof *step || !array_fits(step, step->off_rows, step->n_rows, sizeof(struct soq_step_row)) ||
        !array_fits(step, step->off_seqs, step->n_seqs, sizeof(struct soq_step_seq)) ||
        !array_fits(step, step->off_segments, step->n_segments, sizeof(struct soq_step_segment)) ||
        !array_fits(step, step->off_outputs, step->n_outputs, sizeof(uint32_t)) ||
        !array_fits(step, step->off_edits, step->n_edits, sizeof(struct soq_step_edit)) ||
        !array_fits(step, step->off_copies, step->n_copies, sizeof(struct soq_step_copy)))
        return plugin_fail(err, SOQ_EINVAL, "cpu: begin: arrays of the step lie outside its %u bytes", step->total_bytes);
    if (step->n_rows > cpu->params.max_rows)
        return plugin_fail(err, SOQ_EINVAL, "cpu: begin: %u rows, the most is %u", step->n_rows, cpu->params.max_rows);
    if (!(step->flags & SOQ_STEP_LINEAR))
        return plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: begin: steps with trees of rows are not supported");
    return 0;
}

static int check_segments(const struct soq_step *step, const struct soq_step_seq *seq, struct soq_error *err)
{
    const struct soq_step_segment *segments = cpu_segments(step) + seq->first_segment;

    for (uint32_t i = 0; i < seq->n_segments; i++)
        if (segments[i].flags)
            return plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: begin: segments with positions or rotation are not supported");
        else if (segments[i].n_entries > UINT32_MAX - segments[i].first_entry)
            return plugin_fail(err, SOQ_EINVAL, "cpu: begin: a segment of %u entries at %u", segments[i].n_entries,
                               segments[i].first_entry);
    return 0;
}

static int check_rows(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_seq *seqs = cpu_seqs(step);
    const uint32_t *outputs = cpu_outputs(step);
    int rc;

    for (uint32_t i = 0; i < step->n_seqs; i++) {
        if (seqs[i].slot >= cpu->params.max_slots || seqs[i].first_row > step->n_rows ||
            seqs[i].n_rows > step->n_rows - seqs[i].first_row || seqs[i].first_segment > step->n_segments ||
            seqs[i].n_segments > step->n_segments - seqs[i].first_segment)
            return plugin_fail(err, SOQ_EINVAL, "cpu: begin: sequence %u (slot %u) lies outside the step", i, seqs[i].slot);
        rc = check_segments(step, &seqs[i], err);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < step->n_rows; i++)
        if (cpu_rows(step)[i].seq >= step->n_seqs)
            return plugin_fail(err, SOQ_EINVAL, "cpu: begin: row %u belongs to no sequence", i);
    for (uint32_t i = 0; i < step->n_outputs; i++)
        if (outputs[i] >= step->n_rows)
            return plugin_fail(err, SOQ_EINVAL, "cpu: begin: output %u names row %u of %u", i, outputs[i], step->n_rows);
    return 0;
}

static int apply_edits(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_edit *edits = (const struct soq_step_edit *)((const uint8_t *)step + step->off_edits);

    for (uint32_t i = 0; i < step->n_edits; i++) {
        struct cpu_group *group = find_group(cpu, edits[i].group);

        if (!group)
            continue; /* another backend's */
        if (edits[i].slot >= cpu->params.max_slots || edits[i].index >= group->max_blocks)
            return plugin_fail(err, SOQ_EINVAL, "cpu: begin: edit %u names group %u, slot %u, index %u", i, edits[i].group,
                               edits[i].slot, edits[i].index);
        group->tables[(size_t)edits[i].slot * group->max_blocks + edits[i].index] = edits[i].block;
    }
    return 0;
}

/* The first n entries of every tile. */
static void copy_plane(const struct cpu_group *group, const struct cpu_plane *plane, uint32_t n, const uint8_t *src,
                       uint8_t *dst)
{
    uint64_t bytes = plane->tile_bytes / group->block_tokens * n;

    for (uint64_t tile = 0; tile < (uint64_t)group->n_layers * plane->heads; tile++)
        memcpy(dst + plane->offset + tile * plane->tile_bytes, src + plane->offset + tile * plane->tile_bytes, bytes);
}

static int do_copies(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_copy *copies = (const struct soq_step_copy *)((const uint8_t *)step + step->off_copies);

    for (uint32_t i = 0; i < step->n_copies; i++) {
        const struct cpu_group *group = find_group(cpu, copies[i].group);
        const struct soq_step_copy *copy = &copies[i];

        if (!group)
            continue;
        if (copy->src >= group->n_blocks || copy->dst >= group->n_blocks || !group->blocks[copy->src] ||
            !group->blocks[copy->dst] || copy->n_tokens > group->block_tokens)
            return plugin_fail(err, SOQ_EINVAL, "cpu: begin: copy %u of block %x to %x in group %u", i, copy->src, copy->dst,
                               copy->group);
        if (copy->src == copy->dst)
            continue;
        copy_plane(group, &group->key, copy->n_tokens, group->blocks[copy->src], group->blocks[copy->dst]);
        copy_plane(group, &group->value, copy->n_tokens, group->blocks[copy->src], group->blocks[copy->dst]);
    }
    return 0;
}

/* Room for the step; grows with the largest step seen. */
static int keep_step(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_host *host = cpu->host;

    if (step->total_bytes > cpu->step_capacity) {
        uint64_t capacity = (uint64_t)step->total_bytes * 2;
        uint8_t *bytes = host->alloc(host->ctx, capacity, 64);

        if (!bytes)
            return plugin_fail(err, SOQ_ENOMEM, "cpu: begin: out of memory: a step of %u bytes", step->total_bytes);
        host->free(host->ctx, cpu->step_bytes);
        cpu->step_bytes = bytes;
        cpu->step_capacity = capacity < UINT32_MAX ? (uint32_t)capacity : UINT32_MAX;
    }
    memcpy(cpu->step_bytes, step, step->total_bytes);
    cpu->step = (const struct soq_step *)cpu->step_bytes;
    return 0;
}

int cpu_begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    struct cpu *cpu = self;
    int rc = check_shape(cpu, step, err);

    cpu->step = NULL;
    cpu->n_ops = 0;
    cpu->failed = 0;
    if (!rc)
        rc = check_rows(cpu, step, err);
    if (!rc)
        rc = apply_edits(cpu, step, err);
    if (!rc)
        rc = do_copies(cpu, step, err);
    if (!rc)
        rc = keep_step(cpu, step, err);
    for (struct cpu_group *group = cpu->groups; group; group = group->next)
        group->checked = false;
    return rc;
}

int cpu_end(void *self, struct soq_error *err)
{
    struct cpu *cpu = self;

    if (!cpu->step)
        return plugin_fail(err, SOQ_EINVAL, "cpu: end without begin");
    cpu_run(cpu);
    cpu->step = NULL;
    cpu->n_ops = 0;
    if (cpu->failed)
        return plugin_fail(err, (enum soq_error_code) - cpu->failed, "%s", cpu->error.text);
    return 0;
}
