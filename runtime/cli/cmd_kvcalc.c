/* `soquete kvcalc`: what a KV cache will take, by the code that lays the cache out. No weights are loaded. */
#include <string.h>

#include "base/error.h"
#include "cli/json_out.h"
#include "cli/load.h"
#include "cli/out.h"
#include "cli/stats.h"
#include "config/settings.h"

#define LENGTHS_MAX 32

struct kvcalc_options {
    const char *lengths;
    int64_t layers, kv_heads, head_dim, window, window_pattern, batch;
    bool json;
};

#define ROW(type, field, ...) SOQ__VALUE(type, struct kvcalc_options, field, __VA_ARGS__)
#define SHAPE(field, name, help) ROW(SOQ__OPT_INT, field, name, 0, "N", help, .min = 1, .max = 1 << 20)

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    SHAPE(layers, "layers", "The shape by hand, without a model: layers,"),
    SHAPE(kv_heads, "kv-heads", "... KV heads of a layer,"),
    SHAPE(head_dim, "head-dim", "... numbers of a head."),
    SHAPE(window, "window", "The model's own sliding window; the default is none."),
    SHAPE(window_pattern, "window-pattern", "Every Nth layer has no window; the default: all have it."),
    ROW(SOQ__OPT_TEXT, lengths, "context", 'c', "LIST",
        "Lengths of a sequence, in tokens; the default goes up to the model's."),
    ROW(SOQ__OPT_INT, batch, "batch", 'b', "N", "Sequences at the same time.", .min = 1, .max = 1 << 20),
    SOQ__SETTING("kv.policy", "policy", 0, "NAME", "The plugin that decides which entries stay."),
    SOQ__SETTING("kv.codec_k", "codec-k", 0, "NAME", "The plugin that stores keys."),
    SOQ__SETTING("kv.codec_v", "codec-v", 0, "NAME", "The plugin that stores values."),
    SOQ__FLAG(struct kvcalc_options, json, "json", 0, "One JSON object instead of the table."),
};

static const struct soq__usage usage = {
    .command = "kvcalc",
    .args = "",
    .about =
        "Computes the bytes of a KV cache per token, per sequence and in all, for a model's file or a shape given by hand.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

struct kvcalc {
    const struct kvcalc_options *options;
    struct soq_runtime *runtime;
    struct soq__host host;
    struct soq__hparams hparams;
    struct soq__role_instance policy, codec_k, codec_v;
    struct soq__kv_layout layout;
    int64_t lengths[LENGTHS_MAX];
    size_t n_lengths;
    uint32_t chunk;
};

/* ---- Shape and lengths */

static int shape_by_hand(const struct kvcalc_options *o, struct soq__hparams *hp, struct soq_error *err)
{
    if (!o->kv_heads || !o->head_dim)
        return soq__fail(err, SOQ_EINVAL, "--layers needs --kv-heads and --head-dim too");
    hp->n_layers = (uint32_t)o->layers;
    hp->n_heads = hp->n_kv_heads = (uint32_t)o->kv_heads;
    hp->head_dim_k = hp->head_dim_v = (uint32_t)o->head_dim;
    hp->window = (uint32_t)o->window;
    hp->window_pattern = o->window_pattern ? (uint32_t)o->window_pattern : UINT32_MAX;
    hp->context_train = 131072;
    return 0;
}

static int read_shape(struct kvcalc *k, struct soq_error *err)
{
    const struct kvcalc_options *o = k->options;

    if (o->layers)
        return shape_by_hand(o, &k->hparams, err);
    if (o->kv_heads || o->head_dim || o->window || o->window_pattern)
        return soq__fail(err, SOQ_EINVAL, "a shape by hand begins with --layers");
    return soq__cli_hparams(k->runtime, &k->hparams, err);
}

static int read_lengths(struct kvcalc *k, struct soq_error *err)
{
    int64_t most = k->hparams.context_train;

    if (!k->options->lengths) {
        for (int64_t n = 512; n < most && k->n_lengths < LENGTHS_MAX - 1; n *= 4)
            k->lengths[k->n_lengths++] = n;
        k->lengths[k->n_lengths++] = most;
        return 0;
    }
    k->n_lengths = soq__parse_list(k->options->lengths, 1, 1 << 24, k->lengths, LENGTHS_MAX);
    return k->n_lengths
               ? 0
               : soq__fail(err, SOQ_EINVAL, "--context %s: expected numbers from 1 to %d with commas between, at most %d",
                           k->options->lengths, 1 << 24, LENGTHS_MAX);
}

/* ---- Layout */

static int load_plugins(struct kvcalc *k, struct soq_error *err)
{
    const struct {
        struct soq__role_instance *instance;
        enum soq_role role;
        const char *key;
    } wanted[] = {
        {&k->policy, SOQ_ROLE_KV_POLICY, "policy"},
        {&k->codec_k, SOQ_ROLE_KV_CODEC, "codec_k"},
        {&k->codec_v, SOQ_ROLE_KV_CODEC, "codec_v"},
    };
    int rc = 0;

    soq__host_init(&k->host, NULL);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && !rc; i++)
        rc = soq__role_init(wanted[i].instance, k->runtime->registry, k->runtime->settings, wanted[i].role,
                            soq__settings_string(k->runtime->settings, "kv", wanted[i].key), &k->host.services, err);
    return rc;
}

