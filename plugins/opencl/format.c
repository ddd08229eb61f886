/* Packed planes as the kernels know them (kernels/packed.cl): which formats they read, in the words of the compiler, and the
 * numbers that formats bring along. */
#include "opencl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kvtile.h"

static bool rotates(const struct soq_kv_format *format, uint32_t width)
{
    uint32_t dims = format->rotation_dims;

    return dims && (dims & (dims - 1)) == 0 && width % dims == 0 &&
           (format->rotation == SOQ_ROTATION_HADAMARD || (format->rotation == SOQ_ROTATION_HADAMARD_SIGNS && format->signs));
}

bool opencl_format_fused(const struct soq_kv_format *format, uint32_t width)
{
    if (format->outliers || format->sketch_bits || (format->rotation && !rotates(format, width)))
        return false;
    switch (format->kind) {
    case SOQ_FORMAT_PLAIN:
        return format->dtype == SOQ_DTYPE_F32 || format->dtype == SOQ_DTYPE_F16 || format->dtype == SOQ_DTYPE_BF16;
    case SOQ_FORMAT_CODEBOOK:
        return format->codebook && format->bits && format->bits <= 8;
    case SOQ_FORMAT_AFFINE:
        return format->bits && format->bits < 16;
    case SOQ_FORMAT_E4M3:
        return format->bits == 8;
    }
    return false;
}

int opencl_format_check(const struct opencl_group *group, const struct opencl_plane *plane, uint32_t role,
                        struct soq_error *err)
{
    const struct soq_kv_format *format = &plane->format;
    uint64_t wanted = (uint64_t)group->block_tokens * plane->width * (format->dtype == SOQ_DTYPE_F32 ? 4 : 2);

    if (plane->decoded)
        return 0;
    if (format->kind != SOQ_FORMAT_PLAIN) {
        if (!format->group_dims || !format->group_tokens || (format->dtype != SOQ_DTYPE_F32 && format->dtype != SOQ_DTYPE_F16))
            return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: scales of type %u for %u tokens x %u dims each",
                               group->index, format->dtype, format->group_tokens, format->group_dims);
        wanted = kvtile_of(format, role, group->block_tokens, plane->width).bytes;
    }
    if (plane->tile_bytes < wanted)
        return plugin_fail(err, SOQ_EINVAL, "opencl: kv group %u: packed tiles have %llu bytes and need %llu", group->index,
                           (unsigned long long)plane->tile_bytes, (unsigned long long)wanted);
    return 0;
}

/* Where a plane's numbers lie in the tables. */
struct numbers {
    uint32_t book, n_book, signs, n_signs;
};

static struct numbers numbers_from(const struct opencl_plane *plane, uint32_t first)
{
    const struct soq_kv_format *format = &plane->format;
    bool fused = plane->heads && !plane->decoded;
    uint32_t n_book = fused && format->kind == SOQ_FORMAT_CODEBOOK ? 1u << format->bits : 0;

    return (struct numbers){first, n_book, first + n_book, fused && format->rotation ? plane->width : 0};
}

static void fill_numbers(const struct opencl_plane *plane, const struct numbers *at, float *numbers)
{
    const struct soq_kv_format *format = &plane->format;
    float factor = at->n_signs ? 1.0f / sqrtf((float)format->rotation_dims) : 0.0f;

    for (uint32_t i = 0; i < at->n_book; i++)
        numbers[at->book + i] = i < format->codebook_size ? format->codebook[i] : 0.0f;
    for (uint32_t i = 0; i < at->n_signs; i++)
        numbers[at->signs + i] = format->rotation == SOQ_ROTATION_HADAMARD_SIGNS ? format->signs[i] * factor : factor;
}

int opencl_format_tables(struct opencl *ocl, struct opencl_group *group, struct soq_error *err)
{
    const struct numbers key = numbers_from(&group->packed_key, 0);
    const struct numbers value = numbers_from(&group->packed_value, key.signs + key.n_signs);
    size_t bytes = (value.signs + value.n_signs) * sizeof(float);
    float *numbers;
    int rc;

    if (bytes == 0)
        return 0;
    numbers = ocl->host->alloc(ocl->host->ctx, bytes, 64);
    if (!numbers)
        return plugin_fail(err, SOQ_ENOMEM, "opencl: out of memory: codebooks of kv group %u", group->index);
    fill_numbers(&group->packed_key, &key, numbers);
    fill_numbers(&group->packed_value, &value, numbers);
    rc = opencl_mem_create(ocl, bytes, "codebooks", &group->format_tables, err);
    if (!rc)
        rc = opencl_write(ocl, group->format_tables, 0, numbers, bytes, "codebooks", err);
    ocl->host->free(ocl->host->ctx, numbers);
    return rc;
}

/* A plane without packed blocks or without a kernel for them is plain F32 there. */
static int plane_options(const struct opencl_group *group, const char *name, uint32_t role, const struct opencl_plane *plain,
                         const struct opencl_plane *packed, const struct numbers *at, char *options, size_t size)
{
    static const struct soq_kv_format none = {.kind = SOQ_FORMAT_PLAIN, .dtype = SOQ_DTYPE_F32};
    const struct soq_kv_format *f = packed->heads && !packed->decoded ? &packed->format : &none;
    bool coded = f->kind != SOQ_FORMAT_PLAIN;
    struct kvtile tile = {0};

    if (coded)
        tile = kvtile_of(f, role, group->block_tokens, plain->width);
    return snprintf(options, size,
                    " -D%s_WIDTH=%u -D%s_DTYPE=%u -D%s_DECODED=%d -D%s_KIND=%u -D%s_PACKED_DTYPE=%u -D%s_BITS=%u"
                    " -D%s_SYMMETRIC=%d -D%s_GROUP_DIMS=%u -D%s_GROUP_TOKENS=%u -D%s_MINIMA_AT=%u -D%s_CODES_AT=%u"
                    " -D%s_BOOK=%u -D%s_ROTATION=%u -D%s_SIGNS=%u",
                    name, plain->width, name, plain->format.dtype, name, packed->decoded, name, f->kind, name, f->dtype, name,
                    coded ? f->bits : 0, name, f->symmetric != 0, name, coded ? f->group_dims : 1, name,
                    coded ? f->group_tokens : 1, name, (uint32_t)tile.min_at, name, (uint32_t)tile.planes[0].at, name, at->book,
                    name, f->rotation ? f->rotation_dims : 0, name, at->signs);
}

void opencl_format_options(const struct opencl_group *group, char *options, size_t size)
{
    const struct numbers key = numbers_from(&group->packed_key, 0);
    const struct numbers value = numbers_from(&group->packed_value, key.signs + key.n_signs);
    size_t n = (size_t)snprintf(options, size, "-DBLOCK_TOKENS=%u -DPACKED=%d", group->block_tokens, group->packed_bytes != 0);

    n += (size_t)plane_options(group, "KEY", SOQ_PLANE_KEY, &group->key, &group->packed_key, &key, options + n, size - n);
    plane_options(group, "VALUE", SOQ_PLANE_VALUE, &group->value, &group->packed_value, &value, options + n, size - n);
}
