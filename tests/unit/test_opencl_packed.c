/* Packed blocks on an OpenCL device. A group whose blocks a codec packed attends like a plain F32 group that holds what the
 * codec decodes: outputs and masses, whatever the format, by the kernels or by tiles that the host decodes. Packing writes what
 * the codec writes, byte by byte; entries are gathered from packed blocks as it decodes them. */
#include "device_support.h"
#include "kv_toy.h"

enum { LAYERS = 2, LAYER = 1, N_MAX = 640, LINES = 2, NEW_ROWS = 9, PACKED_REF = 1 << SOQ_BLOCK_CLASS_SHIFT };

static const uint32_t layer_numbers[LAYERS] = {3, 7};

/* A shape, the formats of packed keys and values, and which blocks are packed: bit i % 32 of `pattern` for block i. */
struct variant {
    const char *name;
    uint32_t ratio, heads, dk, dv, block_tokens, tail;
    struct soq_kv_format key, value;
    uint32_t pattern;
};

/* Numbers of every entry as the caches hold them, two groups, a step. */
struct scene {
    struct device d;
    struct variant v;
    struct toy toys[2];
    struct soq_kv_coder coders[2];
    struct soq_kv_plane planes[2], packed[2], wide[2];
    struct soq_kv_group_desc desc, plain_desc;
    uint32_t n_entries, n_blocks;
    float *numbers[2]; /* [LAYERS][heads][n_blocks * block_tokens][width] of keys and values */
    uint8_t *blocks, *packs;
    soq_kv_group group, plain;
    soq_buffer slabs[3]; /* classes 0 and 1, the plain group's */
    struct device_step *step;
    struct soq_attention_args args;
    struct matrix q, out, again, inv_freq;
    soq_buffer mass;
    soq_weight sinks;
};

