/* Checks of KV policies: plans that make sense, commits that are a pure function of state and commit, nothing dropped that a
 * later row can see. Options are drawn at random from what their table allows, so that no policy needs checks of its own. */
#include "check/policy.h"

#include <stdio.h>

#include "check/table.h"

enum { DRAWS = 160, CONTEXT_MAX = SOQ__POLICY_CONTEXT_MAX, SETTINGS = 16, STATE_MAX = 1 << 20 };

static const uint32_t needs_known =
    SOQ_NEED_SELECTION | SOQ_NEED_MASS | SOQ_NEED_KEYS | SOQ_NEED_LAYER_BUDGETS | SOQ_NEED_HEAD_BUDGETS;
static const uint32_t traits_known =
    SOQ_POLICY_NO_CHUNKS | SOQ_POLICY_NO_PREFIX_HITS | SOQ_POLICY_NO_DRAFTS | SOQ_POLICY_NO_FORK | SOQ_POLICY_NO_SAVE;

/* ---- Draws */

/* Small numbers more often than large ones: budgets are large where windows are small. */
static double draw_number(const struct soq_option *option, uint64_t *seed)
{
    double top = option->min <= option->max && option->max < CONTEXT_MAX ? option->max : CONTEXT_MAX;
    double low = option->min <= option->max ? option->min : 0, x = soq__kit_random_below(seed, 1u << 20) * 0x1p-20;

    return low + (soq__kit_random_below(seed, 2) ? x : x * x * x) * (top - low);
}

static void draw_setting(const struct soq_option *option, uint64_t *seed, char *text, size_t size)
{
    uint32_t n = 1, pick;
    const char *choice = option->choices;

    switch (option->type) {
    case SOQ_OPT_FLOAT:
        snprintf(text, size, "%s=%.6g", option->key, draw_number(option, seed));
        return;
    case SOQ_OPT_INT:
    case SOQ_OPT_SIZE:
        snprintf(text, size, "%s=%.0f", option->key, draw_number(option, seed));
        return;
    case SOQ_OPT_BOOL:
        snprintf(text, size, "%s=%s", option->key, soq__kit_random_below(seed, 2) ? "on" : "off");
        return;
    case SOQ_OPT_ENUM:
        for (const char *c = choice; *c; c++)
            n += *c == '|';
        for (pick = soq__kit_random_below(seed, n); pick; choice++)
            pick -= *choice == '|';
        snprintf(text, size, "%s=%.*s", option->key, (int)strcspn(choice, "|"), choice);
        return;
    default:
        snprintf(text, size, "%s=%s", option->key, option->default_value);
    }
}

/* A third of the options stay at their defaults; all of them in the first draw. */
static size_t draw_settings(const struct soq__kit *kit, uint64_t *seed, bool defaults, char texts[SETTINGS][160])
{
    size_t n = 0;

    for (uint32_t i = 0; i < kit->role->n_options && n < SETTINGS && !defaults; i++) {
        if (soq__kit_random_below(seed, 3) == 0)
            continue;
        draw_setting(&kit->role->options[i], seed, texts[n], sizeof texts[n]);
        n++;
    }
    return n;
}

static struct soq_kv_shape draw_shape(uint64_t *seed)
{
    uint32_t kv_heads = 1 + soq__kit_random_below(seed, SOQ__POLICY_HEADS_MAX);

    return (struct soq_kv_shape){
        .struct_size = sizeof(struct soq_kv_shape),
        .n_layers = 1 + soq__kit_random_below(seed, SOQ__POLICY_LAYERS_MAX),
        .n_heads = 2 * kv_heads,
        .n_kv_heads = kv_heads,
        .head_dim = SOQ__POLICY_HEAD_DIM,
        .context = 1 + soq__kit_random_below(seed, CONTEXT_MAX),
        .block_tokens = 1u << soq__kit_random_below(seed, 7),
        .model_window = soq__kit_random_below(seed, 2) ? 1 + soq__kit_random_below(seed, 64) : 0,
    };
}

/* False where the policy refuses, which it must do with a message. */
static bool describe(struct soq__policy *p, bool beginning)
{
    struct soq_kv_plan empty = {.needs = 0}, *plan = soq__kit_box(p->kit, &empty, sizeof empty);
    struct soq_error *err = soq__kit_error(p->kit);
    int rc = p->ops->describe(p->self, soq__kit_box(p->kit, &p->shape, sizeof p->shape), plan, err);

    soq__kit_unbox(p->kit, plan, &p->plan, sizeof p->plan);
    if (rc)
        soq__kit_refused(p->kit, "describe", rc, 0, err);
    if (rc || beginning)
        return !rc;
    p->grid = p->plan.grid ? p->plan.grid : p->shape.block_tokens;
    return true;
}

