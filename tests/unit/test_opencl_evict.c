/* What eviction asks of an OpenCL device, against F64: attention mass, rotated segments, several
 * segments that begin anywhere, groups that share slabs, entries copied together. */
#include "device_cache.h"

enum { N_MAX = 640, ROW_MAX = 32, KV_HEADS_MAX = 4, LINES = 3 };

#define MASS_GUARD UINT64_C(0x5a5a5a5a5a5a5a5a)

/* Entry e of kv head h holds the key and value of position source[h][e]. */
struct scene {
    struct cache c;
    struct device_step *step;
    uint32_t source[KV_HEADS_MAX][N_MAX];
    struct soq_attention_args args;
    struct matrix q, out, inv_freq;
    soq_buffer mass;
    uint32_t n_entries;
};

/* ---- F64 ------------------------------------------------------------------------------------------------------------------
 */

static double distance_of(const struct scene *x, const struct soq_step_segment *segment, const struct soq_step_row *row)
{
    double rolled = (double)row->position + 1 - x->args.window - x->args.sinks;

    if (segment->flags == SOQ_SEGMENT_ROLLING)
        return rolled > 0 ? rolled : 0;
    return segment->flags == SOQ_SEGMENT_ROTATE ? segment->rotation : 0;
}

/* q of a row and head, turned back by so many positions. */
static void turn(const struct scene *x, uint32_t row, uint32_t head, double distance, double *q)
{
    uint32_t pairs = x->args.n_rot / 2;
    bool half = x->args.rope_kind == SOQ_ROPE_HALF;

    for (uint32_t d = 0; d < x->c.s.dk; d++)
        q[d] = *device_at(&x->q, row, head * x->c.s.dk + d);
    for (uint32_t i = 0; i < pairs && distance != 0; i++) {
        double *a = q + (half ? i : 2 * i), *b = half ? a + pairs : a + 1, was = *a;
        double angle = distance * *device_at(&x->inv_freq, 0, i);

        *a = was * cos(angle) + *b * sin(angle);
        *b = *b * cos(angle) - was * sin(angle);
    }
}

static double score(const struct scene *x, const struct soq_step_segment *segment, uint32_t row, uint32_t head, uint32_t entry)
{
    uint32_t kv = head / (x->c.s.n_heads / x->c.s.n_kv_heads);
    double q[256], sum = 0;

    turn(x, row, head, distance_of(x, segment, &x->step->rows[row]), q);
    for (uint32_t d = 0; d < x->c.s.dk; d++)
        sum += q[d] * *device_at(&x->c.k, x->source[kv][entry], kv * x->c.s.dk + d);
    sum *= (double)x->args.scale;
    return x->c.s.softcap > 0 ? x->c.s.softcap * tanh(sum / x->c.s.softcap) : sum;
}

static bool sees(const struct scene *x, const struct soq_step_segment *segment, const struct soq_step_row *row, uint32_t entry)
{
    int64_t position = (int64_t)entry + segment->position_offset;

    return entry <= row->entry && position <= row->position &&
           (x->args.window == 0 || position + x->args.window > row->position || position < x->args.sinks);
}

/* Probabilities of a row and head for all entries, and its output. */
static void reference(const struct scene *x, uint32_t row, uint32_t head, double *p, double *out)
{
    const struct soq_step_row *r = &x->step->rows[row];
    const struct soq_step_seq *seq = &x->step->seqs[r->seq];
    uint32_t kv = head / (x->c.s.n_heads / x->c.s.n_kv_heads);
    double total = x->c.s.sink_logits ? exp((double)x->c.sink_values[head]) : 0;

    memset(p, 0, N_MAX * sizeof *p);
    memset(out, 0, x->c.s.dv * sizeof *out);
    for (uint32_t s = 0; s < seq->n_segments; s++) {
        const struct soq_step_segment *segment = &x->step->segments[seq->first_segment + s];

        for (uint32_t e = segment->first_entry; e < segment->first_entry + segment->n_entries; e++) {
            p[e] = sees(x, segment, r, e) ? exp(score(x, segment, row, head, e)) : 0;
            total += p[e];
        }
    }
    for (uint32_t e = 0; e < N_MAX; e++) {
        p[e] /= total;
        for (uint32_t d = 0; d < x->c.s.dv && p[e] > 0; d++)
            out[d] += p[e] * *device_at(&x->c.v, x->source[kv][e], kv * x->c.s.dv + d);
    }
}

