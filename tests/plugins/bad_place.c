/* The tree's CPU backend, but its codecs are told places in the group for the model's layers and heads. */
#include "cpu.h"

static int bad_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err)
{
    struct soq_kv_group_desc placed = *desc;

    placed.layers = NULL; /* 0, 1, ... */
    placed.first_head = 0;
    return cpu_attention_ops.group_create(self, &placed, group_out, err);
}

static void bad_free(void *self, soq_kv_group group)
{
    cpu_attention_ops.group_free(self, group);
}

static int bad_slab(void *self, soq_kv_group group, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                    soq_buffer slab, struct soq_error *err)
{
    return cpu_attention_ops.group_slab(self, group, block_class, first_block, n_blocks, slab, err);
}

static int bad_append(void *self, const struct soq_kv_append_args *args)
{
    return cpu_attention_ops.kv_append(self, args);
}

static int bad_attention(void *self, const struct soq_attention_args *args)
{
    return cpu_attention_ops.attention(self, args);
}

static const struct soq_attention_ops bad_attention_ops = {
    .struct_size = sizeof bad_attention_ops,
    .group_create = bad_create,
    .group_free = bad_free,
    .group_slab = bad_slab,
    .kv_append = bad_append,
    .attention = bad_attention,
    .kv_gather = cpu_kv_gather,
    .kv_pack = cpu_kv_pack,
};

#define cpu_attention_ops bad_attention_ops
#include "plugin.c"