/* Under a checker, which interprets kernels: less of everything, but of each kernel and format something. */
static bool checked(void)
{
    return getenv("SOQ_TEST_ARENA");
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static uint32_t width_of(const struct variant *v, int plane)
{
    return plane ? v->dv : v->dk;
}

static struct soq_kv_plane plane_of(const struct variant *v, int plane, struct soq_kv_format format)
{
    return (struct soq_kv_plane){.struct_size = sizeof(struct soq_kv_plane),
                                 .role = plane ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY,
                                 .heads = v->heads,
                                 .width = width_of(v, plane),
                                 .tokens_per_entry = 1,
                                 .alias = -1,
                                 .format = format};
}

static struct soq_kv_format plain_format(const struct variant *v, int plane, uint32_t dtype)
{
    uint64_t bytes = (uint64_t)v->block_tokens * width_of(v, plane) * (dtype == SOQ_DTYPE_F32 ? 4 : 2);

    return (struct soq_kv_format){.struct_size = sizeof(struct soq_kv_format),
                                  .kind = SOQ_FORMAT_PLAIN,
                                  .dtype = dtype,
                                  .tail_dtype = dtype,
                                  .tile_bytes = (bytes + 7) / 8 * 8};
}

static void describe(struct scene *x)
{
    const struct variant *v = &x->v;

    x->desc = (struct soq_kv_group_desc){.struct_size = sizeof x->desc,
                                         .kind = SOQ_GROUP_FULL,
                                         .n_layers = LAYERS,
                                         .block_tokens = v->block_tokens,
                                         .max_blocks = x->n_blocks,
                                         .n_planes = 2,
                                         .plane_stride = sizeof x->planes[0],
                                         .planes = x->planes,
                                         .layers = layer_numbers,
                                         .first_head = 5};
    x->plain_desc = x->desc;
    x->plain_desc.index = 1;
    x->plain_desc.planes = x->wide;
    x->desc.packed = x->packed;
    x->desc.coders = x->coders;
    for (int p = 0; p < 2; p++) {
        static const struct soq_kv_codec_ops ops = {.struct_size = sizeof ops, .encode = toy_encode, .decode = toy_decode};

        x->toys[p] = toy_of(p ? v->value : v->key, p ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY, v->block_tokens, width_of(v, p));
        x->coders[p] = (struct soq_kv_coder){sizeof x->coders[p], 0, &ops, &x->toys[p]};
        x->planes[p] = plane_of(v, p, plain_format(v, p, v->tail));
        x->packed[p] = plane_of(v, p, x->toys[p].format);
        x->wide[p] = plane_of(v, p, plain_format(v, p, SOQ_DTYPE_F32));
        x->desc.block_bytes += LAYERS * v->heads * x->planes[p].format.tile_bytes;
        x->desc.packed_bytes += LAYERS * v->heads * x->packed[p].format.tile_bytes;
        x->plain_desc.block_bytes += LAYERS * v->heads * x->wide[p].format.tile_bytes;
    }
}

static uint8_t *tile_at(uint8_t *blocks, uint64_t block_bytes, const struct soq_kv_plane planes[2], int plane, uint32_t block,
                        uint32_t tile)
{
    uint64_t first = plane ? LAYERS * planes[0].heads * planes[0].format.tile_bytes : 0;

    return blocks + block * block_bytes + first + tile * planes[plane].format.tile_bytes;
}

static float *numbers_at(const struct scene *x, int plane, uint32_t tile, uint32_t entry)
{
    return x->numbers[plane] + ((size_t)tile * x->n_blocks * x->v.block_tokens + entry) * width_of(&x->v, plane);
}

static bool packs(const struct scene *x, uint32_t block)
{
    return x->v.pattern >> block % 32 & 1 && (block + 1) * x->v.block_tokens + NEW_ROWS <= x->n_entries;
}

/* Every tile of every block, for the caller's `what`. */
static void each_tile(struct scene *x, void (*what)(struct scene *x, int plane, uint32_t block, uint32_t tile))
{
    for (int p = 0; p < 2; p++)
        for (uint32_t b = 0; b < x->n_blocks; b++)
            for (uint32_t t = 0; t < LAYERS * x->v.heads; t++)
                what(x, p, b, t);
}

/* Random numbers, rounded as class 0 stores them; those of a block with a dim that is large and one that does not change. */
static void make_numbers(struct scene *x, int plane, uint32_t block, uint32_t tile)
{
    uint32_t width = width_of(&x->v, plane);
    uint8_t *to = tile_at(x->blocks, x->desc.block_bytes, x->planes, plane, block, tile);
    float *numbers = numbers_at(x, plane, tile, block * x->v.block_tokens);
    struct toy tail = {{.dtype = x->v.tail}, 0};

    device_fill(numbers, (size_t)x->v.block_tokens * width, 1 + (uint64_t)plane + 2 * block + 1000 * tile);
    for (uint32_t i = 0; i < x->v.block_tokens; i++) {
        numbers[i * width + 1] *= 3;
        numbers[i * width + width / 2] = 0.25f;
    }
    for (uint32_t i = 0; i < x->v.block_tokens * width; i++) {
        toy_put(&tail, to, i, numbers[i]);
        numbers[i] = toy_get(&tail, to, i);
    }
}

static struct soq_kv_tile tile_about(const struct scene *x, int plane, uint32_t block, uint32_t tile)
{
    return (struct soq_kv_tile){.struct_size = sizeof(struct soq_kv_tile),
                                .role = plane ? SOQ_PLANE_VALUE : SOQ_PLANE_KEY,
                                .layer = layer_numbers[tile / x->v.heads],
                                .head = 5 + tile % x->v.heads,
                                .tokens = x->v.block_tokens,
                                .width = width_of(&x->v, plane),
                                .first_position = block * x->v.block_tokens};
}

/* What the codec makes of a packed block: bytes, and the numbers that it decodes. */
static void pack_tile(struct scene *x, int plane, uint32_t block, uint32_t tile)
{
    struct soq_kv_tile about = tile_about(x, plane, block, tile);
    uint8_t *to = tile_at(x->packs, x->desc.packed_bytes, x->packed, plane, block, tile);
    float *numbers = numbers_at(x, plane, tile, block * x->v.block_tokens);

    if (!packs(x, block))
        return;
    toy_encode(&x->toys[plane], &about, numbers, to, NULL);
    toy_decode(&x->toys[plane], &about, to, numbers, NULL);
}

static void pack_blocks(struct scene *x)
{
    soq_block_ref src[64], dst[64];
    uint32_t skip[64] = {0}, positions[64];
    struct soq_kv_pack_args args = {sizeof args, 0, x->group, src, dst, skip, positions};
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t b = 0; b < x->n_blocks; b++)
        if (packs(x, b)) {
            src[args.n] = b;
            dst[args.n] = PACKED_REF | (x->n_blocks - 1 - b);
            positions[args.n++] = b * x->v.block_tokens;
        }
    cr_assert_eq(x->d.ops->attention->kv_pack(x->d.self, &args, &err), 0, "%s: %s", x->v.name, err.text);
}