static void name_draw(const struct soq__policy *p, char texts[SETTINGS][160], size_t n)
{
    char all[100] = "defaults";
    size_t len = 0;

    for (size_t i = 0; i < n && len < sizeof all; i++)
        len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", i ? " " : "", texts[i]);
    soq__kit_at(p->kit, "%s, context %u, blocks of %u, window %u", all, p->shape.context, p->shape.block_tokens,
                p->shape.model_window);
}

/* Options and a shape; false where the policy has no plan for them. */
static bool draw(struct soq__policy *p, struct soq__kit *kit, uint32_t number)
{
    char texts[SETTINGS][160];
    const char *settings[SETTINGS + 1] = {NULL};
    struct soq_error *err = soq__kit_error(kit);
    uint64_t seed = number * 7919 + 1;
    size_t n;
    int rc;

    *p = (struct soq__policy){.kit = kit, .ops = kit->role->ops.kv_policy, .self = soq__kit_self(kit), .number = number};
    n = draw_settings(kit, &seed, number == 0, texts);
    for (size_t i = 0; i < n; i++)
        settings[i] = texts[i];
    p->shape = draw_shape(&seed);
    name_draw(p, texts, n);
    rc = soq__kit_init(kit, p->self, settings, err);
    if (rc)
        soq__kit_refused(kit, "init", rc, 0, err);
    return !rc && describe(p, false);
}

void soq__policy_each(struct soq__kit *kit, uint32_t needs, void (*try)(struct soq__policy *p))
{
    uint32_t planned = 0;

    soq__kit_open(kit);
    for (uint32_t i = 0; i < DRAWS; i++) {
        struct soq__policy p;

        if (!draw(&p, kit, i))
            continue;
        if ((p.plan.needs & needs) == needs) {
            planned++;
            try(&p);
        }
        soq__kit_shutdown(kit, p.self);
    }
    if (!planned)
        soq__kit_skip(kit, "no plan%s for any of %d draws of options and shapes", needs ? " that selects" : "", DRAWS);
}

void *soq__policy_state(struct soq__policy *p)
{
    SOQ__EXPECT(p->kit, p->ops->state_size <= STATE_MAX, "state_size is %zu", p->ops->state_size);
    return soq__kit_guard(p->kit, p->ops->state_size, 8);
}

/* ---- Plans */

static void try_plan(struct soq__policy *p)
{
    const struct soq_kv_plan *plan = &p->plan;
    struct soq_kv_plan first = p->plan;

    SOQ__EXPECT(p->kit, !(plan->needs & ~needs_known), "needs has unknown bits: %x", plan->needs);
    SOQ__EXPECT(p->kit, !(p->ops->traits & ~traits_known), "traits has unknown bits: %x", p->ops->traits);
    SOQ__EXPECT(p->kit, plan->window || !plan->sinks || (plan->slot_positions && plan->needs & SOQ_NEED_SELECTION),
                "sinks = %u without a window", plan->sinks);
    SOQ__EXPECT(p->kit, !plan->slot_positions || plan->sinks, "slot_positions without sinks");
    SOQ__EXPECT(p->kit, !plan->needs || plan->needs & SOQ_NEED_SELECTION, "needs %x without SELECTION", plan->needs);
    SOQ__EXPECT(p->kit, !(plan->needs & SOQ_NEED_SELECTION) || (p->ops->select && p->ops->budget),
                "selects without select() and budget()");
    SOQ__EXPECT(p->kit, !plan->every || plan->needs & SOQ_NEED_SELECTION, "every = %u without SELECTION", plan->every);
    SOQ__EXPECT(p->kit, !plan->queries || plan->needs & SOQ_NEED_MASS, "queries = %u without MASS", plan->queries);
    SOQ__EXPECT(p->kit, !plan->every || plan->queries <= plan->every, "queries = %u, but only every = %u rows lie between",
                plan->queries, plan->every);
    SOQ__EXPECT(p->kit, describe(p, true) && memcmp(&first, &p->plan, sizeof first) == 0, "a second describe has another plan");
}

static void check_plan(struct soq__kit *kit)
{
    soq__policy_each(kit, 0, try_plan);
}

/* ---- Commits */

struct answer {
    uint32_t n;
    struct soq_kv_range ranges[CONTEXT_MAX];
};

