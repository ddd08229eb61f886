/* Choosing, initialising and switching between backends; the op wrappers. */
#include "engine/exec.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "config/settings.h"

static int instance_init(struct soq__exec *x, uint32_t i, struct soq_error *err)
{
    struct soq__instance *in = &x->instances[i];
    struct soq_backend_params params = {
        .struct_size = sizeof params,
        .device = in->choice->devices[0].index,
        .max_rows = x->max_rows,
        .max_slots = x->max_slots,
    };
    void *self;
    int rc = soq__plugin_config_init(&in->config, in->choice->plugin, x->settings, err);

    if (rc)
        return rc;
    self = soq__alloc_aligned(64, in->ops->instance_size);
    if (!self)
        return soq__fail(err, SOQ_ENOMEM, "backend %s: out of memory", in->choice->plugin->id);
    memset(self, 0, in->ops->instance_size);
    rc = in->ops->init(self, &x->host->services, &in->config.view, &params, err);
    if (rc) {
        soq__free(self);
        soq__fail_prefix(err, "backend %s", in->choice->plugin->id);
        return rc;
    }
    in->self = self;
    return 0;
}

/* [backend] use says "NAME!" or "NAME/VARIANT!". */
static bool is_required(const char *const *use, size_t n_use, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < n_use; i++)
        if (strcspn(use[i], "/!") == n && memcmp(use[i], name, n) == 0)
            return strchr(use[i], '!');
    return false;
}

static void set_instances(struct soq__exec *x, size_t count)
{
    for (uint32_t i = 0; i < count; i++)
        x->instances[i] = (struct soq__instance){.choice = &x->choices[i], .ops = x->choices[i].plugin->ops.backend};
    x->n_instances = x->current = (uint32_t)count;
}

/* The first backend that starts is the primary one. One whose device is gone, full or broken is left out, unless it is
 * required. */
static int init_primary(struct soq__exec *x, const char *const *use, size_t n_use, struct soq_error *err)
{
    for (;;) {
        const struct soq__plugin_role *plugin = x->choices[0].plugin;
        int rc;

        if (!x->instances[0].ops->memory || !x->instances[0].ops->matmul)
            return soq__fail(err, SOQ_EINVAL, "[backend] use: %s has no memory and matmul of its own and cannot come first",
                             plugin->id);
        rc = instance_init(x, 0, err);
        if ((rc != -SOQ_ENOTFOUND && rc != -SOQ_ENOMEM && rc != -SOQ_EDEVICE) || x->n_instances == 1 ||
            is_required(use, n_use, plugin->name))
            return rc;
        soq__log(SOQ_LOG_WARN, "%s; it is left out", err->text);
        *err = (struct soq_error)SOQ_ERROR_INIT;
        memmove(x->choices, x->choices + 1, (x->n_instances - 1) * sizeof x->choices[0]);
        set_instances(x, x->n_instances - 1);
    }
}

int soq__exec_init(struct soq__exec *x, struct soq__registry *registry, struct soq__settings *settings,
                   const struct soq__host *host, uint32_t max_rows, uint32_t max_slots, struct soq_error *err)
{
    size_t n_use, count;
    const char *const *use = soq__settings_list(settings, "backend", "use", &n_use);
    int rc;

    memset(x, 0, sizeof *x);
    x->host = host;
    x->settings = settings;
    x->max_rows = max_rows;
    x->max_slots = max_slots;
    rc = soq__registry_choose_backends(registry, use, n_use, settings, &host->services, x->choices, &count, err);
    if (rc)
        return rc;
    set_instances(x, count);
    return init_primary(x, use, n_use, err);
}

void soq__exec_done(struct soq__exec *x)
{
    for (uint32_t i = 0; i < x->n_instances; i++) {
        struct soq__instance *in = &x->instances[i];

        if (!in->self)
            continue;
        in->ops->shutdown(in->self);
        soq__free(in->self);
    }
    x->n_instances = 0;
}

static bool has_table(const struct soq_backend_ops *ops, enum soq_op op)
{
    switch (op) {
    case SOQ_OP_MATMUL:
        return ops->matmul;
    case SOQ_OP_ATTENTION:
    case SOQ_OP_KV_APPEND:
        return ops->attention;
    default:
        return ops->elementwise;
    }
}

/* Ops with weights stay where the weights are. */
static bool needs_weights(enum soq_op op)
{
    return op == SOQ_OP_MATMUL || op == SOQ_OP_EMBED || op == SOQ_OP_NORM;
}

static const char *op_name(uint32_t op)
{
    switch (op) {
#define NAME(id, value, text)                                                                                                  \
    case value:                                                                                                                \
        return text;
        SOQ_OPS(NAME)
#undef NAME
    default:
        return "unknown op";
    }
}

