/* What this backend computes, asked at load. */
#include "opencl.h"

static bool plain(uint32_t format, uint32_t dtype)
{
    return format == SOQ_FORMAT_PLAIN && (dtype == SOQ_DTYPE_F16 || dtype == SOQ_DTYPE_F32 || dtype == SOQ_DTYPE_BF16);
}

/* As the kernels of attention take it: queries, twice where packed keys want others, scores, what is beside. */
static uint64_t attention_bytes(const struct soq_op_desc *desc)
{
    uint64_t query = desc->head_dim_k;

    if (desc->packed_key && (desc->packed_key->rotation || desc->head_dim_k % 4))
        query = 2 * (query + 3);
    if (desc->packed_value && desc->packed_value->rotation && desc->head_dim_v > query)
        query = desc->head_dim_v;
    return OPENCL_QUERIES * (query + 32 + 4) * sizeof(float);
}

static int supports_kv(const struct opencl *ocl, const struct soq_op_desc *desc, struct soq_error *why)
{
    uint64_t local_bytes = attention_bytes(desc);

    if (desc->flags & SOQ_OPDESC_TREE)
        return plugin_fail(why, SOQ_EUNSUPPORTED, "opencl: steps with trees of rows are not supported");
    if (!plain(desc->key_format, desc->key_dtype) || !plain(desc->value_format, desc->value_dtype))
        return plugin_fail(
            why, SOQ_EUNSUPPORTED,
            "opencl: new entries of kind %u and type %u, %u and %u are not supported: plain F16, BF16 and F32 are",
            desc->key_format, desc->key_dtype, desc->value_format, desc->value_dtype);
    if (desc->n_kv_heads == 0 || desc->n_heads % desc->n_kv_heads)
        return plugin_fail(why, SOQ_EUNSUPPORTED, "opencl: %u heads over %u kv heads are not supported", desc->n_heads,
                           desc->n_kv_heads);
    if (local_bytes > ocl->local_bytes)
        return plugin_fail(
            why, SOQ_EUNSUPPORTED, "opencl: heads of %u are not supported: they need %llu bytes of local memory, %s has %llu",
            desc->head_dim_k, (unsigned long long)local_bytes, ocl->device_name, (unsigned long long)ocl->local_bytes);
    return 0;
}

int opencl_supports(void *self, const struct soq_op_desc *desc, struct soq_error *why)
{
    const struct opencl *ocl = self;

    switch (desc->op) {
    case SOQ_OP_MATMUL:
    case SOQ_OP_EMBED:
        if (!opencl_type(desc->weight_dtype))
            return plugin_fail(why, SOQ_EUNSUPPORTED, "opencl: %s with weights of type %u is not supported",
                               opencl_op_name(desc->op), desc->weight_dtype);
        return 0;
    case SOQ_OP_NORM:
        if (desc->kind == SOQ_NORM_RMS || desc->kind == SOQ_NORM_LAYER)
            return 0;
        break;
    case SOQ_OP_ROPE:
        if (desc->kind == SOQ_ROPE_INTERLEAVED || desc->kind == SOQ_ROPE_HALF)
            return 0;
        break;
    case SOQ_OP_ACTIVATION:
        if (desc->kind >= SOQ_ACT_SILU && desc->kind <= SOQ_ACT_RELU)
            return 0;
        break;
    case SOQ_OP_ROPE_TABLE:
    case SOQ_OP_ADD:
    case SOQ_OP_SCALE:
    case SOQ_OP_GATHER:
        return 0;
    case SOQ_OP_ATTENTION:
    case SOQ_OP_KV_APPEND:
    case SOQ_OP_KV_GATHER:
    case SOQ_OP_KV_PACK:
        return supports_kv(ocl, desc, why);
    }
    return plugin_fail(why, SOQ_EUNSUPPORTED, "opencl: op %u of kind %u is not supported", desc->op, desc->kind);
}
