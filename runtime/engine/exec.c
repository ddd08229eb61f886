/* Choosing and initialising backends, and deciding who runs an op. */
#include "engine/exec.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "config/settings.h"

/* Backends that can measure have a switch for it (vendor guide). */
static int ask_for_profile(struct soq__exec *x, const struct soq__instance *in, struct soq_error *err)
{
    const struct soq__setting *s = soq__settings_find(x->settings, in->config.section, "profile");

    if (!s || !s->known || s->spec.option.type != SOQ_OPT_BOOL || strcmp(s->origin, "default") != 0)
        return 0;
    return soq__settings_set(x->settings, in->config.section, "profile", "on", err);
}

static int try_init(struct soq__exec *x, struct soq__instance *in, struct soq_error *err)
{
    struct soq_backend_params params = {
        .struct_size = sizeof params,
        .device = in->choice->devices[0].index,
        .max_rows = x->max_rows,
        .max_slots = x->max_slots,
    };
    void *self;
    int rc = soq__plugin_config_init(&in->config, in->choice->plugin, x->settings, err);

    if (!rc && x->profile)
        rc = ask_for_profile(x, in, err);
    if (rc)
        return rc;
    self = soq__alloc_aligned(64, in->ops->instance_size);
    if (!self)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    memset(self, 0, in->ops->instance_size);
    rc = in->ops->init(self, &x->host->services, &in->config.view, &params, err);
    if (rc) {
        soq__free(self);
        return rc;
    }
    in->self = self;
    return 0;
}

/* A backend that cannot be initialised is tried once. */
static int instance_init(struct soq__exec *x, uint32_t i, struct soq_error *err)
{
    struct soq__instance *in = &x->instances[i];
    const char *id = in->choice->plugin->id;

    if (in->self)
        return 0;
    if (!in->failure.code) {
        in->failure = (struct soq_error)SOQ_ERROR_INIT;
        in->failure.code = try_init(x, in, &in->failure);
        if (!in->failure.code)
            return 0;
        if (!in->choice->required)
            soq__log(SOQ_LOG_WARN, "backend %s is left out: %s", id, in->failure.text);
    }
    return soq__fail(err, (enum soq_error_code) - in->failure.code, "backend %s: %s", id, in->failure.text);
}

static bool same_domain(const struct soq__exec *x, uint32_t a, uint32_t b)
{
    return strcmp(x->instances[a].ops->domain, x->instances[b].ops->domain) == 0;
}

/* Guests compute on the buffers of the first instance of their domain that has memory; n_instances if there is none. */
static uint32_t memory_of(const struct soq__exec *x, uint32_t i)
{
    uint32_t m = 0;

    while (m < x->n_instances && !(x->instances[m].ops->memory && same_domain(x, m, i)))
        m++;
    return m;
}

int soq__exec_init(struct soq__exec *x, const struct soq__exec_params *p, struct soq_error *err)
{
    size_t n_use, count;
    const char *const *use = soq__settings_list(p->settings, "backend", "use", &n_use);
    int rc;

    *x = (struct soq__exec){
        .host = p->host,
        .settings = p->settings,
        .max_rows = p->max_rows,
        .max_slots = p->max_slots,
        .profile = p->profile,
    };
    rc = soq__registry_choose_backends(p->registry, use, n_use, p->settings, &p->host->services, x->choices, &count, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < count; i++)
        x->instances[i] = (struct soq__instance){.choice = &x->choices[i], .ops = x->choices[i].plugin->ops.backend};
    x->n_instances = x->current = (uint32_t)count;
    for (uint32_t i = 0; i < count; i++)
        x->instances[i].memory = memory_of(x, i);
    rc = soq__fail(err, SOQ_EINVAL, "[backend] use: none of them has memory and matmul of its own, %s has not",
                   x->choices[0].plugin->id);
    for (x->primary = 0; x->primary < count; x->primary++) {
        if (!x->instances[x->primary].ops->memory || !x->instances[x->primary].ops->matmul)
            continue;
        rc = instance_init(x, x->primary, err);
        if (!rc || x->choices[x->primary].required)
            return rc;
    }
    return rc;
}

void soq__exec_done(struct soq__exec *x)
{
    soq__exec_tensors_free(x);
    for (uint32_t i = 0; i < x->n_instances; i++) {
        struct soq__instance *in = &x->instances[i];

        if (!in->self)
            continue;
        in->ops->shutdown(in->self);
        soq__free(in->self);
        in->self = NULL;
    }
    x->n_instances = 0;
}

static bool is_called(const struct soq__plugin_role *p, const char *name, size_t len)
{
    return (strlen(p->name) == len && memcmp(p->name, name, len) == 0) ||
           (strlen(p->id) == len && memcmp(p->id, name, len) == 0);
}

int soq__exec_find(struct soq__exec *x, const char *name, size_t len, uint32_t *at_out, struct soq_error *err)
{
    struct soq_buf ids = SOQ_BUF_INIT;
    uint32_t i = 0;
    int rc;

    while (i < x->n_instances && !is_called(x->choices[i].plugin, name, len))
        i++;
    if (i < x->n_instances) {
        rc = instance_init(x, i, err);
        *at_out = rc ? *at_out : i;
        return rc;
    }
    for (i = 0; i < x->n_instances; i++)
        soq__buf_printf(&ids, "%s%s", i ? ", " : "", x->choices[i].plugin->id);
    rc = soq__fail(err, SOQ_EINVAL, "\"%.*s\" is none of the backends in use: %s", (int)len, name, soq__buf_str(&ids));
    soq__buf_done(&ids);
    return rc;
}