/* The slab is written once more, as a whole: Oclgrind takes a write to part of it for one that leaves the rest uninitialised.
 */
static void expect_packed(struct scene *x)
{
    uint64_t bytes = x->n_blocks * x->desc.packed_bytes;
    uint8_t *read = malloc(bytes);
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(x->d.ops->memory->buffer_read(x->d.self, x->slabs[1], 0, read, bytes, &err), 0);
    cr_assert_eq(x->d.ops->memory->buffer_write(x->d.self, x->slabs[1], 0, read, bytes, &err), 0);
    for (uint32_t b = 0; b < x->n_blocks; b++)
        if (packs(x, b))
            cr_assert_eq(memcmp(read + (x->n_blocks - 1 - b) * x->desc.packed_bytes, x->packs + b * x->desc.packed_bytes,
                                x->desc.packed_bytes),
                         0, "%s: block %u", x->v.name, b);
    free(read);
}

static void put_plain(struct scene *x, int plane, uint32_t block, uint32_t tile)
{
    memcpy(tile_at(x->blocks, x->plain_desc.block_bytes, x->wide, plane, block, tile),
           numbers_at(x, plane, tile, block * x->v.block_tokens),
           (size_t)x->v.block_tokens * width_of(&x->v, plane) * sizeof(float));
}

/* A slab for n_blocks blocks of a class, filled with `bytes` or with NaN. */
static soq_buffer add_slab(struct scene *x, soq_kv_group group, uint32_t block_class, uint64_t block_bytes,
                           const uint8_t *bytes)
{
    uint8_t *nan = malloc(x->n_blocks * block_bytes);
    soq_buffer slab = device_buffer(&x->d, x->n_blocks * block_bytes);
    struct soq_error err = SOQ_ERROR_INIT;

    memset(nan, 0xff, x->n_blocks * block_bytes);
    cr_assert_eq(x->d.ops->memory->buffer_write(x->d.self, slab, 0, bytes ? bytes : nan, x->n_blocks * block_bytes, &err), 0);
    cr_assert_eq(x->d.ops->attention->group_slab(x->d.self, group, block_class, 0, x->n_blocks, slab, &err), 0, "%s", err.text);
    free(nan);
    return slab;
}

static void make_groups(struct scene *x)
{
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(x->d.ops->attention->group_create(x->d.self, &x->desc, &x->group, &err), 0, "%s: %s", x->v.name, err.text);
    cr_assert_eq(x->d.ops->attention->group_create(x->d.self, &x->plain_desc, &x->plain, &err), 0, "%s", err.text);
    each_tile(x, make_numbers);
    x->slabs[0] = add_slab(x, x->group, 0, x->desc.block_bytes, x->blocks);
    x->slabs[1] = add_slab(x, x->group, 1, x->desc.packed_bytes, NULL);
    each_tile(x, pack_tile);
    pack_blocks(x);
    expect_packed(x);
    each_tile(x, put_plain);
    x->slabs[2] = add_slab(x, x->plain, 0, x->plain_desc.block_bytes, x->blocks);
}

