#include "weights.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DROP_BYTES = 4 << 20 }; /* of a mapped source that a thread reads before it lets them go */

/* Scratch for activations of `cols` inputs. Grows; nothing holds on to the old one between steps. */
static int reserve_activations(struct cpu *cpu, uint32_t cols, struct soq_error *err)
{
    const struct soq_host *host = cpu->host;
    size_t rows = ((size_t)cpu->params.max_rows + CPU_ROWS - 1) / CPU_ROWS * CPU_ROWS;
    size_t blocks = ((size_t)cols + CPU_BLOCK - 1) / CPU_BLOCK;
    uint8_t *strips;

    if (cols <= cpu->max_cols)
        return 0;
    strips = host->alloc(host->ctx, rows * blocks * CPU_Q8_BYTES, 64);
    if (!strips)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: activations of %zu rows of %u", rows, cols);
    memset(strips, 0, rows * blocks * CPU_Q8_BYTES);
    host->free(host->ctx, cpu->q8_strips);
    cpu->q8_strips = strips;
    cpu->max_cols = cols;
    return 0;
}

const uint8_t *cpu_weight_spans(const struct cpu_weight *weight, uint64_t group, uint64_t first, uint64_t n, uint8_t *scratch)
{
    const uint8_t *rows[CPU_LANES] = {NULL};

    if (weight->packed)
        return weight->packed + group * weight->group_bytes + (first ? first * cpu_span_bytes(weight->format) : 0);
    for (uint64_t i = 0; i < CPU_LANES && group * CPU_LANES + i < weight->rows; i++)
        rows[i] = weight->source + (group * CPU_LANES + i) * weight->row_bytes + first * weight->format->bytes;
    cpu_pack(weight->format, rows, n, scratch);
    return scratch;
}

/* The whole tensor; packing goes over the threads, a range of groups each. */
struct pack_job {
    const struct cpu_weight *weight; /* packed not yet set */
    uint8_t *packed;
    bool drops; /* the source is a mapped file */
};

/* Lets the pages go that lie within rows [first, last) of a mapped source, so that source and packed weights are never in
 * memory as a whole at the same time. */
static void drop_rows(const struct cpu_weight *weight, uint64_t first, uint64_t last)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), source = (uintptr_t)weight->source;
    uintptr_t start = (source + first * weight->row_bytes + page - 1) / page * page;
    uintptr_t end = (source + (last < weight->rows ? last : weight->rows) * weight->row_bytes) / page * page;

    if (end > start)
        madvise((void *)start, end - start, MADV_DONTNEED);
}

static void pack_share(void *arg, const struct soq_worker *worker)
{
    const struct pack_job *job = arg;
    const struct cpu_weight *weight = job->weight;
    struct cpu_thread thread = {.index = worker->index, .count = worker->count};
    uint64_t first, last, piece = DROP_BYTES / (weight->row_bytes * CPU_LANES) + 1;

    cpu_share(&thread, (weight->rows + CPU_LANES - 1) / CPU_LANES, &first, &last);
    for (uint64_t group = first; group < last; group++) {
        cpu_weight_spans(weight, group, 0, weight->cols / weight->format->elements, job->packed + group * weight->group_bytes);
        if (job->drops && (group - first + 1) % piece == 0)
            drop_rows(weight, (group + 1 - piece) * CPU_LANES, (group + 1) * CPU_LANES);
    }
}

static int pack_weight(struct cpu *cpu, struct cpu_weight *weight, bool drops, struct soq_error *err)
{
    uint64_t n_groups = ((uint64_t)weight->rows + CPU_LANES - 1) / CPU_LANES;
    struct pack_job job = {
        .weight = weight,
        .packed = cpu_arena_alloc(cpu->host, &cpu->arena, n_groups * weight->group_bytes),
        .drops = drops,
    };
    int rc;

    if (!job.packed)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: %llu bytes for tensor %s (repack = off needs none)",
                           (unsigned long long)(n_groups * weight->group_bytes), weight->name);
    rc = cpu->host->parallel(cpu->host->ctx, cpu->threads, pack_share, &job);
    if (rc) {
        cpu_arena_free(cpu->host, &cpu->arena, cpu->arena);
        return plugin_fail(err, (enum soq_error_code) - rc, "cpu: no threads to pack tensor %s with", weight->name);
    }
    weight->packed = job.packed;
    weight->arena = cpu->arena;
    weight->source = NULL;
    return 0;
}

