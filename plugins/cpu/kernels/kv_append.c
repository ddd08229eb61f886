/* K and V of the step's rows to their entries, in the planes' types. A tile is [tokens][width]. */
#include "cpu.h"
#include "simd/vec.h"

static void store_plane(const struct cpu_plane *plane, uint32_t layer, uint8_t *block, uint32_t place, const float *x)
{
    size_t size = plane->dtype == SOQ_DTYPE_F32 ? 4 : 2;

    for (uint32_t head = 0; head < plane->heads; head++, x += plane->width) {
        uint8_t *out = block + plane->offset + ((uint64_t)layer * plane->heads + head) * plane->tile_bytes +
                       (size_t)place * plane->width * size;
        uint32_t i = 0;

        if (plane->dtype == SOQ_DTYPE_F32) {
            memcpy(out, x, plane->width * sizeof(float));
            continue;
        }
        for (; i + 8 <= plane->width; i += 8)
            f32x8_to_f16(out + i * 2, f32x8_load(x + i));
        if (i < plane->width) {
            uint16_t rest[8];

            f32x8_to_f16(rest, f32x8_load_n(x + i, plane->width - i));
            memcpy(out + i * 2, rest, (plane->width - i) * sizeof rest[0]);
        }
    }
}

void cpu_run_kv_append(struct cpu *cpu, const struct cpu_op *op, const struct cpu_thread *thread)
{
    const struct soq_kv_append_args *args = &op->args.kv_append;
    const struct cpu_group *group = (const struct cpu_group *)(uintptr_t)args->group;
    uint64_t first, last;

    cpu_share(thread, cpu->step->n_rows, &first, &last);
    for (uint64_t r = first; r < last; r++) {
        const struct soq_step_row *row = &step_rows(cpu->step)[r];
        uint8_t *block = cpu_block(group, step_seqs(cpu->step)[row->seq].slot, row->entry / group->block_tokens);
        uint32_t place = row->entry % group->block_tokens;

        store_plane(&group->key, args->layer, block, place, cpu_view_row(&args->k, (uint32_t)r));
        store_plane(&group->value, args->layer, block, place, cpu_view_row(&args->v, (uint32_t)r));
    }
}
