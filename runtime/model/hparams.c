/* Hyperparameters from GGUF metadata: "<architecture>.<key>". */
#include "model/hparams.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Ceilings that no real model reaches; they keep every later product far from overflow. */
#define MAX_LAYERS 4096u
#define MAX_WIDTH (1u << 20)
#define MAX_HEADS 4096u
#define MAX_CONTEXT (1u << 27)
#define MAX_VOCAB (1u << 24)

struct reader {
    const struct soq__gguf *g;
    const char *arch;
    struct soq_error *err;
    int rc; /* first failure; later reads do nothing */
    char key[256];
};

static const char *key_of(struct reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

SOQ_PRINTF(4, 5)
static void fail(struct reader *r, enum soq_error_code code, const char *name, const char *fmt, ...)
{
    char what[256];
    va_list args;

    if (r->rc)
        return;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    r->rc = soq__fail(r->err, code, "%s: %s: %s", soq__gguf_path(r->g), key_of(r, name), what);
}

static void check_range(struct reader *r, const char *name, uint32_t value, uint32_t max)
{
    if (value < 1 || value > max)
        fail(r, SOQ_EINVAL, name, "%u is out of range (1 to %u)", value, max);
}

static uint32_t need_u32(struct reader *r, const char *name, uint32_t max)
{
    uint32_t value = 0;

    if (!r->rc)
        r->rc = soq__gguf_u32(r->g, key_of(r, name), &value, r->err);
    check_range(r, name, value, max);
    return value;
}

static uint32_t get_u32(struct reader *r, const char *name, uint32_t absent)
{
    uint32_t value = absent;

    if (!r->rc)
        r->rc = soq__gguf_u32_or(r->g, key_of(r, name), absent, &value, r->err);
    return value;
}

static float get_f32(struct reader *r, const char *name, float absent)
{
    float value = absent;

    if (!r->rc)
        r->rc = soq__gguf_f32_or(r->g, key_of(r, name), absent, &value, r->err);
    return value;
}

/* cap * tanh(x / cap); 0: none */
static float get_softcap(struct reader *r, const char *name)
{
    float value = get_f32(r, name, 0.0f);

    if (value < 0.0f)
        fail(r, SOQ_EINVAL, name, "%g is negative; 0 means none", (double)value);
    return value;
}

/* A number that some files give per layer: accepted when all layers agree. */
static uint32_t uniform_u32(struct reader *r, const char *name, uint32_t absent, uint32_t max)
{
    const struct soq__gguf_kv *kv = r->rc ? NULL : soq__gguf_find(r->g, key_of(r, name));
    int64_t first;

    if (r->rc || (!kv && absent))
        return absent;
    if (!kv || kv->type != SOQ__GGUF_ARRAY)
        return need_u32(r, name, max);
    r->rc = soq__gguf_ints(r->g, key_of(r, name), &kv, r->err);
    if (r->rc)
        return 0;
    first = kv->count ? soq__gguf_int_at(kv, 0) : 0;
    for (uint64_t i = 1; i < kv->count; i++)
        if (soq__gguf_int_at(kv, i) != first)
            fail(r, SOQ_EUNSUPPORTED, name,
                 "%lld in the first layer, %lld in another: layers of different sizes are not supported yet", (long long)first,
                 (long long)soq__gguf_int_at(kv, i));
    check_range(r, name, first < 0 || first > UINT32_MAX ? 0 : (uint32_t)first, max);
    return (uint32_t)first;
}

static bool key_is(struct reader *r, const char *name, struct soq__gguf_str *value_out)
{
    if (r->rc || !soq__gguf_find(r->g, key_of(r, name)))
        return false;
    r->rc = soq__gguf_string(r->g, key_of(r, name), value_out, r->err);
    return !r->rc;
}

static void read_scaling(struct reader *r, const struct soq__hparams *hp, struct soq__rope_params *rope)
{
    struct soq__gguf_str type;
    float log_multiplier;

    rope->factor = get_f32(r, "rope.scaling.factor", 1.0f);
    if (!key_is(r, "rope.scaling.type", &type) || soq__gguf_str_equal(type, "none"))
        return;
    if (soq__gguf_str_equal(type, "linear")) {
        rope->scaling = SOQ__ROPE_LINEAR;
    } else if (soq__gguf_str_equal(type, "yarn")) {
        rope->scaling = SOQ__ROPE_YARN;
        rope->original_context = get_u32(r, "rope.scaling.original_context_length", hp->context_train);
        rope->beta_fast = get_f32(r, "rope.scaling.yarn_beta_fast", 32.0f);
        rope->beta_slow = get_f32(r, "rope.scaling.yarn_beta_slow", 1.0f);
        rope->ext_factor = get_f32(r, "rope.scaling.yarn_ext_factor", 1.0f);
        rope->attn_factor = get_f32(r, "rope.scaling.yarn_attn_factor", get_f32(r, "rope.scaling.attn_factor", 1.0f));
        log_multiplier = get_f32(r, "rope.scaling.yarn_log_multiplier", 0.0f);
        if (log_multiplier != 0.0f)
            fail(r, SOQ_EUNSUPPORTED, "rope.scaling.yarn_log_multiplier",
                 "%g: YaRN with a temperature of its own is not supported", (double)log_multiplier);
        if (!rope->original_context || rope->beta_fast <= 0 || rope->beta_slow <= 0 || rope->attn_factor <= 0)
            fail(r, SOQ_EINVAL, "rope.scaling",
                 "YaRN with original_context_length = %u, betas %g and %g, attn_factor %g: all must be positive",
                 rope->original_context, (double)rope->beta_fast, (double)rope->beta_slow, (double)rope->attn_factor);
    } else {
        fail(r, SOQ_EUNSUPPORTED, "rope.scaling.type",
             "\"%.*s\" is not known; this release has none, linear and yarn, and llama3 by rope_freqs",
             (int)(type.len < 64 ? type.len : 64), type.data);
    }
    if (rope->factor < 1.0f)
        fail(r, SOQ_EINVAL, "rope.scaling.factor", "%g, must be at least 1", (double)rope->factor);
}

static void read_rope(struct reader *r, struct soq__hparams *hp)
{
    struct soq__rope_params *rope = &hp->rope;

    rope->n_rot = get_u32(r, "rope.dimension_count", hp->head_dim_k);
    if (!r->rc && (rope->n_rot < 2 || rope->n_rot % 2 || rope->n_rot > hp->head_dim_k))
        fail(r, SOQ_EINVAL, "rope.dimension_count", "%u, must be even and at most the head size, %u", rope->n_rot,
             hp->head_dim_k);
    rope->base = get_f32(r, "rope.freq_base", 10000.0f);
    if (rope->base <= 1.0f)
        fail(r, SOQ_EINVAL, "rope.freq_base", "%g, must be greater than 1", (double)rope->base);
    read_scaling(r, hp, rope);
    hp->window_rope = *rope;
    if (hp->arch->features & SOQ__HAS_WINDOWS) {
        hp->window_rope.scaling = SOQ__ROPE_NONE;
        hp->window_rope.base = get_f32(r, "rope.freq_base_swa", hp->arch->window_rope_base);
        if (hp->window_rope.base <= 1.0f)
            fail(r, SOQ_EINVAL, "rope.freq_base_swa", "%g, must be greater than 1", (double)hp->window_rope.base);
    }
}

static void read_windows(struct reader *r, struct soq__hparams *hp)
{
    uint32_t window = get_u32(r, "attention.sliding_window", 0);

    if (!window)
        return;
    if (!(hp->arch->features & SOQ__HAS_WINDOWS)) {
        fail(r, SOQ_EUNSUPPORTED, "attention.sliding_window",
             "%u: this family's windows are not supported yet, and full attention would be wrong", window);
        return;
    }
    hp->window = window;
    hp->window_pattern = uniform_u32(r, "attention.sliding_window_pattern", hp->arch->window_pattern, MAX_LAYERS);
}

static void read_attention(struct reader *r, struct soq__hparams *hp)
{
    uint32_t per_head;

    hp->n_heads = uniform_u32(r, "attention.head_count", 0, MAX_HEADS);
    hp->n_kv_heads = uniform_u32(r, "attention.head_count_kv", hp->n_heads, MAX_HEADS);
    if (r->rc)
        return;
    per_head = hp->dim[SOQ__DIM_EMBD] / hp->n_heads;
    hp->head_dim_k = get_u32(r, "attention.key_length", per_head);
    hp->head_dim_v = get_u32(r, "attention.value_length", per_head);
    check_range(r, "attention.key_length", hp->head_dim_k, 1024);
    check_range(r, "attention.value_length", hp->head_dim_v, 1024);
    if (!r->rc && hp->n_heads % hp->n_kv_heads)
        fail(r, SOQ_EINVAL, "attention.head_count", "%u is no multiple of attention.head_count_kv = %u", hp->n_heads,
             hp->n_kv_heads);
    hp->attn_scale = 1.0f / sqrtf((float)hp->head_dim_k);
    hp->attn_softcap = get_softcap(r, "attn_logit_softcapping");
    hp->logit_softcap = get_softcap(r, "final_logit_softcapping");
}

/* Gemma 3 27B alone scales queries by its width per head (its config's query_pre_attn_scalar); GGUF has no key for it. */
static void fix_gemma3_27b(struct soq__hparams *hp)
{
    if (hp->arch->features & SOQ__HAS_EMBED_SCALE && hp->n_layers == 62)
        hp->attn_scale = 1.0f / sqrtf((float)(hp->dim[SOQ__DIM_EMBD] / hp->n_heads));
}

/* Keys whose presence changes the computation in a way that this release does not know. */
static const char *const refused_keys[] = {
    "logit_scale",         "residual_scale",           "embedding_scale",   "attention.scale",
    "attention.clamp_kqv", "attention.max_alibi_bias", "rope.scale_linear", /* of old files */
};

static void refuse_unknown_math(struct reader *r)
{
    uint32_t experts = get_u32(r, "expert_count", 0);

    if (experts)
        fail(r, SOQ_EUNSUPPORTED, "expert_count", "%u: mixture-of-experts models are not supported yet", experts);
    for (size_t i = 0; i < sizeof refused_keys / sizeof refused_keys[0]; i++)
        if (!r->rc && soq__gguf_find(r->g, key_of(r, refused_keys[i])))
            fail(r, SOQ_EUNSUPPORTED, refused_keys[i], "is not supported yet, and ignoring it would be wrong");
}

static uint32_t read_vocab_size(struct reader *r)
{
    const struct soq__gguf_tensor *embd = soq__gguf_tensor_find(r->g, "token_embd.weight");

    if (!embd && !r->rc)
        r->rc = soq__fail(r->err, SOQ_EINVAL, "%s: tensor token_embd.weight is missing: the file holds no model",
                          soq__gguf_path(r->g));
    if (r->rc)
        return 0;
    if (embd->ne[1] < 1 || embd->ne[1] > MAX_VOCAB)
        r->rc = soq__fail(r->err, SOQ_EINVAL, "%s: token_embd.weight: %llu rows are out of range (1 to %u)",
                          soq__gguf_path(r->g), (unsigned long long)embd->ne[1], MAX_VOCAB);
    return (uint32_t)embd->ne[1];
}

int soq__hparams_read(const struct soq__gguf *g, struct soq__hparams *out, struct soq_error *err)
{
    struct soq__hparams hp = {0};
    struct reader r = {.g = g, .err = err};
    struct soq__gguf_str name;

    r.rc = soq__gguf_string(g, "general.architecture", &name, err);
    if (r.rc)
        return r.rc;
    hp.arch = soq__arch_find(name.data, name.len);
    if (!hp.arch)
        return soq__fail(err, SOQ_EUNSUPPORTED, "%s: general.architecture: \"%.*s\" is not supported; this release runs %s",
                         soq__gguf_path(g), (int)(name.len < 64 ? name.len : 64), name.data, soq__arch_names());
    r.arch = hp.arch->name;
    refuse_unknown_math(&r);
    hp.n_layers = need_u32(&r, "block_count", MAX_LAYERS);
    hp.context_train = need_u32(&r, "context_length", MAX_CONTEXT);
    hp.dim[SOQ__DIM_ONE] = 1;
    hp.dim[SOQ__DIM_EMBD] = need_u32(&r, "embedding_length", MAX_WIDTH);
    hp.dim[SOQ__DIM_FF] = uniform_u32(&r, "feed_forward_length", 0, MAX_WIDTH);
    hp.dim[SOQ__DIM_VOCAB] = read_vocab_size(&r);
    read_attention(&r, &hp);
    read_windows(&r, &hp);
    read_rope(&r, &hp);
    hp.norm_eps = get_f32(&r, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (hp.norm_eps <= 0.0f)
        fail(&r, SOQ_EINVAL, "attention.layer_norm_rms_epsilon", "%g, must be positive", (double)hp.norm_eps);
    if (r.rc)
        return r.rc;
    hp.dim[SOQ__DIM_Q] = hp.n_heads * hp.head_dim_k;
    hp.dim[SOQ__DIM_K] = hp.n_kv_heads * hp.head_dim_k;
    hp.dim[SOQ__DIM_V] = hp.n_kv_heads * hp.head_dim_v;
    hp.dim[SOQ__DIM_O] = hp.n_heads * hp.head_dim_v;
    hp.dim[SOQ__DIM_HEAD] = hp.head_dim_k;
    hp.embed_scale = hp.arch->features & SOQ__HAS_EMBED_SCALE ? sqrtf((float)hp.dim[SOQ__DIM_EMBD]) : 1.0f;
    fix_gemma3_27b(&hp);
    *out = hp;
    return 0;
}