static int widen_vector(struct cpu *cpu, struct cpu_weight *weight, struct soq_error *err)
{
    const struct cpu_format *format = weight->format;
    const uint8_t *rows[CPU_LANES] = {weight->source};
    float tile[CPU_TILE_K * CPU_LANES];
    uint8_t spans[CPU_SPANS_BYTES];

    weight->vector = cpu->host->alloc(cpu->host->ctx, weight->cols * sizeof(float), 64);
    if (!weight->vector)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: vector %s", weight->name);
    for (uint32_t k = 0; k < weight->cols; k += format->elements, rows[0] += format->bytes) {
        cpu_pack(format, rows, 1, spans);
        cpu_expand(format, spans, format->elements, tile);
        for (uint32_t i = 0; i < format->elements; i++)
            weight->vector[k + i] = tile[i * CPU_LANES];
    }
    weight->source = NULL;
    return 0;
}

static int check_desc(const struct soq_weight_desc *desc, const struct cpu_format *format, struct soq_error *err)
{
    uint64_t row_bytes, bytes;

    if (!format)
        return plugin_fail(err, SOQ_EUNSUPPORTED, "cpu: tensor %s: type %u is not supported", desc->name, desc->dtype);
    if (!desc->data || !desc->rows || !desc->cols || desc->cols % format->elements)
        return plugin_fail(err, SOQ_EINVAL, "cpu: tensor %s: %u x %u of %s has no data or no whole blocks", desc->name,
                           desc->rows, desc->cols, format->name);
    row_bytes = (uint64_t)desc->cols / format->elements * format->bytes;
    if (__builtin_mul_overflow(row_bytes, (uint64_t)desc->rows, &bytes) || bytes > SIZE_MAX / 4 || desc->bytes < bytes)
        return plugin_fail(err, SOQ_EINVAL, "cpu: tensor %s: %llu bytes are too few for %u x %u of %s", desc->name,
                           (unsigned long long)desc->bytes, desc->rows, desc->cols, format->name);
    if (desc->uses == 0 || (desc->uses & SOQ_USE_VECTOR && (desc->uses != SOQ_USE_VECTOR || desc->rows != 1)))
        return plugin_fail(err, SOQ_EINVAL, "cpu: tensor %s: a vector has one row and no other use (rows %u, uses %u)",
                           desc->name, desc->rows, desc->uses);
    return 0;
}

static int take_over(struct cpu *cpu, const struct soq_weight_desc *desc, struct cpu_weight *weight, struct soq_error *err)
{
    int rc;

    if (desc->uses & SOQ_USE_VECTOR)
        return widen_vector(cpu, weight, err);
    rc = reserve_activations(cpu, desc->cols, err);
    if (!rc)
        rc = cpu_reserve_scratch(cpu, cpu_matmul_scratch(cpu), err);
    if (!rc)
        rc = cpu_reserve_scratch(cpu, cpu_matmul_q8_scratch(), err);
    if (!rc && cpu->repack && desc->may_repack && desc->uses & SOQ_USE_MATMUL)
        rc = pack_weight(cpu, weight, desc->may_repack & SOQ_REPACK_DROPS, err);
    return rc;
}

int cpu_weight_prepare(void *self, const struct soq_weight_desc *desc, struct soq_weight_info *info_out, struct soq_error *err)
{
    struct cpu *cpu = self;
    const struct cpu_format *format = cpu_format(desc->dtype);
    struct cpu_weight *weight;
    struct soq_weight_info info = {.struct_size = info_out->struct_size};
    int rc = check_desc(desc, format, err);

    if (rc)
        return rc;
    weight = cpu->host->alloc(cpu->host->ctx, sizeof *weight, 64);
    if (!weight)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory for tensor %s", desc->name);
    *weight = (struct cpu_weight){
        .format = format,
        .rows = desc->rows,
        .cols = desc->cols,
        .uses = desc->uses,
        .source = desc->data,
        .row_bytes = (uint64_t)desc->cols / format->elements * format->bytes,
        .group_bytes = desc->cols / format->elements * cpu_span_bytes(format),
    };
    snprintf(weight->name, sizeof weight->name, "%s", desc->name ? desc->name : "");
    rc = take_over(cpu, desc, weight, err);
    if (rc) {
        cpu->host->free(cpu->host->ctx, weight);
        return rc;
    }
    info.weight = (soq_weight)(uintptr_t)weight;
    info.flags = weight->source ? SOQ_WEIGHT_KEEPS_SOURCE : 0;
    info.bytes = sizeof *weight + (weight->vector ? weight->cols * sizeof(float) : 0) +
                 (weight->packed ? (weight->rows + CPU_LANES - 1) / CPU_LANES * weight->group_bytes : 0);
    memcpy(info_out, &info, info.struct_size < sizeof info ? info.struct_size : sizeof info);
    return 0;
}

void cpu_weight_free(void *self, soq_weight handle)
{
    struct cpu *cpu = self;
    struct cpu_weight *weight = cpu_weight(handle);

    if (!weight)
        return;
    cpu->host->free(cpu->host->ctx, weight->vector);
    if (weight->packed)
        cpu_arena_free(cpu->host, &cpu->arena, weight->arena);
    cpu->host->free(cpu->host->ctx, weight);
}