static void commit(struct soq__policy *p, void *state, uint32_t n, bool end_of_prompt, struct answer *answer)
{
    struct soq_kv_commit c = {.n_positions = n, .end_of_prompt = end_of_prompt, .max_ranges = n + 2};
    struct soq_error *err = soq__kit_error(p->kit);
    static struct soq_kv_range *room;

    if (!room)
        room = soq__kit_guard(p->kit, (CONTEXT_MAX + 2) * sizeof *room, sizeof(uint32_t));
    answer->n = 0;
    memset(room, 0xa5, (CONTEXT_MAX + 2) * sizeof *room);
    soq__kit_ok(p->kit, "on_commit",
                p->ops->on_commit(p->self, state, soq__kit_box(p->kit, &c, sizeof c), room, &answer->n, err), err);
    SOQ__EXPECT(p->kit, answer->n <= c.max_ranges, "at %u: %u ranges where %u fit", n, answer->n, c.max_ranges);
    for (uint32_t i = c.max_ranges; i < CONTEXT_MAX + 2; i++)
        SOQ__EXPECT(p->kit, room[i].first == 0xa5a5a5a5, "at %u: wrote behind the room for %u ranges", n, c.max_ranges);
    memcpy(answer->ranges, room, answer->n * sizeof *room);
}

static bool stays(const struct answer *answer, uint32_t position)
{
    for (uint32_t i = 0; i < answer->n; i++) {
        if (position >= answer->ranges[i].first && position < answer->ranges[i].last)
            return true;
    }
    return false;
}

static void expect_ranges(const struct soq__policy *p, const struct answer *answer, uint32_t n)
{
    for (uint32_t i = 0; i < answer->n; i++) {
        const struct soq_kv_range *r = &answer->ranges[i];

        SOQ__EXPECT(p->kit, r->first < r->last && r->last <= n, "at %u: range %u is [%u, %u)", n, i, r->first, r->last);
        SOQ__EXPECT(p->kit, i == 0 || r->first >= r[-1].last, "at %u: range %u begins at %u, before the end of the one before",
                    n, i, r->first);
    }
}

/* A row may lose only what it cannot see; what has gone does not come back. */
static void expect_kept(const struct soq__policy *p, const struct answer *before, const struct answer *answer, uint32_t n,
                        uint32_t n_before)
{
    for (uint32_t position = 0; position < n; position++) {
        bool seen = !p->plan.window || position + p->plan.window > n || position < p->plan.sinks,
             here = stays(answer, position);

        SOQ__EXPECT(p->kit, here || !seen, "at %u: position %u goes, but the row at %u sees it", n, position, n);
        SOQ__EXPECT(p->kit, !here || position >= n_before || stays(before, position),
                    "at %u: position %u had gone and comes back", n, position);
    }
}

static bool is_prompt_end(const struct soq__policy *p, uint32_t n)
{
    return n == (p->shape.context / 2 + p->grid) / p->grid * p->grid;
}

static void try_commits(struct soq__policy *p)
{
    struct answer before = {.n = 0}, answer;
    uint32_t n_before = 0;
    void *state;

    if (!p->ops->on_commit)
        return;
    state = soq__policy_state(p);
    for (uint32_t n = p->grid; n <= p->shape.context; n += p->grid) {
        commit(p, state, n, is_prompt_end(p, n), &answer);
        expect_ranges(p, &answer, n);
        expect_kept(p, &before, &answer, n, n_before);
        before = answer;
        n_before = n;
    }
    soq__kit_guard_intact(p->kit, state, "its state");
}

static void need_commits(struct soq__kit *kit)
{
    soq__kit_open(kit);
    if (!kit->role->ops.kv_policy->on_commit)
        soq__kit_skip(kit, "has no on_commit: everything stays");
}

static void check_commit(struct soq__kit *kit)
{
    need_commits(kit);
    soq__policy_each(kit, 0, try_commits);
}

/* ---- Purity: other places in memory, a copy, going back, other sequences in between */

static void try_purity(struct soq__policy *p)
{
    size_t size = p->ops->state_size;
    void *one = soq__policy_state(p), *two = soq__policy_state(p), *other = soq__policy_state(p), *saved = soq__policy_state(p);
    struct answer a, b, c;

    for (uint32_t n = p->grid; n <= p->shape.context; n += p->grid) {
        memcpy(saved, one, size);
        commit(p, one, n, is_prompt_end(p, n), &a);
        commit(p, other, p->grid + n / 2, false, &c);
        commit(p, two, n, is_prompt_end(p, n), &b);
        SOQ__EXPECT(p->kit,
                    a.n == b.n && memcmp(a.ranges, b.ranges, a.n * sizeof *a.ranges) == 0 && memcmp(one, two, size) == 0,
                    "at %u: another sequence with the same past gets another answer or state", n);
        memcpy(two, saved, size);
        commit(p, two, n, is_prompt_end(p, n), &b);
        SOQ__EXPECT(p->kit,
                    a.n == b.n && memcmp(a.ranges, b.ranges, a.n * sizeof *a.ranges) == 0 && memcmp(one, two, size) == 0,
                    "at %u: the same commit on a copy of the state gets another answer", n);
    }
}

static void check_pure(struct soq__kit *kit)
{
    need_commits(kit);
    soq__policy_each(kit, 0, try_purity);
}

