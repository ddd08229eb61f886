/* Ops bound to the backends that run them. Placement is resolved once, at load; a step only follows it.
 *
 * An *instance* is one backend of [backend] use, in that order, initialised when something is placed on it. The first one with
 * memory and matmul is the primary one. A *tensor* is a matrix of activations that every memory in use holds a copy of; which
 * copies are valid is tracked, and an op that reads one that is not gets it copied first. Where a step goes from one instance
 * to another the first is ended before the second begins. So an op, a weight or a run of layers may be anywhere, and forward.c
 * does not know.
 *
 * Failures are sticky: the wrappers do nothing after the first, end() returns it. */
#ifndef SOQ_ENGINE_EXEC_H
#define SOQ_ENGINE_EXEC_H

#include "plugin/host.h"
#include "plugin/pluginconf.h"
#include "plugin/registry.h"

#define SOQ__N_OPS 14 /* enum soq_op is 1 .. 13 */
/* Of an attention op here, unknown to backends: whoever runs it must have kv_gather too. */
#define SOQ__OPDESC_SELECTS (UINT32_C(1) << 31)
#define SOQ__TENSORS_MAX 24

struct soq__instance {
    const struct soq__backend_choice *choice;
    const struct soq_backend_ops *ops;
    void *self;               /* owned; NULL while not initialised */
    struct soq_error failure; /* code 0: nothing went wrong when that was tried */
    uint32_t memory;          /* instance whose buffers it computes on: the first of its domain that has memory */
    struct soq__plugin_config config;
    double seconds;  /* between begin and end, so far */
    uint64_t n_runs; /* begin / end pairs so far */
};

struct soq__tensor {
    uint32_t rows, cols;
    soq_buffer at[SOQ_BACKENDS_MAX]; /* by memory; 0: no copy there */
    uint32_t valid;                  /* bit per memory */
};

struct soq__copies {
    uint64_t n, bytes;
    double seconds;
};

/* What ops took; by enum soq_op. */
struct soq__op_times {
    uint64_t n[SOQ__N_OPS];
    double seconds[SOQ__N_OPS];
};

struct soq__exec {
    const struct soq__host *host; /* not owned */
    struct soq__settings *settings;
    struct soq__backend_choice choices[SOQ_BACKENDS_MAX];
    struct soq__instance instances[SOQ_BACKENDS_MAX];
    uint32_t n_instances, primary;
    uint32_t max_rows, max_slots;
    bool profile;
    struct soq__tensor tensors[SOQ__TENSORS_MAX];
    uint32_t n_tensors;
    void *staging; /* a tensor on its way between two memories that are both not the host's; NULL: none is needed */
    /* For profiles, set between steps, not owned: each op is ended and timed on its own, so that a backend can neither fuse nor
     * overlap ops; what they compute is the same. NULL: they are not. */
    struct soq__op_times *op_times;
    /* During a step. */
    const struct soq_step *step;
    struct soq_error *err;
    int rc;
    uint32_t current; /* instance between begin and end; n_instances: none */
    double entered;
    struct soq__copies copies; /* so far */
};

struct soq__exec_params {
    struct soq__registry *registry;
    struct soq__settings *settings;
    const struct soq__host *host;
    uint32_t max_rows, max_slots;
    bool profile; /* backends that have an option `profile` are to measure, unless the user has set it */
};

/* Chooses from [backend] use and initialises the primary backend: one that cannot be is left out with a warning, unless it is
 * required. Needs done() even if it fails. */
int soq__exec_init(struct soq__exec *x, const struct soq__exec_params *params, struct soq_error *err);
void soq__exec_done(struct soq__exec *x);

/* The instance called NAME or NAME/VARIANT; initialises it. The message lists what there is. */
int soq__exec_find(struct soq__exec *x, const char *name, size_t len, uint32_t *at_out, struct soq_error *err);

/* Decides who runs an op of that description for layers whose home is `home`, initialising a further instance if need be. In
 * this order: the home's guests that come earlier in `use`, the home, its other guests; then likewise each instance whose
 * manifest provides host-ops. A guest is a plugin without memory that computes on another's, of its domain. The failure tells
 * why each cannot. */
int soq__exec_choose(struct soq__exec *x, uint32_t home, const struct soq_op_desc *desc, uint32_t *at_out,
                     struct soq_error *err);
/* 0 if instance `at` runs the op; attention: kv_append too, kv_gather where entries are selected, kv_pack where blocks are
 * packed. */
int soq__exec_supports(struct soq__exec *x, uint32_t at, const struct soq_op_desc *desc, struct soq_error *err);

/* Every instance that is initialised is batch invariant. */
bool soq__exec_is_batch_invariant(const struct soq__exec *x);

/* A tensor in every memory of an initialised instance; view_out names it, in ops of this executor only. */
int soq__exec_tensor_create(struct soq__exec *x, uint32_t rows, uint32_t cols, struct soq_view *view_out,
                            struct soq_error *err);
void soq__exec_tensors_free(struct soq__exec *x);
/* Fills all copies of a constant. */
int soq__exec_tensor_write(struct soq__exec *x, struct soq_view view, const float *src, struct soq_error *err);
/* The view's rows in host memory, after end(): in place where a copy is there, else read into scratch. */
int soq__exec_tensor_read(struct soq__exec *x, struct soq_view view, float *scratch, const float **data_out,
                          struct soq_error *err);

/* A step. err is filled by the first failure and must live until end. */
void soq__exec_begin(struct soq__exec *x, const struct soq_step *step, struct soq_error *err);
int soq__exec_end(struct soq__exec *x);

/* Ops, on the instance that placement chose. */
void soq__exec_matmul(struct soq__exec *x, uint32_t at, const struct soq_matmul_args *args);
void soq__exec_embed(struct soq__exec *x, uint32_t at, const struct soq_embed_args *args);
void soq__exec_norm(struct soq__exec *x, uint32_t at, const struct soq_norm_args *args);
void soq__exec_rope_table(struct soq__exec *x, uint32_t at, const struct soq_rope_table_args *args);
void soq__exec_rope(struct soq__exec *x, uint32_t at, const struct soq_rope_args *args);
void soq__exec_activation(struct soq__exec *x, uint32_t at, const struct soq_activation_args *args);
void soq__exec_add(struct soq__exec *x, uint32_t at, const struct soq_add_args *args);
void soq__exec_scale(struct soq__exec *x, uint32_t at, const struct soq_scale_args *args);
void soq__exec_gather(struct soq__exec *x, uint32_t at, const struct soq_gather_args *args);
void soq__exec_kv_append(struct soq__exec *x, uint32_t at, const struct soq_kv_append_args *args);
void soq__exec_attention(struct soq__exec *x, uint32_t at, const struct soq_attention_args *args);

/* "matmul" */
const char *soq__op_name(uint32_t op);

#endif
