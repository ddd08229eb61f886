/* Copies entries that stay together, head by head: runs of neighbours in one block at once. Packed ones are decoded. Between
 * steps, so it checks, opens a parallel region of its own where there is much to copy, and returns when all is done. */
#include <string.h>

#include "cpu.h"

enum { ALONE_BYTES = 1 << 19 }; /* as much as one thread copies before others would have woken up */

/* What the threads share. */
struct gather {
    struct cpu *cpu;
    const struct soq_kv_gather_args *args;
    const struct cpu_group *group;
};

static int check_blocks(const struct cpu_group *group, const char *what, const soq_block_ref *blocks, uint32_t n,
                        uint32_t classes, struct soq_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (!cpu_block_at(group, blocks[i]) || blocks[i] >> SOQ_BLOCK_CLASS_SHIFT >= classes)
            return plugin_fail(err, SOQ_EINVAL, "cpu: kv_gather: %s block %u (%x) of group %u is nowhere", what, i, blocks[i],
                               group->index);
    return 0;
}

static int check(const struct gather *g, struct soq_error *err)
{
    const struct soq_kv_gather_args *args = g->args;
    uint64_t n_lines = (uint64_t)g->group->n_layers * g->group->classes[CPU_PLAIN].planes[CPU_KEY].heads,
             tokens = g->group->block_tokens;
    int rc = check_blocks(g->group, "source", args->src, args->n_src, CPU_CLASSES, err);

    if (!rc)
        rc = check_blocks(g->group, "destination", args->dst, args->n_dst, 1, err);
    if (rc)
        return rc;
    if ((uint64_t)args->dst_first + args->n_keep > args->n_dst * tokens)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv_gather: %u entries from %u on do not fit into %u blocks of %u",
                           args->n_keep, args->dst_first, args->n_dst, g->group->block_tokens);
    for (uint64_t i = 0; i < n_lines * args->n_keep; i++)
        if (args->keep[i] >= args->n_src * tokens || (i % args->n_keep && args->keep[i] <= args->keep[i - 1]))
            return plugin_fail(err, SOQ_EINVAL, "cpu: kv_gather: entry %u of %u blocks of %u, or out of order", args->keep[i],
                               args->n_src, g->group->block_tokens);
    return 0;
}

/* Entries from keep[i] on that lie next to each other and go to one block. */
static uint32_t run_of(const uint32_t *keep, uint32_t n, uint32_t to, uint32_t tokens)
{
    uint32_t most = tokens - keep[0] % tokens, run = 1;

    most = tokens - to % tokens < most ? tokens - to % tokens : most;
    most = n < most ? n : most;
    while (run < most && keep[run] == keep[0] + run)
        run++;
    return run;
}

/* Of one layer and head; `decoded` has room for a tile. */
static void copy_line(const struct gather *g, uint32_t side, uint32_t layer, uint32_t head, float *decoded)
{
    const struct soq_kv_gather_args *args = g->args;
    const struct cpu_plane *plane = &g->group->classes[CPU_PLAIN].planes[side];
    const uint32_t *keep = args->keep + ((uint64_t)layer * plane->heads + head) * args->n_keep;
    uint32_t tokens = g->group->block_tokens, dtype = plane->format.dtype;
    size_t bytes = plane->width * cpu_number_bytes(dtype);
    soq_block_ref at_hand = SOQ_BLOCK_NONE; /* decoded */

    for (uint32_t i = 0, run; i < args->n_keep; i += run) {
        uint32_t to = args->dst_first + i, from = keep[i] % tokens;
        soq_block_ref ref = args->src[keep[i] / tokens];
        struct cpu_tile tile = {g->group, cpu_plane(g->group, ref, side), layer, head, UINT32_MAX};
        const uint8_t *src = cpu_block_at(g->group, ref) + cpu_tile_at(tile.plane, layer, head);
        uint8_t *dst = cpu_block_at(g->group, args->dst[to / tokens]) + cpu_tile_at(plane, layer, head) + to % tokens * bytes;

        run = run_of(keep + i, args->n_keep - i, to, tokens);
        if (ref >> SOQ_BLOCK_CLASS_SHIFT == CPU_PLAIN) {
            memcpy(dst, src + from * bytes, run * bytes);
            continue;
        }
        if (ref != at_hand)
            cpu_decode(g->cpu, &tile, src, decoded);
        at_hand = ref;
        cpu_narrow(dtype, decoded + (size_t)from * plane->width, (size_t)run * plane->width, dst);
    }
}

static void copy_lines(void *arg, const struct soq_worker *worker)
{
    const struct gather *g = arg;
    float *decoded = (float *)(g->cpu->scratch + worker->index * g->cpu->scratch_bytes);
    uint32_t heads = g->group->classes[CPU_PLAIN].planes[CPU_KEY].heads;
    uint64_t n = (uint64_t)g->group->n_layers * heads, last = n * (worker->index + 1) / worker->count;

    for (uint64_t line = n * worker->index / worker->count; line < last; line++)
        for (uint32_t side = 0; side < CPU_SIDES; side++)
            copy_line(g, side, (uint32_t)(line / heads), (uint32_t)(line % heads), decoded);
}

int cpu_kv_gather(void *self, const struct soq_kv_gather_args *args, struct soq_error *err)
{
    static const struct soq_worker alone = {.struct_size = sizeof alone, .count = 1};
    struct cpu *cpu = self;
    struct gather g = {cpu, args, (const struct cpu_group *)(uintptr_t)args->group};
    int rc;

    if (!g.group)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv_gather: kv group 0");
    rc = check(&g, err);
    if (rc)
        return rc;
    if (g.group->classes[CPU_PLAIN].block_bytes / g.group->block_tokens * args->n_keep > ALONE_BYTES)
        rc = cpu->host->parallel(cpu->host->ctx, cpu->threads, copy_lines, &g);
    else
        copy_lines(&g, &alone);
    if (rc)
        return plugin_fail(err, (enum soq_error_code) - rc, "cpu: kv_gather: the host has no %u threads for it", cpu->threads);
    return cpu_codec_result(cpu, SOQ_OP_KV_GATHER, err);
}
