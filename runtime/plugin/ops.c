/* What each role's table must have, as data, and the stubs for what it may lack. */
#include "plugin/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define INSTANCE_MAX ((size_t)1 << 30)
#define STATE_MAX ((size_t)1 << 26) /* per sequence */

/* ---- What a table must have. The last required slot is also the least size that a table can have. */

struct slot {
    const char *name;
    size_t offset; /* of a function pointer */
};

struct table {
    const char *name;
    size_t size; /* the host's */
    const struct slot *required;
    size_t n_required;
};

#define SLOT(type, member)                                                                                                     \
    {                                                                                                                          \
#member, offsetof(struct type, member)                                                                                 \
    }
#define TABLE(text, type, slots)                                                                                               \
    {                                                                                                                          \
        .name = text, .size = sizeof(struct type), .required = slots, .n_required = COUNT(slots)                               \
    }

static const struct slot backend_slots[] = {
    SLOT(soq_backend_ops, devices),  SLOT(soq_backend_ops, init),  SLOT(soq_backend_ops, shutdown),
    SLOT(soq_backend_ops, supports), SLOT(soq_backend_ops, begin), SLOT(soq_backend_ops, end),
};
static const struct slot memory_slots[] = {
    SLOT(soq_memory_ops, buffer_alloc), SLOT(soq_memory_ops, buffer_free),    SLOT(soq_memory_ops, buffer_write),
    SLOT(soq_memory_ops, buffer_read),  SLOT(soq_memory_ops, weight_prepare), SLOT(soq_memory_ops, weight_free),
};
static const struct slot matmul_slots[] = {SLOT(soq_matmul_ops, matmul)};
static const struct slot attention_slots[] = {
    SLOT(soq_attention_ops, group_create), SLOT(soq_attention_ops, group_free), SLOT(soq_attention_ops, group_slab),
    SLOT(soq_attention_ops, kv_append),    SLOT(soq_attention_ops, attention),
};
static const struct slot policy_slots[] = {SLOT(soq_kv_policy_ops, init), SLOT(soq_kv_policy_ops, describe)};
static const struct slot codec_slots[] = {
    SLOT(soq_kv_codec_ops, init),
    SLOT(soq_kv_codec_ops, describe),
    SLOT(soq_kv_codec_ops, encode),
    SLOT(soq_kv_codec_ops, decode),
};
static const struct slot sampler_slots[] = {
    SLOT(soq_sampler_ops, init),
    SLOT(soq_sampler_ops, defaults),
    SLOT(soq_sampler_ops, check),
    SLOT(soq_sampler_ops, sample),
};

static const struct table backend_table = TABLE("backend", soq_backend_ops, backend_slots);
static const struct table memory_table = TABLE("memory", soq_memory_ops, memory_slots);
static const struct table matmul_table = TABLE("matmul", soq_matmul_ops, matmul_slots);
static const struct table attention_table = TABLE("attention", soq_attention_ops, attention_slots);
static const struct table elementwise_table = {.name = "elementwise", .size = sizeof(struct soq_elementwise_ops)};
static const struct table policy_table = TABLE("kv_policy", soq_kv_policy_ops, policy_slots);
static const struct table codec_table = TABLE("kv_codec", soq_kv_codec_ops, codec_slots);
static const struct table sampler_table = TABLE("sampler", soq_sampler_ops, sampler_slots);

typedef void (*slot_fn)(void);

static bool is_null(const void *table, size_t offset)
{
    slot_fn fn;

    memcpy(&fn, (const char *)table + offset, sizeof fn);
    return !fn;
}

static int check_slots(const struct table *t, const void *ops, struct soq_error *err)
{
    for (size_t i = 0; i < t->n_required; i++) {
        if (is_null(ops, t->required[i].offset))
            return soq__fail(err, SOQ_EABI, "slot %s.%s is required and NULL", t->name, t->required[i].name);
    }
    return 0;
}

static int check_instance(const struct table *t, size_t instance_size, size_t state_size, struct soq_error *err)
{
    if (instance_size > INSTANCE_MAX)
        return soq__fail(err, SOQ_EABI, "%s.instance_size is %zu; at most %zu", t->name, instance_size, INSTANCE_MAX);
    if (state_size > STATE_MAX)
        return soq__fail(err, SOQ_EABI, "%s.state_size is %zu; at most %zu", t->name, state_size, STATE_MAX);
    return 0;
}