static int try_place(struct soq__exec *x, uint32_t i, const struct soq_op_desc *desc, struct soq_error *why)
{
    const struct soq__instance *in = &x->instances[i];
    bool native = (in->choice->plugin->native_ops >> desc->op) & 1;
    int rc = 0;

    if (i && needs_weights(desc->op))
        return soq__fail(why, SOQ_EUNSUPPORTED, "weights are held by %s", x->choices[0].plugin->id);
    if (i && strcmp(in->ops->domain, x->instances[0].ops->domain) != 0)
        return soq__fail(why, SOQ_EUNSUPPORTED, "its memory domain is %s, not %s", in->ops->domain,
                         x->instances[0].ops->domain);
    if (!has_table(in->ops, desc->op) || !native)
        return soq__fail(why, SOQ_EUNSUPPORTED, "has no such op");
    if (!in->self)
        rc = instance_init(x, i, why);
    return rc ? rc : in->ops->supports(in->self, desc, why);
}

/* Attention and what it reads stay together: the block tables are their backend's. */
static void move(struct soq__exec *x, uint32_t op, uint32_t i)
{
    x->place[op] = (uint8_t)i;
    if (op == SOQ_OP_ATTENTION || op == SOQ_OP_KV_APPEND)
        x->place[SOQ_OP_ATTENTION] = x->place[SOQ_OP_KV_APPEND] = (uint8_t)i;
}

int soq__exec_place(struct soq__exec *x, const struct soq_op_desc *desc, struct soq_error *err)
{
    struct soq_buf reasons = SOQ_BUF_INIT;
    int rc = -SOQ_EUNSUPPORTED;

    for (uint32_t i = x->place[desc->op]; rc && i < x->n_instances; i++) {
        struct soq_error why = SOQ_ERROR_INIT;

        rc = try_place(x, i, desc, &why);
        if (!rc && i > x->place[desc->op]) {
            move(x, desc->op, i);
            soq__log(SOQ_LOG_INFO, "%s runs on %s", op_name(desc->op), x->choices[i].plugin->id);
        }
        if (rc)
            soq__buf_printf(&reasons, "%s%s: %s", reasons.len ? "; " : "", x->choices[i].plugin->id, why.text);
    }
    if (rc)
        rc = soq__fail(err, SOQ_EUNSUPPORTED, "no backend of [backend] use runs %s as this model needs it: %s",
                       op_name(desc->op), soq__buf_str(&reasons));
    soq__buf_done(&reasons);
    return rc;
}

const struct soq__instance *soq__exec_primary(const struct soq__exec *x)
{
    return &x->instances[0];
}

const struct soq__instance *soq__exec_attention_owner(const struct soq__exec *x)
{
    return &x->instances[x->place[SOQ_OP_ATTENTION]];
}

bool soq__exec_is_batch_invariant(const struct soq__exec *x)
{
    for (uint32_t i = 0; i < x->n_instances; i++)
        if (x->instances[i].self && !(x->instances[i].ops->flags & SOQ_BACKEND_BATCH_INVARIANT))
            return false;
    return true;
}

/* ---- A step ----------------------------------------------------------------------------------------------------------------
 */

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
    int rc;

    if (x->current == x->n_instances)
        return;
    rc = x->instances[x->current].ops->end(x->instances[x->current].self, x->rc ? &later : x->err);
    x->rc = x->rc ? x->rc : rc;
    x->current = x->n_instances;
}

int soq__exec_end(struct soq__exec *x)
{
    leave(x);
    x->step = NULL;
    return x->rc;
}

/* The instance that runs op, begun; NULL after a failure. */
static const struct soq__instance *enter(struct soq__exec *x, enum soq_op op)
{
    uint32_t wanted = x->place[op];
    const struct soq__instance *in = &x->instances[wanted];

    if (x->current == wanted)
        return in;
    leave(x);
    if (x->rc)
        return NULL;
    x->rc = in->ops->begin(in->self, x->step, x->err);
    if (x->rc)
        return NULL;
    x->current = wanted;
    return in;
}

#define WRAPPER(name, op, table)                                                                                               \
    void soq__exec_##name(struct soq__exec *x, const struct soq_##name##_args *args)                                           \
    {                                                                                                                          \
        const struct soq__instance *in = enter(x, op);                                                                         \
                                                                                                                               \
        if (in)                                                                                                                \
            in->ops->table->name(in->self, args); /* a failure is sticky and comes back from end */                            \
    }

WRAPPER(matmul, SOQ_OP_MATMUL, matmul)
WRAPPER(embed, SOQ_OP_EMBED, elementwise)
WRAPPER(norm, SOQ_OP_NORM, elementwise)
WRAPPER(rope_table, SOQ_OP_ROPE_TABLE, elementwise)
WRAPPER(rope, SOQ_OP_ROPE, elementwise)
WRAPPER(activation, SOQ_OP_ACTIVATION, elementwise)
WRAPPER(add, SOQ_OP_ADD, elementwise)
WRAPPER(scale, SOQ_OP_SCALE, elementwise)
WRAPPER(gather, SOQ_OP_GATHER, elementwise)
WRAPPER(kv_append, SOQ_OP_KV_APPEND, attention)
WRAPPER(attention, SOQ_OP_ATTENTION, attention)
