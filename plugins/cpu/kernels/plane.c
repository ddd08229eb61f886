/* Numbers as PLAIN planes hold them, to F32 and back, and tiles of the other formats by their coders. */
#include "half.h"

#include "cpu.h"
#include "simd/vec.h"

size_t cpu_number_bytes(uint32_t dtype)
{
    return dtype == SOQ_DTYPE_F32 ? 4 : dtype == SOQ_DTYPE_F16 || dtype == SOQ_DTYPE_BF16 ? 2 : 0;
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------------- */

static void widen_f16(const uint8_t *src, size_t n, float *out)
{
    uint16_t rest[8] = {0};
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        f32x8_store(out + i, f32x8_from_f16(src + i * 2));
    if (i == n)
        return;
    memcpy(rest, src + i * 2, (n - i) * 2);
    f32x8_store_n(out + i, f32x8_from_f16(rest), (uint32_t)(n - i));
}

static void widen_bf16(const uint8_t *src, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;

        memcpy(&half, src + i * 2, sizeof half);
        out[i] = bf16_to_f32(half);
    }
}

void cpu_widen(uint32_t dtype, const uint8_t *src, size_t n, float *out)
{
    if (dtype == SOQ_DTYPE_F32)
        memcpy(out, src, n * sizeof *out);
    else if (dtype == SOQ_DTYPE_F16)
        widen_f16(src, n, out);
    else
        widen_bf16(src, n, out);
}

static void narrow_f16(const float *x, size_t n, uint8_t *out)
{
    uint16_t rest[8];
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        f32x8_to_f16(out + i * 2, f32x8_load(x + i));
    if (i == n)
        return;
    f32x8_to_f16(rest, f32x8_load_n(x + i, (uint32_t)(n - i)));
    memcpy(out + i * 2, rest, (n - i) * 2);
}

static void narrow_bf16(const float *x, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half = bf16_from_f32(x[i]);

        memcpy(out + i * 2, &half, sizeof half);
    }
}

void cpu_narrow(uint32_t dtype, const float *x, size_t n, uint8_t *out)
{
    if (dtype == SOQ_DTYPE_F32)
        memcpy(out, x, n * sizeof *x);
    else if (dtype == SOQ_DTYPE_F16)
        narrow_f16(x, n, out);
    else
        narrow_bf16(x, n, out);
}

/* ---- Tiles --------------------------------------------------------------------------------------------------------------- */

static struct soq_kv_tile named(const struct cpu_tile *tile)
{
    const struct cpu_group *group = tile->group;

    return (struct soq_kv_tile){
        .struct_size = sizeof(struct soq_kv_tile),
        .role = tile->plane->role,
        .layer = group->layers ? group->layers[tile->layer] : tile->layer,
        .head = group->first_head + tile->head,
        .tokens = group->block_tokens,
        .width = tile->plane->width,
        .first_position = tile->first_position,
    };
}

static void keep_error(struct cpu *cpu, const struct soq_error *err)
{
    if (!atomic_exchange(&cpu->codec_failed, true))
        cpu->codec_error = *err;
}

void cpu_decode(struct cpu *cpu, const struct cpu_tile *tile, const uint8_t *src, float *out)
{
    const struct soq_kv_coder *coder = &tile->plane->coder;
    size_t n = (size_t)tile->group->block_tokens * tile->plane->width;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_kv_tile name = named(tile);

    if (tile->plane->format.kind == SOQ_FORMAT_PLAIN) {
        cpu_widen(tile->plane->format.dtype, src, n, out);
    } else if (coder->ops->decode(coder->self, &name, src, out, &err)) {
        memset(out, 0, n * sizeof *out);
        keep_error(cpu, &err);
    }
}

void cpu_encode(struct cpu *cpu, const struct cpu_tile *tile, const float *x, uint8_t *dst)
{
    const struct soq_kv_coder *coder = &tile->plane->coder;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_kv_tile name = named(tile);

    if (tile->plane->format.kind == SOQ_FORMAT_PLAIN)
        cpu_narrow(tile->plane->format.dtype, x, (size_t)name.tokens * name.width, dst);
    else if (coder->ops->encode(coder->self, &name, x, dst, &err))
        keep_error(cpu, &err);
}

int cpu_codec_result(struct cpu *cpu, uint32_t op, struct soq_error *err)
{
    if (!atomic_exchange(&cpu->codec_failed, false))
        return 0;
    return plugin_fail(err, cpu->codec_error.code < 0 ? (enum soq_error_code) - cpu->codec_error.code : SOQ_EINTERNAL,
                       "cpu: %s: %s", cpu_op_name(op), cpu->codec_error.text);
}
