#include "check/rig.h"

#include <stdlib.h>

/* ---- The instance */

void soq__rig_open(struct soq__rig *rig, struct soq__kit *kit)
{
    soq__kit_open(kit);
    rig->kit = kit;
    rig->ops = kit->role->ops.backend;
    rig->self = soq__kit_instance(kit);
    if (!rig->ops->memory && strcmp(rig->ops->domain, "host") != 0)
        soq__kit_skip(kit, "has no memory table, and its domain \"%s\" is another plugin's", rig->ops->domain);
}

static int ask(struct soq__rig *rig, struct soq_op_desc desc, struct soq_error *err)
{
    void *box = soq__kit_box(rig->kit, &desc, sizeof desc);
    int rc = rig->ops->supports(rig->self, box, err);

    soq__kit_unbox(rig->kit, box, NULL, sizeof desc);
    if (rc)
        soq__kit_refused(rig->kit, "supports", rc, -SOQ_EUNSUPPORTED, err);
    return rc;
}

bool soq__rig_supports(struct soq__rig *rig, struct soq_op_desc desc)
{
    return rig->kit->role->native_ops >> desc.op & 1 && ask(rig, desc, soq__kit_error(rig->kit)) == 0;
}

void soq__rig_need(struct soq__rig *rig, struct soq_op_desc desc)
{
    struct soq_error *err = soq__kit_error(rig->kit);

    if (!(rig->kit->role->native_ops >> desc.op & 1))
        soq__kit_skip(rig->kit, "does not have the op");
    if (ask(rig, desc, err))
        soq__kit_skip(rig->kit, "does not claim it: %.400s", err->text);
}

void soq__rig_need_memory(struct soq__rig *rig)
{
    if (!rig->ops->memory)
        soq__kit_skip(rig->kit, "has no memory table, and weights are their owner's");
}

/* ---- Buffers */

soq_buffer soq__rig_alloc(struct soq__rig *rig, uint64_t bytes)
{
    struct soq_error *err = soq__kit_error(rig->kit);
    soq_buffer buffer = 0;

    if (!rig->ops->memory)
        return (soq_buffer)(uintptr_t)soq__kit_guard(rig->kit, bytes, 64);
    soq__kit_ok(rig->kit, "buffer_alloc", rig->ops->memory->buffer_alloc(rig->self, bytes, &buffer, err), err);
    SOQ__EXPECT(rig->kit, buffer, "buffer_alloc succeeded with buffer 0, which is none");
    return buffer;
}

void soq__rig_free(struct soq__rig *rig, soq_buffer buffer)
{
    if (rig->ops->memory)
        rig->ops->memory->buffer_free(rig->self, buffer);
}

void soq__rig_write(struct soq__rig *rig, soq_buffer buffer, uint64_t offset, const void *src, uint64_t bytes)
{
    struct soq_error *err = soq__kit_error(rig->kit);

    if (rig->ops->memory)
        soq__kit_ok(rig->kit, "buffer_write", rig->ops->memory->buffer_write(rig->self, buffer, offset, src, bytes, err), err);
    else
        memcpy((char *)(uintptr_t)buffer + offset, src, bytes);
}

void soq__rig_read(struct soq__rig *rig, soq_buffer buffer, uint64_t offset, void *dst, uint64_t bytes)
{
    struct soq_error *err = soq__kit_error(rig->kit);

    if (rig->ops->memory)
        soq__kit_ok(rig->kit, "buffer_read", rig->ops->memory->buffer_read(rig->self, buffer, offset, dst, bytes, err), err);
    else
        memcpy(dst, (const char *)(uintptr_t)buffer + offset, bytes);
}

/* ---- Matrices */

enum { MARGIN = 19 };
#define GUARD 12345.678f

float *soq__matrix_at(const struct soq__matrix *m, uint32_t row, uint32_t col)
{
    return m->raw + MARGIN + (size_t)row * m->view.row_stride + col;
}

struct soq__matrix soq__rig_matrix(struct soq__rig *rig, uint32_t rows, uint32_t cols, uint32_t gap, uint64_t seed)
{
    struct soq__matrix m = {.n_raw = (size_t)rows * (cols + gap) + 2 * MARGIN};

    m.raw = malloc(m.n_raw * sizeof *m.raw);
    SOQ__EXPECT(rig->kit, m.raw, "the kit is out of memory");
    for (size_t i = 0; i < m.n_raw; i++)
        m.raw[i] = GUARD;
    m.view = (struct soq_view){.buffer = soq__rig_alloc(rig, m.n_raw * sizeof *m.raw),
                               .offset = MARGIN * sizeof *m.raw,
                               .rows = rows,
                               .cols = cols,
                               .row_stride = cols + gap,
                               .dtype = SOQ_DTYPE_F32};
    for (uint32_t r = 0; r < rows; r++)
        soq__kit_fill(soq__matrix_at(&m, r, 0), cols, seed + r * 7919);
    soq__rig_send(rig, &m);
    return m;
}

void soq__rig_send(struct soq__rig *rig, const struct soq__matrix *m)
{
    soq__rig_write(rig, m->view.buffer, 0, m->raw, m->n_raw * sizeof *m->raw);
}

void soq__rig_fetch(struct soq__rig *rig, struct soq__matrix *m)
{
    const struct soq_view *v = &m->view;

    soq__rig_read(rig, v->buffer, 0, m->raw, m->n_raw * sizeof *m->raw);
    for (size_t i = 0; i < m->n_raw; i++) {
        size_t place = i - MARGIN;
        bool inside = i >= MARGIN && v->rows && v->cols && place / v->row_stride < v->rows && place % v->row_stride < v->cols;

        SOQ__EXPECT(rig->kit, inside || memcmp(&m->raw[i], &(float){GUARD}, sizeof(float)) == 0,
                    "wrote outside a matrix of %u x %u in a stride of %u, %td numbers from its begin", v->rows, v->cols,
                    v->row_stride, (ptrdiff_t)i - MARGIN);
    }
}

