/* The instance: what there is to compute on, its options, its scratch. */
#include "cpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cpu_devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *devices, uint32_t stride,
                uint32_t capacity, uint32_t *count_out, struct soq_error *err)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct soq_device device = {
        .struct_size = sizeof device,
        .memory_total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page,
        .memory_free = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page,
    };

    (void)config;
    (void)err;
    snprintf(device.name, sizeof device.name, "CPU, %u threads", host->cpu_count(host->ctx));
    if (capacity)
        memcpy(devices, &device, stride < sizeof device ? stride : sizeof device);
    *count_out = 1;
    return 0;
}

int cpu_reserve_scratch(struct cpu *cpu, uint64_t bytes, struct soq_error *err)
{
    void *scratch;

    bytes = (bytes + 63) & ~UINT64_C(63);
    if (bytes <= cpu->scratch_bytes)
        return 0;
    scratch = cpu->host->alloc(cpu->host->ctx, bytes * cpu->threads, 64);
    if (!scratch)
        return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory: %llu bytes of scratch for each of %u threads",
                           (unsigned long long)bytes, cpu->threads);
    memset(scratch, 0, bytes * cpu->threads);
    cpu->host->free(cpu->host->ctx, cpu->scratch);
    cpu->scratch = scratch;
    cpu->scratch_bytes = bytes;
    return 0;
}

/* More threads than processors take turns at every barrier: allowed, for tests, but never what somebody wants. */
static uint32_t choose_threads(const struct soq_host *host, int64_t wanted)
{
    uint32_t cpus = host->cpu_count(host->ctx), threads = wanted > 0 ? (uint32_t)wanted : cpus;
    char text[128];

    if (threads > cpus) {
        snprintf(text, sizeof text,
                 "[backend.cpu] threads = %u is more than the %u CPUs that may be used, which is much slower", threads, cpus);
        host->log(host->ctx, SOQ_LOG_WARN, text);
    }
    return threads ? threads : 1;
}

int cpu_init(void *self, const struct soq_host *host, const struct soq_config *config, const struct soq_backend_params *params,
             struct soq_error *err)
{
    struct cpu *cpu = self;

    if (params->device != 0)
        return plugin_fail(err, SOQ_ENOTFOUND, "cpu: there is no device %u, only 0", params->device);
    if (params->max_rows == 0 || params->max_slots == 0)
        return plugin_fail(err, SOQ_EINVAL, "cpu: max_rows and max_slots must be positive, not %u and %u", params->max_rows,
                           params->max_slots);
    cpu->host = host;
    memcpy(&cpu->params, params, params->struct_size < sizeof *params ? params->struct_size : sizeof *params);
    cpu->threads = choose_threads(host, config->get_int(config->ctx, "threads"));
    cpu->q8 = strcmp(config->get_string(config->ctx, "activations"), "f32") != 0;
    cpu->repack = config->get_int(config->ctx, "repack") != 0;
    cpu->ops = host->alloc(host->ctx, CPU_OPS_MAX * sizeof *cpu->ops, 64);
    cpu->taken = host->alloc(host->ctx, CPU_OPS_MAX * sizeof *cpu->taken, 64);
    cpu->partials = host->alloc(host->ctx, 2 * CPU_PARTIAL_BYTES, 64);
    if (cpu->ops && cpu->taken && cpu->partials)
        return 0;
    cpu_shutdown(self);
    return plugin_fail(err, SOQ_ENOMEM, "cpu: out of memory for the list of ops");
}

void cpu_shutdown(void *self)
{
    struct cpu *cpu = self;
    const struct soq_host *host = cpu->host;

    if (!host)
        return;
    host->free(host->ctx, cpu->ops);
    host->free(host->ctx, cpu->taken);
    host->free(host->ctx, cpu->partials);
    host->free(host->ctx, cpu->step_bytes);
    host->free(host->ctx, cpu->q8_strips);
    host->free(host->ctx, cpu->scratch);
    memset(cpu, 0, sizeof *cpu);
}

static bool is_plain(uint32_t format, uint32_t dtype)
{
    return format == SOQ_FORMAT_PLAIN && cpu_number_bytes(dtype);
}

/* Packed formats of any kind go: what there is no kernel for is decoded. */
static int supports_kv(const struct soq_op_desc *desc, struct soq_error *why)
{
    if (desc->flags & SOQ_OPDESC_TREE)
        return plugin_fail(why, SOQ_EUNSUPPORTED, "cpu: steps with trees of rows are not supported");
    if (!is_plain(desc->key_format, desc->key_dtype) || !is_plain(desc->value_format, desc->value_dtype))
        return plugin_fail(why, SOQ_EUNSUPPORTED,
                           "cpu: new KV entries of kinds %u and %u and types %u and %u are not supported: plain F32, F16 or "
                           "BF16 are",
                           desc->key_format, desc->value_format, desc->key_dtype, desc->value_dtype);
    if ((desc->packed_key && desc->packed_key->kind == SOQ_FORMAT_PLAIN && !cpu_number_bytes(desc->packed_key->dtype)) ||
        (desc->packed_value && desc->packed_value->kind == SOQ_FORMAT_PLAIN && !cpu_number_bytes(desc->packed_value->dtype)))
        return plugin_fail(why, SOQ_EUNSUPPORTED, "cpu: plain packed KV planes other than F32, F16 and BF16 are not supported");
    if (desc->n_kv_heads == 0 || desc->n_heads % desc->n_kv_heads)
        return plugin_fail(why, SOQ_EUNSUPPORTED, "cpu: %u heads are no multiple of %u kv heads", desc->n_heads,
                           desc->n_kv_heads);
    return 0;
}

int cpu_supports(void *self, const struct soq_op_desc *desc, struct soq_error *why)
{
    (void)self;
    switch (desc->op) {
    case SOQ_OP_MATMUL:
    case SOQ_OP_EMBED:
        if (!cpu_format(desc->weight_dtype))
            return plugin_fail(why, SOQ_EUNSUPPORTED, "cpu: %s with weights of type %u is not supported", cpu_op_name(desc->op),
                               desc->weight_dtype);
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
        return supports_kv(desc, why);
    default:
        break;
    }
    return plugin_fail(why, SOQ_EUNSUPPORTED, "cpu: %s of kind %u is not supported", cpu_op_name(desc->op), desc->kind);
}
