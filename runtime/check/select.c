/* Checks of select() and budget() of KV policies. Texts are lived through as the core does it: a prompt, then rows, then a
 * second prompt, with a selection at the end of each prompt and at multiples of `every`; masses and keys are random, with many
 * equal ones. */
#include <stdlib.h>

#include "check/policy.h"
#include "check/table.h"

enum {
    CONTEXT_MAX = SOQ__POLICY_CONTEXT_MAX,
    LAYERS = SOQ__POLICY_LAYERS_MAX,
    HEADS = SOQ__POLICY_HEADS_MAX,
    DIM = SOQ__POLICY_HEAD_DIM,
    SCRATCH_MAX = 1 << 26,
    MARGIN = 64,         /* bytes that are looked at in front of what a policy may write */
    LATE_SELECTIONS = 3, /* after each prompt */
};

/* ---- Memory that ends where the accessible ends, filled with another byte each time */

struct area {
    unsigned char *end;
    size_t space, used, slack; /* used: bytes handed out; slack: between them and the end */
    unsigned char fill;
};

static void *area_take(struct soq__kit *kit, struct area *area, size_t bytes, size_t align)
{
    size_t padded = (bytes + align - 1) / align * align;

    if (padded + MARGIN > area->space) {
        area->space = 2 * padded + MARGIN;
        area->end = (unsigned char *)soq__kit_guard(kit, area->space, 64) + (area->space + 63) / 64 * 64;
    }
    area->used = bytes;
    area->slack = padded - bytes;
    area->fill = area->fill == 0xa5 ? 0x3c : 0xa5;
    memset(area->end - padded - MARGIN, area->fill, padded + MARGIN);
    return area->end - padded;
}

static void area_intact(struct soq__kit *kit, const struct area *area, const char *what)
{
    for (size_t i = 1; i <= area->slack; i++)
        SOQ__EXPECT(kit, area->end[-(ptrdiff_t)i] == area->fill, "wrote behind the %zu bytes of %s", area->used, what);
    for (size_t i = 1; i <= MARGIN; i++)
        SOQ__EXPECT(kit, area->end[-(ptrdiff_t)(area->slack + area->used + i)] == area->fill, "wrote %zu bytes in front of %s",
                    i, what);
}

/* ---- One selection of a layer */

struct head_entries {
    uint32_t n;
    uint32_t positions[CONTEXT_MAX];
};

/* A sequence as its cache sees it. */
struct life {
    struct soq__policy *p;
    uint64_t seed;
    uint32_t n_positions, n_prompt, n_rows; /* n_rows: since the last selection */
    bool end_of_prompt;
    struct head_entries heads[LAYERS][HEADS];
};

struct kept {
    uint32_t n[HEADS];
    uint32_t keep[HEADS][CONTEXT_MAX];
};

/* What a policy gets for a head, in a stride that is larger than it. */
struct wide_head {
    struct soq_kv_head head;
    uint64_t later[3];
};

static struct {
    struct area positions[HEADS], mass[HEADS], keys[HEADS], keep[HEADS], heads, scratch;
} areas;

/* A key belongs to a position for good. */
static void fill_keys(float *keys, const uint32_t *positions, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        soq__kit_fill(keys + (size_t)i * DIM, DIM, seed + positions[i] * 2654435761u);
}

/* Sums over n_rows of probabilities: few are large, many are equal, some are none. */
static void fill_mass(double *mass, uint32_t n, uint32_t n_rows, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        double x = soq__kit_random_below(&seed, 1u << 16) * 0x1p-16;

        mass[i] = soq__kit_random_below(&seed, 3) ? floor(x * x * x * n_rows * 0x1p36) * 0x1p-36 : (i & 1) * 0x1p-6 * n_rows;
    }
}

static void present_head(struct life *life, uint32_t layer, uint32_t h, const struct head_entries *entries,
                         struct soq_kv_head *head)
{
    struct soq__kit *kit = life->p->kit;
    uint32_t n = entries->n;
    uint64_t seed = life->seed + layer * 131 + h * 17;
    uint32_t *positions = area_take(kit, &areas.positions[h], n * sizeof *positions, sizeof *positions);

