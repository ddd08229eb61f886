/* What a model file must say: a table of files that are wrong in one thing, and the message each gets: file, key or tensor,
 * value. */
#include <criterion/criterion.h>
#include <math.h>

#include "base/alloc.h"
#include "base/log.h"
#include "model/model.h"
#include "tests/unit/tiny_model.h"

static int load(const struct tiny_kv *kv, const struct tiny_tensor *tensor, struct soq__model **out, struct soq_error *err)
{
    struct soq_buf b = SOQ_BUF_INIT;
    char *path;
    int rc;

    tiny_build(&b, kv, tensor);
    path = tiny_file(b.data, b.len);
    rc = soq__model_load(path, NULL, out, err);
    if (rc)
        cr_expect(strstr(err->text, path), "does not name the file: %s", err->text);
    unlink(path);
    free(path);
    soq__buf_done(&b);
    return rc;
}

Test(hparams, the_tiny_model_is_fine)
{
    int64_t live = soq__alloc_live();
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__model *m = NULL;

    cr_assert_eq(load(NULL, NULL, &m, &err), 0, "%s", err.text);
    cr_expect_eq(m->hparams.n_layers, 1);
    cr_expect_eq(m->hparams.head_dim_k, 16, "width / heads, where the file does not say");
    cr_expect_eq(m->hparams.rope.n_rot, 16);
    cr_expect_eq(m->hparams.dim[SOQ__DIM_VOCAB], TINY_VOCAB);
    cr_expect_eq(m->n_parameters, 2 * 32 * TINY_VOCAB + 3 * 32 + 5 * 32 * 32 + 2 * 16 * 32);
    cr_expect_not_null(m->output);
    cr_expect_null(m->tokenizer);
    soq__model_free(m);
    cr_expect_eq(soq__alloc_live(), live);
}

#define U32 SOQ__GGUF_U32
#define F32 SOQ__GGUF_F32
#define STRING SOQ__GGUF_STRING
#define ARRAY SOQ__GGUF_ARRAY

