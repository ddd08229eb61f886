/* begin and end: the step is copied and checked, tables are edited, blocks copied; then the recorded ops run.
 *
 * Groups that are not here are another backend's, and so is whatever the step says of them. */
#include <string.h>

#include "cpu.h"

static struct cpu_group *find_group(struct cpu *cpu, uint32_t index)
{
    struct cpu_group *group = cpu->groups;

    while (group && group->index != index)
        group = group->next;
    return group;
}

static bool holds(void *self, uint32_t group)
{
    return find_group(self, group);
}

static int check_step(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    const struct plugin_step_rules rules = {
        .plugin = "cpu",
        .max_rows = cpu->params.max_rows,
        .max_slots = cpu->params.max_slots,
        .segment_flags = SOQ_SEGMENT_ROTATE | SOQ_SEGMENT_ROLLING,
        .holds = holds,
        .self = cpu,
    };

    return step_check(&rules, step, err);
}

static int apply_edits(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_edit *edits = step_edits(step);

    for (uint32_t i = 0; i < step->n_edits; i++) {
        struct cpu_group *group = find_group(cpu, edits[i].group);

        if (!group)
            continue;
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
    uint64_t bytes = plane->width * cpu_number_bytes(plane->format.dtype) * n, tile_bytes = plane->format.tile_bytes;

    for (uint64_t tile = 0; tile < (uint64_t)group->n_layers * plane->heads; tile++)
        memcpy(dst + plane->offset + tile * tile_bytes, src + plane->offset + tile * tile_bytes, bytes);
}

/* Packed blocks are never written, so never copied on write. */
static int do_copies(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    const struct soq_step_copy *copies = step_copies(step);

    for (uint32_t i = 0; i < step->n_copies; i++) {
        const struct cpu_group *group = find_group(cpu, copies[i].group);
        const struct soq_step_copy *copy = &copies[i];
        const uint8_t *src;
        uint8_t *dst;

        if (!group || copy->src == copy->dst)
            continue;
        src = cpu_block_at(group, copy->src);
        dst = cpu_block_at(group, copy->dst);
        if (!src || !dst || copy->n_tokens > group->block_tokens || (copy->src | copy->dst) >> SOQ_BLOCK_CLASS_SHIFT)
            return plugin_fail(err, SOQ_EINVAL, "cpu: begin: copy %u of block %x to %x in group %u", i, copy->src, copy->dst,
                               copy->group);
        for (uint32_t side = 0; side < CPU_SIDES; side++)
            copy_plane(group, &group->classes[CPU_PLAIN].planes[side], copy->n_tokens, src, dst);
    }
    return 0;
}

static int update_groups(struct cpu *cpu, const struct soq_step *step, struct soq_error *err)
{
    int rc = apply_edits(cpu, step, err);

    return rc ? rc : do_copies(cpu, step, err);
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
    int rc = check_step(cpu, step, err);

    cpu->step = NULL;
    cpu->n_ops = 0;
    cpu->failed = 0;
    if (!rc && step->serial != cpu->serial) /* else it comes back from another backend */
        rc = update_groups(cpu, step, err);
    if (!rc)
        rc = keep_step(cpu, step, err);
    cpu->serial = rc ? 0 : step->serial;
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
