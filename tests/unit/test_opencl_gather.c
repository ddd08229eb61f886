/* KV blocks of an OpenCL device, byte by byte: groups that share slabs, entries copied together, copies that are done once. */
#include "device_cache.h"

/* ---- Groups that share slabs ----------------------------------------------------------------------------------------------
 */

enum { HEADS = 3, RATIO = 2, ROWS = 70, WIDTH = 20 };

static struct soq_view columns(const struct matrix *m, uint32_t first, uint32_t n)
{
    struct soq_view view = m->view;

    view.offset += first * sizeof(float);
    view.cols = n;
    return view;
}

/* kv heads [first, first + n) of ROWS rows, as group `index`. */
static void append_and_attend(struct cache *c, struct device_step *step, soq_kv_group group, uint32_t first, uint32_t n,
                              struct matrix *out, soq_buffer mass)
{
    struct soq_kv_append_args append = {sizeof append, 0, group, columns(&c->k, first * WIDTH, n * WIDTH),
                                        columns(&c->v, first * WIDTH, n * WIDTH)};
    struct soq_attention_args args = cache_args(c);

    args.layer = 0;
    args.group = group;
    args.n_heads = n * RATIO;
    args.n_kv_heads = n;
    args.q = columns(&c->q, first * RATIO * WIDTH, n * RATIO * WIDTH);
    args.out = columns(out, first * RATIO * WIDTH, n * RATIO * WIDTH);
    args.mass = mass;
    args.mass_offset = first * ROWS * sizeof(uint64_t);
    args.mass_stride = ROWS;
    step->step.serial = ++device_step_serial;
    device_begin(&c->d, step);
    cr_assert_eq(c->d.ops->attention->kv_append(c->d.self, &append), 0);
    cr_assert_eq(c->d.ops->attention->attention(c->d.self, &args), 0);
    device_end(&c->d);
}

/* A group for each kv head, all in one pool, against one group of all heads: the same bits. */
Test(opencl_gather, groups_share_slabs)
{
    static const struct shape s = {HEADS * RATIO, HEADS, WIDTH, WIDTH, 1, 16, SOQ_DTYPE_F16, 0, 0, 0, false};
    struct shape one = s, other = s;
    struct device_step *step = device_step(ROWS, 0);
    uint64_t mass[2][HEADS * ROWS];
    struct soq_kv_plane planes[2];
    struct soq_kv_group_desc desc;
    struct matrix out, again;
    soq_kv_group groups[HEADS], wrong = 0;
    soq_buffer slab, buffer;
    struct soq_error err = SOQ_ERROR_INIT;
    struct cache c;

    cache_open(&c, s, ROWS, 2);
    out = device_matrix(&c.d, ROWS, HEADS * RATIO * WIDTH, 3, 7);
    again = device_matrix(&c.d, ROWS, HEADS * RATIO * WIDTH, 3, 8);
    buffer = device_buffer(&c.d, sizeof mass[0]);
    step->segments[0] = cache_segment(0, ROWS);
    step->step.n_segments = step->seqs[0].n_segments = 1;
    for (uint32_t i = 0; i < c.n_blocks; i++)
        step->edits[step->step.n_edits++] = (struct soq_step_edit){0, 0, i, i};
    for (uint32_t r = 40; r < ROWS; r++)
        step->rows[r].mass_line = 1;
    append_and_attend(&c, step, c.group, 0, HEADS, &out, buffer);
    cr_assert_eq(c.d.ops->memory->buffer_read(c.d.self, buffer, 0, mass[0], sizeof mass[0], &err), 0);

    one.n_kv_heads = 1;
    other.n_kv_heads = 1;
    other.dv = WIDTH - 4;
    cache_describe(&one, c.n_blocks, planes, &desc);
    slab = device_buffer(&c.d, HEADS * c.n_blocks * desc.block_bytes);
    for (uint32_t h = 0; h < HEADS; h++) {
        desc.index = 1 + h;
        desc.storage = h ? groups[0] : 0;
        cr_assert_eq(c.d.ops->attention->group_create(c.d.self, &desc, &groups[h], &err), 0, "%s", err.text);
    }
    cr_assert_eq(c.d.ops->attention->group_slab(c.d.self, groups[0], 0, 0, HEADS * c.n_blocks, slab, &err), 0, "%s", err.text);
    cr_assert_eq(c.d.ops->attention->group_slab(c.d.self, groups[1], 0, 0, 1, slab, &err), -SOQ_EINVAL);
    cache_describe(&other, c.n_blocks, planes, &desc);
    desc.storage = groups[0];
    cr_assert_eq(c.d.ops->attention->group_create(c.d.self, &desc, &wrong, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "storage, group 1, has blocks of another shape"), "%s", err.text);
    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t i = 0; i < c.n_blocks; i++)
            step->edits[i] = (struct soq_step_edit){0, 1 + h, i, i * HEADS + h};
        step->segments[0].group = 1 + h;
        append_and_attend(&c, step, groups[h], h, 1, &again, buffer);
    }
    cr_assert_eq(c.d.ops->memory->buffer_read(c.d.self, buffer, 0, mass[1], sizeof mass[1], &err), 0);
    device_pull(&c.d, &out);
    device_pull(&c.d, &again);
    for (uint32_t r = 0; r < ROWS; r++)
        cr_assert_eq(memcmp(device_at(&out, r, 0), device_at(&again, r, 0), HEADS * RATIO * WIDTH * sizeof(float)), 0);
    cr_assert_eq(memcmp(mass[0], mass[1], sizeof mass[0]), 0);
    for (uint32_t h = HEADS; h-- > 0;)
        c.d.ops->attention->group_free(c.d.self, groups[h]);
    c.d.ops->memory->buffer_free(c.d.self, slab);
    c.d.ops->memory->buffer_free(c.d.self, buffer);
    device_matrix_done(&c.d, &out);
    device_matrix_done(&c.d, &again);
    cache_close(&c);
    free(step);
}

