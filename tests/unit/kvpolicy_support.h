/* For tests of KV policies: an instance with options, and layers of entries for it to choose from. */
#ifndef SOQ_TESTS_KVPOLICY_SUPPORT_H
#define SOQ_TESTS_KVPOLICY_SUPPORT_H

#include <criterion/criterion.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "plugin_open.h"

struct policy {
    const struct soq_kv_policy_ops *ops;
    _Alignas(64) char self[256];
    struct soq_kv_shape shape;
    struct soq_kv_plan plan;
    struct soq_error err;
    int rc; /* of init and describe */
};

static inline struct soq_kv_shape shape_of(uint32_t n_layers, uint32_t n_kv_heads, uint32_t context)
{
    return (struct soq_kv_shape){
        .struct_size = sizeof(struct soq_kv_shape),
        .n_layers = n_layers,
        .n_heads = 2 * n_kv_heads,
        .n_kv_heads = n_kv_heads,
        .head_dim = 16,
        .context = context,
        .block_tokens = 32,
    };
}

static inline void policy_start(struct policy *p, const char *name, const struct override *overrides,
                                const struct soq_kv_shape *shape)
{
    struct plugin_values values = {open_plugin(name, SOQ_ROLE_KV_POLICY), overrides};
    struct soq_config config = plugin_config(&values);

    *p = (struct policy){
        .ops = values.entry->ops, .shape = *shape, .plan = {.struct_size = sizeof p->plan}, .err = SOQ_ERROR_INIT};
    cr_assert_leq(p->ops->instance_size, sizeof p->self);
    p->rc = p->ops->init(p->self, NULL, &config, &p->err);
    if (!p->rc)
        p->rc = p->ops->describe(p->self, shape, &p->plan, &p->err);
}

/* ---- A layer's entries ------------------------------------------------------------------------------------------- */

enum { HEADS_MAX = 8 };

struct layer {
    struct soq_kv_selection selection;
    struct soq_kv_head heads[HEADS_MAX];
    uint32_t *positions[HEADS_MAX];
    double *mass[HEADS_MAX];
    float *keys[HEADS_MAX];
};

/* n entries in each head, at positions 0, 1, ...; the caller fills mass and keys. A prompt of n tokens has just ended. */
static inline void layer_new(struct layer *layer, const struct policy *p, uint32_t index, uint32_t n)
{
    const struct soq_kv_shape *shape = &p->shape;
    uint64_t scratch = p->ops->scratch.fixed + p->ops->scratch.per_entry * shape->n_kv_heads * n;

    cr_assert_leq(shape->n_kv_heads, HEADS_MAX);
    *layer = (struct layer){
        .selection =
            {
                .struct_size = sizeof layer->selection,
                .layer = index,
                .n_layers = shape->n_layers,
                .n_heads = shape->n_kv_heads,
                .head_dim = shape->head_dim,
                .group_heads = shape->n_heads / shape->n_kv_heads,
                .n_positions = n,
                .end_of_prompt = 1,
                .n_prompt = n,
                .n_queries = p->plan.queries && p->plan.queries < n ? p->plan.queries : n,
                .head_stride = sizeof layer->heads[0],
                .scratch = soq__alloc(scratch + 1),
            },
    };
    for (uint32_t h = 0; h < shape->n_kv_heads; h++) {
        layer->positions[h] = soq__alloc_zero(n + 1, sizeof *layer->positions[h]);
        layer->mass[h] = soq__alloc_zero(n + 1, sizeof *layer->mass[h]);
        layer->keys[h] = soq__alloc_zero((size_t)(n + 1) * shape->head_dim, sizeof *layer->keys[h]);
        layer->heads[h] = (struct soq_kv_head){
            .n = n,
            .positions = layer->positions[h],
            .mass = p->plan.needs & SOQ_NEED_MASS ? layer->mass[h] : NULL,
            .keys = p->plan.needs & SOQ_NEED_KEYS ? layer->keys[h] : NULL,
            .keep = soq__alloc_zero(n + 1, sizeof *layer->heads[h].keep),
        };
        for (uint32_t i = 0; i < n; i++)
            layer->positions[h][i] = i;
    }
}

static inline void layer_done(struct layer *layer)
{
    for (uint32_t h = 0; h < layer->selection.n_heads; h++) {
        soq__free(layer->positions[h]);
        soq__free(layer->mass[h]);
        soq__free(layer->keys[h]);
        soq__free(layer->heads[h].keep);
    }
    soq__free(layer->selection.scratch);
}

/* Runs select() and checks what is true of every answer: indices ascend, and the heads together keep no more than announced. */
static inline void layer_select(struct layer *layer, struct policy *p)
{
    uint64_t together = 0;

    layer->selection.heads = layer->heads;
    for (uint32_t h = 0; h < layer->selection.n_heads; h++) {
        layer->heads[h].n_keep = layer->heads[h].n;
        for (uint32_t i = 0; i < layer->heads[h].n; i++)
            layer->heads[h].keep[i] = i;
    }
    cr_assert_eq(p->ops->select(p->self, NULL, &layer->selection, &p->err), 0, "%s", p->err.text);
    for (uint32_t h = 0; h < layer->selection.n_heads; h++) {
        const struct soq_kv_head *head = &layer->heads[h];

        cr_assert_leq(head->n_keep, head->n);
        for (uint32_t i = 0; i < head->n_keep; i++) {
            cr_assert_lt(head->keep[i], head->n);
            cr_assert(i == 0 || head->keep[i] > head->keep[i - 1], "entry %u of head %u is not in order", i, h);
        }
        together += head->n_keep;
    }
    cr_assert_leq(together,
                  p->ops->budget(p->self, layer->selection.layer, layer->selection.n_positions, layer->selection.n_prompt));
}

/* ---- Layers of random entries ------------------------------------------------------------------------------------ */

static inline uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Attention as the core gives it, multiples of 2^-36; few distinct values where `coarse`, so that there are ties. */
static inline void fill_random(struct layer *layer, uint32_t seed, bool coarse)
{
    const struct soq_kv_selection *s = &layer->selection;

    for (uint32_t h = 0; h < s->n_heads; h++) {
        for (uint32_t i = 0; i < layer->heads[h].n; i++)
            layer->mass[h][i] = coarse ? next_random(&seed) % 4 : next_random(&seed) * 0x1p-24;
        for (uint32_t i = 0; i < layer->heads[h].n * s->head_dim; i++)
            layer->keys[h][i] = coarse ? (float)(next_random(&seed) % 3) - 1 : (float)next_random(&seed) * 0x1p-23f - 1;
    }
}

static inline void select_random(struct layer *layer, struct policy *p, uint32_t index, uint32_t n, uint32_t seed, bool coarse)
{
    layer_new(layer, p, index, n);
    fill_random(layer, seed, coarse);
    layer_select(layer, p);
}

static inline bool keeps(const struct soq_kv_head *head, uint32_t entry)
{
    for (uint32_t i = 0; i < head->n_keep; i++) {
        if (head->keep[i] == entry)
            return true;
    }
    return false;
}

static inline bool same_kept(const struct soq_kv_head *a, const struct soq_kv_head *b)
{
    return a->n_keep == b->n_keep && memcmp(a->keep, b->keep, a->n_keep * sizeof *a->keep) == 0;
}

#endif
