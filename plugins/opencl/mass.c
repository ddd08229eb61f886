/* Attention mass: which entries the rows looked at, added up line by line (kernels/attention_mass.cl). */
#include "opencl.h"

/* As in kernels/attention_mass.cl: the rows among which those of a line lie. */
struct line {
    uint32_t line, seq, first_row, n_rows;
};

/* The line's rows so far, or a line that is new. */
static struct line *find_line(struct line *lines, uint32_t *n_lines, uint32_t line, uint32_t seq, uint32_t row)
{
    for (uint32_t i = *n_lines; i-- > 0;)
        if (lines[i].line == line)
            return &lines[i];
    lines[*n_lines] = (struct line){line, seq, row, 0};
    return &lines[(*n_lines)++];
}

static int collect_lines(const struct soq_step *step, struct line *lines, uint32_t *n_lines, struct soq_error *err)
{
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct soq_step_seq *seq = &step_seqs(step)[i];

        for (uint32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++) {
            uint32_t number = step_rows(step)[r].mass_line;
            struct line *line = number ? find_line(lines, n_lines, number - 1, i, r) : NULL;

            if (line && line->seq != i)
                return plugin_fail(err, SOQ_EINVAL, "opencl: begin: rows of sequences %u and %u share mass line %u", line->seq,
                                   i, line->line);
            if (line)
                line->n_rows = r + 1 - line->first_row;
        }
    }
    return 0;
}

int opencl_upload_lines(struct opencl *ocl, const struct soq_step *step, struct soq_error *err)
{
    struct line *lines;
    uint32_t n = 0;
    int rc;

    for (uint32_t r = 0; r < step->n_rows; r++)
        n += step_rows(step)[r].mass_line != 0;
    ocl->n_lines = 0;
    if (n == 0)
        return 0;
    lines = ocl->host->alloc(ocl->host->ctx, n * sizeof *lines, 64);
    if (!lines)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: begin: out of memory: lines of attention mass");
    rc = collect_lines(step, lines, &ocl->n_lines, err);
    if (!rc)
        rc = opencl_reserve(ocl, &ocl->lines, n * sizeof *lines, "lines of attention mass", err);
    if (!rc)
        rc = opencl_write(ocl, ocl->lines.mem, 0, lines, ocl->n_lines * sizeof *lines, "lines of attention mass", err);
    ocl->host->free(ocl->host->ctx, lines);
    return rc;
}

int opencl_check_mass(struct opencl *ocl, const struct soq_attention_args *args)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct soq_error err = SOQ_ERROR_INIT;

    if (args->mass_offset % sizeof(uint64_t))
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, SOQ_EINVAL, "mass begins at byte %llu, inside a number",
                             (unsigned long long)args->mass_offset);
    if (args->mass_stride < group->end_entry)
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, SOQ_EINVAL, "mass has %u entries a line, group %u has %u",
                             args->mass_stride, group->index, group->end_entry);
    if (opencl_reserve(ocl, &ocl->shares, (uint64_t)ocl->step->n_rows * args->n_heads * 2 * sizeof(float),
                       "totals of attention", &err))
        return opencl_refuse(ocl, SOQ_OP_ATTENTION, (enum soq_error_code) - err.code, "%s", err.text);
    return 0;
}

int opencl_attention_mass(struct opencl *ocl, const struct soq_attention_args *args, const struct opencl_attention *a)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    uint32_t first = group->first_entry / OPENCL_ITEMS, end = (group->end_entry + OPENCL_ITEMS - 1) / OPENCL_ITEMS;
    struct opencl_call call = opencl_call(ocl, SOQ_OP_ATTENTION, group->program, OPENCL_K_attention_mass);

    opencl_arg_attention(&call, args, a);
    opencl_arg_mem(&call, ocl->lines.mem);
    opencl_arg_u32(&call, first * OPENCL_ITEMS);
    opencl_arg_mem(&call, ocl->shares.mem);
    opencl_arg_mem(&call, opencl_mem(args->mass));
    opencl_arg_u64(&call, args->mass_offset / sizeof(uint64_t));
    opencl_arg_u32(&call, args->mass_stride);
    return opencl_launch_groups(&call, ocl->n_lines, args->n_kv_heads, end - first);
}
