/* Selection: policies say which entries stay. All are asked, and their answers checked, before anything changes; compact.c does
 * the rest. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "kv/internal.h"

/* ---- Asking -------------------------------------------------------------------------------------------------------------- */

/* A policy's selection at n entries, and the room to ask about one layer. */
struct asking {
    struct soq__kv_seq *seq;
    const struct soq__kv_policy *policy;
    uint32_t policy_index, n;
    struct soq__kv_selected *selected;
    uint32_t n_heads, head_dim, most; /* kv heads of a layer under the policy; entries of a head, at most */
    struct soq_kv_head *heads;        /* [n_heads] */
    uint32_t *positions, *keep;       /* [n_heads][most] */
    double *mass;                     /* [n_heads][most]; NULL: not wanted */
    float *keys;                      /* [n_heads][most][head_dim]; NULL: not wanted */
    struct soq__kv_tile_room room;    /* for keys */
    void *scratch;
};

static int fail_for(const struct asking *a, uint32_t layer, uint32_t head, int rc, struct soq_error *err)
{
    soq__fail_prefix(err, "[%s] policy = %s: selection at %u tokens: layer %u, head %u", soq__kv_section(a->policy->view),
                     a->policy->name, a->n, layer, head);
    return rc;
}

/* Keys of one head, decoded: [n - base][head_dim]. */
static int read_keys(struct asking *a, const struct soq__kv_part *part, uint32_t head, float *keys, struct soq_error *err)
{
    const struct soq__kv_seq_group *sg = &a->seq->groups[part->group];
    const struct soq__kv_tile_name name = {.plane = 0, .index = part->index, .head = head};
    uint32_t p = a->seq->cache->block_tokens;

    for (uint32_t i = sg->base / p; i * p < a->n; i++) {
        uint32_t first = i * p > sg->base ? i * p : sg->base, last = (i + 1) * p < a->n ? (i + 1) * p : a->n;
        int rc = soq__kv_tile_read(a->seq, part->group, sg->table[i], i, name, &a->room, err);

        if (rc)
            return rc;
        memcpy(keys + (size_t)(first - sg->base) * a->head_dim, a->room.numbers + (size_t)(first - i * p) * a->head_dim,
               (size_t)(last - first) * a->head_dim * sizeof *keys);
    }
    return 0;
}

/* Fills what the policy sees of one head; `at` counts the layer's heads that it rules. */
static int show_head(struct asking *a, const struct soq__kv_part *part, uint32_t head, uint32_t at, struct soq_error *err)
{
    const struct soq__kv_seq_group *sg = &a->seq->groups[part->group];
    uint32_t n = a->n - sg->base;
    size_t line = (size_t)part->index * part->n_heads + head, room = (size_t)at * a->most;

    a->heads[at] = (struct soq_kv_head){
        .n = n,
        .n_keep = n,
        .positions = a->positions + room,
        .mass = a->mass ? a->mass + room : NULL,
        .keys = a->keys ? a->keys + room * a->head_dim : NULL,
        .keep = a->keep + room,
    };
    for (uint32_t i = 0; i < n; i++) {
        a->positions[room + i] = soq__kv_position(a->seq, part->group, part->index, head, sg->base + i);
        a->keep[room + i] = i;
        if (a->mass)
            a->mass[room + i] = sg->mass ? (double)sg->mass[line * sg->mass_cap + sg->base + i] / (double)SOQ_MASS_ONE : 0;
    }
    return a->keys ? read_keys(a, part, head, a->keys + room * a->head_dim, err) : 0;
}

/* ---- Checking ------------------------------------------------------------------------------------------------------------ */

static int check_order(const struct soq_kv_head *h, struct soq_error *err)
{
    if (h->n_keep > h->n)
        return soq__fail(err, SOQ_EINVAL, "keeps %u entries of %u", h->n_keep, h->n);
    for (uint32_t i = 0; i < h->n_keep; i++)
        if (h->keep[i] >= h->n || (i && h->keep[i] <= h->keep[i - 1]))
            return soq__fail(err, SOQ_EINVAL, "keep[%u] = %u is not an ascending index below %u", i, h->keep[i], h->n);
    return 0;
}

/* Positions by slot: the first `sinks` entries are positions 0, 1, ..., the others one run up to the end. */
static int check_slots(const struct soq_kv_head *h, uint32_t sinks, uint32_t n, struct soq_error *err)
{
    for (uint32_t i = 0; i < h->n_keep; i++) {
        uint32_t position = h->positions[h->keep[i]], wanted = i < sinks ? i : n - h->n_keep + i;

        if (position != wanted)
            return soq__fail(err, SOQ_EINVAL,
                             "entry %u of %u is position %u, not %u: with positions by slot the first %u positions stay and "
                             "the last ones",
                             i, h->n_keep, position, wanted, sinks);
    }
    return 0;
}

