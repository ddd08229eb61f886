/* `soquete kvcalc`: what a KV cache will take, by the code that lays the cache out. No weights are loaded. */
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "cli/json_out.h"
#include "cli/load.h"
#include "cli/out.h"
#include "config/settings.h"
#include "engine/draft.h"
#include "kv/promise.h"
#include "model/fingerprint.h"

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
    SOQ__SETTING("kv.codec", "codec", 0, "NAME", "The plugin that stores keys and values."),
    SOQ__SETTING("kv.codec_k", "codec-k", 0, "NAME", "... that stores keys, in place of it."),
    SOQ__SETTING("kv.codec_v", "codec-v", 0, "NAME", "... that stores values."),
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
    struct soq__gguf *gguf; /* NULL: a shape by hand */
    struct soq__hparams hparams;
    struct soq__policies policies;
    struct soq__codecs codecs;
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
    return soq__cli_gguf(k->runtime, &k->gguf, &k->hparams, err);
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
    struct soq__layer_rules layers;
    struct soq__hash fingerprint;
    struct soq__policies_params p = {
        .registry = k->runtime->registry,
        .settings = k->runtime->settings,
        .host = &k->host.services,
        .hparams = &k->hparams,
        .layers = &layers,
        .fingerprint = k->gguf ? &fingerprint : NULL,
        .lossy = soq__drafts_most(k->runtime->settings) > 0,
    };
    int rc = soq__layer_rules_init(&layers, p.settings, k->hparams.n_layers, k->hparams.n_kv_heads, err);

    for (size_t i = 0; i < k->n_lengths; i++)
        p.context = k->lengths[i] > p.context ? (uint32_t)k->lengths[i] : p.context;
    if (!rc && k->gguf)
        rc = soq__model_fingerprint(k->gguf, &fingerprint, err);
    if (!rc)
        rc = soq__policies_init(&k->policies, &p, err);
    if (!rc)
        rc = soq__codecs_init(&k->codecs, &p, err);
    if (!rc && p.lossy)
        rc = soq__drafting_check_policies(&k->policies, err);
    soq__layer_rules_done(&layers);
    return rc;
}

static int lay_out(struct kvcalc *k, struct soq_error *err)
{
    const struct soq__settings *settings = k->runtime->settings;
    const struct soq__kv_layout_params p = {
        .hparams = &k->hparams,
        .block_tokens = (uint32_t)soq__settings_int(settings, "kv", "block_tokens"),
        .policies = k->policies.kv,
        .head_policy = {k->policies.of[SOQ__KV_FULL], k->policies.of[SOQ__KV_LOSSY]},
        .codecs = k->codecs.kv,
        .layer_codecs = {k->codecs.of_layer[SOQ__KV_FULL], k->codecs.of_layer[SOQ__KV_LOSSY]},
        .codec_origins = {k->codecs.origins[SOQ__KV_FULL], k->codecs.origins[SOQ__KV_LOSSY]},
        .pack_grid = (uint32_t)soq__settings_int(settings, "kv", "pack_grid"),
        .residual = (uint32_t)soq__settings_int(settings, "kv", "residual"),
    };

    k->chunk = (uint32_t)soq__settings_int(settings, "engine", "chunk");
    if (k->chunk < 1 + soq__drafts_most(settings))
        k->chunk = 1 + soq__drafts_most(settings);
    return soq__kv_layout_init(&k->layout, &p, err);
}

/* ---- Output */

/* The one of [kv]. */
static const char *codec_name(const struct kvcalc *k, const char *key)
{
    return soq__codec_setting(k->runtime->settings, "kv", key);
}

static uint64_t bytes_per_token(const struct kvcalc *k)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < k->layout.n_groups; g++)
        bytes += soq__kv_final_bytes(&k->layout.groups[g]);
    return bytes / k->layout.block_tokens;
}

/* Of a number of keys and values, all that belongs to it counted. */
static double bits_per_number(const struct kvcalc *k, const struct soq__kv_group_layout *g)
{
    uint64_t width = 0;

    for (uint32_t i = 0; i < g->n_planes; i++)
        width += g->planes[i].width;
    return 8 * (double)soq__kv_final_bytes(g) / ((double)k->layout.block_tokens * g->n_layers * g->n_heads * (double)width);
}

/* Bytes of a sequence that is all prompt. */
struct forecast {
    uint64_t prompt; /* blocks when the prompt is computed */
    uint64_t kept;   /* blocks after what policies then evict */
    uint64_t peak;   /* slabs, the most on the way */
};

static struct forecast forecast(const struct kvcalc *k, int64_t length)
{
    const struct soq__kv_need_params params = {
        .layout = &k->layout,
        .policies = k->policies.kv,
        .chunk = k->chunk,
        .n_prompt = (uint32_t)length,
        .n_entries = (uint32_t)length,
    };
    struct forecast f = {0};

    for (uint32_t pool = 0; pool < k->layout.n_pools; pool++) {
        uint64_t block = soq__kv_pool_block_bytes(&k->layout, pool), slab = soq__kv_slab_bytes(block);
        struct soq__kv_need need;

        soq__kv_need(&params, pool, &need);
        f.prompt += need.prompt * block;
        f.kept += need.kept * block;
        f.peak += (soq__kv_need_peak(&need) + slab / block - 1) / (slab / block) * slab;
    }
    return f;
}

/* Groups with this one's shape and masks, from it on; 0: an earlier one speaks for it. */
static uint32_t groups_alike(const struct soq__kv_layout *layout, uint32_t g)
{
    const struct soq__kv_group_layout *a = &layout->groups[g];
    uint32_t n = 0;

    for (uint32_t i = 0; i < layout->n_groups; i++) {
        const struct soq__kv_group_layout *b = &layout->groups[i];
        bool alike = a->pool == b->pool && a->policy == b->policy && a->window == b->window; /* so codecs are, too */

        if (alike && i < g)
            return 0;
        n += alike;
    }
    return n;
}