/* ---- Gather ---------------------------------------------------------------------------------------------------------------
 */

/* Bytes of all blocks, block by block. */
static uint8_t *read_blocks(struct cache *c, uint64_t block_bytes)
{
    uint32_t each = (c->n_blocks + c->n_slabs - 1) / c->n_slabs;
    uint8_t *bytes = malloc(c->n_blocks * block_bytes);
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t i = 0; i < c->n_slabs; i++) {
        uint32_t n = c->n_blocks - i * each < each ? c->n_blocks - i * each : each;

        cr_assert_eq(
            c->d.ops->memory->buffer_read(c->d.self, c->slabs[i], 0, bytes + i * each * block_bytes, n * block_bytes, &err), 0);
    }
    return bytes;
}

/* Entry `to` of dst becomes entry `from` of src in one tile of a block's image. */
static void copy_entry(const struct soq_kv_gather_args *args, const struct shape *s, uint8_t *blocks, uint64_t block_bytes,
                       uint64_t tile, uint32_t width, uint32_t from, uint32_t to)
{
    uint64_t size = width * (s->dtype == SOQ_DTYPE_F32 ? 4 : 2);

    memcpy(blocks + args->dst[to / s->block_tokens] * block_bytes + tile + to % s->block_tokens * size,
           blocks + args->src[from / s->block_tokens] * block_bytes + tile + from % s->block_tokens * size, size);
}

static void expect_gather(const struct soq_kv_gather_args *args, const struct shape *s, const struct soq_kv_plane planes[2],
                          uint8_t *blocks, uint64_t block_bytes)
{
    uint64_t tile = 0;

    for (int p = 0; p < 2; p++)
        for (uint32_t t = 0; t < s->layers * s->n_kv_heads; t++, tile += planes[p].format.tile_bytes)
            for (uint32_t i = 0; i < args->n_keep; i++)
                copy_entry(args, s, blocks, block_bytes, tile, planes[p].width, args->keep[t * args->n_keep + i],
                           args->dst_first + i);
}

/* Every plane, layer and head by lists of its own, byte by byte; what is not named stays as it was. Blocks 0 to 3 and 8 hold
 * what is there, block 4 is never looked at. */
Test(opencl_gather, gather)
{
    static const struct shape shapes[] = {{2, 2, 20, 12, 3, 16, SOQ_DTYPE_F32, 0, 0, 0, false},
                                          {4, 1, 7, 9, 2, 8, SOQ_DTYPE_F16, 0, 0, 0, false},
                                          {1, 1, 64, 64, 2, 1, SOQ_DTYPE_F16, 0, 0, 0, false}};
    static const soq_block_ref src[] = {3, SOQ_BLOCK_NONE, 1, 0, 8}, dst[] = {SOQ_BLOCK_NONE, 6, 7, 5};

    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        uint32_t t = shapes[k].block_tokens, n_keep = 5 * t / 2, *keep, n_lines;
        struct soq_kv_gather_args args = {sizeof args, n_keep, 0, src, dst, 5, 4, t + t / 3, 0, NULL};
        struct soq_kv_plane planes[2];
        struct soq_kv_group_desc desc;
        struct soq_error err = SOQ_ERROR_INIT;
        uint8_t *before, *after;
        struct cache c;

        cache_open(&c, shapes[k], 9 * t, 3);
        cache_chunk(&c, 0, 9 * t, NULL);
        cache_describe(&shapes[k], 9, planes, &desc);
        n_lines = shapes[k].layers * shapes[k].n_kv_heads;
        keep = malloc(n_lines * n_keep * sizeof *keep);
        for (uint32_t line = 0; line < n_lines; line++) /* ascending, without block 1 of src */
            for (uint32_t i = 0, e = line % 2 && t > 1; i < n_keep; i++, e++) {
                e = e >= t && e < 2 * t ? 2 * t : e;
                keep[line * n_keep + i] = e;
                e += (i + line) % 4 == 3 && t > 4;
            }
        args.group = c.group;
        args.keep = keep;
        before = read_blocks(&c, desc.block_bytes);
        cr_assert_eq(c.d.ops->attention->kv_gather(c.d.self, &args, &err), 0, "%s", err.text);
        after = read_blocks(&c, desc.block_bytes);
        expect_gather(&args, &shapes[k], planes, before, desc.block_bytes);
        cr_assert_eq(memcmp(before, after, 9 * desc.block_bytes), 0, "shape %zu", k);
        free(before);
        free(after);
        free(keep);
        cache_close(&c);
    }
}