/* Takes the answer for one head into the group's lists, which all have the length of the first. */
static int take_head(struct asking *a, const struct soq__kv_part *part, uint32_t head, uint32_t at, struct soq_error *err)
{
    const struct soq__kv_group_layout *layout = a->seq->cache->groups[part->group].layout;
    const struct soq_kv_head *h = &a->heads[at];
    struct soq__kv_selected *s = &a->selected[part->group];
    size_t lines = (size_t)layout->n_layers * layout->n_heads, line = (size_t)part->index * layout->n_heads + head;
    int rc = check_order(h, err);

    if (!rc && a->policy->plan.slot_positions && h->n_keep < h->n)
        rc = check_slots(h, a->policy->plan.sinks, a->n, err);
    if (!rc && !(a->policy->plan.needs & SOQ_NEED_HEAD_BUDGETS) && h->n_keep != a->heads[0].n_keep)
        rc = soq__fail(err, SOQ_EINVAL, "keeps %u entries where another head keeps %u; its plan asks for no such budgets",
                       h->n_keep, a->heads[0].n_keep);
    if (rc)
        return rc;
    if (!s->keep) {
        s->n_keep = h->n_keep;
        s->keep = soq__alloc_array(lines * h->n_keep, sizeof *s->keep);
    }
    if (!s->keep)
        return soq__fail(err, SOQ_ENOMEM, "out of memory");
    if (s->n_keep != h->n_keep)
        return soq__fail(err, SOQ_EINVAL,
                         "keeps %u entries where layer %u, head %u keeps %u; its plan asks for no such budgets", h->n_keep,
                         layout->layers[0], layout->first_head, s->n_keep);
    memcpy(s->keep + line * s->n_keep, h->keep, s->n_keep * sizeof *s->keep);
    return 0;
}

static int check_budget(const struct asking *a, uint32_t layer, struct soq_error *err)
{
    uint64_t all = 0, budget = a->policy->ops->budget(a->policy->self, layer, a->n, a->seq->n_prompt);

    for (uint32_t h = 0; h < a->n_heads; h++)
        all += a->heads[h].n_keep;
    if (all <= budget)
        return 0;
    return soq__fail(
        err, SOQ_EINVAL, "[%s] policy = %s: selection at %u tokens: layer %u: keeps %llu entries, but its budget() says %llu",
        soq__kv_section(a->policy->view), a->policy->name, a->n, layer, (unsigned long long)all, (unsigned long long)budget);
}

/* ---- A layer, a policy, all ---------------------------------------------------------------------------------------------- */

static bool rules(const struct asking *a, const struct soq__kv_part *part)
{
    return a->seq->cache->layout->groups[part->group].policy == a->policy_index;
}

/* What is done with a head under the policy, the at-th of its layer. */
typedef int head_fn(struct asking *a, const struct soq__kv_part *part, uint32_t head, uint32_t at, struct soq_error *err);

static int for_heads(struct asking *a, uint32_t layer, head_fn *fn, struct soq_error *err)
{
    uint32_t n, at = 0;
    const struct soq__kv_part *part = soq__kv_parts(a->seq->cache->layout, a->policy->view, layer, &n);

    for (; n--; part++)
        for (uint32_t h = 0; h < part->n_heads && rules(a, part); h++) {
            int rc = fn(a, part, h, at++, err);

            if (rc)
                return fail_for(a, layer, part->first_head + h, rc, err);
        }
    return 0;
}

/* `part`: the first one of the layer that the policy rules. */
static int ask_layer(struct asking *a, uint32_t layer, const struct soq__kv_part *part, struct soq_error *err)
{
    const struct soq__kv_layout *layout = a->seq->cache->layout;
    const struct soq__kv_seq_group *sg = &a->seq->groups[part->group];
    struct soq_kv_selection selection = {
        .struct_size = sizeof selection,
        .layer = layer,
        .n_layers = layout->n_layers,
        .n_heads = a->n_heads,
        .head_dim = a->head_dim,
        .group_heads = layout->group_heads,
        .n_positions = a->n,
        .end_of_prompt = a->n == a->seq->n_prompt,
        .n_prompt = a->seq->n_prompt,
        .n_queries = sg->mass ? a->n - sg->mass_from : 0,
        .head_stride = sizeof *a->heads,
        .heads = a->heads,
        .scratch = a->scratch,
    };
    char *state = a->seq->policy_state;
    int rc = for_heads(a, layer, show_head, err);

    if (rc)
        return rc;
    rc = a->policy->ops->select(a->policy->self, state ? state + a->policy->state_at : NULL, &selection, err);
    if (rc) {
        soq__fail_prefix(err, "[%s] policy = %s: selection at %u tokens: layer %u", soq__kv_section(a->policy->view),
                         a->policy->name, a->n, layer);
        return rc;
    }
    rc = for_heads(a, layer, take_head, err);
    return rc ? rc : check_budget(a, layer, err);
}

