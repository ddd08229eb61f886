/* KV policy `window`: a row sees the last positions, and if asked the first ones too.
 *
 * `capacity` entries are seen per KV head, the row's own and `sinks` included: a row at position q sees position p when
 *
 *     p < sinks  or  p > q - window,  window = capacity - sinks.
 *
 * That is a mask: it holds for every row, and nothing is chosen, so there is no `every`. A block goes back to the pool at the
 * commit with which the last of its entries falls out of sight, which is as early as can be.
 *
 * Positions are the original ones. On a model that was not trained with a window, losing the first tokens is a collapse and no
 * gentle loss: they take the attention that rows have no other use for. Llama-2-13B on PG19, as the last 1024 entries:
 * perplexity 5158; as the first 4 and the last 1020: 5.40 (G. Xiao et al., "Efficient Streaming Language Models with Attention
 * Sinks", ICLR 2024, table 1). `sinks` is 0 by default all the same, because that is what a model with a window of its own was
 * trained for; on any other, set it to 4. */
#include "describe.h"
#include "mask.h"
#include "option.h"

struct window {
    uint32_t capacity; /* as configured */
    uint32_t sinks;
    uint32_t
        window; /* positions that a row sees beside the sinks, itself included; 0: all, as the capacity holds the context */
};

static int window_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct window *window = self;

    (void)host;
    (void)err;
    window->capacity = (uint32_t)config->get_int(config->ctx, "capacity");
    window->sinks = (uint32_t)config->get_int(config->ctx, "sinks");
    return 0;
}

static int window_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan_out, struct soq_error *err)
{
    struct window *window = self;
    uint32_t capacity = window->capacity ? window->capacity : shape->model_window;

    if (!capacity)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.window] capacity = 0 stands for the model's own window, and this model has none: set capacity");
    if (capacity <= window->sinks)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.window] capacity = %u does not hold sinks = %u and the row itself: set capacity to %u or more",
                           capacity, window->sinks, window->sinks + 1);
    window->window = 0;
    if (capacity >= shape->context)
        return 0; /* the identity: the plan stays "keep everything" */

    window->window = capacity - window->sinks;
    plan_out->window = window->window;
    plan_out->sinks = window->sinks;
    return 0;
}

static int window_on_commit(void *self, void *state, const struct soq_kv_commit *commit, struct soq_kv_range *ranges,
                            uint32_t *n_ranges_out, struct soq_error *err)
{
    const struct window *window = self;

    (void)state;
    return mask_commit(window->window, window->sinks, commit, ranges, n_ranges_out, err);
}

static const struct soq_option window_options[] = {
    OPTION_INT(
        "capacity", "0", 0, INT32_MAX,
        "Entries per KV head that a row sees, itself and the sinks included; what no row sees is freed as soon as a block of "
        "it is complete. 0: the model's own window."),
    OPTION_INT("sinks", "0", 0, INT32_MAX,
               "First positions that stay; a model without a window of its own collapses without them: set 4."),
};

static const struct soq_kv_policy_ops window_ops = {
    .struct_size = sizeof window_ops,
    .instance_size = sizeof(struct window),
    .init = window_init,
    .describe = window_describe,
    .on_commit = window_on_commit,
};

KV_POLICY_PLUGIN(window, "the last positions stay, and the first if asked");
