/* K and V of the step's rows to their entries, in the planes' types. A tile is [tokens][width]. */
#include "cpu.h"

static void store_plane(const struct cpu_plane *plane, uint32_t layer, uint8_t *block, uint32_t place, const float *x)
{
    size_t bytes = plane->width * cpu_number_bytes(plane->format.dtype);

    for (uint32_t head = 0; head < plane->heads; head++, x += plane->width)
        cpu_narrow(plane->format.dtype, x, plane->width, block + cpu_tile_at(plane, layer, head) + place * bytes);
}

void cpu_run_kv_append(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_kv_append_args *args = &op->args.kv_append;
    const struct cpu_group *group = (const struct cpu_group *)(uintptr_t)args->group;
    const struct cpu_plane *planes = group->classes[CPU_PLAIN].planes;
    uint64_t first, last;

    cpu_share(thread, cpu->step->n_rows, &first, &last);
    for (uint64_t r = first; r < last; r++) {
        const struct soq_step_row *row = &step_rows(cpu->step)[r];
        uint8_t *block = cpu_block(group, step_seqs(cpu->step)[row->seq].slot, row->entry / group->block_tokens);
        uint32_t place = row->entry % group->block_tokens;

        store_plane(&planes[CPU_KEY], args->layer, block, place, cpu_view_row(&args->k, (uint32_t)r));
        store_plane(&planes[CPU_VALUE], args->layer, block, place, cpu_view_row(&args->v, (uint32_t)r));
    }
}
