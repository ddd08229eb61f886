/* KV policy `streaming`: the first and the last positions stay, and are numbered as if nothing lay between (G. Xiao et al.,
 * "Efficient Streaming Language Models with Attention Sinks", ICLR 2024, section 3.2).
 *
 * The first `sinks` and the last capacity - sinks entries stay. With positions = slot, as published, a key's position is its
 * place in the cache: sinks are 0 ... sinks - 1, the others follow without a gap, and the row itself comes last, so distances
 * never exceed the capacity however long the text. With positions = original keys keep the position that they were written at.
 *
 * `when` says what the rows of a prompt see:
 *   always   as published: every row sees `capacity` entries, its own included. That is a mask, nothing is chosen, and memory
 *            goes back as the text moves on.
 *   prompt   rows of the prompt see all of it; then the middle goes, once, and the answer is added to what is left.
 *   decode   the same, and the middle goes again at every multiple of `every`: between those the cache grows.
 *
 * Llama-2-7B on PG19, perplexity with 0, 1, 2, 4, 8 sinks: 3360, 11.9, 10.5, 9.6, 9.5. Without sinks slots and original
 * positions are the same thing: RoPE knows distances only. */
#include <string.h>

#include "describe.h"
#include "fail.h"
#include "mask.h"
#include "option.h"
#include "top.h"

struct streaming {
    uint32_t capacity, sinks; /* as configured */
    uint32_t slots;           /* nonzero: positions by slot */
    uint32_t selects;         /* nonzero: when = prompt or decode */
    uint32_t every;           /* 0: at the end of the prompt only */
    uint32_t window;          /* of the mask: positions that a row sees beside the sinks; 0: all */
    uint32_t n_kv_heads;
};

static int streaming_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct streaming *streaming = self;
    const char *when = config->get_string(config->ctx, "when");

    (void)host;
    *streaming = (struct streaming){
        .capacity = (uint32_t)config->get_int(config->ctx, "capacity"),
        .sinks = (uint32_t)config->get_int(config->ctx, "sinks"),
        .slots = strcmp(config->get_string(config->ctx, "positions"), "slot") == 0,
        .selects = strcmp(when, "always") != 0,
    };
    if (strcmp(when, "decode") == 0)
        streaming->every = (uint32_t)config->get_int(config->ctx, "every");
    if (streaming->capacity <= streaming->sinks)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.streaming] capacity = %u does not hold sinks = %u and one position more: set capacity to %u or "
                           "more",
                           streaming->capacity, streaming->sinks, streaming->sinks + 1);
    return 0;
}

static int streaming_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    struct streaming *streaming = self;

    (void)err;
    streaming->n_kv_heads = shape->n_kv_heads;
    streaming->window = 0;
    if (streaming->capacity >= shape->context)
        return 0; /* the identity: the plan stays "keep everything" */
    plan_out->slot_positions = streaming->slots && streaming->sinks;
    if (streaming->selects) {
        plan_out->needs = SOQ_NEED_SELECTION;
        plan_out->every = streaming->every;
        plan_out->sinks = plan_out->slot_positions ? streaming->sinks : 0;
        return 0;
    }
    streaming->window = streaming->capacity - streaming->sinks;
    plan_out->sinks = streaming->sinks;
    plan_out->window = streaming->window;
    return 0;
}

static int streaming_on_commit(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                               uint32_t *n_ranges_out, struct soq_error *err)
{
    const struct streaming *streaming = self;

    (void)state;
    return mask_commit(streaming->window, streaming->sinks, commit, ranges, n_ranges_out, err);
}

static int streaming_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    const struct streaming *streaming = self;

    (void)state;
    (void)err;
    for (uint32_t h = 0; h < selection->n_heads; h++) {
        struct soq_kv_head *head = selection_head(selection, h);

        if (head->n <= streaming->capacity)
            continue;
        for (uint32_t i = 0; i < streaming->capacity; i++)
            head->keep[i] = i < streaming->sinks ? i : head->n - streaming->capacity + i;
        head->n_keep = streaming->capacity;
    }
    return 0;
}

static uint64_t streaming_budget(const void *self, uint32_t layer, uint32_t n_positions, uint32_t n_prompt)
{
    const struct streaming *streaming = self;

    (void)layer;
    (void)n_prompt;
    return (uint64_t)streaming->n_kv_heads * (n_positions < streaming->capacity ? n_positions : streaming->capacity);
}

static const struct soq_option streaming_options[] = {
    OPTION_INT("capacity", "2004", 1, INT32_MAX, "Entries per KV head that stay, sinks included."),
    OPTION_INT("sinks", "4", 0, INT32_MAX, "First positions that stay."),
    OPTION_ENUM("positions", "slot", "slot|original", "Number keys by their place in the cache, or as they were written."),
    OPTION_ENUM("when", "always", "prompt|decode|always",
                "Drop the middle once, after a prompt that is seen in full; while decoding, too; or from the first row on."),
    OPTION_INT("every", "32", 1, INT32_MAX, "With when = decode: drop at positions that are multiples of it."),
};

static const struct soq_kv_policy_ops streaming_ops = {
    .struct_size = sizeof streaming_ops,
    .instance_size = sizeof(struct streaming),
    .init = streaming_init,
    .describe = streaming_describe,
    .on_commit = streaming_on_commit,
    .select = streaming_select,
    .budget = streaming_budget,
};

KV_POLICY_PLUGIN(streaming, "the first and last positions stay, numbered without a gap");