static void expect_no_gather(struct cache *c, struct soq_kv_gather_args args, const char *text)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(c->d.ops->attention->kv_gather(c->d.self, &args, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, text), "%s", err.text);
}

Test(opencl_gather, gather_refusals)
{
    static const struct shape s = {1, 1, 8, 8, 2, 8, SOQ_DTYPE_F32, 0, 0, 0, false};
    soq_block_ref src[] = {0, SOQ_BLOCK_NONE}, dst[] = {1, 2};
    uint32_t keep[] = {0, 7, 0, 7};
    struct device_step *step = device_step(1, 0);
    struct soq_kv_gather_args args = {sizeof args, 2, 0, src, dst, 2, 2, 7, 0, keep};
    struct soq_error err = SOQ_ERROR_INIT;
    struct cache c;

    cache_open(&c, s, 32, 1);
    cache_chunk(&c, 0, 32, NULL);
    expect_no_gather(&c, args, "kv group 0");
    args.group = c.group;
    args.dst_first = 15;
    expect_no_gather(&c, args, "2 entries from 15 on do not fit into 2 blocks of 8");
    args.dst_first = 7;
    dst[0] = 0;
    expect_no_gather(&c, args, "block 0 of group 0 is copied to itself");
    dst[0] = 9;
    expect_no_gather(&c, args, "group 0 has no block 9");
    dst[0] = 1;
    keep[1] = 8;
    expect_no_gather(&c, args, "no block for entry 8");
    keep[1] = 16;
    expect_no_gather(&c, args, "no block for entry 16");
    keep[1] = 7;
    step->step.n_segments = step->step.n_seqs = step->step.n_rows = 0;
    device_begin(&c.d, step);
    expect_no_gather(&c, args, "inside a step");
    device_end(&c.d);
    cr_assert_eq(c.d.ops->attention->kv_gather(c.d.self, &args, &err), 0, "%s", err.text);
    args.n_keep = 0;
    cr_assert_eq(c.d.ops->attention->kv_gather(c.d.self, &args, &err), 0, "%s", err.text);
    cache_close(&c);
    free(step);
}

/* ---- Edits and copies -----------------------------------------------------------------------------------------------------
 */

/* A step that comes back from another backend has its copies behind it. */
Test(opencl_gather, a_step_copies_once)
{
    static const struct shape s = {1, 1, 8, 8, 2, 8, SOQ_DTYPE_F32, 0, 0, 0, false};
    struct device_step *step = device_step(0, 0);
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_kv_plane planes[2];
    struct soq_kv_group_desc desc;
    uint8_t *blocks;
    struct cache c;

    cache_open(&c, s, 16, 1);
    cache_chunk(&c, 0, 16, NULL);
    cache_describe(&s, 2, planes, &desc);
    step->step.n_seqs = 0;
    step->step.n_copies = 1;
    step->copies[0] = (struct soq_step_copy){0, 0, 1, 8};
    device_begin(&c.d, step);
    device_end(&c.d);
    blocks = read_blocks(&c, desc.block_bytes);
    cr_assert_eq(memcmp(blocks, blocks + desc.block_bytes, desc.block_bytes), 0);
    memset(blocks, 0x11, desc.block_bytes);
    cr_assert_eq(c.d.ops->memory->buffer_write(c.d.self, c.slabs[0], 0, blocks, 2 * desc.block_bytes, &err), 0);
    free(blocks);
    device_begin(&c.d, step);
    device_end(&c.d);
    blocks = read_blocks(&c, desc.block_bytes);
    cr_assert_eq(blocks[0], 0x11);
    step->step.serial = ++device_step_serial;
    device_begin(&c.d, step);
    device_end(&c.d);
    free(blocks);
    blocks = read_blocks(&c, desc.block_bytes);
    cr_assert_neq(blocks[0], 0x11);
    free(blocks);
    cache_close(&c);
    free(step);
}
