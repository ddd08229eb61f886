/* What is loaded for an item: queries, and where keys and values lie.
 *
 * Keys are widened to F32 and transposed, so that lanes are entries; values are widened as they lie. Packed tiles are decoded
 * by their codec, once for all that is taken of them in a row. */
#include "kernels/attention.h"

void cpu_item_load(struct item *item)
{
    const struct soq_attention_args *args = item->args;
    double scale = args->softcap > 0.0f ? args->scale : args->scale * LOG2E;

    item->coded_from = NULL;
    for (uint32_t i = 0; i < item->n; i++) {
        uint32_t row = (uint32_t)(item->rows[i] - step_rows(item->step));
        const float *src = cpu_view_row(&args->q, row) + (size_t)cpu_item_head(item, i) * item->dk;
        float *q = item->q + i / BLOCK * item->dk * BLOCK + i % BLOCK;

        for (size_t d = 0; d < item->dk; d++)
            q[d * BLOCK] = (float)(src[d] * scale);
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

const uint8_t *cpu_item_tile(const struct item *item, uint32_t side, uint64_t entry, const struct cpu_plane **plane_out)
{
    soq_block_ref ref = cpu_block_ref(item->group, item->seq->slot, (uint32_t)(entry / item->group->block_tokens));
    const uint8_t *block = cpu_block_at(item->group, ref);

    if (!block)
        return NULL;
    *plane_out = cpu_plane(item->group, ref, side);
    return block + cpu_tile_at(*plane_out, item->args->layer, item->kv_head);
}

static const float *decoded(struct item *item, uint32_t side, uint64_t entry, const uint8_t *tile,
                            const struct cpu_plane *plane)
{
    uint32_t tokens = item->group->block_tokens;
    struct cpu_tile name = {item->group, plane, item->args->layer, item->kv_head, (uint32_t)(entry / tokens * tokens)};

    if (item->decoded_from[side] != tile)
        cpu_decode(item->cpu, &name, tile, item->decoded[side]);
    item->decoded_from[side] = tile;
    return item->decoded[side] + entry % tokens * plane->width;
}

/* An entry and those behind it in its block, as they lie or decoded. */
static struct rows rows_at(struct item *item, uint32_t side, uint64_t entry)
{
    const struct cpu_plane *plane;
    const uint8_t *tile = cpu_item_tile(item, side, entry, &plane);

    if (!tile)
        return (struct rows){0};
    if (plane->format.kind != SOQ_FORMAT_PLAIN)
        return (struct rows){(const uint8_t *)decoded(item, side, entry, tile, plane), SOQ_DTYPE_F32};
    return (struct rows){tile + entry % item->group->block_tokens * plane->width * cpu_number_bytes(plane->format.dtype),
                         plane->format.dtype};
}

struct rows cpu_item_rows(struct item *item, uint32_t side, uint64_t entry, uint64_t seen)
{
    uint32_t tokens = item->group->block_tokens, width = item->group->classes[CPU_PLAIN].planes[side].width;
    struct rows rows;

    if (tokens >= ROWS) {
        rows = rows_at(item, side, entry);
        if (rows.dtype != SOQ_DTYPE_BF16)
            return rows;
        cpu_widen(rows.dtype, rows.at, (size_t)ROWS * width, item->lines);
    }
    for (uint32_t t = 0; t < ROWS && tokens < ROWS; t++) {
        if (!(seen >> t & 1))
            continue;
        rows = rows_at(item, side, entry + t);
        cpu_widen(rows.dtype, rows.at, width, item->lines + (size_t)t * width);
    }
    return (struct rows){(const uint8_t *)item->lines, SOQ_DTYPE_F32};
}

const uint8_t *cpu_item_rows_ahead(const struct item *item, uint32_t side, uint32_t t, const uint8_t *rows)
{
    uint64_t entry = item->ahead_at + t;
    uint32_t tokens = item->group->block_tokens;
    const struct cpu_plane *plane;
    const uint8_t *tile;

    if (!item->ahead || entry >= item->ahead->end || tokens < ROWS)
        return rows;
    tile = cpu_item_tile(item->ahead, side, entry, &plane);
    if (!tile || plane->format.kind != SOQ_FORMAT_PLAIN)
        return rows;
    return tile + entry % tokens * plane->width * cpu_number_bytes(plane->format.dtype);
}

uint64_t cpu_item_halves(const struct item *item, uint32_t side, uint64_t begin, uint64_t seen)
{
    const struct cpu_plane *plane;
    uint64_t halves = 0;

    if (item->group->block_tokens < ROWS)
        return 0;
    for (uint32_t t = 0; t < TOKENS; t += ROWS)
        if (seen >> t & 0xffff && cpu_item_tile(item, side, begin + t, &plane) && plane->format.kind == SOQ_FORMAT_PLAIN &&
            plane->format.dtype == SOQ_DTYPE_F16)
            halves |= UINT64_C(0xffff) << t;
    return halves & seen;
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

/* out[d][TOKENS] = columns of ROWS rows. */
static void transpose_f16(const uint8_t *rows, const uint8_t *ahead, size_t width, float *out)
{
    size_t d = 0;

    for (; d + 8 <= width; d += 8) {
        column16 columns[8];

        column16_load8(rows + d * 2, width * 2, columns);
        fetch(ahead + d * 2 * ROWS, 8 * 2 * ROWS);
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t part = 0; part < ROWS / CPU_LANES; part++)
                vf_store(out + (d + i) * TOKENS + part * CPU_LANES, column16_part(&columns[i], part));
    }
    for (uint32_t t = 0; t < ROWS && d < width; t++) {
        uint16_t rest[8] = {0};
        f32x8 x;

        memcpy(rest, rows + (t * width + d) * 2, (width - d) * 2);
        x = f32x8_from_f16(rest);
        for (size_t i = d; i < width; i++)
            out[i * TOKENS + t] = x[i - d];
    }
}

static void transpose_f32(const uint8_t *rows, size_t width, float *out)
{
    for (size_t d = 0; d < width; d++)
        for (uint32_t t = 0; t < ROWS; t++)
            memcpy(out + d * TOKENS + t, rows + (t * width + d) * sizeof(float), sizeof(float));
}

void cpu_item_load_keys(struct item *item, uint64_t begin, uint64_t seen)
{
    for (uint32_t t = 0; t < TOKENS; t += ROWS) {
        struct rows rows;

        if (!(seen >> t & 0xffff))
            continue;
        rows = cpu_item_rows(item, CPU_KEY, begin + t, seen >> t);
        if (rows.dtype == SOQ_DTYPE_F32)
            transpose_f32(rows.at, item->dk, item->k + t);
        else
            transpose_f16(rows.at, cpu_item_rows_ahead(item, CPU_KEY, t, rows.at), item->dk, item->k + t);
    }
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

void cpu_item_load_values(struct item *item, uint64_t begin, uint64_t seen)
{
    uint32_t width = item->args->head_dim_v;

    for (uint32_t t = 0; t < TOKENS; t += ROWS) {
        const uint8_t *ahead;
        struct rows rows;
        size_t bytes;

        if (!(seen >> t & 0xffff))
            continue;
        rows = cpu_item_rows(item, CPU_VALUE, begin + t, seen >> t);
        ahead = cpu_item_rows_ahead(item, CPU_VALUE, t, rows.at);
        bytes = width * cpu_number_bytes(rows.dtype);
        for (uint32_t i = 0; i < ROWS; i++) {
            float *out = item->v + (t + i) * item->dv;

            fetch(ahead + i * bytes, bytes);
            if (!(seen >> (t + i) & 1))
                continue;
            cpu_widen(rows.dtype, rows.at + i * bytes, width, out);
            memset(out + width, 0, (item->dv - width) * sizeof *out);
        }
    }
}
