/* KV policy `heaviest`: the newest entries stay, and of the others those that they attend to most.
 *
 * Of n entries each KV head keeps the last `recent` and the capacity - recent heaviest before them, where the weight of an
 * entry is the attention that the last `recent` rows gave to it. It is the plainest form of SnapKV (Y. Li et al., NeurIPS
 * 2024). Put your own idea into weigh(), and into plan->needs what it must see. */
#include <soquete/plugin.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The plugin's instance: the host allocates it, zeroed, and hands it to every call as `self`. */
struct policy {
    uint32_t capacity, recent, every;
    uint32_t n_kv_heads;
};

/* What select() sorts, in memory of the host's. */
struct ranked {
    double weight;
    uint32_t index;
};

static int fail(struct soq_error *err, int code, const char *fmt, ...)
{
    va_list args;

    if (!err) /* the caller wants no message */
        return -code;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return err->code = -code;
}

/* The section [kv.heaviest]; each value was checked against the table below. What cannot work together is refused here. */
static int policy_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    struct policy *p = self;

    (void)host;
    p->capacity = (uint32_t)config->get_int(config->ctx, "capacity");
    p->recent = (uint32_t)config->get_int(config->ctx, "recent");
    p->every = (uint32_t)config->get_int(config->ctx, "every");
    if (p->capacity < p->recent)
        return fail(err, SOQ_EINVAL, "[kv.heaviest] capacity = %u does not hold recent = %u: set capacity to %u or more",
                    p->capacity, p->recent, p->recent);
    if (p->every && p->every < p->recent)
        return fail(err, SOQ_EINVAL, "[kv.heaviest] every = %u is less than recent = %u: set every to %u or more, or to 0",
                    p->every, p->recent, p->recent);
    return 0;
}

/* The plan comes in as "keep everything, need nothing", which is right where the budget holds the whole context. */
static int policy_describe(void *self, const struct soq_kv_shape *shape, struct soq_kv_plan *plan, struct soq_error *err)
{
    struct policy *p = self;

    (void)err;
    p->n_kv_heads = shape->n_kv_heads;
    if (p->capacity >= shape->context)
        return 0;
    plan->needs = SOQ_NEED_SELECTION | SOQ_NEED_MASS;
    plan->queries = p->recent; /* whose attention is the mass */
    plan->every = p->every;
    return 0;
}

/* What an entry is worth. */
static double weigh(const struct soq_kv_head *head, uint32_t i)
{
    return head->mass[i];
}

/* Heavy ones first; of equal ones the older, so that the order is the same on every machine. */
static int heavier(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;

    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int by_index(const void *left, const void *right)
{
    const uint32_t *a = left, *b = right;

    return *a < *b ? -1 : *a > *b;
}

static void select_head(const struct policy *p, struct soq_kv_head *head, struct ranked *ranked)
{
    uint32_t older, chosen;

    if (head->n <= p->capacity)
        return; /* all stay, as n_keep and keep say when they come in */
    older = head->n - p->recent;
    chosen = p->capacity - p->recent;
    for (uint32_t i = 0; i < older; i++)
        ranked[i] = (struct ranked){weigh(head, i), i};
    qsort(ranked, older, sizeof *ranked, heavier);
    for (uint32_t i = 0; i < chosen; i++)
        head->keep[i] = ranked[i].index;
    qsort(head->keep, chosen, sizeof *head->keep, by_index);
    for (uint32_t i = 0; i < p->recent; i++)
        head->keep[chosen + i] = older + i;
    head->n_keep = p->capacity;
}

static int policy_select(void *self, void *state, const struct soq_kv_selection *selection, struct soq_error *err)
{
    (void)state, (void)err;
    for (uint32_t h = 0; h < selection->n_heads; h++)
        select_head(self, (struct soq_kv_head *)((char *)selection->heads + (size_t)h * selection->head_stride),
                    selection->scratch);
    return 0;
}

/* Entries of a layer's heads together: what the host promises memory for. */
static uint64_t policy_budget(const void *self, uint32_t layer, uint32_t n_positions, uint32_t n_prompt)
{
    const struct policy *p = self;

    (void)layer, (void)n_prompt;
    return (uint64_t)p->n_kv_heads * (n_positions < p->capacity ? n_positions : p->capacity);
}

static const struct soq_option options[] = {
    {
        .struct_size = sizeof options[0],
        .type = SOQ_OPT_INT,
        .key = "capacity",
        .default_value = "1024",
        .min = 1,
        .max = INT32_MAX,
        .help = "Entries that each KV head keeps, the recent ones included.",
    },
    {
        .struct_size = sizeof options[0],
        .type = SOQ_OPT_INT,
        .key = "recent",
        .default_value = "32",
        .min = 1,
        .max = 4096,
        .help = "Newest entries: they stay, and their attention ranks the others.",
    },
    {
        .struct_size = sizeof options[0],
        .type = SOQ_OPT_INT,
        .key = "every",
        .default_value = "0",
        .min = 0,
        .max = INT32_MAX,
        .help = "Select again at multiples of so many tokens; 0: at the end of the prompt only.",
    },
};

static const struct soq_kv_policy_ops ops = {
    .struct_size = sizeof ops,
    .instance_size = sizeof(struct policy),
    .init = policy_init,
    .describe = policy_describe,
    .select = policy_select,
    .scratch = {.per_entry = sizeof(struct ranked)},
    .budget = policy_budget,
};

static const struct soq_role_entry roles[] = {
    {
        .struct_size = sizeof roles[0],
        .role = SOQ_ROLE_KV_POLICY,
        .minor = SOQ_KV_POLICY_MINOR,
        .min_minor = SOQ_KV_POLICY_MINOR,
        .ops = &ops,
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .option_stride = sizeof options[0],
    },
};

/* The one symbol that the library exports; the host looks at it before any of the code above runs. */
const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "heaviest",
    .variant = "",
    .version = "0.1",
    .summary = "KV policy: what the newest tokens attend to stays",
    .licence = "Apache-2.0",
    .n_roles = sizeof roles / sizeof roles[0],
    .role_stride = sizeof roles[0],
    .roles = roles,
};
