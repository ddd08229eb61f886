#include "check/packing.h"

enum { CHUNK = 50 };

void soq__cache_fill(struct soq__cache *c, uint32_t n_packed, uint32_t skip)
{
    struct soq__matrix out = soq__rig_matrix(c->rig, c->n_entries, c->shape.n_heads * c->shape.dv, 0, 4);
    uint32_t layer = c->layer;

    for (c->layer = 0; c->layer < c->shape.layers; c->layer++)
        for (uint32_t first = 0; first < c->n_entries; first += CHUNK)
            soq__cache_chunk(c, first, c->n_entries - first < CHUNK ? c->n_entries - first : CHUNK, &out);
    c->layer = layer;
    if (n_packed)
        soq__cache_pack(c, n_packed / c->shape.block_tokens, skip);
    soq__rig_matrix_free(c->rig, &out);
}

static void say(struct soq__kit *kit, const struct soq__coder_spec *spec, const struct soq__cache_shape *s)
{
    soq__kit_at(kit, "%s and %s, %s tail, %u heads over %u of %u and %u, blocks of %u, window %u, sinks %u, cap %g",
                spec[0].name, spec[1].name, s->dtype == SOQ_DTYPE_F32 ? "F32" : "F16", s->n_heads, s->n_kv_heads, s->dk, s->dv,
                s->block_tokens, s->window, s->sinks, (double)s->softcap);
}

/* Whether the backend claims it; if so, it was tried. */
static bool try_one(struct soq__rig *rig, const struct soq__packing_tries *t, const struct soq__coder_spec *spec,
                    const struct soq__cache_shape *s)
{
    struct soq__coder coders[2];

    soq__coder_init(&coders[0], &spec[0], SOQ_PLANE_KEY, s->block_tokens, s->dk);
    soq__coder_init(&coders[1], &spec[1], SOQ_PLANE_VALUE, s->block_tokens, s->dv);
    if (!soq__cache_claimed_packing(rig, s, coders, t->flags))
        return false;
    say(rig->kit, spec, s);
    t->try(rig, s, coders);
    return true;
}

/* Beside the host each pair in one shape only, another one for each: kernels may be compiled for each, which takes seconds. */
void soq__packing_try(struct soq__kit *kit, const struct soq__packing_tries *t)
{
    struct soq__rig rig;
    bool any = false, all;

    soq__rig_open(&rig, kit);
    all = strcmp(rig.ops->domain, "host") == 0;
    for (size_t k = 0; k < t->n_specs; k++) {
        bool done = false;

        for (size_t i = 0; i < t->n_shapes && (all || !done); i++)
            done = try_one(&rig, t, t->specs[k], &t->shapes[(k + k / t->n_shapes + i) % t->n_shapes]) || done;
        any = any || done;
    }
    if (!any)
        soq__kit_skip(kit, "does not have kv_pack, or claims none of the formats");
}