int soq__backend_ops_check(const struct soq_backend_ops *ops, struct soq_error *err)
{
    int rc = check_slots(&backend_table, ops, err);

    if (!rc)
        rc = check_instance(&backend_table, ops->instance_size, 0, err);
    if (!rc && ops->memory)
        rc = check_slots(&memory_table, ops->memory, err);
    if (!rc && ops->matmul)
        rc = check_slots(&matmul_table, ops->matmul, err);
    if (!rc && ops->attention)
        rc = check_slots(&attention_table, ops->attention, err);
    if (rc)
        return rc;
    if (!ops->domain || !*ops->domain)
        return soq__fail(err, SOQ_EABI, "backend.domain is empty");
    if (ops->memory && !ops->matmul)
        return soq__fail(err, SOQ_EABI, "table memory comes without table matmul; together they make a backend");
    if (!ops->matmul && !ops->attention && !ops->elementwise)
        return soq__fail(err, SOQ_EABI, "the backend has no table of ops");
    return 0;
}

int soq__kv_policy_ops_check(const struct soq_kv_policy_ops *ops, struct soq_error *err)
{
    int rc = check_slots(&policy_table, ops, err);

    if (rc)
        return rc;
    if (ops->state_size && !ops->on_commit && !ops->select)
        return soq__fail(err, SOQ_EABI,
                         "kv_policy.state_size is %zu, but without on_commit and select nothing would use the state",
                         ops->state_size);
    return check_instance(&policy_table, ops->instance_size, ops->state_size, err);
}

int soq__kv_codec_ops_check(const struct soq_kv_codec_ops *ops, struct soq_error *err)
{
    int rc = check_slots(&codec_table, ops, err);

    return rc ? rc : check_instance(&codec_table, ops->instance_size, 0, err);
}

int soq__sampler_ops_check(const struct soq_sampler_ops *ops, struct soq_error *err)
{
    int rc = check_slots(&sampler_table, ops, err);

    return rc ? rc : check_instance(&sampler_table, ops->instance_size, ops->state_size, err);
}

/* ---- Stubs */

static void shutdown_stub(void *self)
{
    (void)self;
}

#define ELEMENTWISE_STUB(op)                                                                                                   \
    static int op##_stub(void *self, const struct soq_##op##_args *args)                                                       \
    {                                                                                                                          \
        (void)self;                                                                                                            \
        (void)args;                                                                                                            \
        return -SOQ_EUNSUPPORTED;                                                                                              \
    }

ELEMENTWISE_STUB(embed)
ELEMENTWISE_STUB(norm)
ELEMENTWISE_STUB(rope_table)
ELEMENTWISE_STUB(rope)
ELEMENTWISE_STUB(activation)
ELEMENTWISE_STUB(add)
ELEMENTWISE_STUB(scale)
ELEMENTWISE_STUB(gather)

/* Returns the ops that the plugin has itself. */
static uint32_t fill_elementwise(struct soq_elementwise_ops *ops)
{
    uint32_t native = 0;

#define FILL(op, id)                                                                                                           \
    do {                                                                                                                       \
        native |= ops->op ? 1u << (id) : 0;                                                                                    \
        ops->op = ops->op ? ops->op : op##_stub;                                                                               \
    } while (0)
    FILL(embed, SOQ_OP_EMBED);
    FILL(norm, SOQ_OP_NORM);
    FILL(rope_table, SOQ_OP_ROPE_TABLE);
    FILL(rope, SOQ_OP_ROPE);
    FILL(activation, SOQ_OP_ACTIVATION);
    FILL(add, SOQ_OP_ADD);
    FILL(scale, SOQ_OP_SCALE);
    FILL(gather, SOQ_OP_GATHER);
#undef FILL
    return native;
}

static int kv_gather_stub(void *self, const struct soq_kv_gather_args *args, struct soq_error *err)
{
    (void)self, (void)args;
    return soq__fail(err, SOQ_EUNSUPPORTED, "attention.kv_gather is missing");
}

static int kv_pack_stub(void *self, const struct soq_kv_pack_args *args, struct soq_error *err)
{
    (void)self, (void)args;
    return soq__fail(err, SOQ_EUNSUPPORTED, "attention.kv_pack is missing");
}

static uint32_t fill_attention(struct soq_attention_ops *ops)
{
    uint32_t native = 1u << SOQ_OP_ATTENTION | 1u << SOQ_OP_KV_APPEND | (ops->kv_gather ? 1u << SOQ_OP_KV_GATHER : 0) |
                      (ops->kv_pack ? 1u << SOQ_OP_KV_PACK : 0);

    ops->kv_gather = ops->kv_gather ? ops->kv_gather : kv_gather_stub;
    ops->kv_pack = ops->kv_pack ? ops->kv_pack : kv_pack_stub;
    return native;
}

/* ---- Copies */

struct backend_block {
    struct soq_backend_ops ops; /* first: the block is handed out as this */
    struct soq_memory_ops memory;
    struct soq_matmul_ops matmul;
    struct soq_attention_ops attention;
    struct soq_elementwise_ops elementwise;
};

static size_t least_size(const struct table *t)
{
    return t->n_required ? t->required[t->n_required - 1].offset + sizeof(slot_fn) : sizeof(uint32_t);
}

