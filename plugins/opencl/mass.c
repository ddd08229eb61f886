/* Attention mass: which entries the rows looked at, added up line by line (kernels/attention_mass.cl). */
#include "opencl.h"

/* The line's rows so far, or a line that is new. */
static struct opencl_line *find_line(struct opencl_line *lines, uint32_t *n_lines, uint32_t line, uint32_t seq, uint32_t row)
{
    for (uint32_t i = *n_lines; i-- > 0;)
        if (lines[i].line == line)
            return &lines[i];
    lines[*n_lines] = (struct opencl_line){line, seq, row, 0};
    return &lines[(*n_lines)++];
}

static int collect_lines(const struct soq_step *step, struct opencl_line *lines, uint32_t *n_lines, struct soq_error *err)
{
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct soq_step_seq *seq = &step_seqs(step)[i];

        for (uint32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++) {
            uint32_t number = step_rows(step)[r].mass_line;
            struct opencl_line *line = number ? find_line(lines, n_lines, number - 1, i, r) : NULL;

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
    uint32_t n = 0;
    int rc;

    for (uint32_t r = 0; r < step->n_rows; r++)
        n += step_rows(step)[r].mass_line != 0;
    ocl->n_lines = 0;
    if (n == 0)
        return 0;
    rc = opencl_reserve_room(ocl, &ocl->host_lines, n * sizeof(struct opencl_line), "lines of attention mass", err);
    if (!rc)
        rc = collect_lines(step, ocl->host_lines.bytes, &ocl->n_lines, err);
    if (!rc)
        rc = opencl_reserve(ocl, &ocl->lines, n * sizeof(struct opencl_line), "lines of attention mass", err);
    if (!rc)
        rc = opencl_write(ocl, ocl->lines.mem, 0, ocl->host_lines.bytes, ocl->n_lines * sizeof(struct opencl_line),
                          "lines of attention mass", err);
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

/* n lines from a->at_line on, entries from `first` on in work-groups of OPENCL_ITEMS. */
static int add_up(struct opencl *ocl, const struct soq_attention_args *args, const struct opencl_attention *a, uint32_t n,
                  uint32_t first, uint32_t n_groups)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    struct opencl_call call = opencl_call(ocl, SOQ_OP_ATTENTION, group->program, OPENCL_K_attention_mass);

    opencl_arg_attention(&call, args, a);
    opencl_arg_mem(&call, ocl->lines.mem);
    opencl_arg_u32(&call, first);
    opencl_arg_mem(&call, ocl->shares.mem);
    opencl_arg_mem(&call, opencl_mem(args->mass));
    opencl_arg_u64(&call, args->mass_offset / sizeof(uint64_t));
    opencl_arg_u32(&call, args->mass_stride);
    return opencl_launch_groups(&call, n, args->n_kv_heads, n_groups);
}

/* Sequence by sequence, whose lines lie together, as many entries at a time as can be decoded. */
static int add_up_decoded(struct opencl *ocl, const struct soq_attention_args *args, struct opencl_attention *a, uint32_t first,
                          uint32_t end)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    const struct opencl_line *lines = ocl->host_lines.bytes;
    uint32_t piece = opencl_decodable(ocl, group);

    for (uint32_t n; a->at_line < ocl->n_lines && !ocl->failed; a->at_line += n) {
        const struct soq_step_seq *seq = &step_seqs(ocl->step)[lines[a->at_line].seq];

        for (n = 1; a->at_line + n < ocl->n_lines && lines[a->at_line + n].seq == lines[a->at_line].seq;)
            n++;
        for (uint32_t e = first; e < end && !ocl->failed; e += piece < end - e ? piece : end - e) {
            uint32_t n_entries = end - e < piece ? end - e : piece;

            if (!opencl_decode_entries(ocl, group, seq, e, e + n_entries, a))
                add_up(ocl, args, a, n, e, (n_entries + OPENCL_ITEMS - 1) / OPENCL_ITEMS);
        }
    }
    return ocl->failed;
}

int opencl_attention_mass(struct opencl *ocl, const struct soq_attention_args *args, struct opencl_attention *a)
{
    const struct opencl_group *group = (const struct opencl_group *)(uintptr_t)args->group;
    uint32_t first = group->first_entry / OPENCL_ITEMS * OPENCL_ITEMS;

    if (opencl_decodes(group))
        return add_up_decoded(ocl, args, a, first, group->end_entry);
    return add_up(ocl, args, a, ocl->n_lines, first, (group->end_entry - first + OPENCL_ITEMS - 1) / OPENCL_ITEMS);
}
