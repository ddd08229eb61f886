/* The pools of the KV cache, to the byte. */
#include "cli/stats_kv.h"

#include <math.h>

#include "cli/term.h"

struct pool_stats {
    uint32_t first_layer, n_layers; /* the lowest, and how many */
    uint32_t n_groups;
    bool packed, lossy;
    uint64_t block_bytes, blocks, slabs, used_bytes, slab_bytes;
};

static struct pool_stats stats_of(const struct soq__kv_cache *kv, uint32_t pool)
{
    const struct soq__kv_pool *p = &kv->pools[pool];
    struct pool_stats s = {
        .first_layer = UINT32_MAX,
        .packed = p->block_class,
        .block_bytes = p->block_bytes,
        .blocks = p->n_used,
        .slabs = p->n_slabs,
        .used_bytes = p->n_used * p->block_bytes,
        .slab_bytes = p->n_slabs * p->slab_bytes,
    };

    for (uint32_t g = 0, last = UINT32_MAX; g < kv->n_groups; g++) {
        const struct soq__kv_group_layout *group = &kv->layout->groups[g];

        if (!soq__kv_uses_pool(group, pool))
            continue;
        s.lossy = group->view == SOQ__KV_LOSSY;
        s.n_groups++;
        s.first_layer = group->layers[0] < s.first_layer ? group->layers[0] : s.first_layer;
        s.n_layers += group->layers[0] == last ? 0 : group->n_layers; /* groups of a layer's heads follow each other */
        last = group->layers[0];
    }
    return s;
}

/* Relative, in the root of the mean square; 0: nobody watched. */
static double recoding_error(const struct soq__kv_cache *kv)
{
    return kv->stats.survivors_squared > 0 ? sqrt(kv->stats.changes_squared / kv->stats.survivors_squared) : 0;
}

void soq__kv_stats_print(const struct soq__kv_cache *kv, FILE *stream)
{
    fprintf(stream, "%sKV pools   %llu bytes of %llu, %llu at most\n", soq__term_dim(stream),
            (unsigned long long)kv->budget.used, (unsigned long long)kv->budget.limit, (unsigned long long)kv->budget.peak);
    for (uint32_t i = 0; i < kv->n_pools; i++) {
        struct pool_stats s = stats_of(kv, i);

        fprintf(stream,
                "  pool %-3u %s%u layers from %u, %u groups: %llu %sblocks of %llu bytes: %llu bytes in %llu slabs, which take "
                "%llu\n",
                i, s.lossy ? "lossy view, " : "", s.n_layers, s.first_layer, s.n_groups, (unsigned long long)s.blocks,
                s.packed ? "packed " : "", (unsigned long long)s.block_bytes, (unsigned long long)s.used_bytes,
                (unsigned long long)s.slabs, (unsigned long long)s.slab_bytes);
    }
    if (kv->stats.recoded)
        fprintf(stream, "  %llu entries were decoded from packed blocks, to be encoded once more\n",
                (unsigned long long)kv->stats.recoded);
    if (kv->stats.survivors_squared > 0)
        fprintf(stream, "  packing what selections kept changed it by %.4g of its size\n", recoding_error(kv));
    fprintf(stream, "%s", soq__term_reset(stream));
}

json_t *soq__kv_stats_json(const struct soq__kv_cache *kv)
{
    json_t *pools = json_array();

    for (uint32_t i = 0; i < kv->n_pools; i++) {
        struct pool_stats s = stats_of(kv, i);

        json_array_append_new(pools, json_pack("{ss sb sI sI sI sI sI sI sI}", "view", s.lossy ? "lossy" : "full", "packed",
                                               s.packed, "layers", (json_int_t)s.n_layers, "groups", (json_int_t)s.n_groups,
                                               "block_bytes", (json_int_t)s.block_bytes, "blocks", (json_int_t)s.blocks,
                                               "used_bytes", (json_int_t)s.used_bytes, "slabs", (json_int_t)s.slabs,
                                               "slab_bytes", (json_int_t)s.slab_bytes));
    }
    return json_pack("{sI sI sI sI sf so}", "limit_bytes", (json_int_t)kv->budget.limit, "used_bytes",
                     (json_int_t)kv->budget.used, "peak_bytes", (json_int_t)kv->budget.peak, "recoded_entries",
                     (json_int_t)kv->stats.recoded, "recoding_error", recoding_error(kv), "pools", pools);
}