/* n entries, all of them held; a step without rows, whose edits fill slots 0 and 2 of both groups. */
static void scene_open(struct scene *x, const struct variant *v, uint32_t n, const char *decoded)
{
    const char *arena = getenv("SOQ_TEST_ARENA");
    const struct override overrides[] = {{"arena", arena ? arena : "65536"}, {"decoded", decoded}, {NULL, NULL}};

    *x = (struct scene){.v = *v, .n_entries = n, .n_blocks = (n + v->block_tokens - 1) / v->block_tokens};
    if (checked())
        x->v.heads = x->v.ratio = 1;
    device_open_with(&x->d, overrides, 64);
    describe(x);
    x->blocks = calloc(x->n_blocks, x->plain_desc.block_bytes + x->desc.block_bytes);
    x->packs = calloc(x->n_blocks, x->desc.packed_bytes);
    for (int p = 0; p < 2; p++)
        x->numbers[p] = calloc((size_t)LAYERS * x->v.heads * x->n_blocks * v->block_tokens, width_of(v, p) * sizeof(float));
    make_groups(x);
    x->step = device_step(0, 0);
    x->step->step.n_seqs = 0;
    for (uint32_t i = 0; i < 2 * x->n_blocks; i++) {
        uint32_t b = i / 2, slot = i % 2 * 2;
        soq_block_ref block = packs(x, b) ? PACKED_REF | (x->n_blocks - 1 - b) : b;

        x->step->edits[x->step->step.n_edits++] = (struct soq_step_edit){slot, 0, b, block};
        x->step->edits[x->step->step.n_edits++] = (struct soq_step_edit){slot, 1, b, b};
    }
    v = &x->v;
    x->q = device_matrix(&x->d, 32, v->heads * v->ratio * v->dk, 3, 17);
    x->out = device_matrix(&x->d, 32, v->heads * v->ratio * v->dv, 1, 18);
    x->again = device_matrix(&x->d, 32, v->heads * v->ratio * v->dv, 1, 19);
    x->inv_freq = device_matrix(&x->d, 1, v->dk / 2, 0, 0);
    for (uint32_t i = 0; i < v->dk / 2; i++)
        *device_at(&x->inv_freq, 0, i) = powf(100.0f, -2.0f * (float)i / (float)v->dk);
    device_push(&x->d, &x->inv_freq);
    x->mass = device_buffer(&x->d, (uint64_t)LINES * v->heads * N_MAX * sizeof(uint64_t));
    x->args = (struct soq_attention_args){.struct_size = sizeof x->args,
                                          .layer = LAYER,
                                          .n_heads = v->heads * v->ratio,
                                          .n_kv_heads = v->heads,
                                          .head_dim_k = v->dk,
                                          .head_dim_v = v->dv,
                                          .scale = 0.5f,
                                          .mass_stride = N_MAX};
}

static void scene_close(struct scene *x)
{
    const struct soq_backend_ops *ops = x->d.ops;

    ops->memory->weight_free(x->d.self, x->sinks);
    ops->attention->group_free(x->d.self, x->plain);
    ops->attention->group_free(x->d.self, x->group);
    for (int i = 0; i < 3; i++)
        ops->memory->buffer_free(x->d.self, x->slabs[i]);
    ops->memory->buffer_free(x->d.self, x->mass);
    device_matrix_done(&x->d, &x->q);
    device_matrix_done(&x->d, &x->out);
    device_matrix_done(&x->d, &x->again);
    device_matrix_done(&x->d, &x->inv_freq);
    device_close(&x->d);
    free(x->numbers[0]);
    free(x->numbers[1]);
    free(x->blocks);
    free(x->packs);
    free(x->step);
}

/* Rows at entries first, first + 1, ... and n_segments segments of both groups. */
static void add_rows(struct scene *x, uint32_t slot, uint32_t first, uint32_t n, const struct soq_step_segment *segments,
                     uint32_t n_segments)
{
    struct soq_step *step = &x->step->step;
    struct soq_step_seq *seq = &x->step->seqs[step->n_seqs];

    *seq = (struct soq_step_seq){slot, first, step->n_rows, n, step->n_segments, 2 * n_segments};
    for (uint32_t i = 0; i < n; i++, step->n_rows++)
        x->step->rows[step->n_rows] = (struct soq_step_row){.position = first + i,
                                                            .entry = first + i,
                                                            .seq = step->n_seqs,
                                                            .parent = i ? (int32_t)step->n_rows - 1 : -1,
                                                            .mass_line = i % 3 ? step->n_seqs + 1 : 0};
    for (uint32_t i = 0; i < 2 * n_segments; i++) {
        x->step->segments[step->n_segments] = segments[i / 2];
        x->step->segments[step->n_segments++].group = i % 2;
    }
    step->n_seqs++;
}

static struct soq_step_segment segment(uint32_t first, uint32_t n)
{
    return (struct soq_step_segment){.n_layers = UINT32_MAX, .n_heads = UINT32_MAX, .first_entry = first, .n_entries = n};
}

