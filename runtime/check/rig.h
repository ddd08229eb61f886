/* What checks of backends work with: an instance, matrices with guards in its buffers, weights, steps, a cache. Buffers are
 * only reached through the memory table, so that everything works for devices too; a backend of domain "host" without one
 * computes on memory of the kit's. */
#ifndef SOQ_CHECK_RIG_H
#define SOQ_CHECK_RIG_H

#include "check/kit.h"
#include "check/tolerance.h"

struct soq__rig {
    struct soq__kit *kit;
    const struct soq_backend_ops *ops;
    void *self;
};

/* Opens the plugin, makes an instance; skips without a device. */
void soq__rig_open(struct soq__rig *rig, struct soq__kit *kit);

/* Whether the plugin has the op's slot and supports() says yes. */
bool soq__rig_supports(struct soq__rig *rig, struct soq_op_desc desc);
/* The same, and skips the check where not. */
void soq__rig_need(struct soq__rig *rig, struct soq_op_desc desc);
void soq__rig_need_memory(struct soq__rig *rig);

/* ---- Buffers and matrices */

soq_buffer soq__rig_alloc(struct soq__rig *rig, uint64_t bytes);
void soq__rig_free(struct soq__rig *rig, soq_buffer buffer);
void soq__rig_write(struct soq__rig *rig, soq_buffer buffer, uint64_t offset, const void *src, uint64_t bytes);
void soq__rig_read(struct soq__rig *rig, soq_buffer buffer, uint64_t offset, void *dst, uint64_t bytes);

/* rows x cols in a buffer of its own, in a stride of cols + gap; guards in the gaps, before and behind. `raw` is the host's
 * copy, of what was written or last fetched. */
struct soq__matrix {
    struct soq_view view;
    float *raw;
    size_t n_raw;
};

struct soq__matrix soq__rig_matrix(struct soq__rig *rig, uint32_t rows, uint32_t cols, uint32_t gap, uint64_t seed);
float *soq__matrix_at(const struct soq__matrix *m, uint32_t row, uint32_t col);
/* Sends the host's copy. */
void soq__rig_send(struct soq__rig *rig, const struct soq__matrix *m);
/* Gets what is there now, and looks at the guards. */
void soq__rig_fetch(struct soq__rig *rig, struct soq__matrix *m);
void soq__rig_matrix_free(struct soq__rig *rig, struct soq__matrix *m);
/* Rows [first, first + n) of it. */
struct soq_view soq__matrix_rows(const struct soq__matrix *m, uint32_t first, uint32_t n);

/* |got - want| <= tolerance(op, dtype) * size; names the place. NaN never is. */
void soq__rig_close(struct soq__rig *rig, uint32_t op, uint32_t dtype, double got, double want, double size, uint32_t row,
                    uint32_t col);

/* ---- Weights */

/* The source is overwritten when prepare returns, unless the backend keeps it. */
soq_weight soq__rig_weight(struct soq__rig *rig, uint32_t dtype, const void *data, uint64_t bytes, uint32_t rows, uint32_t cols,
                           uint32_t uses);
soq_weight soq__rig_vector(struct soq__rig *rig, const float *x, uint32_t n);

/* ---- Steps */

enum { SOQ__RIG_EDITS = 128, SOQ__RIG_SEQS = 4, SOQ__RIG_SEGMENTS = 8, SOQ__RIG_COPIES = 4 };

struct soq__rig_step {
    struct soq_step step;
    struct soq_step_row rows[SOQ__KIT_MAX_ROWS];
    struct soq_step_seq seqs[SOQ__RIG_SEQS];
    struct soq_step_segment segments[SOQ__RIG_SEGMENTS];
    uint32_t outputs[SOQ__KIT_MAX_ROWS];
    struct soq_step_edit edits[SOQ__RIG_EDITS];
    struct soq_step_copy copies[SOQ__RIG_COPIES];
};

/* No rows yet. */
void soq__rig_step_init(struct soq__rig_step *s);
/* n rows of one more sequence in `slot` at positions first, first + 1, ..., which see all of the group's entries 0 .. first +
 * n. Tokens are 0, 1, ... */
void soq__rig_step_add(struct soq__rig_step *s, uint32_t slot, uint32_t first, uint32_t n);
/* Another for each step: 1, 2, ... */
uint64_t soq__rig_serial(void);
/* begin; the step stays valid until end. */
void soq__rig_begin(struct soq__rig *rig, struct soq__rig_step *s);
void soq__rig_end(struct soq__rig *rig);

/* Calls a slot with args that become useless when it returns: ops copy them. */
#define SOQ__OP(rig, slot, args, rc_out)                                                                                       \
    do {                                                                                                                       \
        void *box_ = soq__kit_box((rig)->kit, &(args), sizeof(args));                                                          \
                                                                                                                               \
        *(rc_out) = (slot)((rig)->self, box_);                                                                                 \
        soq__kit_unbox((rig)->kit, box_, NULL, sizeof(args));                                                                  \
    } while (0)

/* The same, and expects success. */
#define SOQ__SUBMIT(rig, slot, args)                                                                                           \
    do {                                                                                                                       \
        int rc_;                                                                                                               \
                                                                                                                               \
        SOQ__OP(rig, slot, args, &rc_);                                                                                        \
        SOQ__EXPECT((rig)->kit, rc_ == 0, "%s refused the op: %d (%s)", #slot, rc_, soq__error_text(rc_));                     \
    } while (0)

#endif