static void print_group(const struct kvcalc *k, uint32_t g, uint32_t n)
{
    const struct soq__kv_group_layout *group = &k->layout.groups[g];

    soq__out_printf(n > 1 ? "groups %u, ... (%u): " : "group %u: ", g, n);
    soq__out_printf("%s%u layers, ", group->view == SOQ__KV_LOSSY ? "lossy view, " : "", group->n_layers);
    if (group->n_heads < k->layout.n_heads)
        soq__out_printf("%u of %u heads, ", group->n_heads, k->layout.n_heads);
    soq__out_printf("%llu bytes per token (%.3g bits per number), ",
                    (unsigned long long)(soq__kv_final_bytes(group) / k->layout.block_tokens), bits_per_number(k, group));
    if (group->packs)
        soq__out_printf("%llu until packed, every %u tokens, %u before stay, ",
                        (unsigned long long)(group->block_bytes / k->layout.block_tokens), group->grid, group->residual);
    soq__out_printf("keys %s, values %s, ", k->codecs.kv[group->codecs.key].name, k->codecs.kv[group->codecs.value].name);
    if (k->policies.n > 1 && group->policy != SOQ__KV_NO_POLICY)
        soq__out_printf("policy %s, ", k->policies.kv[group->policy].name);
    soq__out_printf(group->window ? "window %u\n" : "no window\n", group->window);
}

static void print_table(const struct kvcalc *k)
{
    char prompt[32], kept[32], peak[32], total[32];

    soq__out_printf("policy %s, keys %s, values %s, blocks of %u tokens\n", k->policies.kv[0].name, codec_name(k, "codec_k"),
                    codec_name(k, "codec_v"), k->layout.block_tokens);
    for (uint32_t g = 0; g < k->layout.n_groups; g++) {
        uint32_t n = groups_alike(&k->layout, g);

        if (n)
            print_group(k, g, n);
    }
    soq__out_printf("%llu bytes per token while nothing is dropped\n", (unsigned long long)bytes_per_token(k));
    soq__out_printf(
        "blocks: at the end of a prompt of so many tokens; kept: after it; sequence: slabs, at most; all: sequences\n\n");
    soq__out_printf("%10s %14s %14s %14s %14s\n", "tokens", "blocks", "kept", "sequence", "all");
    for (size_t i = 0; i < k->n_lengths; i++) {
        struct forecast f = forecast(k, k->lengths[i]);

        soq__out_printf("%10lld %14s %14s %14s %14s\n", (long long)k->lengths[i],
                        soq__size_text(f.prompt, prompt, sizeof prompt), soq__size_text(f.kept, kept, sizeof kept),
                        soq__size_text(f.peak, peak, sizeof peak),
                        soq__size_text(f.peak * (uint64_t)k->options->batch, total, sizeof total));
    }
}

static int print_json(const struct kvcalc *k)
{
    json_t *groups = json_array(), *lengths = json_array();

    for (uint32_t g = 0; g < k->layout.n_groups; g++) {
        const struct soq__kv_group_layout *group = &k->layout.groups[g];
        bool ruled = group->policy != SOQ__KV_NO_POLICY;

        json_array_append_new(
            groups,
            json_pack("{ss sI sI sI sI sI sf ss ss ss*}", "view", group->view == SOQ__KV_LOSSY ? "lossy" : "full", "layers",
                      (json_int_t)group->n_layers, "heads", (json_int_t)group->n_heads, "window", (json_int_t)group->window,
                      "bytes_per_token", (json_int_t)(soq__kv_final_bytes(group) / k->layout.block_tokens),
                      "plain_bytes_per_token", (json_int_t)(group->block_bytes / k->layout.block_tokens), "bits_per_number",
                      bits_per_number(k, group), "codec_k", k->codecs.kv[group->codecs.key].name, "codec_v",
                      k->codecs.kv[group->codecs.value].name, "policy", ruled ? k->policies.kv[group->policy].name : NULL));
    }
    for (size_t i = 0; i < k->n_lengths; i++) {
        struct forecast f = forecast(k, k->lengths[i]);

        json_array_append_new(lengths, json_pack("{sI sI sI sI sI}", "tokens", (json_int_t)k->lengths[i], "block_bytes",
                                                 (json_int_t)f.prompt, "kept_bytes", (json_int_t)f.kept, "sequence_bytes",
                                                 (json_int_t)f.peak, "total_bytes", (json_int_t)f.peak * k->options->batch));
    }
    return soq__json_line(json_pack("{ss ss ss sI sI sI so so}", "policy", k->policies.kv[0].name, "codec_k",
                                    codec_name(k, "codec_k"), "codec_v", codec_name(k, "codec_v"), "block_tokens",
                                    (json_int_t)k->layout.block_tokens, "batch", (json_int_t)k->options->batch,
                                    "bytes_per_token", (json_int_t)bytes_per_token(k), "groups", groups, "lengths", lengths));
}

static int calculate(struct kvcalc *k, const struct soq__args *args, struct soq_error *err)
{
    int rc = soq__cli_runtime(args, &k->runtime, err);

    soq__host_init(&k->host, NULL);
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
    soq__codecs_done(&k.codecs);
    soq__policies_done(&k.policies);
    soq__gguf_close(k.gguf);
    soq_runtime_free(k.runtime);
    soq__args_done(&args);
    return soq__out_finish("kvcalc", status);
}
