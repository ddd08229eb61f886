/* A codec that no backend knows: OPAQUE, so tiles pass through encode() and decode(). Bytes count from 1 to 255 in steps of the
 * tile's largest magnitude / 127, token by token from the last to the first, each XORed with a key that is made of the tile's
 * layer, head and role: whoever decodes a tile under another name gets garbage. With exact = yes the bytes are those of the
 * numbers themselves, so that nothing is lost. placed_codec.c makes a second plugin of it, whose key contains the position too,
 * which lies in the tile.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "fail.h"
#include "soquete/plugin.h"

#ifndef ODD_NAME
#define ODD_NAME "odd"
#define ODD_TRAITS 0
#endif

struct odd {
    uint32_t grid, residual, tail_dtype;
    bool exact;
};

static int odd_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct odd *odd = self;
    const char *tail = config->get_string(config->ctx, "tail");

    (void)host;
    (void)err;
    *odd = (struct odd){
        .grid = (uint32_t)config->get_int(config->ctx, "grid"),
        .residual = (uint32_t)config->get_int(config->ctx, "residual"),
        .exact = config->get_int(config->ctx, "exact"),
        .tail_dtype = strcmp(tail, "f32") == 0    ? SOQ_DTYPE_F32
                      : strcmp(tail, "bf16") == 0 ? SOQ_DTYPE_BF16
                                                  : SOQ_DTYPE_F16,
    };
    return 0;
}

/* In front of a tile's bytes. */
struct head {
    float scale;
    uint32_t position; /* of the first token, as encode() was told; 0 without the trait */
};

/* A head, then a byte per number or all of its four. */
static uint64_t odd_bytes(const struct odd *odd, const struct soq_kv_tile *tile)
{
    return (sizeof(struct head) + (uint64_t)tile->tokens * tile->width * (odd->exact ? sizeof(float) : 1) + 7) / 8 * 8;
}

static int odd_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    const struct odd *odd = self;
    uint64_t numbers = (uint64_t)tile->tokens * tile->width;

    if (numbers == 0 || numbers > UINT32_MAX / 8)
        return plugin_fail(err, SOQ_EINVAL, "kv codec " ODD_NAME ": a tile of %u tokens x %u numbers cannot be stored",
                           tile->tokens, tile->width);
    format_out->kind = SOQ_FORMAT_OPAQUE;
    format_out->bits = odd->exact ? 32 : 8;
    format_out->tail_dtype = odd->tail_dtype;
    format_out->grid_tokens = odd->grid;
    format_out->residual_tokens = odd->residual;
    format_out->tile_bytes = odd_bytes(odd, tile);
    return 0;
}

static uint8_t key_of(const struct soq_kv_tile *tile, const struct head *head)
{
    return (uint8_t)(tile->layer * 37 + tile->head * 11 + tile->role * 101 + head->position * 7);
}

/* Numbers that are not finite count as 0. */
static float or_zero(float x)
{
    return isfinite(x) ? x : 0;
}

/* Where row t of a tile stands: the last comes first. */
static size_t row_at(const struct soq_kv_tile *tile, uint32_t t)
{
    return (size_t)(tile->tokens - 1 - t) * tile->width;
}

static int odd_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    const struct odd *odd = self;
    size_t numbers = (size_t)tile->tokens * tile->width, size = odd->exact ? sizeof(float) : 1;
    struct head head = {.position = ODD_TRAITS & SOQ_CODEC_NEEDS_POSITIONS ? tile->first_position : 0};
    uint8_t *bytes = (uint8_t *)dst + sizeof head, key = key_of(tile, &head);

    (void)err;
    memset(dst, 0, odd_bytes(odd, tile));
    for (size_t i = 0; i < numbers; i++)
        head.scale = fmaxf(head.scale, fabsf(or_zero(src[i])) / 127);
    memcpy(dst, &head, sizeof head);
    for (uint32_t t = 0; t < tile->tokens; t++)
        for (uint32_t i = 0; i < tile->width; i++) {
            float x = or_zero(src[(size_t)t * tile->width + i]);
            uint8_t *at = bytes + (row_at(tile, t) + i) * size;

            if (odd->exact)
                memcpy(at, &x, sizeof x);
            else
                *at = (uint8_t)((int)(head.scale > 0 ? rintf(x / head.scale) : 0) + 128);
        }
    for (size_t i = 0; i < numbers * size; i++)
        bytes[i] ^= key;
    return 0;
}

static int odd_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    const struct odd *odd = self;
    const uint8_t *bytes = (const uint8_t *)src + sizeof(struct head);
    size_t size = odd->exact ? sizeof(float) : 1;
    struct head head;
    uint8_t key;

    (void)err;
    memcpy(&head, src, sizeof head);
    key = key_of(tile, &head);
    for (uint32_t t = 0; t < tile->tokens; t++)
        for (uint32_t i = 0; i < tile->width; i++) {
            const uint8_t *at = bytes + (row_at(tile, t) + i) * size;
            uint8_t plain[sizeof(float)];

            for (size_t byte = 0; byte < size; byte++)
                plain[byte] = at[byte] ^ key;
            if (odd->exact)
                memcpy(&dst[(size_t)t * tile->width + i], plain, sizeof plain);
            else
                dst[(size_t)t * tile->width + i] = (float)(plain[0] - 128) * head.scale;
        }
    return 0;
}

static const struct soq_option odd_options[] = {
    {.struct_size = sizeof odd_options[0],
     .type = SOQ_OPT_INT,
     .key = "grid",
     .default_value = "0",
     .min = 0,
     .max = 4096,
     .help = "Tokens; 0: [kv] pack_grid."},
    {.struct_size = sizeof odd_options[0],
     .type = SOQ_OPT_INT,
     .key = "residual",
     .default_value = "0",
     .min = 0,
     .max = 4096,
     .help = "Tokens that stay plain."},
    {.struct_size = sizeof odd_options[0],
     .type = SOQ_OPT_ENUM,
     .key = "tail",
     .default_value = "f16",
     .choices = "f16|f32|bf16",
     .help = "Of blocks that are not packed."},
    {.struct_size = sizeof odd_options[0],
     .type = SOQ_OPT_BOOL,
     .key = "exact",
     .default_value = "no",
     .help = "Lose nothing."},
};

static const struct soq_kv_codec_ops odd_ops = {
    .struct_size = sizeof odd_ops,
    .traits = ODD_TRAITS,
    .instance_size = sizeof(struct odd),
    .init = odd_init,
    .describe = odd_describe,
    .encode = odd_encode,
    .decode = odd_decode,
};

static const struct soq_role_entry odd_roles[] = {
    {
        .struct_size = sizeof odd_roles[0],
        .role = SOQ_ROLE_KV_CODEC,
        .minor = SOQ_KV_CODEC_MINOR,
        .min_minor = SOQ_KV_CODEC_MINOR,
        .ops = &odd_ops,
        .n_options = sizeof odd_options / sizeof odd_options[0],
        .option_stride = sizeof odd_options[0],
        .options = odd_options,
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = ODD_NAME,
    .variant = "",
    .version = "1",
    .summary = "KV codec for tests: bytes that nobody else can read",
    .licence = "Apache-2.0",
    .n_roles = sizeof odd_roles / sizeof odd_roles[0],
    .role_stride = sizeof odd_roles[0],
    .roles = odd_roles,
};
