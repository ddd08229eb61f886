/* Checks of attention against f64, and that a row's result depends on nothing but what it sees. */
#include "check/cache.h"
#include "check/table.h"

static const struct soq__cache_shape plain[] = {
    {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false},   {9, 3, 64, 64, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false},
    {4, 1, 256, 256, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false}, {2, 2, 20, 12, 3, 16, SOQ_DTYPE_F32, 0, 0, 0, false},
    {2, 1, 7, 9, 2, 8, SOQ_DTYPE_F16, 0, 0, 0, false},      {40, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, false},
};
static const struct soq__cache_shape capped[] = {
    {6, 2, 24, 24, 2, 64, SOQ_DTYPE_F32, 5, 0, 0, false},
    {4, 2, 16, 16, 1, 16, SOQ_DTYPE_F16, 2, 0, 0, false},
};
static const struct soq__cache_shape windows[] = {
    {6, 2, 24, 24, 2, 4, SOQ_DTYPE_F32, 0, 40, 0, false},    {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 40, 4, false},
    {6, 2, 24, 24, 2, 128, SOQ_DTYPE_F32, 0, 33, 35, false}, {6, 2, 24, 72, 2, 32, SOQ_DTYPE_F32, 0, 1, 0, false},
    {2, 1, 16, 16, 1, 16, SOQ_DTYPE_F16, 0, 17, 3, false},
};
static const struct soq__cache_shape sinking[] = {
    {40, 1, 16, 16, 2, 32, SOQ_DTYPE_F32, 0, 0, 0, true},
    {6, 2, 24, 72, 2, 32, SOQ_DTYPE_F32, 2, 9, 2, true},
};

/* n positions, `step` rows at a time. */
static void fill(struct soq__cache *c, uint32_t n, uint32_t step, struct soq__matrix *out)
{
    for (uint32_t first = 0; first < n; first += step)
        soq__cache_chunk(c, first, n - first < step ? n - first : step, out);
    soq__rig_fetch(c->rig, out);
}

static void try_shape(struct soq__rig *rig, const struct soq__cache_shape *s, uint32_t n, uint32_t step)
{
    struct soq__matrix out = soq__rig_matrix(rig, n, s->n_heads * s->dv, 3, 4);
    struct soq__cache c;

    soq__kit_at(rig->kit, "%s, %u heads over %u of %u and %u, window %u, sinks %u, cap %g, %u rows at a time",
                s->dtype == SOQ_DTYPE_F32 ? "F32" : "F16", s->n_heads, s->n_kv_heads, s->dk, s->dv, s->window, s->sinks,
                (double)s->softcap, step);
    soq__cache_open(&c, rig, s, n, 0);
    fill(&c, n, step, &out);
    soq__cache_compare(&c, &out, 0, 0, n);
    soq__rig_fetch(rig, &c.q);
    soq__cache_close(&c);
    soq__rig_matrix_free(rig, &out);
}

static void try_shapes(struct soq__kit *kit, const struct soq__cache_shape *shapes, size_t count)
{
    struct soq__rig rig;
    bool any = false;

    soq__rig_open(&rig, kit);
    for (size_t i = 0; i < count; i++) {
        if (!soq__cache_claimed(&rig, &shapes[i]))
            continue;
        any = true;
        try_shape(&rig, &shapes[i], SOQ__KIT_MAX_ROWS, SOQ__KIT_MAX_ROWS);
        try_shape(&rig, &shapes[i], 100, 13);
        try_shape(&rig, &shapes[i], 70, 1);
    }
    if (!any)
        soq__kit_skip(kit, "claims none of these shapes");
}

static void check_reference(struct soq__kit *kit)
{
    try_shapes(kit, plain, SOQ__COUNT(plain));
}

static void check_softcap(struct soq__kit *kit)
{
    try_shapes(kit, capped, SOQ__COUNT(capped));
}

static void check_window(struct soq__kit *kit)
{
    try_shapes(kit, windows, SOQ__COUNT(windows));
}

static void check_sinks(struct soq__kit *kit)
{
    try_shapes(kit, sinking, SOQ__COUNT(sinking));
}

/* Longer than any tile or split that a backend may have. */
static void check_long(struct soq__kit *kit)
{
    static const struct soq__cache_shape s = {2, 1, 16, 16, 1, 32, SOQ_DTYPE_F32, 0, 0, 0, false};
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!soq__cache_claimed(&rig, &s))
        soq__kit_skip(kit, "does not claim it");
    try_shape(&rig, &s, 1300, SOQ__KIT_MAX_ROWS);
}

