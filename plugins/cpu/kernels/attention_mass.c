/* Attention mass: probabilities as whole multiples of 1 / SOQ_MASS_ONE, added up. Integers, so that neither the order of
 * threads nor that of rows shows. */
#include <math.h>

#include "kernels/attention.h"

typedef double f64x8 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));

/* 2^52 + 2^51: added to a number of less magnitude it leaves the nearest integer in the low bits. */
static const double ROUND = 0x1.8p52;

static uint64_t *line_of(const struct soq_attention_args *args, uint32_t line, uint32_t head)
{
    return (uint64_t *)((uintptr_t)args->mass + args->mass_offset) +
           ((uint64_t)(line - 1) * args->n_kv_heads + head) * args->mass_stride;
}

/* ---- Zeros --------------------------------------------------------------------------------------------------------------- */

static void clear_line(const struct cpu *cpu, const struct soq_attention_args *args, const struct soq_step_seq *seq,
                       uint64_t *line)
{
    const struct cpu_group *group = (const struct cpu_group *)(uintptr_t)args->group;

    for (uint32_t s = 0; s < seq->n_segments; s++) {
        const struct soq_step_segment *segment = &step_segments(cpu->step)[seq->first_segment + s];

        if (segment->group == group->index)
            memset(line + segment->first_entry, 0, segment->n_entries * sizeof *line);
    }
}

void cpu_mass_clear(const struct cpu *cpu, const struct soq_attention_args *args, const struct cpu_thread *thread)
{
    const struct soq_step_row *rows = step_rows(cpu->step);
    uint32_t last = 0;

    for (uint32_t r = 0; r < cpu->step->n_rows; r++) {
        if (rows[r].mass_line == last)
            continue;
        last = rows[r].mass_line;
        for (uint32_t h = thread->index; h < args->n_kv_heads && last; h += thread->count)
            clear_line(cpu, args, &step_seqs(cpu->step)[rows[r].seq], line_of(args, last, h));
    }
}

/* ---- Sums ---------------------------------------------------------------------------------------------------------------- */

/* What weight 1 of a slot counts for each query: 0 where it saw nothing or where its mass is not for this line. */
static uint32_t factors_of(const struct item *item, const float *tops, uint32_t line, float factors[QUERIES],
                           uint32_t queries[QUERIES])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < item->n; i++) {
        if (item->rows[i]->mass_line != line || tops[i] == -INFINITY)
            continue;
        factors[n] = exp2_of1(tops[i] - item->whole.max[i]) * item->shares[i] * (float)SOQ_MASS_ONE;
        queries[n++] = i;
    }
    return n;
}

/* Entries [from, end) of a split; `from` is a multiple of 8. */
static void add_slot(const struct item *item, const float *slot, uint32_t line, uint64_t *out, uint32_t from, uint32_t end)
{
    float factors[QUERIES];
    uint32_t queries[QUERIES], n = factors_of(item, slot, line, factors, queries);

    for (uint32_t t = from; t < end && n; t += 8) {
        u64x8 sum = {0};

        for (uint32_t i = 0; i < n; i++) {
            f32x8 p = f32x8_load(slot + item->n + queries[i] * SPLIT + t) * f32x8_splat(factors[i]);

            sum += (u64x8)(__builtin_convertvector(p, f64x8) + ROUND) - (u64x8)((f64x8){0} + ROUND);
        }
        for (uint32_t j = 0; j < 8 && t + j < end; j++)
            if (sum[j])
                __atomic_fetch_add(&out[t + j], sum[j], __ATOMIC_RELAXED);
    }
}

static void add_line(const struct item *item, uint32_t line)
{
    uint64_t *out = line_of(item->args, line, item->kv_head);

    for (uint64_t split = cpu_item_first_split(item); split < cpu_item_end_split(item); split++) {
        uint64_t at = split * SPLIT, first = item->begin > at ? item->begin - at : 0, left = item->end - at;

        for (uint32_t class = 0; class < item->classes; class ++)
            add_slot(item, cpu_item_slot(item, split, class), line, out + at, (uint32_t)first / TOKENS * TOKENS,
                     left < SPLIT ? (uint32_t)left : SPLIT);
    }
}

/* No query before i is of that line. */
static bool first_of_line(const struct item *item, uint32_t i, uint32_t line)
{
    while (i-- > 0)
        if (item->rows[i]->mass_line == line)
            return false;
    return true;
}

void cpu_mass_add(const struct item *item)
{
    for (uint32_t i = 0; i < item->n; i++) {
        uint32_t line = item->rows[i]->mass_line;

        if (line && first_of_line(item, i, line))
            add_line(item, line);
    }
}
