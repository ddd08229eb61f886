/* Ops bound to the backends that run them. Placement is resolved once, at load; a step only follows it.
 *
 * The first backend of the chain is the primary one: it owns memory, weights and buffers. An op without weights that it does
 * not support goes to the next backend in the same memory domain that does. Where a step changes from one backend to another
 * the first is ended before the second begins. Failures are sticky: the wrappers do nothing after the first, end() returns it.
 */
#ifndef SOQ_ENGINE_EXEC_H
#define SOQ_ENGINE_EXEC_H

#include "plugin/host.h"
#include "plugin/pluginconf.h"
#include "plugin/registry.h"

struct soq__instance {
    const struct soq__backend_choice *choice;
    const struct soq_backend_ops *ops;
    void *self; /* owned; NULL while not initialised */
    struct soq__plugin_config config;
};

#define SOQ__N_OPS 12 /* enum soq_op is 1 .. 11 */

struct soq__exec {
    const struct soq__host *host; /* not owned */
    struct soq__settings *settings;
    struct soq__backend_choice choices[SOQ_BACKENDS_MAX];
    struct soq__instance instances[SOQ_BACKENDS_MAX];
    uint32_t n_instances;
    uint32_t max_rows, max_slots;
    uint8_t place[SOQ__N_OPS]; /* instance of an op; instance 0 until placed otherwise */
    /* During a step. */
    const struct soq_step *step;
    struct soq_error *err;
    int rc;
    uint32_t current; /* instance between begin and end; n_instances: none */
};

/* Chooses from [backend] use and initialises the primary backend. Needs done() even if it fails. */
int soq__exec_init(struct soq__exec *x, struct soq__registry *registry, struct soq__settings *settings,
                   const struct soq__host *host, uint32_t max_rows, uint32_t max_slots, struct soq_error *err);
void soq__exec_done(struct soq__exec *x);

/* Decides who runs ops of that description, initialising a further backend if need be. One backend runs all descriptions of an
 * op, and one runs both attention and kv_append: a description may move them on, never back, so ask again for the others until
 * nothing moves. The failure tells why each backend cannot. */
int soq__exec_place(struct soq__exec *x, const struct soq_op_desc *desc, struct soq_error *err);

/* The owner of memory, weights and buffers; and who runs attention and so holds the block tables. */
const struct soq__instance *soq__exec_primary(const struct soq__exec *x);
const struct soq__instance *soq__exec_attention_owner(const struct soq__exec *x);
/* Every instance that runs ops is batch invariant. */
bool soq__exec_is_batch_invariant(const struct soq__exec *x);

/* A step. err is filled by the first failure and must live until end. */
void soq__exec_begin(struct soq__exec *x, const struct soq_step *step, struct soq_error *err);
int soq__exec_end(struct soq__exec *x);

void soq__exec_matmul(struct soq__exec *x, const struct soq_matmul_args *args);
void soq__exec_embed(struct soq__exec *x, const struct soq_embed_args *args);
void soq__exec_norm(struct soq__exec *x, const struct soq_norm_args *args);
void soq__exec_rope_table(struct soq__exec *x, const struct soq_rope_table_args *args);
void soq__exec_rope(struct soq__exec *x, const struct soq_rope_args *args);
void soq__exec_activation(struct soq__exec *x, const struct soq_activation_args *args);
void soq__exec_add(struct soq__exec *x, const struct soq_add_args *args);
void soq__exec_scale(struct soq__exec *x, const struct soq_scale_args *args);
void soq__exec_gather(struct soq__exec *x, const struct soq_gather_args *args);
void soq__exec_kv_append(struct soq__exec *x, const struct soq_kv_append_args *args);
void soq__exec_attention(struct soq__exec *x, const struct soq_attention_args *args);

#endif