/* The first part of a layer that the policy rules; NULL: it rules none. */
static const struct soq__kv_part *ruled_part(const struct asking *a, uint32_t layer)
{
    uint32_t n;
    const struct soq__kv_part *part = soq__kv_parts(a->seq->cache->layout, a->policy->view, layer, &n);

    while (n && !rules(a, part)) {
        part++;
        n--;
    }
    return n ? part : NULL;
}

static void asking_done(struct asking *a)
{
    soq__free(a->heads);
    soq__free(a->positions);
    soq__free(a->keep);
    soq__free(a->mass);
    soq__free(a->keys);
    soq__kv_tile_room_done(&a->room);
    soq__free(a->scratch);
}

static int asking_init(struct asking *a, struct soq_error *err)
{
    const struct soq__kv_cache *c = a->seq->cache;
    const struct soq_kv_plane *plane = &c->layout->groups[0].planes[0];
    bool keys = a->policy->plan.needs & SOQ_NEED_KEYS, mass = soq__kv_weighs(a->policy);
    size_t entries;
    uint64_t scratch;

    a->n_heads = a->policy->n_heads;
    a->head_dim = plane->width;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint32_t held = a->n - a->seq->groups[g].base;

        if (c->groups[g].layout->policy != a->policy_index)
            continue;
        a->most = held > a->most ? held : a->most;
    }
    entries = (size_t)a->n_heads * a->most;
    scratch = a->policy->ops->scratch.fixed + a->policy->ops->scratch.per_entry * entries;
    a->heads = soq__alloc_array(a->n_heads, sizeof *a->heads);
    a->positions = soq__alloc_array(entries, sizeof *a->positions);
    a->keep = soq__alloc_array(entries, sizeof *a->keep);
    a->mass = mass ? soq__alloc_array(entries, sizeof *a->mass) : NULL;
    a->keys = keys ? soq__alloc_array(entries, a->head_dim * sizeof *a->keys) : NULL;
    a->scratch = scratch ? soq__alloc_aligned(64, scratch) : NULL;
    if (a->heads && a->positions && a->keep && (a->mass || !mass) &&
        ((a->keys && !soq__kv_tile_room_init(&a->room, c, NULL)) || !keys) && (a->scratch || !scratch))
        return 0;
    asking_done(a);
    return soq__fail(err, SOQ_ENOMEM, "[%s] policy = %s: out of memory for a selection among %u entries",
                     soq__kv_section(a->policy->view), a->policy->name, a->most);
}

static int ask_policy(struct soq__kv_seq *seq, uint32_t policy, uint32_t n, struct soq__kv_selected *selected,
                      struct soq_error *err)
{
    struct asking a = {
        .seq = seq, .policy = &seq->cache->policies[policy], .policy_index = policy, .n = n, .selected = selected};
    int rc = asking_init(&a, err);

    if (rc)
        return rc;
    for (uint32_t l = 0; !rc && l < seq->cache->layout->n_layers; l++) {
        const struct soq__kv_part *part = ruled_part(&a, l);

        if (part)
            rc = ask_layer(&a, l, part, err);
    }
    asking_done(&a);
    return rc;
}

int soq__kv_select(struct soq__kv_seq *seq, uint32_t n, struct soq__kv_selected **out, struct soq_error *err)
{
    struct soq__kv_cache *c = seq->cache;
    struct soq__kv_selected *selected = NULL;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < c->n_policies; i++) {
        if (!soq__kv_selection_is_due(&c->policies[i], n, seq->n_prompt))
            continue;
        if (!selected && !(selected = soq__alloc_zero(c->n_groups, sizeof *selected)))
            return soq__fail(err, SOQ_ENOMEM, "KV cache: out of memory for a selection");
        rc = ask_policy(seq, i, n, selected, err);
    }
    if (rc)
        soq__kv_selected_free(selected, c->n_groups);
    else
        *out = selected;
    return rc;
}

void soq__kv_selected_free(struct soq__kv_selected *selected, uint32_t n_groups)
{
    for (uint32_t g = 0; selected && g < n_groups; g++)
        soq__free(selected[g].keep);
    soq__free(selected);
}