/* dst is zeroed; what the plugin's table is too old for stays so. */
static int copy_table(const struct table *t, void *dst, const void *src, struct soq_error *err)
{
    uint32_t size, host_size = (uint32_t)t->size;

    memcpy(&size, src, sizeof size);
    if (size < least_size(t))
        return soq__fail(err, SOQ_EABI, "table %s has %u bytes; its required slots need %zu", t->name, size, least_size(t));
    memcpy(dst, src, size < host_size ? size : host_size);
    memcpy(dst, &host_size, sizeof host_size);
    return 0;
}

static int copy_backend(struct backend_block *b, const struct soq_backend_ops *src, uint32_t *native_out, struct soq_error *err)
{
    int rc = copy_table(&backend_table, &b->ops, src, err);

    if (!rc && b->ops.memory)
        rc = copy_table(&memory_table, &b->memory, b->ops.memory, err);
    if (!rc && b->ops.matmul)
        rc = copy_table(&matmul_table, &b->matmul, b->ops.matmul, err);
    if (!rc && b->ops.attention)
        rc = copy_table(&attention_table, &b->attention, b->ops.attention, err);
    if (!rc && b->ops.elementwise)
        rc = copy_table(&elementwise_table, &b->elementwise, b->ops.elementwise, err);
    if (rc)
        return rc;
    b->ops.memory = b->ops.memory ? &b->memory : NULL;
    b->ops.matmul = b->ops.matmul ? &b->matmul : NULL;
    b->ops.attention = b->ops.attention ? &b->attention : NULL;
    b->ops.elementwise = b->ops.elementwise ? &b->elementwise : NULL;
    rc = soq__backend_ops_check(&b->ops, err);
    if (rc)
        return rc;
    *native_out = (b->ops.matmul ? 1u << SOQ_OP_MATMUL : 0) | (b->ops.attention ? fill_attention(&b->attention) : 0) |
                  (b->ops.elementwise ? fill_elementwise(&b->elementwise) : 0);
    return 0;
}

static int copy_policy(struct soq_kv_policy_ops *ops, const void *src, struct soq_error *err)
{
    int rc = copy_table(&policy_table, ops, src, err);

    if (!rc)
        rc = soq__kv_policy_ops_check(ops, err);
    ops->shutdown = ops->shutdown ? ops->shutdown : shutdown_stub;
    return rc;
}

static int copy_codec(struct soq_kv_codec_ops *ops, const void *src, struct soq_error *err)
{
    int rc = copy_table(&codec_table, ops, src, err);

    if (!rc)
        rc = soq__kv_codec_ops_check(ops, err);
    ops->shutdown = ops->shutdown ? ops->shutdown : shutdown_stub;
    return rc;
}

static int copy_sampler(struct soq_sampler_ops *ops, const void *src, struct soq_error *err)
{
    int rc = copy_table(&sampler_table, ops, src, err);

    if (!rc)
        rc = soq__sampler_ops_check(ops, err);
    ops->shutdown = ops->shutdown ? ops->shutdown : shutdown_stub;
    return rc;
}

static size_t block_size(enum soq_role role)
{
    switch (role) {
    case SOQ_ROLE_BACKEND:
        return sizeof(struct backend_block);
    case SOQ_ROLE_KV_POLICY:
        return sizeof(struct soq_kv_policy_ops);
    case SOQ_ROLE_KV_CODEC:
        return sizeof(struct soq_kv_codec_ops);
    case SOQ_ROLE_SAMPLER:
        return sizeof(struct soq_sampler_ops);
    default:
        return 0;
    }
}

static int copy_role(enum soq_role role, void *block, const void *ops, uint32_t *native_out, struct soq_error *err)
{
    switch (role) {
    case SOQ_ROLE_BACKEND:
        return copy_backend(block, ops, native_out, err);
    case SOQ_ROLE_KV_POLICY:
        return copy_policy(block, ops, err);
    case SOQ_ROLE_KV_CODEC:
        return copy_codec(block, ops, err);
    default:
        return copy_sampler(block, ops, err);
    }
}

int soq__ops_copy(enum soq_role role, const void *ops, void **table_out, uint32_t *native_ops_out, struct soq_error *err)
{
    size_t size = block_size(role);
    uint32_t native = 0;
    void *block;
    int rc;

    if (!size)
        return soq__fail(err, SOQ_EABI, "this host has no tables for role %u", (unsigned)role);
    if (!ops)
        return soq__fail(err, SOQ_EABI, "ops is NULL");
    block = soq__alloc_zero(1, size);
    if (!block)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    rc = copy_role(role, block, ops, &native, err);
    if (rc) {
        soq__free(block);
        return rc;
    }
    *table_out = block;
    *native_ops_out = native;
    return 0;
}