Test(hparams, metadata)
{
    static const struct {
        struct tiny_kv kv;
        int code;
        const char *says; /* the value, or what is missing */
    } cases[] = {
        {{"general.architecture", TINY_ABSENT, 0, NULL}, -SOQ_ENOTFOUND, "general.architecture"},
        {{"general.architecture", STRING, 0, "mamba"}, -SOQ_EUNSUPPORTED, "\"mamba\""},
        {{"general.architecture", STRING, 0, ""}, -SOQ_EUNSUPPORTED, "\"\""},
        {{"general.architecture", U32, 7, NULL}, -SOQ_EINVAL, "general.architecture"},
        {{"llama.block_count", TINY_ABSENT, 0, NULL}, -SOQ_ENOTFOUND, "llama.block_count"},
        {{"llama.block_count", U32, 0, NULL}, -SOQ_EINVAL, "0 is out of range"},
        {{"llama.block_count", U32, 5000, NULL}, -SOQ_EINVAL, "5000 is out of range"},
        {{"llama.block_count", U32, 2, NULL}, -SOQ_ENOTFOUND, "blk.1.attn_norm.weight"},
        {{"llama.block_count", STRING, 0, "1"}, -SOQ_EINVAL, "llama.block_count"},
        {{"llama.block_count", F32, 1, NULL}, -SOQ_EINVAL, "llama.block_count"},
        {{"llama.context_length", TINY_ABSENT, 0, NULL}, -SOQ_ENOTFOUND, "llama.context_length"},
        {{"llama.context_length", U32, 0, NULL}, -SOQ_EINVAL, "0 is out of range"},
        {{"llama.context_length", U32, 4294967295.0, NULL}, -SOQ_EINVAL, "4294967295"},
        {{"llama.embedding_length", U32, 0, NULL}, -SOQ_EINVAL, "0 is out of range"},
        {{"llama.embedding_length", U32, 64, NULL}, -SOQ_EINVAL, "token_embd.weight"},
        {{"llama.embedding_length", U32, 4294967295.0, NULL}, -SOQ_EINVAL, "4294967295"},
        {{"llama.feed_forward_length", TINY_ABSENT, 0, NULL}, -SOQ_ENOTFOUND, "llama.feed_forward_length"},
        {{"llama.feed_forward_length", U32, 64, NULL}, -SOQ_EINVAL, "blk.0.ffn_gate.weight"},
        {{"llama.feed_forward_length", ARRAY, 0, ""}, -SOQ_EINVAL, "0 is out of range"},
        {{"llama.feed_forward_length", ARRAY, 0, "32 64"}, -SOQ_EUNSUPPORTED, "32 in the first layer, 64"},
        {{"llama.feed_forward_length", STRING, 0, "32"}, -SOQ_EINVAL, "llama.feed_forward_length"},
        {{"llama.attention.head_count", TINY_ABSENT, 0, NULL}, -SOQ_ENOTFOUND, "llama.attention.head_count"},
        {{"llama.attention.head_count", U32, 0, NULL}, -SOQ_EINVAL, "0 is out of range"},
        {{"llama.attention.head_count", U32, 33, NULL}, -SOQ_EINVAL, "llama.attention.key_length"}, /* 32 / 33 */
        {{"llama.attention.head_count", U32, 100000, NULL}, -SOQ_EINVAL, "100000"},
        {{"llama.attention.head_count", ARRAY, 0, "2 4"}, -SOQ_EUNSUPPORTED, "llama.attention.head_count"},
        {{"llama.attention.head_count_kv", U32, 0, NULL}, -SOQ_EINVAL, "0 is out of range"},
        {{"llama.attention.head_count_kv", U32, 3, NULL}, -SOQ_EINVAL, "2 is no multiple of attention.head_count_kv = 3"},
        {{"llama.attention.key_length", U32, 2000, NULL}, -SOQ_EINVAL, "2000"},
        {{"llama.attention.key_length", U32, 8, NULL}, -SOQ_EINVAL, "blk.0.attn_q.weight"},
        {{"llama.attention.value_length", U32, 8, NULL}, -SOQ_EINVAL, "blk.0.attn_v.weight"},
        {{"llama.attention.layer_norm_rms_epsilon", F32, 0, NULL}, -SOQ_EINVAL, "0, must be positive"},
        {{"llama.attention.layer_norm_rms_epsilon", F32, -1, NULL}, -SOQ_EINVAL, "-1, must be positive"},
        {{"llama.attention.layer_norm_rms_epsilon", F32, NAN, NULL}, -SOQ_EINVAL, "nan"},
        {{"llama.attention.layer_norm_rms_epsilon", U32, 1, NULL}, -SOQ_EINVAL, "layer_norm_rms_epsilon"},
        {{"llama.attention.sliding_window", U32, 16, NULL}, -SOQ_EUNSUPPORTED, "16"},
        {{"llama.attn_logit_softcapping", F32, -1, NULL}, -SOQ_EINVAL, "-1"},
        {{"llama.final_logit_softcapping", F32, INFINITY, NULL}, -SOQ_EINVAL, "inf"},
        {{"llama.expert_count", U32, 8, NULL}, -SOQ_EUNSUPPORTED, "8"},
        {{"llama.logit_scale", F32, 2, NULL}, -SOQ_EUNSUPPORTED, "llama.logit_scale"},
        {{"llama.attention.scale", F32, 2, NULL}, -SOQ_EUNSUPPORTED, "llama.attention.scale"},
        {{"llama.rope.scale_linear", F32, 2, NULL}, -SOQ_EUNSUPPORTED, "llama.rope.scale_linear"},
        {{"llama.rope.freq_base", F32, 1, NULL}, -SOQ_EINVAL, "1, must be greater than 1"},
        {{"llama.rope.freq_base", F32, -3, NULL}, -SOQ_EINVAL, "-3"},
        {{"llama.rope.freq_base", F32, NAN, NULL}, -SOQ_EINVAL, "nan"},
        {{"llama.rope.freq_base", F32, INFINITY, NULL}, -SOQ_EINVAL, "inf"},
        {{"llama.rope.dimension_count", U32, 7, NULL}, -SOQ_EINVAL, "7, must be even"},
        {{"llama.rope.dimension_count", U32, 0, NULL}, -SOQ_EINVAL, "0, must be even"},
        {{"llama.rope.dimension_count", U32, 18, NULL}, -SOQ_EINVAL, "18, must be even and at most the head size, 16"},
        {{"llama.rope.scaling.type", STRING, 0, "longrope"}, -SOQ_EUNSUPPORTED, "\"longrope\""},
        {{"llama.rope.scaling.type", U32, 1, NULL}, -SOQ_EINVAL, "llama.rope.scaling.type"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t live = soq__alloc_live();
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__model *m = NULL;
        int rc = load(&cases[i].kv, NULL, &m, &err);
        const char *key = strchr(cases[i].kv.key, '.') + 1;

        cr_expect_eq(rc, cases[i].code, "case %zu, %s: %d, %s", i, cases[i].kv.key, rc, err.text);
        cr_expect(strstr(err.text, cases[i].says), "case %zu, %s: %s", i, cases[i].says, err.text);
        if (strstr(cases[i].says, "weight") == NULL && strstr(cases[i].says, "key_length") == NULL)
            cr_expect(strstr(err.text, key), "case %zu, %s: %s", i, key, err.text);
        cr_expect_null(m);
        soq__model_free(m);
        cr_expect_eq(soq__alloc_live(), live, "case %zu leaks", i);
    }
}

/* Uses of scaling that need two keys. */
Test(hparams, scaling)
{
    static const struct {
        const char *script; /* the keys after general.architecture and those that every file needs */
        const char *says;
    } cases[] = {
        {"key llama.rope.scaling.type 8 str linear key llama.rope.scaling.factor 6 u32 0x3f000000", "0.5, must be at least 1"},
        {"key llama.rope.scaling.type 8 str linear key llama.rope.scaling.factor 6 u32 0x7f800000", "inf"},
        {"key llama.rope.scaling.type 8 str yarn key llama.rope.scaling.original_context_length 4 u32 0",
         "original_context_length = 0"},
        {"key llama.rope.scaling.type 8 str yarn key llama.rope.scaling.yarn_beta_fast 6 u32 0xbf800000", "-1"},
        {"key llama.rope.scaling.type 8 str yarn key llama.rope.scaling.yarn_beta_slow 6 u32 0x7fc00000", "nan"},
        {"key llama.rope.scaling.type 8 str yarn key llama.rope.scaling.yarn_log_multiplier 6 u32 0x3f000000", "0.5"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq_buf b = SOQ_BUF_INIT;
        struct soq__gguf *g = NULL;
        struct soq__hparams hp;
        uint64_t ne[2] = {32, TINY_VOCAB};

        gguf_header(&b, 3, 1, TINY_COUNT(tiny_kvs) + 2);
        for (size_t k = 0; k < TINY_COUNT(tiny_kvs); k++)
            tiny_put_kv(&b, &tiny_kvs[k]);
        gguf_build(&b, cases[i].script);
        gguf_tensor(&b, "token_embd.weight", 0, 0, 2, ne);
        gguf_pad(&b, 32);
        gguf_zeros(&b, (size_t)32 * TINY_VOCAB * 4);
        cr_assert_eq(soq__gguf_open_memory(b.data, b.len, "some.gguf", &g, &err), 0, "%s", err.text);
        cr_expect_lt(soq__hparams_read(g, &hp, &err), 0);
        cr_expect(strstr(err.text, "some.gguf: ") && strstr(err.text, "llama.rope.scaling") && strstr(err.text, cases[i].says),
                  "case %zu: %s", i, err.text);
        soq__gguf_close(g);
        soq__buf_done(&b);
    }
}

Test(hparams, arrays_that_agree)
{
    static const struct tiny_kv same = {"llama.attention.head_count", ARRAY, 0, "2 2 2"};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__model *m = NULL;

    cr_assert_eq(load(&same, NULL, &m, &err), 0, "%s", err.text);
    cr_expect_eq(m->hparams.n_heads, 2);
    soq__model_free(m);
}

/* ---- Tensors
 * ------------------------------------------------------------------------------------------------------------------ */

Test(hparams, tensors)
{
    static const struct {
        struct tiny_tensor tensor;
        int code;
        const char *says;
    } cases[] = {
        {{"token_embd.weight", TINY_ABSENT, 0, 0}, -SOQ_EINVAL, "token_embd.weight"},
        {{"token_embd.weight", 0, 16, TINY_VOCAB}, -SOQ_EINVAL, "[16, 40, 1, 1]"},
        {{"output_norm.weight", TINY_ABSENT, 0, 0}, -SOQ_ENOTFOUND, "output_norm.weight"},
        {{"output_norm.weight", 0, 31, 0}, -SOQ_EINVAL, "[31, 1, 1, 1]"},
        {{"output_norm.weight", 1, 32, 0}, -SOQ_EUNSUPPORTED, "F16"},
        {{"output.weight", 0, 32, TINY_VOCAB + 1}, -SOQ_EINVAL, "[32, 41, 1, 1]"},
        {{"blk.0.attn_q.weight", TINY_ABSENT, 0, 0}, -SOQ_ENOTFOUND, "blk.0.attn_q.weight"},
        {{"blk.0.attn_k.weight", 0, 32, 32}, -SOQ_EINVAL, "expected [32, 16]"},
        {{"blk.0.attn_k.weight", 0, 16, 32}, -SOQ_EINVAL, "expected [32, 16]"}, /* transposed */
        {{"blk.0.ffn_down.weight", 0, 32, 0}, -SOQ_EINVAL, "expected [32, 32]"},
        {{"blk.0.attn_norm.weight", 1, 32, 0}, -SOQ_EUNSUPPORTED, "norms must be F32"},
        {{"blk.0.attn_q.bias", 0, 32, 0}, -SOQ_EUNSUPPORTED, "blk.0.attn_q.bias"},
        {{"blk.0.attn_q_norm.weight", 0, 16, 0}, -SOQ_EUNSUPPORTED, "blk.0.attn_q_norm.weight"}, /* another family's */
        {{"blk.1.ffn_up.weight", 0, 32, 32}, -SOQ_EUNSUPPORTED, "blk.1.ffn_up.weight"},
        {{"rope_freqs.weight", 0, 7, 0}, -SOQ_EINVAL, "expected 8 F32"},
        {{"rope_freqs.weight", 1, 8, 0}, -SOQ_EINVAL, "rope_freqs.weight"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t live = soq__alloc_live();
        struct soq_error err = SOQ_ERROR_INIT;
        struct soq__model *m = NULL;
        int rc = load(NULL, &cases[i].tensor, &m, &err);

        cr_expect_eq(rc, cases[i].code, "case %zu, %s: %d, %s", i, cases[i].tensor.name, rc, err.text);
        cr_expect(strstr(err.text, cases[i].tensor.name) && strstr(err.text, cases[i].says), "case %zu: %s", i, err.text);
        soq__model_free(m);
        cr_expect_eq(soq__alloc_live(), live, "case %zu leaks", i);
    }
}

static char warned[1000];

static void note(void *user, int level, const char *text)
{
    (void)user;
    if (level == SOQ_LOG_WARN)
        snprintf(warned, sizeof warned, "%s", text);
}

Test(hparams, tensors_that_may_differ)
{
    static const struct tiny_tensor tied = {"output.weight", TINY_ABSENT, 0, 0}, divisors = {"rope_freqs.weight", 0, 8, 0},
                                    unknown = {"mystery.weight", 0, 5, 3}, halves = {"blk.0.ffn_up.weight", 1, 32, 32};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__model *m = NULL;

    soq__log_install(note, NULL, SOQ_LOG_WARN);
    cr_assert_eq(load(NULL, &tied, &m, &err), 0, "%s", err.text);
    cr_expect_null(m->output, "tied to the embedding");
    soq__model_free(m);
    cr_assert_eq(load(NULL, &divisors, &m, &err), 0, "%s", err.text);
    cr_expect_not_null(m->hparams.rope.factors);
    soq__model_free(m);
    cr_assert_eq(load(NULL, &halves, &m, &err), 0, "%s", err.text);
    soq__model_free(m);
    cr_expect_str_eq(warned, "", "%s", warned);
    cr_assert_eq(load(NULL, &unknown, &m, &err), 0, "%s", err.text);
    cr_expect(strstr(warned, "mystery.weight"), "%s", warned);
    soq__model_free(m);
    soq__log_install(NULL, NULL, SOQ_LOG_WARN);
}