static void attend(struct scene *x, struct device_step *step, soq_kv_group group, struct matrix *out, uint32_t first_row,
                   uint64_t *mass)
{
    uint64_t bytes = (uint64_t)LINES * x->v.heads * N_MAX * sizeof *mass;
    struct soq_error err = SOQ_ERROR_INIT;

    memset(mass, 0, bytes);
    cr_assert_eq(x->d.ops->memory->buffer_write(x->d.self, x->mass, 0, mass, bytes, &err), 0);
    step->step.serial = ++device_step_serial;
    x->args.group = group;
    x->args.mass = x->mass;
    x->args.q = device_rows(&x->q, first_row, step->step.n_rows);
    x->args.out = device_rows(out, first_row, step->step.n_rows);
    device_begin(&x->d, step);
    x->d.ops->attention->attention(x->d.self, &x->args);
    device_end(&x->d);
    device_pull(&x->d, out);
    cr_assert_eq(x->d.ops->memory->buffer_read(x->d.self, x->mass, 0, mass, bytes, &err), 0);
}

/* Row by row the same bits, and masses that add up. */
static void expect_rows_alone(struct scene *x, const uint64_t *mass)
{
    size_t n = (size_t)LINES * x->v.heads * N_MAX;
    uint64_t *one_mass = malloc(n * sizeof *mass), *sum = calloc(n, sizeof *mass);
    struct device_step *one = malloc(sizeof *one);

    for (uint32_t r = 0; r < x->step->step.n_rows; r++) {
        *one = *x->step;
        one->step.n_rows = one->step.n_seqs = 1;
        one->seqs[0] = x->step->seqs[x->step->rows[r].seq];
        one->seqs[0].first_row = 0;
        one->seqs[0].n_rows = 1;
        one->rows[0] = x->step->rows[r];
        one->rows[0].seq = 0;
        attend(x, one, x->group, &x->again, r, one_mass);
        for (uint32_t i = 0; i < x->out.view.cols; i++)
            cr_assert_eq(*device_at(&x->again, r, i), *device_at(&x->out, r, i), "%s: row %u alone, %u", x->v.name, r, i);
        for (size_t i = 0; i < n; i++)
            sum[i] += one_mass[i];
    }
    cr_assert_eq(memcmp(sum, mass, n * sizeof *mass), 0, "%s: masses row by row", x->v.name);
    free(one);
    free(sum);
    free(one_mass);
}

/* The step on packed blocks and on plain ones that hold the same numbers. */
static void check(struct scene *x)
{
    size_t n = (size_t)LINES * x->v.heads * N_MAX, seen = 0;
    uint64_t *mass = malloc(n * sizeof *mass), *plain = malloc(n * sizeof *plain);

    attend(x, x->step, x->group, &x->out, 0, mass);
    attend(x, x->step, x->plain, &x->again, 0, plain);
    for (uint32_t r = 0; r < x->step->step.n_rows; r++)
        for (uint32_t i = 0; i < x->out.view.cols; i++)
            cr_assert(fabsf(*device_at(&x->out, r, i) - *device_at(&x->again, r, i)) < 1e-5f, "%s: row %u, %u: %g is not %g",
                      x->v.name, r, i, (double)*device_at(&x->out, r, i), (double)*device_at(&x->again, r, i));
    for (size_t i = 0; i < n; i++) {
        seen += mass[i] != 0;
        cr_assert(fabs((double)mass[i] - (double)plain[i]) < 4e-5 * (double)SOQ_MASS_ONE, "%s: mass %zu: %g is not %g",
                  x->v.name, i, (double)mass[i] / (double)SOQ_MASS_ONE, (double)plain[i] / (double)SOQ_MASS_ONE);
    }
    cr_assert_gt(seen, 40);
    if (!checked())
        expect_rows_alone(x, mass);
    free(mass);
    free(plain);
}

/* ---- Formats ----------------------------------------------------------------------------------------------------- */

static const float book[] = {-1.51042f, -0.45278f, 0.45278f, 1.51042f};
static const float signs[64] = {1,  -1, -1, 1,  1, 1,  -1, 1, -1, -1, 1,  1,  -1, 1, 1,  -1, 1, -1, -1, 1,  1, 1,
                                -1, 1,  -1, -1, 1, 1,  -1, 1, 1,  -1, -1, -1, 1,  1, -1, 1,  1, -1, 1,  -1, 1, 1,
                                1,  -1, -1, 1,  1, -1, 1,  1, -1, 1,  -1, 1,  1,  1, -1, 1,  1, -1, -1, 1};