/* ---- Scenes ---------------------------------------------------------------------------------------------------------------
 */

/* A cache of n entries, each of its own position, and a step without rows. */
static void scene_open(struct scene *x, struct shape s, uint32_t n)
{
    *x = (struct scene){.n_entries = n, .step = device_step(0, 0)};
    cache_open(&x->c, s, n, 2);
    for (uint32_t first = 0; first < n; first += 300)
        cache_chunk(&x->c, first, n - first < 300 ? n - first : 300, NULL);
    for (uint32_t i = 0; i < KV_HEADS_MAX * N_MAX; i++)
        x->source[i / N_MAX][i % N_MAX] = i % N_MAX;
    x->q = device_matrix(&x->c.d, ROW_MAX, s.n_heads * s.dk, 3, 17);
    x->out = device_matrix(&x->c.d, ROW_MAX, s.n_heads * s.dv, 1, 18);
    x->inv_freq = device_matrix(&x->c.d, 1, s.dk / 2, 0, 0);
    for (uint32_t i = 0; i < s.dk / 2; i++)
        *device_at(&x->inv_freq, 0, i) = powf(100.0f, -2.0f * (float)i / (float)s.dk);
    device_push(&x->c.d, &x->inv_freq);
    x->mass = device_buffer(&x->c.d, 8 + (uint64_t)LINES * KV_HEADS_MAX * N_MAX * 8);
    x->args = cache_args(&x->c);
    x->args.mass = x->mass;
    x->args.mass_offset = 8;
    x->args.mass_stride = N_MAX;
    x->step->step.n_seqs = 0;
}

static void scene_close(struct scene *x)
{
    x->c.d.ops->memory->buffer_free(x->c.d.self, x->mass);
    device_matrix_done(&x->c.d, &x->q);
    device_matrix_done(&x->c.d, &x->out);
    device_matrix_done(&x->c.d, &x->inv_freq);
    cache_close(&x->c);
    free(x->step);
}

/* A sequence of rows at entries first, first + 1, ... that stand `ahead` positions further; segments follow. Slot 2 holds what
 * slot 0 does. */
static struct soq_step_seq *add_rows(struct scene *x, uint32_t slot, uint32_t first, uint32_t n, uint32_t ahead)
{
    struct soq_step *step = &x->step->step;
    struct soq_step_seq *seq = &x->step->seqs[step->n_seqs];

    *seq = (struct soq_step_seq){slot, first, step->n_rows, n, step->n_segments, 0};
    for (uint32_t i = 0; i < n; i++, step->n_rows++)
        x->step->rows[step->n_rows] = (struct soq_step_row){.position = first + i + ahead,
                                                            .entry = first + i,
                                                            .seq = step->n_seqs,
                                                            .parent = i ? (int32_t)step->n_rows - 1 : -1};
    for (uint32_t i = 0; i < x->c.n_blocks && slot; i++)
        x->step->edits[step->n_edits++] = (struct soq_step_edit){slot, 0, i, x->c.n_blocks - 1 - i};
    step->n_seqs++;
    return seq;
}

static void add_segment(struct scene *x, struct soq_step_segment segment)
{
    x->step->segments[x->step->step.n_segments++] = segment;
    x->step->seqs[x->step->step.n_seqs - 1].n_segments++;
}

static void set_lines(struct scene *x, uint32_t first_row, uint32_t n, uint32_t line)
{
    for (uint32_t i = 0; i < n; i++)
        x->step->rows[first_row + i].mass_line = line + 1;
}

