/* A step over several instances: tensors in several memories, switching, and the op wrappers. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/exec.h"

static bool on_host(const struct soq__exec *x, uint32_t memory)
{
    return strcmp(x->instances[memory].ops->domain, "host") == 0;
}

/* ---- Tensors ------------------------------------------------------------------------------------------------------------- */

static bool holds_tensors(const struct soq__exec *x, uint32_t i)
{
    return x->instances[i].self && x->instances[i].memory == i;
}

/* A copy between two memories of which neither is the host's goes through it. */
static int make_staging(struct soq__exec *x, uint64_t bytes, struct soq_error *err)
{
    uint32_t n_devices = 0;

    for (uint32_t i = 0; i < x->n_instances; i++)
        n_devices += holds_tensors(x, i) && !on_host(x, i);
    if (n_devices < 2)
        return 0;
    soq__free(x->staging); /* tensors are created largest or smallest first: keep the largest */
    x->staging = soq__alloc(bytes);
    return x->staging ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for copies between devices");
}

static uint64_t tensor_bytes(const struct soq__tensor *t)
{
    return (uint64_t)t->rows * t->cols * sizeof(float);
}

int soq__exec_tensor_create(struct soq__exec *x, uint32_t rows, uint32_t cols, struct soq_view *view_out, struct soq_error *err)
{
    struct soq__tensor *t = &x->tensors[x->n_tensors];
    uint64_t largest = 0;
    int rc;

    if (x->n_tensors == SOQ__TENSORS_MAX)
        return soq__fail(err, SOQ_EINTERNAL, "more than %d tensors", SOQ__TENSORS_MAX);
    *t = (struct soq__tensor){.rows = rows, .cols = cols};
    x->n_tensors++;
    for (uint32_t i = 0; i < x->n_instances; i++) {
        struct soq__instance *in = &x->instances[i];

        if (!holds_tensors(x, i))
            continue;
        rc = in->ops->memory->buffer_alloc(in->self, tensor_bytes(t), &t->at[i], err);
        if (rc) {
            soq__fail_prefix(err, "activation buffer of %u x %u", rows, cols);
            return rc;
        }
    }
    for (uint32_t i = 0; i < x->n_tensors; i++)
        largest = tensor_bytes(&x->tensors[i]) > largest ? tensor_bytes(&x->tensors[i]) : largest;
    rc = make_staging(x, largest, err);
    if (rc)
        return rc;
    *view_out =
        (struct soq_view){.buffer = x->n_tensors, .rows = rows, .cols = cols, .row_stride = cols, .dtype = SOQ_DTYPE_F32};
    return 0;
}

void soq__exec_tensors_free(struct soq__exec *x)
{
    for (uint32_t t = 0; t < x->n_tensors; t++)
        for (uint32_t i = 0; i < x->n_instances; i++)
            if (x->tensors[t].at[i])
                x->instances[i].ops->memory->buffer_free(x->instances[i].self, x->tensors[t].at[i]);
    x->n_tensors = 0;
    soq__free(x->staging);
    x->staging = NULL;
}

int soq__exec_tensor_write(struct soq__exec *x, struct soq_view view, const float *src, struct soq_error *err)
{
    struct soq__tensor *t = &x->tensors[view.buffer - 1];
    int rc = 0;

    for (uint32_t i = 0; !rc && i < x->n_instances; i++) {
        if (!t->at[i])
            continue;
        rc = x->instances[i].ops->memory->buffer_write(x->instances[i].self, t->at[i], 0, src, tensor_bytes(t), err);
        t->valid |= 1u << i;
    }
    return rc;
}

/* The lowest memory with a valid copy, the host's first; n_instances if there is none. */
static uint32_t valid_at(const struct soq__exec *x, const struct soq__tensor *t)
{
    uint32_t found = x->n_instances;

    for (uint32_t i = x->n_instances; i-- > 0;)
        if (t->valid >> i & 1 && (found == x->n_instances || !on_host(x, found)))
            found = i;
    return found;
}

int soq__exec_tensor_read(struct soq__exec *x, struct soq_view view, float *scratch, const float **data_out,
                          struct soq_error *err)
{
    const struct soq__tensor *t = &x->tensors[view.buffer - 1];
    uint32_t from = valid_at(x, t);
    const struct soq__instance *in = &x->instances[from];

    if (from == x->n_instances)
        return soq__fail(err, SOQ_EINTERNAL, "a tensor is read before it was computed");
    if (on_host(x, from)) {
        *data_out = (const float *)(uintptr_t)t->at[from];
        return 0;
    }
    *data_out = scratch;
    return in->ops->memory->buffer_read(in->self, t->at[from], 0, scratch, (uint64_t)view.rows * t->cols * sizeof(float), err);
}

/* Brings the first `rows` rows to memory `to`. Nothing is between begin and end. */
static int copy_rows(struct soq__exec *x, struct soq__tensor *t, uint32_t rows, uint32_t to, struct soq_error *err)
{
    const struct soq__instance *dst = &x->instances[to], *src;
    uint64_t bytes = (uint64_t)rows * t->cols * sizeof(float);
    uint32_t from = valid_at(x, t);
    double start = soq__clock_now();
    const void *data;
    int rc = 0;

    if (from == x->n_instances)
        return soq__fail(err, SOQ_EINTERNAL, "a tensor is read before it was computed");
    src = &x->instances[from];
    data = on_host(x, from) ? (const void *)(uintptr_t)t->at[from]
           : on_host(x, to) ? (const void *)(uintptr_t)t->at[to]
                            : x->staging;
    if (!on_host(x, from))
        rc = src->ops->memory->buffer_read(src->self, t->at[from], 0, (void *)(uintptr_t)data, bytes, err);
    if (!rc && !(on_host(x, to) && !on_host(x, from)))
        rc = dst->ops->memory->buffer_write(dst->self, t->at[to], 0, data, bytes, err);
    if (rc) {
        soq__fail_prefix(err, "copying activations from %s to %s", src->choice->plugin->id, dst->choice->plugin->id);
        return rc;
    }
    t->valid |= 1u << to;
    x->copies.n++;
    x->copies.bytes += bytes;
    x->copies.seconds += soq__clock_now() - start;
    return 0;
}