#define AFFINE(bits_, tokens, dims, symmetric_)                                                                                \
    .kind = SOQ_FORMAT_AFFINE, .dtype = SOQ_DTYPE_F16, .bits = bits_, .group_tokens = tokens, .group_dims = dims,              \
    .symmetric = symmetric_
#define HADAMARD(dims) .rotation = SOQ_ROTATION_HADAMARD, .rotation_dims = dims

static const struct variant variants[] = {
    {"int8", 3, 2, 64, 64, 32, SOQ_DTYPE_F16, {AFFINE(8, 1, 32, 1)}, {AFFINE(8, 1, 32, 1)}, 0x0f0f},
    {"int4", 2, 1, 64, 32, 32, SOQ_DTYPE_F16, {AFFINE(4, 1, 32, 1), HADAMARD(64)}, {AFFINE(4, 1, 32, 0), HADAMARD(32)}, 0x0ffd},
    {"kivi", 2, 2, 32, 64, 32, SOQ_DTYPE_BF16, {AFFINE(2, 32, 1, 0)}, {AFFINE(2, 1, 32, 0)}, 0xffff},
    {"odd groups, 5 and 3 bits", 2, 1, 18, 7, 16, SOQ_DTYPE_F32, {AFFINE(5, 3, 7, 0)}, {AFFINE(3, 5, 2, 1)}, 0x5555},
    {"one bit, blocks of 2", 2, 1, 24, 66, 2, SOQ_DTYPE_F32, {AFFINE(1, 2, 8, 0)}, {AFFINE(4, 1, 4, 0)}, 0x7777},
    {"fp8 and f32 scales",
     2,
     1,
     16,
     80,
     64,
     SOQ_DTYPE_F16,
     {.kind = SOQ_FORMAT_E4M3, .dtype = SOQ_DTYPE_F32, .bits = 8, .group_tokens = 64, .group_dims = 16},
     {.kind = SOQ_FORMAT_E4M3, .dtype = SOQ_DTYPE_F16, .bits = 8, .group_tokens = 16, .group_dims = 80},
     0xf},
    {"codebook, rotated with signs",
     1,
     2,
     64,
     64,
     32,
     SOQ_DTYPE_F16,
     {.kind = SOQ_FORMAT_CODEBOOK,
      .dtype = SOQ_DTYPE_F16,
      .bits = 2,
      .group_tokens = 1,
      .group_dims = 64,
      .codebook = book,
      .codebook_size = 4,
      .rotation = SOQ_ROTATION_HADAMARD_SIGNS,
      .rotation_dims = 64,
      .signs = signs},
     {.kind = SOQ_FORMAT_CODEBOOK,
      .dtype = SOQ_DTYPE_F32,
      .bits = 2,
      .group_tokens = 1,
      .group_dims = 64,
      .codebook = book,
      .codebook_size = 4,
      .rotation = SOQ_ROTATION_HADAMARD_SIGNS,
      .rotation_dims = 16,
      .signs = signs},
     0xffff},
    {"plain keys, int8 values",
     4,
     1,
     20,
     20,
     16,
     SOQ_DTYPE_F32,
     {.kind = SOQ_FORMAT_PLAIN, .dtype = SOQ_DTYPE_BF16},
     {AFFINE(8, 16, 20, 0)},
     0x3c3f},
    {"int4 keys, opaque values",
     2,
     2,
     24,
     20,
     16,
     SOQ_DTYPE_F16,
     {AFFINE(4, 4, 8, 1)},
     {.kind = SOQ_FORMAT_OPAQUE, .dtype = SOQ_DTYPE_F32},
     0x3f},
    {"opaque",
     2,
     2,
     20,
     24,
     32,
     SOQ_DTYPE_F32,
     {.kind = SOQ_FORMAT_OPAQUE, .dtype = SOQ_DTYPE_F32},
     {.kind = SOQ_FORMAT_OPAQUE, .dtype = SOQ_DTYPE_F32},
     0xfffb},
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

/* Two sequences that see everything before them. */
Test(opencl_packed, formats, .timeout = 300)
{
    for (size_t i = 0; i < N_VARIANTS; i++) {
        uint32_t n = variants[i].block_tokens < 16 ? 50 : checked() ? 76 : 150;
        struct soq_step_segment whole = segment(0, n), part = segment(27, n - NEW_ROWS + 2 - 27);
        struct scene x;

        scene_open(&x, &variants[i], n, "32MiB");
        add_rows(&x, 0, n - NEW_ROWS, checked() ? 2 : NEW_ROWS, &whole, 1);
        add_rows(&x, 2, n - NEW_ROWS, 2, &part, 1);
        check(&x);
        scene_close(&x);
    }
}

/* Sinks beside a window whose keys are turned, a soft cap, sink logits: the masks of plain groups, over more than one split,
 * and for the formats that the host decodes in pieces of one split. */
Test(opencl_packed, masks, .timeout = 300)
{
    static const float logits[] = {0.5f, -0.25f, 1, 0, 0.75f, -1};

    for (size_t i = 0; i < N_VARIANTS; i++) {
        struct soq_step_segment segments[] = {segment(0, 5), segment(490, 111)};
        struct scene x;

        if (variants[i].block_tokens < 16 || (checked() && i != 1 && i != N_VARIANTS - 1))
            continue;
        scene_open(&x, &variants[i], 601, "1");
        segments[0].flags = SOQ_SEGMENT_ROLLING;
        x.args.window = 100;
        x.args.sinks = 5;
        x.args.softcap = 3;
        x.args.inv_freq = x.inv_freq.view;
        x.args.rope_kind = SOQ_ROPE_HALF;
        x.args.n_rot = variants[i].dk / 4 * 2;
        x.args.inv_freq.cols = x.args.n_rot / 2;
        x.args.sink_logits = x.sinks = device_vector(&x.d, logits, x.args.n_heads);
        add_rows(&x, 0, 601 - NEW_ROWS, checked() ? 2 : NEW_ROWS, segments, 2);
        segments[1].n_entries = 104;
        add_rows(&x, 2, 601 - NEW_ROWS, 2, segments, 2);
        check(&x);
        scene_close(&x);
    }
}

/* ---- Packing and gathering --------------------------------------------------------------------------------------- */

/* Entries below `skip` hold nothing: the first one behind them stands in their place. */
Test(opencl_packed, skipped_entries)
{
    const struct variant *v = &variants[2];
    soq_block_ref src = 1, dst = PACKED_REF | 0;
    uint32_t skip = 5, position = UINT32_MAX;
    struct soq_kv_pack_args args = {sizeof args, 1, 0, &src, &dst, &skip, &position};
    struct soq_error err = SOQ_ERROR_INIT;
    uint8_t *packed;
    struct scene x;

    scene_open(&x, v, 100, "32MiB");
    args.group = x.group;
    cr_assert_eq(x.d.ops->attention->kv_pack(x.d.self, &args, &err), 0, "%s", err.text);
    packed = malloc(x.desc.packed_bytes);
    cr_assert_eq(x.d.ops->memory->buffer_read(x.d.self, x.slabs[1], 0, packed, x.desc.packed_bytes, &err), 0);
    for (int p = 0; p < 2; p++) {
        uint32_t width = width_of(v, p), last = LAYERS * x.v.heads - 1;
        float *numbers = malloc(32 * width * sizeof *numbers);
        uint8_t *expected = malloc(x.toys[p].format.tile_bytes);
        struct soq_kv_tile about = tile_about(&x, p, 1, last);

        make_numbers(&x, p, 1, last);
        memcpy(numbers, numbers_at(&x, p, last, 32), 32 * width * sizeof *numbers);
        for (uint32_t t = 0; t < skip; t++)
            memcpy(numbers + t * width, numbers + skip * width, width * sizeof *numbers);
        toy_encode(&x.toys[p], &about, numbers, expected, NULL);
        cr_assert_eq(memcmp(expected, tile_at(packed, 0, x.packed, p, 0, last), x.toys[p].format.tile_bytes), 0);
        free(numbers);
        free(expected);
    }
    free(packed);
    scene_close(&x);
}

/* Entries of packed and plain blocks, each head its own, in pieces of one block: the numbers that the codec decodes, rounded as
 * class 0 rounds. Survivors go to the last two blocks, which nobody packed. */
Test(opencl_packed, gather)
{
    enum { KEEP = 20 };

    for (size_t k = 0; k < N_VARIANTS; k++) {
        const struct variant *v = &variants[k];
        uint32_t t = v->block_tokens, n = 12 * t, n_keep = t < 16 ? t : KEEP;
        soq_block_ref src[10], dst[2] = {10, 11};
        struct soq_kv_gather_args args = {sizeof args, n_keep, 0, src, dst, 10, 2, t / 2, 0, NULL};
        struct toy tail = {{.dtype = v->tail}, 0};
        struct soq_error err = SOQ_ERROR_INIT;
        uint32_t *lines = malloc(LAYERS * 2 * n_keep * sizeof *lines);
        struct scene x;

        scene_open(&x, v, n + NEW_ROWS, "1");
        for (uint32_t b = 0; b < 10; b++)
            src[b] = packs(&x, b) ? PACKED_REF | (x.n_blocks - 1 - b) : b;
        for (uint32_t i = 0; i < LAYERS * x.v.heads * n_keep; i++)
            lines[i] = i % n_keep * (10 * t / n_keep) + i / n_keep;
        args.group = x.group;
        args.keep = lines;
        cr_assert_eq(x.d.ops->attention->kv_gather(x.d.self, &args, &err), 0, "%s", err.text);
        cr_assert_eq(x.d.ops->memory->buffer_read(x.d.self, x.slabs[0], 0, x.blocks, x.n_blocks * x.desc.block_bytes, &err), 0);
        for (uint32_t i = 0; i < LAYERS * x.v.heads * n_keep; i++)
            for (int p = 0; p < 2; p++) {
                uint32_t tile = i / n_keep, to = t / 2 + i % n_keep, width = width_of(v, p);
                const uint8_t *at = tile_at(x.blocks, x.desc.block_bytes, x.planes, p, dst[to / t], tile);

                for (uint32_t d = 0; d < width; d++) {
                    uint8_t wanted[4];

                    toy_put(&tail, wanted, 0, numbers_at(&x, p, tile, lines[i])[d]);
                    cr_assert_eq(toy_get(&tail, at, to % t * width + d), toy_get(&tail, wanted, 0), "%s: plane %d, tile %u, %u",
                                 v->name, p, tile, i);
                }
            }
        free(lines);
        scene_close(&x);
    }
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void expect_no_pack(struct scene *x, soq_block_ref src, soq_block_ref dst, uint32_t skip, const char *text)
{
    uint32_t position = 0;
    struct soq_kv_pack_args args = {sizeof args, 1, x->group, &src, &dst, &skip, &position};
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(x->d.ops->attention->kv_pack(x->d.self, &args, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, text), "%s", err.text);
}

Test(opencl_packed, refusals)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_kv_append_args append = {.struct_size = sizeof append};
    soq_kv_group group;
    struct scene x;

    scene_open(&x, &variants[0], 100, "32MiB");
    expect_no_pack(&x, PACKED_REF | 0, PACKED_REF | 1, 0, "block 10000000 to 10000001 of group 0");
    expect_no_pack(&x, 0, 1, 0, "block 0 to 1 of group 0");
    expect_no_pack(&x, 0, PACKED_REF | 100, 0, "block 0 to 10000064 of group 0");
    expect_no_pack(&x, 2, PACKED_REF | 0, 32, "block 2 of group 0: 32 of 32 entries hold nothing");
    append.group = x.group;
    append.k = append.v = x.q.view;
    add_rows(&x, 0, 3, 1, NULL, 0);
    device_begin(&x.d, x.step);
    cr_assert_eq(x.d.ops->attention->kv_append(x.d.self, &append), -SOQ_EINVAL);
    cr_assert_eq(x.d.ops->end(x.d.self, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "no block for entry 3"), "%s", err.text);
    cr_assert_eq(x.d.ops->attention->group_slab(x.d.self, x.plain, 1, 0, 1, x.slabs[1], &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "group 1 has no blocks of class 1"), "%s", err.text);
    x.packed[0].format.tile_bytes -= 8;
    cr_assert_eq(x.d.ops->attention->group_create(x.d.self, &x.desc, &group, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "packed tiles have"), "%s", err.text);
    x.packed[0].format.tile_bytes += 8;
    x.packed[0].format.group_dims = 0;
    cr_assert_eq(x.d.ops->attention->group_create(x.d.self, &x.desc, &group, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "for 1 tokens x 0 dims"), "%s", err.text);
    x.desc.coders = NULL;
    cr_assert_eq(x.d.ops->attention->group_create(x.d.self, &x.desc, &group, &err), -SOQ_EINVAL);
    cr_assert(strstr(err.text, "packed plane 0 has no coder"), "%s", err.text);
    scene_close(&x);
}