static void run(struct scene *x, struct device_step *step, uint32_t first_row)
{
    step->step.serial = ++device_step_serial;
    x->args.q = device_rows(&x->q, first_row, step->step.n_rows);
    x->args.out = device_rows(&x->out, first_row, step->step.n_rows);
    device_begin(&x->c.d, step);
    cr_assert_eq(x->c.d.ops->attention->attention(x->c.d.self, &x->args), 0);
    device_end(&x->c.d);
}

static uint64_t *read_mass(struct scene *x)
{
    size_t bytes = (size_t)LINES * KV_HEADS_MAX * N_MAX * 8;
    uint64_t *mass = malloc(bytes);
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(x->c.d.ops->memory->buffer_read(x->c.d.self, x->mass, 8, mass, bytes, &err), 0, "%s", err.text);
    return mass;
}

static void guard_mass(struct scene *x)
{
    size_t bytes = 8 + (size_t)LINES * KV_HEADS_MAX * N_MAX * 8;
    uint8_t *guard = malloc(bytes);
    struct soq_error err = SOQ_ERROR_INIT;

    memset(guard, 0x5a, bytes);
    cr_assert_eq(x->c.d.ops->memory->buffer_write(x->c.d.self, x->mass, 0, guard, bytes, &err), 0, "%s", err.text);
    free(guard);
}

/* The sequence whose rows name the line, or -1. */
static int owner_of(const struct scene *x, uint32_t line)
{
    for (uint32_t r = 0; r < x->step->step.n_rows; r++)
        if (x->step->rows[r].mass_line == line + 1)
            return (int)x->step->rows[r].seq;
    return -1;
}

static bool in_segments(const struct scene *x, int seq, uint32_t entry)
{
    for (uint32_t s = 0; seq >= 0 && s < x->step->seqs[seq].n_segments; s++) {
        const struct soq_step_segment *segment = &x->step->segments[x->step->seqs[seq].first_segment + s];

        if (entry - segment->first_entry < segment->n_entries)
            return true;
    }
    return false;
}

static void compare_mass(struct scene *x, const double *expected, double tolerance)
{
    uint32_t n_kv = x->c.s.n_kv_heads;
    uint64_t *mass = read_mass(x);

    for (uint32_t i = 0; i < LINES * KV_HEADS_MAX * N_MAX; i++) {
        uint32_t line = i / N_MAX / n_kv, entry = i % N_MAX;

        if (line >= LINES || !in_segments(x, owner_of(x, line), entry))
            cr_assert_eq(mass[i], MASS_GUARD, "line %u, entry %u: nobody asked for %llu", line, entry,
                         (unsigned long long)mass[i]);
        else
            cr_assert(fabs((double)mass[i] / SOQ_MASS_ONE - expected[i]) < tolerance,
                      "line %u, head %u, entry %u: %g is not %g", line, i / N_MAX % n_kv, entry, (double)mass[i] / SOQ_MASS_ONE,
                      expected[i]);
    }
    free(mass);
}

/* The step as it is: outputs and mass. */
static void check_f64(struct scene *x)
{
    double tolerance = x->c.s.dtype == SOQ_DTYPE_F32 ? 5e-6 : 4e-3, p[N_MAX], out[256];
    double *mass = calloc(LINES * KV_HEADS_MAX * N_MAX, sizeof *mass);
    uint32_t ratio = x->c.s.n_heads / x->c.s.n_kv_heads;

    guard_mass(x);
    run(x, x->step, 0);
    device_pull(&x->c.d, &x->out);
    for (uint32_t r = 0; r < x->step->step.n_rows; r++)
        for (uint32_t h = 0; h < x->c.s.n_heads; h++) {
            uint32_t line = x->step->rows[r].mass_line;

            reference(x, r, h, p, out);
            for (uint32_t d = 0; d < x->c.s.dv; d++)
                cr_assert(fabs(*device_at(&x->out, r, h * x->c.s.dv + d) - out[d]) < tolerance,
                          "row %u, head %u, %u: %g is not %g", r, h, d, (double)*device_at(&x->out, r, h * x->c.s.dv + d),
                          out[d]);
            for (uint32_t e = 0; e < N_MAX && line; e++)
                mass[((line - 1) * x->c.s.n_kv_heads + h / ratio) * N_MAX + e] += p[e];
        }
    compare_mass(x, mass, tolerance * 4);
    free(mass);
}