    *head = (struct soq_kv_head){.n = n, .n_keep = n, .positions = positions};
    memcpy(positions, entries->positions, n * sizeof *positions);
    head->keep = area_take(kit, &areas.keep[h], n * sizeof *head->keep, sizeof *head->keep);
    for (uint32_t i = 0; i < n; i++)
        head->keep[i] = i;
    if (life->p->plan.needs & SOQ_NEED_MASS) {
        double *mass = area_take(kit, &areas.mass[h], n * sizeof *mass, sizeof *mass);

        fill_mass(mass, n, life->n_rows, seed + life->n_positions * 7919u);
        head->mass = mass;
    }
    if (life->p->plan.needs & SOQ_NEED_KEYS) {
        float *keys = area_take(kit, &areas.keys[h], (size_t)n * DIM * sizeof *keys, sizeof *keys);

        fill_keys(keys, positions, n, seed);
        head->keys = keys;
    }
}

static uint32_t rows_with_mass(const struct life *life)
{
    uint32_t queries = life->p->plan.queries;

    if (!(life->p->plan.needs & SOQ_NEED_MASS))
        return 0;
    return queries && queries < life->n_rows ? queries : life->n_rows;
}

static struct wide_head *present(struct life *life, uint32_t layer, struct soq_kv_selection *selection)
{
    struct soq__policy *p = life->p;
    struct wide_head *wide = area_take(p->kit, &areas.heads, p->shape.n_kv_heads * sizeof *wide, 8);
    uint64_t bytes = p->ops->scratch.fixed;

    for (uint32_t h = 0; h < p->shape.n_kv_heads; h++) {
        present_head(life, layer, h, &life->heads[layer][h], &wide[h].head);
        bytes += p->ops->scratch.per_entry * life->heads[layer][h].n;
    }
    SOQ__EXPECT(p->kit, bytes <= SCRATCH_MAX, "scratch of %llu bytes for a layer of %u entries", (unsigned long long)bytes,
                life->heads[layer][0].n);
    *selection = (struct soq_kv_selection){
        .layer = layer,
        .n_layers = p->shape.n_layers,
        .n_heads = p->shape.n_kv_heads,
        .head_dim = p->shape.head_dim,
        .group_heads = p->shape.n_heads / p->shape.n_kv_heads,
        .n_positions = life->n_positions,
        .end_of_prompt = life->end_of_prompt,
        .n_prompt = life->n_prompt,
        .n_queries = rows_with_mass(life),
        .head_stride = sizeof *wide,
        .heads = &wide->head,
        .scratch = area_take(p->kit, &areas.scratch, (size_t)bytes, 64),
    };
    return wide;
}

static void expect_memory(const struct life *life, const struct wide_head *wide)
{
    struct soq__kit *kit = life->p->kit;

    area_intact(kit, &areas.scratch, "scratch");
    area_intact(kit, &areas.heads, "the heads");
    for (uint32_t h = 0; h < life->p->shape.n_kv_heads; h++) {
        area_intact(kit, &areas.keep[h], "keep");
        for (size_t i = 0; i < sizeof wide[h].later; i++)
            SOQ__EXPECT(kit, ((const unsigned char *)wide[h].later)[i] == areas.heads.fill, "wrote between two heads");
    }
}

static void expect_indices(const struct life *life, uint32_t h, const struct soq_kv_head *head, uint32_t n)
{
    struct soq__kit *kit = life->p->kit;

    SOQ__EXPECT(kit, head->n_keep <= n, "at %u: head %u keeps %u of %u entries", life->n_positions, h, head->n_keep, n);
    for (uint32_t i = 0; i < head->n_keep; i++) {
        SOQ__EXPECT(kit, head->keep[i] < n, "at %u: head %u keeps entry %u of %u", life->n_positions, h, head->keep[i], n);
        SOQ__EXPECT(kit, i == 0 || head->keep[i] > head->keep[i - 1], "at %u: head %u keeps entry %u after entry %u",
                    life->n_positions, h, head->keep[i], head->keep[i - 1]);
    }
}