void soq__rig_matrix_free(struct soq__rig *rig, struct soq__matrix *m)
{
    soq__rig_free(rig, m->view.buffer);
    free(m->raw);
}

struct soq_view soq__matrix_rows(const struct soq__matrix *m, uint32_t first, uint32_t n)
{
    struct soq_view view = m->view;

    view.offset += (uint64_t)first * view.row_stride * sizeof(float);
    view.rows = n;
    return view;
}

void soq__rig_close(struct soq__rig *rig, uint32_t op, uint32_t dtype, double got, double want, double size, uint32_t row,
                    uint32_t col)
{
    double bound = soq__tolerance(op, dtype) * size;

    SOQ__EXPECT(rig->kit, fabs(got - want) <= bound, "row %u, column %u: %.9g, but f64 gives %.9g (off by %.3g, allowed %.3g)",
                row, col, got, want, fabs(got - want), bound);
}

/* ---- Weights */

soq_weight soq__rig_weight(struct soq__rig *rig, uint32_t dtype, const void *data, uint64_t bytes, uint32_t rows, uint32_t cols,
                           uint32_t uses)
{
    void *source = soq__kit_guard(rig->kit, bytes, dtype == SOQ_DTYPE_F32 ? 4 : 2);
    struct soq_weight_desc desc = {
        .dtype = dtype,
        .name = "w",
        .data = source,
        .bytes = bytes,
        .rows = rows,
        .cols = cols,
        .uses = uses,
        .may_repack = 1,
        .n_shards = 1,
    };
    struct soq_weight_info info = {.flags = 0}, *info_box = soq__kit_box(rig->kit, &info, sizeof info);
    struct soq_error *err = soq__kit_error(rig->kit);
    void *box = soq__kit_box(rig->kit, &desc, sizeof desc);

    memcpy(source, data, bytes);
    soq__kit_ok(rig->kit, "weight_prepare", rig->ops->memory->weight_prepare(rig->self, box, info_box, err), err);
    soq__kit_unbox(rig->kit, box, NULL, sizeof desc);
    soq__kit_unbox(rig->kit, info_box, &info, sizeof info);
    SOQ__EXPECT(rig->kit, info.weight, "weight_prepare succeeded with weight 0, which is none");
    SOQ__EXPECT(rig->kit, !(info.flags & ~(uint32_t)SOQ_WEIGHT_KEEPS_SOURCE), "weight_prepare: unknown flags %x", info.flags);
    if (!(info.flags & SOQ_WEIGHT_KEEPS_SOURCE))
        memset(source, 0xff, bytes);
    return info.weight;
}

soq_weight soq__rig_vector(struct soq__rig *rig, const float *x, uint32_t n)
{
    return soq__rig_weight(rig, SOQ_DTYPE_F32, x, n * sizeof *x, 1, n, SOQ_USE_VECTOR);
}

/* ---- Steps */

void soq__rig_step_init(struct soq__rig_step *s)
{
    memset(s, 0, sizeof *s);
    s->step = (struct soq_step){
        .struct_size = sizeof s->step,
        .total_bytes = sizeof *s,
        .flags = SOQ_STEP_LINEAR,
        .off_rows = offsetof(struct soq__rig_step, rows),
        .off_seqs = offsetof(struct soq__rig_step, seqs),
        .off_segments = offsetof(struct soq__rig_step, segments),
        .off_outputs = offsetof(struct soq__rig_step, outputs),
        .off_edits = offsetof(struct soq__rig_step, edits),
        .off_copies = offsetof(struct soq__rig_step, copies),
    };
}

void soq__rig_step_add(struct soq__rig_step *s, uint32_t slot, uint32_t first, uint32_t n)
{
    struct soq_step *step = &s->step;

    s->seqs[step->n_seqs] = (struct soq_step_seq){.slot = slot,
                                                  .n_cached = first,
                                                  .first_row = step->n_rows,
                                                  .n_rows = n,
                                                  .first_segment = step->n_segments,
                                                  .n_segments = 1};
    s->segments[step->n_segments++] =
        (struct soq_step_segment){.n_layers = UINT32_MAX, .n_heads = UINT32_MAX, .n_entries = first + n};
    for (uint32_t i = 0; i < n; i++)
        s->rows[step->n_rows + i] = (struct soq_step_row){.token = (int32_t)(step->n_rows + i),
                                                          .position = first + i,
                                                          .entry = first + i,
                                                          .seq = step->n_seqs,
                                                          .parent = i ? (int32_t)(step->n_rows + i) - 1 : -1};
    step->n_rows += n;
    step->n_seqs++;
}

uint64_t soq__rig_serial(void)
{
    static uint64_t serial;

    return ++serial;
}

/* Two copies that take turns: the step of one begin is read until its end. */
void soq__rig_begin(struct soq__rig *rig, struct soq__rig_step *s)
{
    static struct soq__rig_step *shown;
    struct soq_error *err = soq__kit_error(rig->kit);

    if (!shown)
        shown = soq__kit_guard(rig->kit, sizeof *shown, 8);
    s->step.serial = soq__rig_serial();
    memcpy(shown, s, sizeof *s);
    soq__kit_ok(rig->kit, "begin", rig->ops->begin(rig->self, &shown->step, err), err);
}

void soq__rig_end(struct soq__rig *rig)
{
    struct soq_error *err = soq__kit_error(rig->kit);

    soq__kit_ok(rig->kit, "end", rig->ops->end(rig->self, err), err);
}