/* Row by row: outputs have the same bits, and the masses of rows add up to those of the step. */
static void check_row_by_row(struct scene *x)
{
    size_t n = (size_t)LINES * KV_HEADS_MAX * N_MAX;
    uint64_t *whole, *sum = calloc(n, sizeof *sum);
    float *out = malloc(x->out.n_raw * sizeof *out);

    guard_mass(x);
    run(x, x->step, 0);
    whole = read_mass(x);
    device_pull(&x->c.d, &x->out);
    memcpy(out, x->out.raw, x->out.n_raw * sizeof *out);
    for (uint32_t r = 0; r < x->step->step.n_rows; r++) {
        struct device_step *one = malloc(sizeof *one);
        uint64_t *mass;

        *one = *x->step;
        one->step.n_rows = one->step.n_seqs = 1;
        one->seqs[0] = x->step->seqs[x->step->rows[r].seq];
        one->seqs[0].first_row = 0;
        one->seqs[0].n_rows = 1;
        one->rows[0] = x->step->rows[r];
        one->rows[0].seq = 0;
        guard_mass(x);
        run(x, one, r);
        mass = read_mass(x);
        for (size_t i = 0; i < n; i++)
            sum[i] += mass[i] == MASS_GUARD ? 0 : mass[i];
        free(mass);
        free(one);
    }
    device_pull(&x->c.d, &x->out);
    cr_assert_eq(memcmp(out, x->out.raw, x->out.n_raw * sizeof *out), 0);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(sum[i], whole[i] == MASS_GUARD ? 0 : whole[i], "%zu: %llu is not %llu", i, (unsigned long long)sum[i],
                     (unsigned long long)whole[i]);
    free(whole);
    free(sum);
    free(out);
}

static void check_scene(struct scene *x)
{
    check_f64(x);
    check_row_by_row(x);
    scene_close(x);
}

/* ---- Mass and rotation ----------------------------------------------------------------------------------------------------
 */

