/* Full blocks become packed ones, tile by tile through the codec. Between steps, so it checks, opens a parallel region of its
 * own and returns when all is done. */
#include <string.h>

#include "cpu.h"

/* What the threads share. */
struct pack {
    struct cpu *cpu;
    const struct soq_kv_pack_args *args;
    const struct cpu_group *group;
};

static int check(const struct pack *p, struct soq_error *err)
{
    const struct soq_kv_pack_args *args = p->args;

    for (uint32_t i = 0; i < args->n; i++) {
        if (!cpu_block_at(p->group, args->src[i]) || args->src[i] >> SOQ_BLOCK_CLASS_SHIFT != CPU_PLAIN)
            return plugin_fail(err, SOQ_EINVAL, "cpu: kv_pack: source block %u (%x) of group %u is nowhere, or packed", i,
                               args->src[i], p->group->index);
        if (!cpu_block_at(p->group, args->dst[i]) || args->dst[i] >> SOQ_BLOCK_CLASS_SHIFT != CPU_PACKED)
            return plugin_fail(err, SOQ_EINVAL, "cpu: kv_pack: destination block %u (%x) of group %u is nowhere, or not packed",
                               i, args->dst[i], p->group->index);
        if (args->skip[i] >= p->group->block_tokens)
            return plugin_fail(err, SOQ_EINVAL, "cpu: kv_pack: block %u of group %u: %u entries of %u are to be skipped", i,
                               p->group->index, args->skip[i], p->group->block_tokens);
    }
    return 0;
}

/* One tile; `x` has room for it. */
static void pack_tile(const struct pack *p, uint32_t i, uint32_t side, uint32_t layer, uint32_t head, float *x)
{
    const struct soq_kv_pack_args *args = p->args;
    const struct cpu_plane *plain = &p->group->classes[CPU_PLAIN].planes[side];
    const struct cpu_plane *packed = &p->group->classes[CPU_PACKED].planes[side];
    struct cpu_tile from = {p->group, plain, layer, head, args->first_position[i]};
    struct cpu_tile to = {p->group, packed, layer, head, args->first_position[i]};
    uint32_t skip = args->skip[i];

    cpu_decode(p->cpu, &from, cpu_block_at(p->group, args->src[i]) + cpu_tile_at(plain, layer, head), x);
    for (uint32_t t = 0; t < skip; t++)
        memcpy(x + (size_t)t * plain->width, x + (size_t)skip * plain->width, plain->width * sizeof *x);
    cpu_encode(p->cpu, &to, x, cpu_block_at(p->group, args->dst[i]) + cpu_tile_at(packed, layer, head));
}

static void pack_tiles(void *arg, const struct soq_worker *worker)
{
    const struct pack *p = arg;
    float *x = (float *)(p->cpu->scratch + worker->index * p->cpu->scratch_bytes);
    uint32_t heads = p->group->classes[CPU_PLAIN].planes[CPU_KEY].heads;
    uint64_t lines = (uint64_t)p->group->n_layers * heads, n = p->args->n * lines;
    uint64_t last = n * (worker->index + 1) / worker->count;

    for (uint64_t k = n * worker->index / worker->count; k < last; k++)
        for (uint32_t side = 0; side < CPU_SIDES; side++)
            pack_tile(p, (uint32_t)(k / lines), side, (uint32_t)(k % lines / heads), (uint32_t)(k % heads), x);
}

int cpu_kv_pack(void *self, const struct soq_kv_pack_args *args, struct soq_error *err)
{
    struct cpu *cpu = self;
    struct pack p = {cpu, args, (const struct cpu_group *)(uintptr_t)args->group};
    int rc;

    if (!p.group)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv_pack: kv group 0");
    rc = check(&p, err);
    if (rc || args->n == 0)
        return rc;
    rc = cpu->host->parallel(cpu->host->ctx, cpu->threads, pack_tiles, &p);
    if (rc)
        return plugin_fail(err, (enum soq_error_code) - rc, "cpu: kv_pack: the host has no %u threads for it", cpu->threads);
    return cpu_codec_result(cpu, SOQ_OP_KV_PACK, err);
}