/* ---- Chunks */

static void check_invariant(struct soq__kit *kit)
{
    static const struct soq__cache_shape shapes[] = {{6, 2, 24, 24, 2, 32, SOQ_DTYPE_F16, 0, 0, 0, false},
                                                     {6, 2, 24, 24, 2, 32, SOQ_DTYPE_F32, 0, 150, 4, false}};
    static const uint32_t steps[] = {SOQ__KIT_MAX_ROWS, 1, 7, 33};
    enum { N = 700 };
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!(rig.ops->flags & SOQ_BACKEND_BATCH_INVARIANT))
        soq__kit_skip(kit, "does not claim to be invariant");
    for (size_t k = 0; k < SOQ__COUNT(shapes); k++) {
        struct soq__matrix outs[SOQ__COUNT(steps)];

        if (!soq__cache_claimed(&rig, &shapes[k]))
            continue;
        for (size_t i = 0; i < SOQ__COUNT(steps); i++) {
            struct soq__cache c;

            soq__kit_at(kit, "%u rows at a time", steps[i]);
            outs[i] = soq__rig_matrix(&rig, N, 6 * 24, 0, 4);
            soq__cache_open(&c, &rig, &shapes[k], N, 0);
            fill(&c, N, steps[i], &outs[i]);
            soq__cache_close(&c);
            SOQ__EXPECT(kit, memcmp(outs[i].raw, outs[0].raw, outs[0].n_raw * sizeof(float)) == 0,
                        "other bits than %u at a time", steps[0]);
        }
    }
}

/* ---- Several sequences in a step */

struct part {
    uint32_t slot, first, n; /* positions [first, first + n) */
};

/* One step in which each slot reads its part; all slots have the blocks of one text. */
static void try_batch(struct soq__cache *c, const struct part *parts, size_t count, bool map)
{
    struct soq__matrix q = soq__rig_matrix(c->rig, 9, c->q.view.cols, 0, 4),
                       got = soq__rig_matrix(c->rig, 9, c->q.view.cols, 1, 5);
    struct soq__matrix all = c->q;
    struct soq__rig_step step;

    soq__rig_step_init(&step);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < parts[i].n; k++)
            memcpy(soq__matrix_at(&q, step.step.n_rows + k, 0), soq__matrix_at(&all, parts[i].first + k, 0),
                   q.view.cols * sizeof(float));
        soq__rig_step_add(&step, parts[i].slot, parts[i].first, parts[i].n);
        if (map && parts[i].slot)
            soq__cache_map(c, &step, parts[i].slot);
    }
    soq__rig_send(c->rig, &q);
    c->q = q;
    soq__rig_begin(c->rig, &step);
    soq__cache_attend(c, 0, step.step.n_rows, &got, 0);
    soq__rig_end(c->rig);
    c->q = all;
    soq__rig_fetch(c->rig, &got);
    for (size_t i = 0; i < count; i++)
        soq__cache_compare(c, &got, step.seqs[i].first_row, parts[i].first, parts[i].n);
}

static void check_batch(struct soq__kit *kit)
{
    static const struct soq__cache_shape s = {6, 2, 24, 24, 2, 8, SOQ_DTYPE_F32, 0, 0, 0, false};
    static const struct part parts[] = {{0, 9, 3}, {2, 19, 5}, {3, 39, 1}};
    enum { N = 40 };
    struct soq__matrix out;
    struct soq__cache c;
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!soq__cache_claimed(&rig, &s))
        soq__kit_skip(kit, "does not claim it");
    out = soq__rig_matrix(&rig, N, 6 * 24, 0, 4);
    soq__cache_open(&c, &rig, &s, N, 0);
    soq__cache_chunk(&c, 0, N, &out);
    soq__kit_at(kit, "sequences of 12, 24 and 40 entries in one step");
    try_batch(&c, parts, SOQ__COUNT(parts), true);
    soq__kit_at(kit, "the same once more, without edits");
    try_batch(&c, parts, SOQ__COUNT(parts), false);
}

/* ---- Segments */