/* ---- A step -------------------------------------------------------------------------------------------------------------- */

void soq__exec_begin(struct soq__exec *x, const struct soq_step *step, struct soq_error *err)
{
    x->step = step;
    x->err = err;
    x->rc = 0;
    x->current = x->n_instances;
}

static void leave(struct soq__exec *x)
{
    struct soq_error later = SOQ_ERROR_INIT;
    struct soq__instance *in;
    int rc;

    if (x->current == x->n_instances)
        return;
    in = &x->instances[x->current];
    rc = in->ops->end(in->self, x->rc ? &later : x->err);
    in->seconds += soq__clock_now() - x->entered;
    in->n_runs++;
    x->rc = x->rc ? x->rc : rc;
    x->current = x->n_instances;
}

int soq__exec_end(struct soq__exec *x)
{
    leave(x);
    x->step = NULL;
    return x->rc;
}

/* A view among an op's arguments and what the op does with it. */
struct use {
    struct soq_view *view;
    bool reads, writes;
};

static bool is_missing(const struct soq__exec *x, const struct use *u, uint32_t memory)
{
    return u->view->buffer && u->reads && !(x->tensors[u->view->buffer - 1].valid >> memory & 1);
}

/* Begins instance `at` unless it is the current one, with every tensor that the op reads in its memory, and puts real buffers
 * into the views. NULL after a failure. */
static const struct soq__instance *enter(struct soq__exec *x, uint32_t at, const struct use *uses, int n_uses)
{
    const struct soq__instance *in = &x->instances[at];
    uint32_t memory = in->memory;
    bool missing = false;

    for (int i = 0; i < n_uses; i++)
        missing = missing || is_missing(x, &uses[i], memory);
    if (x->current != at || missing)
        leave(x);
    for (int i = 0; !x->rc && missing && i < n_uses; i++)
        if (is_missing(x, &uses[i], memory))
            x->rc = copy_rows(x, &x->tensors[uses[i].view->buffer - 1], uses[i].view->rows, memory, x->err);
    if (!x->rc && x->current != at) {
        x->entered = soq__clock_now();
        x->rc = in->ops->begin(in->self, x->step, x->err);
        x->current = x->rc ? x->n_instances : at;
    }
    if (x->rc)
        return NULL;
    for (int i = 0; i < n_uses; i++) {
        struct soq__tensor *t = uses[i].view->buffer ? &x->tensors[uses[i].view->buffer - 1] : NULL;

        if (!t)
            continue;
        if (uses[i].writes)
            t->valid = 1u << memory;
        uses[i].view->buffer = t->at[memory];
    }
    return in;
}

/* Ends the op that was just called, if ops are timed one by one. */
static void time_op(struct soq__exec *x, uint32_t op)
{
    const struct soq__instance *in = &x->instances[x->current];
    double before = in->seconds;

    if (!x->op_times)
        return;
    leave(x);
    x->op_times->n[op]++;
    x->op_times->seconds[op] += in->seconds - before;
}

/* An op: its arguments are copied, its views named, and the backend called; a failure is sticky and comes back from end. */
#define WRAPPER(name, op, table, ...)                                                                                          \
    void soq__exec_##name(struct soq__exec *x, uint32_t at, const struct soq_##name##_args *args)                              \
    {                                                                                                                          \
        struct soq_##name##_args a = *args;                                                                                    \
        const struct use uses[] = {__VA_ARGS__};                                                                               \
        const struct soq__instance *in = enter(x, at, uses, (int)(sizeof uses / sizeof uses[0]));                              \
                                                                                                                               \
        if (!in)                                                                                                               \
            return;                                                                                                            \
        in->ops->table->name(in->self, &a);                                                                                    \
        time_op(x, SOQ_OP_##op);                                                                                               \
    }

/* clang-format off */
WRAPPER(matmul, MATMUL, matmul, {&a.x, true, false}, {&a.y, a.accumulate != 0, true})
WRAPPER(embed, EMBED, elementwise, {&a.y, false, true})
WRAPPER(norm, NORM, elementwise, {&a.x, true, false}, {&a.y, false, true})
WRAPPER(rope_table, ROPE_TABLE, elementwise, {&a.inv_freq, true, false}, {&a.table, false, true})
WRAPPER(rope, ROPE, elementwise, {&a.x, true, true}, {&a.table, true, false})
WRAPPER(activation, ACTIVATION, elementwise, {&a.gate, true, false}, {&a.up, true, false}, {&a.y, false, true})
WRAPPER(add, ADD, elementwise, {&a.a, true, false}, {&a.b, true, false}, {&a.y, false, true})
WRAPPER(scale, SCALE, elementwise, {&a.x, true, true})
WRAPPER(gather, GATHER, elementwise, {&a.x, true, false}, {&a.y, false, true})
WRAPPER(kv_append, KV_APPEND, attention, {&a.k, true, false}, {&a.v, true, false})
WRAPPER(attention, ATTENTION, attention, {&a.q, true, false}, {&a.inv_freq, true, false}, {&a.out, false, true})
/* clang-format on */