/* ---- A budget that holds everything changes nothing */

static void try_identity(struct soq__policy *p)
{
    uint32_t all = p->plan.window ? p->plan.window : p->shape.context;
    void *state = soq__policy_state(p);
    struct answer answer;

    for (uint32_t n = p->grid; n <= p->shape.context && n < all; n += p->grid) {
        commit(p, state, n, is_prompt_end(p, n), &answer);
        SOQ__EXPECT(p->kit, answer.n == 1 && answer.ranges[0].first == 0 && answer.ranges[0].last == n,
                    "at %u: a window of %u holds all, but %u ranges [%u, %u) stay", n, all, answer.n, answer.ranges[0].first,
                    answer.ranges[0].last);
    }
}

static void check_identity(struct soq__kit *kit)
{
    need_commits(kit);
    soq__policy_each(kit, 0, try_identity);
}

/* ---- Too little room is said, not overrun */

static void try_room(struct soq__policy *p)
{
    for (uint32_t room = 0; room < 2; room++) {
        struct soq_kv_range *ranges = soq__kit_guard(p->kit, room * sizeof *ranges, sizeof(uint32_t));
        struct soq_kv_commit c = {.n_positions = p->shape.context, .max_ranges = room};
        struct soq_error *err = soq__kit_error(p->kit);
        uint32_t n = 77;
        int rc = p->ops->on_commit(p->self, soq__policy_state(p), soq__kit_box(p->kit, &c, sizeof c), ranges, &n, err);

        if (rc)
            soq__kit_refused(p->kit, "on_commit", rc, 0, err);
        SOQ__EXPECT(p->kit, rc ? n == 77 : n <= room, "room for %u ranges: returned %d and wrote a count of %u", room, rc, n);
    }
}

static void check_room(struct soq__kit *kit)
{
    need_commits(kit);
    soq__policy_each(kit, 0, try_room);
}

/* ---- Work */

/* Of a text that is long enough for something to go, if the budget says when that is. */
static int work_select(struct soq__kit *kit, void *self, const struct soq_kv_shape *shape, const struct soq_kv_plan *plan,
                       struct soq_error *err)
{
    struct soq__policy p = {.kit = kit, .ops = kit->role->ops.kv_policy, .self = self, .shape = *shape, .plan = *plan};
    uint32_t n = 64;

    SOQ__EXPECT(kit, p.ops->select && p.ops->budget, "selects without select() and budget()");
    while (n < shape->context && p.ops->budget(self, 0, n, n) >= (uint64_t)n * shape->n_kv_heads)
        n *= 2;
    return soq__policy_work_select(&p, n, err);
}

int soq__kit_policy_work(struct soq__kit *kit, void *self, struct soq_error *err)
{
    struct soq_kv_shape shape = {.n_layers = 1,
                                 .n_heads = 2,
                                 .n_kv_heads = 1,
                                 .head_dim = SOQ__POLICY_HEAD_DIM,
                                 .context = 4096,
                                 .block_tokens = 8,
                                 .model_window = 32};
    struct soq_kv_plan plan = {.needs = 0}, *box = soq__kit_box(kit, &plan, sizeof plan);
    const struct soq_kv_policy_ops *ops = kit->role->ops.kv_policy;
    struct soq_kv_range ranges[66];
    struct soq_kv_commit c = {.n_positions = 64, .max_ranges = 66};
    uint32_t n;
    int rc = ops->describe(self, soq__kit_box(kit, &shape, sizeof shape), box, err);

    soq__kit_unbox(kit, box, &plan, sizeof plan);
    if (!rc && ops->on_commit)
        rc = ops->on_commit(self, soq__kit_guard(kit, ops->state_size, 8), soq__kit_box(kit, &c, sizeof c), ranges, &n, err);
    if (!rc && plan.needs & SOQ_NEED_SELECTION)
        rc = work_select(kit, self, &shape, &plan, err);
    return rc;
}

static const struct soq__check checks[] = {
    {"policy.plan", SOQ_ROLE_KV_POLICY, "plans are in range, and the same when asked again", check_plan, "skew.exact"},
    {"policy.commit", SOQ_ROLE_KV_POLICY, "ranges are in order, and nothing goes that a later row sees", check_commit,
     "policy.plan"},
    {"policy.pure", SOQ_ROLE_KV_POLICY, "on_commit is a function of state and commit; state is plain data", check_pure,
     "policy.commit"},
    {"policy.identity", SOQ_ROLE_KV_POLICY, "while all is in sight, all stays", check_identity, "policy.commit"},
    {"policy.room", SOQ_ROLE_KV_POLICY, "too little room for ranges is refused or kept to", check_room, "policy.commit"},
};
const struct soq__check_family soq__checks_policy = SOQ__FAMILY(checks);