/* The last rows of a prompt, over two splits. */
Test(opencl_evict, mass_of_a_prompt)
{
    struct scene x;

    scene_open(&x, (struct shape){6, 2, 20, 12, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, 560);
    add_rows(&x, 0, 550, 10, 0);
    add_segment(&x, cache_segment(0, 560));
    set_lines(&x, 3, 7, 1);
    check_scene(&x);
}

/* Two sequences with ends of their own, sink logits, a soft cap, F16; the second line's rows are not neighbours. */
Test(opencl_evict, mass_of_two_sequences)
{
    struct scene x;

    scene_open(&x, (struct shape){3, 1, 24, 72, 2, 16, SOQ_DTYPE_F16, 4, 0, 0, true}, 90);
    add_rows(&x, 0, 80, 3, 0);
    add_segment(&x, cache_segment(21, 62));
    add_rows(&x, 2, 60, 6, 0);
    add_segment(&x, cache_segment(7, 59));
    set_lines(&x, 0, 3, 2);
    set_lines(&x, 4, 1, 0);
    set_lines(&x, 7, 2, 0);
    check_scene(&x);
}

/* StreamingLLM: the first entries and the last ones, positions by slot. */
Test(opencl_evict, rolling_segment)
{
    static const uint32_t kinds[] = {SOQ_ROPE_INTERLEAVED, SOQ_ROPE_HALF};
    struct soq_step_segment first = cache_segment(0, 4);

    first.flags = SOQ_SEGMENT_ROLLING;
    for (size_t i = 0; i < 2; i++) {
        struct scene x;

        scene_open(&x, (struct shape){4, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 40, 4, false}, 540);
        x.args.inv_freq = x.inv_freq.view;
        x.args.inv_freq.cols = 8;
        x.args.rope_kind = kinds[i];
        x.args.n_rot = 16;
        add_rows(&x, 0, 530, 5, 0);
        add_segment(&x, first);
        add_segment(&x, cache_segment(489, 46));
        add_rows(&x, 2, 43, 3, 0); /* before, at and after the first row that is turned */
        add_segment(&x, first);
        add_segment(&x, cache_segment(4, 42));
        set_lines(&x, 0, 5, 0);
        set_lines(&x, 5, 3, 1);
        check_scene(&x);
    }
}

/* A number of positions for a whole segment, within one tile of entries and across blocks; positions that are not entries. */
Test(opencl_evict, rotated_segment)
{
    struct soq_step_segment turned = cache_segment(3, 50), rest = cache_segment(53, 30);
    struct scene x;

    turned.flags = SOQ_SEGMENT_ROTATE;
    turned.rotation = 37;
    turned.position_offset = 100;
    rest.position_offset = 137;
    scene_open(&x, (struct shape){2, 1, 16, 9, 2, 8, SOQ_DTYPE_F32, 3, 70, 110, false}, 83);
    x.args.inv_freq = x.inv_freq.view;
    x.args.rope_kind = SOQ_ROPE_HALF;
    x.args.n_rot = 16;
    add_rows(&x, 0, 75, 8, 137);
    add_segment(&x, rest);
    add_segment(&x, turned);
    set_lines(&x, 0, 8, 0);
    check_scene(&x);
}

static void expect_refused(struct scene *x, const char *text)
{
    struct soq_error err = SOQ_ERROR_INIT;

    x->step->step.serial = ++device_step_serial;
    x->args.q = device_rows(&x->q, 0, x->step->step.n_rows);
    x->args.out = device_rows(&x->out, 0, x->step->step.n_rows);
    if (x->c.d.ops->begin(x->c.d.self, &x->step->step, &err) == 0) {
        cr_assert_neq(x->c.d.ops->attention->attention(x->c.d.self, &x->args), 0);
        cr_assert_neq(x->c.d.ops->end(x->c.d.self, &err), 0);
    }
    cr_assert(strstr(err.text, text), "%s", err.text);
}

Test(opencl_evict, refusals)
{
    struct soq_step_segment *segment;
    struct scene x;

    scene_open(&x, (struct shape){2, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, 40);
    add_rows(&x, 0, 38, 1, 0);
    add_segment(&x, cache_segment(0, 39));
    add_rows(&x, 2, 39, 1, 0);
    add_segment(&x, cache_segment(0, 40));
    set_lines(&x, 0, 2, 0);
    expect_refused(&x, "rows of sequences 0 and 1 share mass line 0");
    set_lines(&x, 1, 1, 1);
    x.args.mass_stride = 39;
    expect_refused(&x, "mass has 39 entries a line, group 0 has 40");
    x.args.mass_stride = N_MAX;
    x.args.mass_offset = 4;
    expect_refused(&x, "mass begins at byte 4, inside a number");
    x.args.mass_offset = 8;
    segment = &x.step->segments[0];
    segment->flags = SOQ_SEGMENT_ROTATE;
    expect_refused(&x, "rope_kind 0");
    x.args.rope_kind = SOQ_ROPE_HALF;
    expect_refused(&x, "n_rot 0");
    x.args.n_rot = 16;
    expect_refused(&x, "inv_freq is 0 x 0 and must be 1 x 8");
    segment->flags = SOQ_SEGMENT_ROTATE | SOQ_SEGMENT_ROLLING;
    expect_refused(&x, "rotated by a number and row by row");
    segment->flags = 8;
    expect_refused(&x, "flags 8");
    scene_close(&x);
}

Test(opencl_evict, supports)
{
    struct soq_op_desc desc = {.struct_size = sizeof desc,
                               .op = SOQ_OP_ATTENTION,
                               .head_dim_k = 64,
                               .head_dim_v = 64,
                               .n_heads = 3,
                               .n_kv_heads = 1,
                               .key_format = SOQ_FORMAT_PLAIN,
                               .value_format = SOQ_FORMAT_PLAIN,
                               .key_dtype = SOQ_DTYPE_F16,
                               .value_dtype = SOQ_DTYPE_F16};
    struct soq_error err = SOQ_ERROR_INIT;
    struct device d;

    device_open(&d, 1);
    desc.flags = SOQ_OPDESC_MASS | SOQ_OPDESC_SEGMENTS | SOQ_OPDESC_ROTATE | SOQ_OPDESC_WINDOW | SOQ_OPDESC_SOFTCAP;
    cr_assert_eq(d.ops->supports(d.self, &desc, &err), 0, "%s", err.text);
    desc.op = SOQ_OP_KV_GATHER;
    desc.flags = 0;
    cr_assert_eq(d.ops->supports(d.self, &desc, &err), 0, "%s", err.text);
    desc.key_format = SOQ_FORMAT_AFFINE;
    cr_assert_eq(d.ops->supports(d.self, &desc, &err), -SOQ_EUNSUPPORTED);
    device_close(&d);
}

/* ---- After a selection ----------------------------------------------------------------------------------------------------
 */

enum { PROMPT = 100, KEPT = 21, BASE = PROMPT - KEPT, MORE = 3 };

/* The survivors, each head its own, go to blocks 0 to 2: the places of entries 64 to 111. */
static void keep_some(struct scene *x)
{
    static const soq_block_ref src[] = {15, 14, 13, 12, 11, 10, 9}, fresh[] = {0, 1, 2};
    uint32_t keep[2][2][KEPT];
    struct soq_kv_gather_args args = {sizeof args, KEPT, 0, src, fresh, 7, 3, BASE % 16, 0, keep[0][0]};
    struct soq_error err = SOQ_ERROR_INIT;

    for (uint32_t layer = 0; layer < 2; layer++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t i = 0; i < KEPT; i++)
                keep[layer][h][i] = i * 4 + 2 * layer + h;
    for (uint32_t h = 0; h < 2; h++)
        memcpy(&x->source[h][BASE], keep[LAYER][h], sizeof keep[LAYER][h]);
    args.group = x->c.group;
    cr_assert_eq(x->c.d.ops->attention->kv_gather(x->c.d.self, &args, &err), 0, "%s", err.text);
}

/* Rows behind what each head kept see that and one another. */
Test(opencl_evict, rows_behind_a_selection)
{
    struct device_step *step = device_step(MORE, PROMPT);
    struct soq_kv_append_args append = {.struct_size = sizeof append, .layer = LAYER};
    struct scene x;

    scene_open(&x, (struct shape){4, 2, 16, 16, 2, 16, SOQ_DTYPE_F32, 0, 0, 0, false}, 256);
    keep_some(&x);
    step->seqs[0].slot = 2;
    for (uint32_t i = 0; i < 3; i++)
        step->edits[step->step.n_edits++] = (struct soq_step_edit){2, 0, BASE / 16 + i, i};
    append.group = x.c.group;
    append.k = device_rows(&x.c.k, PROMPT, MORE);
    append.v = device_rows(&x.c.v, PROMPT, MORE);
    device_begin(&x.c.d, step);
    cr_assert_eq(x.c.d.ops->attention->kv_append(x.c.d.self, &append), 0);
    device_end(&x.c.d);
    free(step);
    add_rows(&x, 2, PROMPT, MORE, 0);
    x.step->step.n_edits = 0;
    add_segment(&x, cache_segment(BASE, KEPT + MORE));
    set_lines(&x, 0, MORE, 0);
    check_scene(&x);
}