bool soq__exec_is_batch_invariant(const struct soq__exec *x)
{
    for (uint32_t i = 0; i < x->n_instances; i++)
        if (x->instances[i].self && !(x->instances[i].ops->flags & SOQ_BACKEND_BATCH_INVARIANT))
            return false;
    return true;
}

/* ---- Who runs an op ------------------------------------------------------------------------------------------------------ */

const char *soq__op_name(uint32_t op)
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

static bool needs_weights(uint32_t op)
{
    return op == SOQ_OP_MATMUL || op == SOQ_OP_EMBED || op == SOQ_OP_NORM;
}

/* Asks about one op, of which the plugin must have the slot. */
static int ask_op(const struct soq__instance *in, struct soq_op_desc desc, uint32_t op, struct soq_error *err)
{
    desc.op = op;
    desc.flags &= ~SOQ__OPDESC_SELECTS;
    if (!(in->choice->plugin->native_ops >> op & 1))
        return soq__fail(err, SOQ_EUNSUPPORTED, "has no %s", soq__op_name(op));
    return in->ops->supports(in->self, &desc, err);
}

int soq__exec_supports(struct soq__exec *x, uint32_t at, const struct soq_op_desc *desc, struct soq_error *err)
{
    const struct soq__instance *in = &x->instances[at];
    int rc;

    if (!(in->choice->plugin->native_ops >> desc->op & 1))
        return soq__fail(err, SOQ_EUNSUPPORTED, "has no such op");
    if (needs_weights(desc->op) && !in->ops->memory)
        return soq__fail(err, SOQ_EUNSUPPORTED, "has no memory to hold weights in");
    if (in->memory == x->n_instances)
        return soq__fail(err, SOQ_EUNSUPPORTED, "no backend in use has memory of its domain, %s", in->ops->domain);
    rc = instance_init(x, at, err);
    if (!rc)
        rc = instance_init(x, in->memory, err);
    if (!rc)
        rc = ask_op(in, *desc, desc->op, err);
    if (!rc && desc->op == SOQ_OP_ATTENTION) /* who attends holds the cache */
        rc = ask_op(in, *desc, SOQ_OP_KV_APPEND, err);
    if (!rc && desc->op == SOQ_OP_ATTENTION && desc->flags & SOQ__OPDESC_SELECTS)
        rc = ask_op(in, *desc, SOQ_OP_KV_GATHER, err);
    if (!rc && desc->op == SOQ_OP_ATTENTION && desc->packed_key)
        rc = ask_op(in, *desc, SOQ_OP_KV_PACK, err);
    return rc;
}

/* How eagerly instance i is asked for an op where instance `home` owns the memory; 0: not at all. */
static int eagerness(const struct soq__exec *x, uint32_t home, uint32_t i)
{
    if (i == home)
        return 2;
    if (x->instances[i].ops->memory || !same_domain(x, home, i))
        return 0;
    return i < home ? 3 : 1; /* a guest; it was named first to be preferred */
}

struct search {
    const struct soq_op_desc *desc;
    uint32_t asked; /* bit per instance */
    uint32_t at;    /* the last one */
    int rc;         /* its answer */
    struct soq_buf reasons;
};

/* Asks an instance and its guests. True: it is over, found or a required one cannot be had. */
static bool ask(struct soq__exec *x, uint32_t home, struct search *s)
{
    for (int eager = 3; eager > 0; eager--)
        for (uint32_t i = 0; i < x->n_instances; i++) {
            struct soq_error why = SOQ_ERROR_INIT;

            if (eagerness(x, home, i) != eager || s->asked >> i & 1)
                continue;
            s->asked |= 1u << i;
            s->at = i;
            s->rc = soq__exec_supports(x, i, s->desc, &why);
            if (!s->rc || (x->choices[i].required && x->instances[i].failure.code))
                return true;
            soq__buf_printf(&s->reasons, "%s%s: %s", s->reasons.len ? "; " : "", x->choices[i].plugin->id, why.text);
        }
    return false;
}

int soq__exec_choose(struct soq__exec *x, uint32_t home, const struct soq_op_desc *desc, uint32_t *at_out,
                     struct soq_error *err)
{
    struct search s = {.desc = desc, .reasons = SOQ_BUF_INIT};
    bool over = ask(x, home, &s);

    for (uint32_t i = 0; !over && i < x->n_instances; i++)
        over = soq__plugin_provides(x->choices[i].plugin, "host-ops") && ask(x, i, &s);
    if (!s.rc)
        *at_out = s.at;
    else if (over)
        soq__fail(err, (enum soq_error_code) - s.rc, "backend %s: %s", x->choices[s.at].plugin->id,
                  x->instances[s.at].failure.text);
    else
        s.rc = soq__fail(err, SOQ_EUNSUPPORTED, "no backend of [backend] use runs %s as this model needs it: %s",
                         soq__op_name(desc->op), soq__buf_str(&s.reasons));
    soq__buf_done(&s.reasons);
    return s.rc;
}
