/* The tree's CPU backend, but for all layers except a group's last its codecs are told places in the group for the model's
 * layer and head, and another position. */
#include "cpu.h"

static struct soq_kv_coder real[2]; /* of the group that was created last */
static uint32_t first_head, last_layer;

static struct soq_kv_tile misplaced(const struct soq_kv_tile *tile)
{
    struct soq_kv_tile t = *tile;

    if (t.layer != last_layer) {
        t.layer = 0;
        t.head -= first_head;
        t.first_position++;
    }
    return t;
}

static int bad_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    const struct soq_kv_coder *coder = self;
    const struct soq_kv_tile t = misplaced(tile);

    return coder->ops->encode(coder->self, &t, src, dst, err);
}

static int bad_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    const struct soq_kv_coder *coder = self;
    const struct soq_kv_tile t = misplaced(tile);

    return coder->ops->decode(coder->self, &t, src, dst, err);
}

static int bad_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err)
{
    static const struct soq_kv_codec_ops ops = {.struct_size = sizeof ops, .encode = bad_encode, .decode = bad_decode};
    static struct soq_kv_coder coders[2];
    struct soq_kv_group_desc placed = *desc;

    for (int i = 0; i < 2 && desc->coders; i++) {
        real[i] = desc->coders[i];
        coders[i] = (struct soq_kv_coder){.struct_size = sizeof coders[i], .ops = &ops, .self = &real[i]};
        placed.coders = coders;
        first_head = desc->first_head;
        last_layer = desc->layers[desc->n_layers - 1];
    }
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