/* The first `sinks` positions, and a run that ends with the newest. */
static void expect_slots(const struct life *life, uint32_t h, const struct soq_kv_head *head, const struct head_entries *e)
{
    uint32_t sinks = life->p->plan.sinks;

    for (uint32_t i = 0; i < head->n_keep; i++) {
        uint32_t position = e->positions[head->keep[i]];

        SOQ__EXPECT(life->p->kit, i < sinks ? position == i : position + head->n_keep - i == life->n_positions,
                    "at %u: positions by slot, but head %u keeps position %u as its entry %u of %u", life->n_positions, h,
                    position, i, head->n_keep);
    }
}

/* Selects in a layer and looks at what every answer must be. */
static void select_layer(struct life *life, void *state, uint32_t layer, struct kept *kept)
{
    struct soq__policy *p = life->p;
    struct soq_error *err = soq__kit_error(p->kit);
    struct soq_kv_selection selection;
    struct wide_head *wide = present(life, layer, &selection);

    soq__kit_ok(p->kit, "select", p->ops->select(p->self, state, soq__kit_box(p->kit, &selection, sizeof selection), err), err);
    expect_memory(life, wide);
    for (uint32_t h = 0; h < p->shape.n_kv_heads; h++) {
        const struct head_entries *e = &life->heads[layer][h];

        SOQ__EXPECT(p->kit,
                    wide[h].head.n == e->n && memcmp(wide[h].head.positions, e->positions, e->n * sizeof(uint32_t)) == 0,
                    "at %u: changed the entries of head %u", life->n_positions, h);
        expect_indices(life, h, &wide[h].head, e->n);
        if (p->plan.slot_positions)
            expect_slots(life, h, &wide[h].head, e);
        SOQ__EXPECT(p->kit, p->plan.needs & SOQ_NEED_HEAD_BUDGETS || wide[h].head.n_keep == wide[0].head.n_keep,
                    "at %u: head %u keeps %u entries, head 0 %u, and the plan does not say HEAD_BUDGETS", life->n_positions, h,
                    wide[h].head.n_keep, wide[0].head.n_keep);
        kept->n[h] = wide[h].head.n_keep;
        memcpy(kept->keep[h], wide[h].head.keep, kept->n[h] * sizeof(uint32_t));
    }
}

/* ---- Lives */

static void add_rows(struct life *life, uint32_t n)
{
    for (uint32_t layer = 0; layer < life->p->shape.n_layers; layer++) {
        for (uint32_t h = 0; h < life->p->shape.n_kv_heads; h++) {
            struct head_entries *e = &life->heads[layer][h];

            for (uint32_t i = 0; i < n; i++)
                e->positions[e->n++] = life->n_positions + i;
        }
    }
    life->n_positions += n;
    life->n_rows += n;
}

static void drop(struct life *life, uint32_t layer, const struct kept *kept)
{
    for (uint32_t h = 0; h < life->p->shape.n_kv_heads; h++) {
        struct head_entries *e = &life->heads[layer][h];

        for (uint32_t i = 0; i < kept->n[h]; i++)
            e->positions[i] = e->positions[kept->keep[h][i]];
        e->n = kept->n[h];
    }
}

typedef void selection_fn(struct life *life, void *state);

/* A prompt of n tokens and some rows behind it, as far as the context goes. */
static void live(struct life *life, void *state, uint32_t n, selection_fn *select)
{
    uint32_t every = life->p->plan.every, room = life->p->shape.context - life->n_positions;

    if (!room)
        return;
    add_rows(life, n < room ? n : room);
    life->n_prompt = life->n_positions;
    life->end_of_prompt = true;
    select(life, state);
    life->end_of_prompt = false;
    for (int i = 0; i < LATE_SELECTIONS && every && every <= CONTEXT_MAX; i++) {
        uint32_t more = every - life->n_positions % every;

        if (more > life->p->shape.context - life->n_positions)
            return;
        add_rows(life, more);
        select(life, state);
    }
}