/* Entries between the sinks and the window are not even mapped. */
static void check_segments(struct soq__kit *kit)
{
    static const struct soq__cache_shape s = {2, 1, 16, 16, 2, 8, SOQ_DTYPE_F32, 0, 20, 4, false};
    enum { N = 200 };
    struct soq__rig_step step;
    struct soq__matrix out;
    struct soq__cache c;
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!soq__cache_claimed(&rig, &s))
        soq__kit_skip(kit, "does not claim windows");
    out = soq__rig_matrix(&rig, N, 2 * 16, 0, 4);
    soq__cache_open(&c, &rig, &s, N, 0);
    fill(&c, N, SOQ__KIT_MAX_ROWS, &out);
    soq__kit_at(kit, "two segments around blocks that were evicted");
    soq__rig_step_init(&step);
    soq__rig_step_add(&step, 0, N - 1, 1);
    for (uint32_t i = 1; i < 22; i++)
        step.edits[step.step.n_edits++] = (struct soq_step_edit){.index = i, .block = SOQ_BLOCK_NONE};
    step.segments[0].n_entries = 8;
    step.segments[1] = step.segments[0];
    step.segments[1].first_entry = 22 * 8;
    step.segments[1].n_entries = N - 22 * 8;
    step.step.n_segments = step.seqs[0].n_segments = 2;
    memset(soq__matrix_at(&out, N - 1, 0), 0, 2 * 16 * sizeof(float));
    soq__rig_send(&rig, &out);
    soq__rig_begin(&rig, &step);
    soq__cache_attend(&c, N - 1, 1, &out, N - 1);
    soq__rig_end(&rig);
    soq__rig_fetch(&rig, &out);
    soq__cache_compare(&c, &out, N - 1, N - 1, 1);
}

static void check_nothing(struct soq__kit *kit)
{
    static const struct soq__cache_shape s = {2, 1, 16, 16, 1, 8, SOQ_DTYPE_F32, 0, 0, 0, false};
    struct soq__rig_step step;
    struct soq__matrix out;
    struct soq__cache c;
    struct soq__rig rig;

    soq__rig_open(&rig, kit);
    if (!soq__cache_claimed(&rig, &s))
        soq__kit_skip(kit, "does not claim it");
    out = soq__rig_matrix(&rig, 5, 2 * 16, 0, 4);
    soq__cache_open(&c, &rig, &s, 5, 0);
    soq__rig_step_init(&step);
    soq__rig_step_add(&step, 0, 0, 5);
    soq__cache_map(&c, &step, 0);
    step.segments[0].n_entries = 0;
    soq__rig_begin(&rig, &step);
    soq__cache_attend(&c, 0, 5, &out, 0);
    soq__rig_end(&rig);
    soq__rig_fetch(&rig, &out);
    for (uint32_t r = 0; r < 5; r++)
        for (uint32_t d = 0; d < 2 * 16; d++)
            SOQ__EXPECT(kit, *soq__matrix_at(&out, r, d) == 0, "row %u sees nothing and gets %g", r,
                        (double)*soq__matrix_at(&out, r, d));
}

static const struct soq__check checks[] = {
    {"attention.reference", SOQ_ROLE_BACKEND, "prompts, chunks and single rows are within tolerance of f64", check_reference,
     "kv.append"},
    {"attention.softcap", SOQ_ROLE_BACKEND, "soft caps on scores too", check_softcap, "kv.append"},
    {"attention.window", SOQ_ROLE_BACKEND, "windows and the positions that stay beside them too", check_window, "kv.append"},
    {"attention.sinks", SOQ_ROLE_BACKEND, "logits that take mass and give nothing too", check_sinks, "kv.append"},
    {"attention.long", SOQ_ROLE_BACKEND, "caches of more than a thousand entries too", check_long, "attention.reference"},
    {"attention.invariant", SOQ_ROLE_BACKEND, "chunks of any size give the same bits, if claimed", check_invariant,
     "attention.reference"},
    {"attention.batch", SOQ_ROLE_BACKEND, "sequences of one step do not see each other", check_batch, "attention.reference"},
    {"attention.segments", SOQ_ROLE_BACKEND, "evicted blocks are left out", check_segments, "attention.reference"},
    {"attention.nothing", SOQ_ROLE_BACKEND, "a row that sees nothing gets zeros", check_nothing, "attention.reference"},
};
const struct soq__check_family soq__checks_attention = SOQ__FAMILY(checks);
