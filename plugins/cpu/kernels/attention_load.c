/* What is loaded for an item: queries, and where keys and values lie.
 *
 * Keys are widened to F32 and transposed, so that lanes are entries; values are widened as they lie. Packed tiles are decoded
 * by their codec, once for all that is taken of them in a row. */
#include "kernels/attention.h"

void cpu_item_load(struct item *item)
{
    const struct soq_attention_args *args = item->args;
    double scale = args->softcap > 0.0f ? args->scale : args->scale * LOG2E;
    float *scaled = item->lines;

    item->coded_from = NULL;
    for (uint32_t i = 0; i < item->n; i++) {
        uint32_t row = (uint32_t)(item->rows[i] - step_rows(item->step));
        const float *src = cpu_view_row(&args->q, row) + (size_t)cpu_item_head(item, i) * item->dk;
        float *q = item->q + i / BLOCK * item->dk * BLOCK + i % BLOCK;

        for (size_t d = 0; d < item->dk; d++) /* in two steps: the first is one of vectors */
            scaled[d] = (float)(src[d] * scale);
        for (size_t d = 0; d < item->dk; d++)
            q[d * BLOCK] = scaled[d];
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

/* ROWS entries next to each other: F16 or F32 [ROWS][width]. */
struct rows {
    const uint8_t *at;
    uint32_t dtype;
};

/* The tile with an entry, and its plane; NULL: its block is not there. */
static const uint8_t *tile_of(const struct item *item, uint32_t side, uint64_t entry, const struct cpu_plane **plane_out)
{
    uint32_t index = (uint32_t)(entry >> __builtin_ctz(item->group->block_tokens)); /* a power of two */
    soq_block_ref ref = cpu_block_ref(item->group, item->seq->slot, index);
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

/* An entry of a PLAIN tile. */
static const uint8_t *plain_row(const struct item *item, const uint8_t *tile, const struct cpu_plane *plane, uint64_t entry)
{
    return tile + (entry & (item->group->block_tokens - 1)) * plane->width * cpu_number_bytes(plane->format.dtype);
}

/* An entry and those behind it in its block, as they lie or decoded. */
static struct rows rows_at(struct item *item, uint32_t side, uint64_t entry)
{
    const struct cpu_plane *plane;
    const uint8_t *tile = tile_of(item, side, entry, &plane);

    if (!tile)
        return (struct rows){0};
    if (plane->format.kind != SOQ_FORMAT_PLAIN)
        return (struct rows){(const uint8_t *)decoded(item, side, entry, tile, plane), SOQ_DTYPE_F32};
    return (struct rows){plain_row(item, tile, plane, entry), plane->format.dtype};
}

/* Those from `entry` on: where they are, or widened copies of those that are in `seen`; others may be anything. */
static struct rows find_rows(struct item *item, uint32_t side, uint64_t entry, uint64_t seen)
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

/* Where the F16 entries of the tile at entry `begin` lie, ROWS by ROWS; NULL: nowhere, or as something else. */
static void find_halves(const struct item *item, uint32_t side, uint64_t begin, uint64_t seen, const uint8_t **rows_out)
{
    uint32_t tokens = item->group->block_tokens, each = tokens < TOKENS ? tokens : TOKENS;

    for (uint32_t t = 0; t < TOKENS; t += each) {
        const struct cpu_plane *plane;
        const uint8_t *tile = seen >> t & UINT64_MAX >> (TOKENS - each) ? tile_of(item, side, begin + t, &plane) : NULL;
        bool halves = tile && plane->format.kind == SOQ_FORMAT_PLAIN && plane->format.dtype == SOQ_DTYPE_F16;

        for (uint32_t i = t; i < t + each; i += ROWS)
            rows_out[i / ROWS] = halves ? plain_row(item, tile, plane, begin + i) : NULL;
    }
}

uint64_t cpu_item_places(struct item *item, uint32_t side, uint64_t begin, uint64_t seen)
{
    uint64_t halves = 0;

    if (item->group->block_tokens < ROWS || !seen)
        return 0;
    find_halves(item, side, begin, seen, item->places[side]);
    for (uint32_t i = 0; i < TOKENS / ROWS; i++)
        halves |= item->places[side][i] ? UINT64_C(0xffff) << i * ROWS : 0;
    return halves & seen;
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

/* out[d][TOKENS] = columns of ROWS rows. */
static void transpose_f16(const uint8_t *rows, size_t width, float *out)
{
    size_t d = 0;

    for (; d + 8 <= width; d += 8) {
        column16 columns[8];

        column16_load8(rows + d * 2, width * 2, columns);
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
        fetch(take_ahead(&item->ahead, ROWS, AHEAD_PLAIN));
        rows = find_rows(item, CPU_KEY, begin + t, seen >> t);
        if (rows.dtype == SOQ_DTYPE_F32)
            transpose_f32(rows.at, item->dk, item->k + t);
        else
            transpose_f16(rows.at, item->dk, item->k + t);
    }
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

void cpu_item_load_values(struct item *item, uint64_t begin, uint64_t seen)
{
    uint32_t width = item->args->head_dim_v;

    for (uint32_t t = 0; t < TOKENS; t += ROWS) {
        struct rows rows;
        size_t bytes;

        if (!(seen >> t & 0xffff))
            continue;
        rows = find_rows(item, CPU_VALUE, begin + t, seen >> t);
        fetch(take_ahead(&item->ahead, ROWS, AHEAD_PLAIN));
        bytes = width * cpu_number_bytes(rows.dtype);
        for (uint32_t i = 0; i < ROWS; i++) {
            float *out = item->v + (t + i) * item->dv;

            if (!(seen >> (t + i) & 1))
                continue;
            cpu_widen(rows.dtype, rows.at + i * bytes, width, out);
            memset(out + width, 0, (item->dv - width) * sizeof *out);
        }
    }
}
