/* Copies entries that stay together, head by head: runs of neighbours in one block at once. Between steps, so it checks, opens
 * a parallel region of its own where there is much to copy, and returns when all is done. */
#include <string.h>

#include "cpu.h"

enum { ALONE_BYTES = 1 << 19 }; /* as much as one thread copies before others would have woken up */

/* What the threads share. */
struct gather {
    const struct soq_kv_gather_args *args;
    const struct cpu_group *group;
};

static int check_blocks(const struct cpu_group *group, const char *what, const soq_block_ref *blocks, uint32_t n,
                        struct soq_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (!cpu_block_at(group, blocks[i]))
            return plugin_fail(err, SOQ_EINVAL, "cpu: kv_gather: %s block %u (%x) of group %u is nowhere", what, i, blocks[i],
                               group->index);
    return 0;
}

static int check(const struct gather *g, struct soq_error *err)
{
    const struct soq_kv_gather_args *args = g->args;
    uint64_t n_lines = (uint64_t)g->group->n_layers * g->group->key.heads, tokens = g->group->block_tokens;
    int rc = check_blocks(g->group, "source", args->src, args->n_src, err);

    if (!rc)
        rc = check_blocks(g->group, "destination", args->dst, args->n_dst, err);
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

static void copy_plane(const struct gather *g, const struct cpu_plane *plane, uint64_t line, const uint32_t *keep)
{
    const struct soq_kv_gather_args *args = g->args;
    uint32_t tokens = g->group->block_tokens;
    uint64_t tile = plane->offset + line * plane->tile_bytes;
    size_t bytes = plane->width * (size_t)(plane->dtype == SOQ_DTYPE_F32 ? 4 : 2);

    for (uint32_t i = 0, run; i < args->n_keep; i += run) {
        uint32_t to = args->dst_first + i;

        run = run_of(keep + i, args->n_keep - i, to, tokens);
        memcpy(cpu_block_at(g->group, args->dst[to / tokens]) + tile + to % tokens * bytes,
               cpu_block_at(g->group, args->src[keep[i] / tokens]) + tile + keep[i] % tokens * bytes, run * bytes);
    }
}

static void copy_lines(void *arg, const struct soq_worker *worker)
{
    const struct gather *g = arg;
    uint64_t n = (uint64_t)g->group->n_layers * g->group->key.heads;
    uint64_t last = n * (worker->index + 1) / worker->count;

    for (uint64_t line = n * worker->index / worker->count; line < last; line++) {
        copy_plane(g, &g->group->key, line, g->args->keep + line * g->args->n_keep);
        copy_plane(g, &g->group->value, line, g->args->keep + line * g->args->n_keep);
    }
}

int cpu_kv_gather(void *self, const struct soq_kv_gather_args *args, struct soq_error *err)
{
    static const struct soq_worker alone = {.struct_size = sizeof alone, .count = 1};
    struct cpu *cpu = self;
    struct gather g = {args, (const struct cpu_group *)(uintptr_t)args->group};
    int rc;

    if (!g.group)
        return plugin_fail(err, SOQ_EINVAL, "cpu: kv_gather: kv group 0");
    rc = check(&g, err);
    if (rc)
        return rc;
    if (g.group->block_bytes / g.group->block_tokens * args->n_keep > ALONE_BYTES)
        rc = cpu->host->parallel(cpu->host->ctx, cpu->threads, copy_lines, &g);
    else
        copy_lines(&g, &alone);
    return rc ? plugin_fail(err, (enum soq_error_code) - rc, "cpu: kv_gather: the host has no %u threads for it", cpu->threads)
              : 0;
}