/* Texts with prompts of one token, of a few, of many. */
static void each_life(struct soq__policy *p, selection_fn *select)
{
    uint32_t context = p->shape.context, lengths[] = {1, 2, 3, 17, context / 2, context};

    for (size_t i = 0; i < SOQ__COUNT(lengths); i++) {
        struct life *life = calloc(1, sizeof *life);
        void *state = soq__policy_state(p);

        SOQ__EXPECT(p->kit, life, "the kit is out of memory");
        *life = (struct life){.p = p, .seed = p->number * 100 + i};
        live(life, state, lengths[i] ? lengths[i] : 1, select);
        live(life, state, 5, select);
        soq__kit_guard_intact(p->kit, state, "its state");
        free(life);
    }
}

static void need_select(struct soq__kit *kit)
{
    soq__kit_open(kit);
    if (!kit->role->ops.kv_policy->select)
        soq__kit_skip(kit, "has no select: what stays is what the plan says");
}

/* ---- Indices, counts, memory */

static void select_all(struct life *life, void *state)
{
    static struct kept kept;
    uint32_t first = 0;

    for (uint32_t layer = 0; layer < life->p->shape.n_layers; layer++) {
        select_layer(life, state, layer, &kept);
        first = layer ? first : kept.n[0];
        SOQ__EXPECT(life->p->kit, life->p->plan.needs & (SOQ_NEED_LAYER_BUDGETS | SOQ_NEED_HEAD_BUDGETS) || kept.n[0] == first,
                    "at %u: layer %u keeps %u entries, layer 0 %u, and the plan does not say LAYER_BUDGETS", life->n_positions,
                    layer, kept.n[0], first);
        drop(life, layer, &kept);
    }
    life->n_rows = 0;
}

static void try_select(struct soq__policy *p)
{
    each_life(p, select_all);
}

static void check_select(struct soq__kit *kit)
{
    need_select(kit);
    soq__policy_each(kit, SOQ_NEED_SELECTION, try_select);
}

/* ---- The budget: never exceeded, and where it holds all, all stays */

static void select_within(struct life *life, void *state)
{
    const struct soq__policy *p = life->p;
    static struct kept kept;

    for (uint32_t layer = 0; layer < p->shape.n_layers; layer++) {
        uint64_t budget = p->ops->budget(p->self, layer, life->n_positions, life->n_prompt), had = 0, total = 0;

        select_layer(life, state, layer, &kept);
        for (uint32_t h = 0; h < p->shape.n_kv_heads; h++) {
            had += life->heads[layer][h].n;
            total += kept.n[h];
        }
        SOQ__EXPECT(p->kit, total <= budget, "at %u, prompt %u: layer %u keeps %llu entries, its budget is %llu",
                    life->n_positions, life->n_prompt, layer, (unsigned long long)total, (unsigned long long)budget);
        SOQ__EXPECT(p->kit, budget < had || total == had,
                    "at %u, prompt %u: layer %u keeps %llu of %llu entries, and its budget of %llu holds all",
                    life->n_positions, life->n_prompt, layer, (unsigned long long)total, (unsigned long long)had,
                    (unsigned long long)budget);
        drop(life, layer, &kept);
    }
    life->n_rows = 0;
}

static void try_budget(struct soq__policy *p)
{
    each_life(p, select_within);
}

static void check_budget(struct soq__kit *kit)
{
    need_select(kit);
    soq__policy_each(kit, SOQ_NEED_SELECTION, try_budget);
}

/* ---- Purity: the same again on a copy of the state, with other memory and another sequence in between */

static bool same(const struct soq__policy *p, const struct kept *a, const struct kept *b)
{
    for (uint32_t h = 0; h < p->shape.n_kv_heads; h++) {
        if (a->n[h] != b->n[h] || memcmp(a->keep[h], b->keep[h], a->n[h] * sizeof(uint32_t)) != 0)
            return false;
    }
    return true;
}

/* Another sequence's selection: half as many entries, half as many rows. */
static void disturb(const struct life *life, uint32_t layer)
{
    static struct life other;
    static struct kept kept;

    other = *life;
    other.seed += 77;
    other.n_rows = (life->n_rows + 1) / 2;
    for (uint32_t l = 0; l < life->p->shape.n_layers; l++)
        for (uint32_t h = 0; h < life->p->shape.n_kv_heads && !life->p->plan.slot_positions; h++)
            other.heads[l][h].n = (life->heads[l][h].n + 1) / 2;
    select_layer(&other, soq__policy_state(life->p), layer, &kept);
}