static int lay_out(struct kvcalc *k, struct soq_error *err)
{
    const struct soq__settings *settings = k->runtime->settings;
    struct soq__kv_layout_params p = {.hparams = &k->hparams};
    uint32_t longest = 0;
    int rc;

    for (size_t i = 0; i < k->n_lengths; i++)
        longest = k->lengths[i] > longest ? (uint32_t)k->lengths[i] : longest;
    p.block_tokens = (uint32_t)soq__settings_int(settings, "kv", "block_tokens");
    p.codec_k = k->codec_k.plugin->ops.kv_codec;
    p.codec_k_self = k->codec_k.self;
    p.codec_v = k->codec_v.plugin->ops.kv_codec;
    p.codec_v_self = k->codec_v.self;
    k->chunk = (uint32_t)soq__settings_int(settings, "engine", "chunk");
    rc = soq__policy_plan(&k->policy, &k->hparams, longest, p.block_tokens, &p.plan, err);
    return rc ? rc : soq__kv_layout_init(&k->layout, &p, err);
}

/* ---- Output */

static uint64_t bytes_per_token(const struct kvcalc *k)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < k->layout.n_groups; g++)
        bytes += k->layout.groups[g].block_bytes;
    return bytes / k->layout.block_tokens;
}

/* Of the blocks that a sequence holds at most; the pool takes them in slabs. */
static uint64_t held_bytes(const struct kvcalc *k, int64_t length)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < k->layout.n_groups; g++)
        bytes += soq__kv_group_blocks(&k->layout, g, (uint32_t)length, k->chunk) * k->layout.groups[g].block_bytes;
    return bytes;
}

static uint64_t reserved_bytes(const struct kvcalc *k, int64_t length)
{
    return soq__kv_layout_bytes(&k->layout, (uint32_t)length, k->chunk);
}

static void print_table(const struct kvcalc *k)
{
    char held[32], reserved[32], total[32];

    soq__out_printf("policy %s, keys %s, values %s, blocks of %u tokens\n", k->policy.plugin->name, k->codec_k.plugin->name,
                    k->codec_v.plugin->name, k->layout.block_tokens);
    for (uint32_t g = 0; g < k->layout.n_groups; g++) {
        const struct soq__kv_group_layout *group = &k->layout.groups[g];

        soq__out_printf("group %u: %u layers, %llu bytes per token", g, group->n_layers,
                        (unsigned long long)(group->block_bytes / k->layout.block_tokens));
        soq__out_printf(group->window ? ", window %u\n" : ", no window\n", group->window);
    }
    soq__out_printf("%llu bytes per token while nothing is dropped\n\n", (unsigned long long)bytes_per_token(k));
    soq__out_printf("%10s %14s %14s %14s\n", "tokens", "blocks", "sequence", "all");
    for (size_t i = 0; i < k->n_lengths; i++)
        soq__out_printf("%10lld %14s %14s %14s\n", (long long)k->lengths[i],
                        soq__size_text(held_bytes(k, k->lengths[i]), held, sizeof held),
                        soq__size_text(reserved_bytes(k, k->lengths[i]), reserved, sizeof reserved),
                        soq__size_text(reserved_bytes(k, k->lengths[i]) * (uint64_t)k->options->batch, total, sizeof total));
}

static int print_json(const struct kvcalc *k)
{
    json_t *groups = json_array(), *lengths = json_array();

    for (uint32_t g = 0; g < k->layout.n_groups; g++) {
        const struct soq__kv_group_layout *group = &k->layout.groups[g];

        json_array_append_new(groups, json_pack("{sI sI sI}", "layers", (json_int_t)group->n_layers, "window",
                                                (json_int_t)group->window, "bytes_per_token",
                                                (json_int_t)(group->block_bytes / k->layout.block_tokens)));
    }
    for (size_t i = 0; i < k->n_lengths; i++) {
        json_int_t reserved = (json_int_t)reserved_bytes(k, k->lengths[i]);

        json_array_append_new(lengths, json_pack("{sI sI sI sI}", "tokens", (json_int_t)k->lengths[i], "block_bytes",
                                                 (json_int_t)held_bytes(k, k->lengths[i]), "sequence_bytes", reserved,
                                                 "total_bytes", reserved * k->options->batch));
    }
    return soq__json_line(json_pack("{ss ss ss sI sI sI so so}", "policy", k->policy.plugin->name, "codec_k",
                                    k->codec_k.plugin->name, "codec_v", k->codec_v.plugin->name, "block_tokens",
                                    (json_int_t)k->layout.block_tokens, "batch", (json_int_t)k->options->batch,
                                    "bytes_per_token", (json_int_t)bytes_per_token(k), "groups", groups, "lengths", lengths));
}

static int calculate(struct kvcalc *k, const struct soq__args *args, struct soq_error *err)
{
    int rc = soq__cli_runtime(args, &k->runtime, err);

    if (!rc)
        rc = read_shape(k, err);
    if (!rc)
        rc = read_lengths(k, err);
    if (!rc)
        rc = load_plugins(k, err);
    if (!rc)
        rc = lay_out(k, err);
    if (!rc && k->options->json)
        print_json(k);
    else if (!rc)
        print_table(k);
    return rc;
}

int soq__cmd_kvcalc(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct kvcalc_options options = {.batch = 1};
    struct kvcalc k = {.options = &options};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON) {
        rc = calculate(&k, &args, &err);
        status = rc ? soq__cli_fail("kvcalc", rc, &err) : SOQ_EXIT_OK;
    }
    soq__kv_layout_done(&k.layout);
    soq__role_done(&k.codec_v);
    soq__role_done(&k.codec_k);
    soq__role_done(&k.policy);
    soq_runtime_free(k.runtime);
    soq__args_done(&args);
    return soq__out_finish("kvcalc", status);
}