static void select_again(struct life *life, void *state)
{
    static unsigned char copy[1 << 20], after[1 << 20];
    struct soq__policy *p = life->p;
    size_t size = p->ops->state_size;
    static struct kept a, b;

    for (uint32_t layer = 0; layer < p->shape.n_layers; layer++) {
        memcpy(copy, state, size);
        select_layer(life, state, layer, &a);
        memcpy(after, state, size);
        disturb(life, layer);
        memcpy(state, copy, size);
        select_layer(life, state, layer, &b);
        SOQ__EXPECT(p->kit, same(p, &a, &b), "at %u: layer %u keeps other entries when it is asked again", life->n_positions,
                    layer);
        SOQ__EXPECT(p->kit, memcmp(state, after, size) == 0, "at %u: layer %u leaves another state when it is asked again",
                    life->n_positions, layer);
        drop(life, layer, &a);
    }
    life->n_rows = 0;
}

static void try_again(struct soq__policy *p)
{
    each_life(p, select_again);
}

static void check_again(struct soq__kit *kit)
{
    need_select(kit);
    soq__policy_each(kit, SOQ_NEED_SELECTION, try_again);
}

/* ---- Work */

/* For the report of a crash: what the plan did not ask for is not there. */
static const char *what_heads_have(uint32_t needs)
{
    bool mass = needs & SOQ_NEED_MASS, keys = needs & SOQ_NEED_KEYS;

    return mass && keys ? "masses and keys"
           : mass       ? "masses, and no keys"
           : keys       ? "keys, and no masses"
                        : "no masses and no keys";
}

int soq__policy_work_select(struct soq__policy *p, uint32_t n, struct soq_error *err)
{
    uint64_t bytes = p->ops->scratch.fixed + p->ops->scratch.per_entry * n;
    uint32_t *positions = soq__kit_guard(p->kit, n * sizeof *positions, 4), *keep = soq__kit_guard(p->kit, n * sizeof *keep, 4);
    double *mass = soq__kit_guard(p->kit, n * sizeof *mass, 8);
    float *keys = soq__kit_guard(p->kit, (size_t)n * DIM * sizeof *keys, 4);
    struct soq_kv_head *head = soq__kit_guard(p->kit, sizeof *head, 8);
    struct soq_kv_selection selection = {
        .n_layers = 1,
        .n_heads = 1,
        .head_dim = DIM,
        .group_heads = 2,
        .n_positions = n,
        .end_of_prompt = 1,
        .n_prompt = n,
        .n_queries = p->plan.queries && p->plan.queries < n ? p->plan.queries : n,
        .head_stride = sizeof *head,
        .heads = head,
        .scratch = soq__kit_guard(p->kit, (size_t)bytes, 64),
    };

    soq__kit_at(p->kit, "select(): needs of the plan are %x, so heads have %s", p->plan.needs, what_heads_have(p->plan.needs));
    for (uint32_t i = 0; i < n; i++)
        positions[i] = keep[i] = i;
    fill_mass(mass, n, selection.n_queries, 5);
    fill_keys(keys, positions, n, 6);
    *head = (struct soq_kv_head){.n = n, .n_keep = n, .positions = positions, .keep = keep};
    head->mass = p->plan.needs & SOQ_NEED_MASS ? mass : NULL;
    head->keys = p->plan.needs & SOQ_NEED_KEYS ? keys : NULL;
    return p->ops->select(p->self, soq__policy_state(p), soq__kit_box(p->kit, &selection, sizeof selection), err);
}

static const struct soq__check checks[] = {
    {"policy.select", SOQ_ROLE_KV_POLICY, "indices ascend, counts are alike where they must be, memory is kept to",
     check_select, "policy.plan"},
    {"policy.budget", SOQ_ROLE_KV_POLICY, "no more stays than budget says, and all where that holds all", check_budget,
     "policy.select"},
    {"policy.again", SOQ_ROLE_KV_POLICY, "select is a function of state and selection", check_again, "policy.select"},
};
const struct soq__check_family soq__checks_select = SOQ__FAMILY(checks);
