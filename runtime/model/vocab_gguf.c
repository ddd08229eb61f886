/* GGUF's tokenizer keys to struct soq__vocab_desc: see vocab_gguf.h. */
#include "model/vocab_gguf.h"

#include "base/alloc.h"

/* Memory that lives as long as v. */
static void *keep(struct soq__vocab_gguf *v, void *block)
{
    size_t i = 0;

    while (v->blocks[i])
        i++;
    v->blocks[i] = block;
    return block;
}

static int read_name(struct soq__vocab_gguf *v, const struct soq__gguf *g, const char *key, const char **out,
                     struct soq_error *err)
{
    struct soq__gguf_str s;
    int rc = soq__gguf_string(g, key, &s, err);

    if (rc)
        return rc;
    *out = keep(v, soq__strndup(s.data, s.len));
    return *out ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for %s", key);
}

/* An array of texts, viewed in place. */
static int read_texts(struct soq__vocab_gguf *v, const struct soq__gguf *g, const char *key, const struct soq__text **out,
                      uint32_t *n_out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    struct soq__text *texts;
    int rc = soq__gguf_strings(g, key, &kv, err);

    if (rc)
        return rc;
    if (kv->count > UINT32_MAX)
        return soq__fail(err, SOQ_ELIMIT, "%s has %llu entries", key, (unsigned long long)kv->count);
    texts = keep(v, soq__alloc_array((size_t)kv->count, sizeof *texts));
    if (!texts)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %s", key);
    for (uint64_t i = 0; i < kv->count; i++) {
        struct soq__gguf_str s = soq__gguf_str_at(kv, i);

        texts[i] = (struct soq__text){s.data, s.len};
    }
    *out = texts;
    *n_out = (uint32_t)kv->count;
    return 0;
}

static int check_count(const struct soq__gguf_kv *kv, const char *key, uint32_t n, struct soq_error *err)
{
    if (kv->count == n)
        return 0;
    return soq__fail(err, SOQ_ECORRUPT, "%s has %llu entries but tokenizer.ggml.tokens has %u", key,
                     (unsigned long long)kv->count, n);
}

static int read_scores(struct soq__vocab_gguf *v, const struct soq__gguf *g, struct soq_error *err)
{
    static const char *const key = "tokenizer.ggml.scores";
    const struct soq__gguf_kv *kv;
    float *scores;
    int rc;

    if (!soq__gguf_find(g, key))
        return 0;
    rc = soq__gguf_floats(g, key, &kv, err);
    if (rc || (rc = check_count(kv, key, v->desc.n_tokens, err)))
        return rc;
    v->desc.scores = scores = keep(v, soq__alloc_array((size_t)kv->count, sizeof *scores));
    if (!scores)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %s", key);
    for (uint64_t i = 0; i < kv->count; i++)
        scores[i] = (float)soq__gguf_float_at(kv, i);
    return 0;
}

static int read_types(struct soq__vocab_gguf *v, const struct soq__gguf *g, struct soq_error *err)
{
    static const char *const key = "tokenizer.ggml.token_type";
    const struct soq__gguf_kv *kv;
    int32_t *types;
    int rc;

    if (!soq__gguf_find(g, key))
        return 0;
    rc = soq__gguf_ints(g, key, &kv, err);
    if (rc || (rc = check_count(kv, key, v->desc.n_tokens, err)))
        return rc;
    v->desc.types = types = keep(v, soq__alloc_array((size_t)kv->count, sizeof *types));
    if (!types)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %s", key);
    for (uint64_t i = 0; i < kv->count; i++) {
        int64_t type = soq__gguf_int_at(kv, i);

        types[i] = type >= INT32_MIN && type <= INT32_MAX ? (int32_t)type : INT32_MAX;
    }
    return 0;
}

static int read_flag(const struct soq__gguf *g, const char *key, int *out, struct soq_error *err)
{
    bool value;
    int rc;

    if (!soq__gguf_find(g, key))
        return 0;
    rc = soq__gguf_bool(g, key, &value, err);
    if (!rc)
        *out = value;
    return rc;
}

static int read_ids_and_flags(struct soq__vocab_desc *d, const struct soq__gguf *g, struct soq_error *err)
{
    int rc = 0;

    for (int i = 0; i < SOQ_ROLE_COUNT && !rc; i++) {
        const char *key = soq__token_role_key((enum soq__token_role)i);
        uint32_t id;

        if (!soq__gguf_find(g, key))
            continue;
        rc = soq__gguf_u32(g, key, &id, err);
        if (!rc && id > INT32_MAX)
            rc = soq__fail(err, SOQ_EINVAL, "%s = %u is out of range: the vocabulary has %u tokens", key, id, d->n_tokens);
        if (!rc)
            d->roles[i] = (int32_t)id;
    }
    if (!rc)
        rc = read_flag(g, "tokenizer.ggml.add_bos_token", &d->add_bos, err);
    if (!rc)
        rc = read_flag(g, "tokenizer.ggml.add_eos_token", &d->add_eos, err);
    if (!rc)
        rc = read_flag(g, "tokenizer.ggml.add_space_prefix", &d->add_space_prefix, err);
    if (!rc)
        rc = read_flag(g, "tokenizer.ggml.remove_extra_whitespaces", &d->remove_extra_whitespaces, err);
    return rc;
}

int soq__vocab_gguf_init(struct soq__vocab_gguf *v, const struct soq__gguf *g, struct soq_error *err)
{
    struct soq__vocab_desc *d = &v->desc;
    int rc;

    *v = (struct soq__vocab_gguf){0};
    soq__vocab_desc_init(d);
    rc = read_name(v, g, "tokenizer.ggml.model", &d->model, err);
    if (!rc && soq__gguf_find(g, "tokenizer.ggml.pre"))
        rc = read_name(v, g, "tokenizer.ggml.pre", &d->pre, err);
    if (!rc)
        rc = read_texts(v, g, "tokenizer.ggml.tokens", &d->tokens, &d->n_tokens, err);
    if (!rc && soq__gguf_find(g, "tokenizer.ggml.merges"))
        rc = read_texts(v, g, "tokenizer.ggml.merges", &d->merges, &d->n_merges, err);
    if (!rc)
        rc = read_scores(v, g, err);
    if (!rc)
        rc = read_types(v, g, err);
    if (!rc)
        rc = read_ids_and_flags(d, g, err);
    if (rc)
        soq__vocab_gguf_done(v);
    return rc;
}

void soq__vocab_gguf_done(struct soq__vocab_gguf *v)
{
    for (size_t i = 0; i < sizeof v->blocks / sizeof v->blocks[0]; i++)
        soq__free(v->blocks[i]);
    *v = (struct soq__vocab_gguf){0};
}

int soq__tokenizer_from_gguf(const struct soq__gguf *g, struct soq__tokenizer **tok_out, struct soq_error *err)
{
    struct soq__vocab_gguf v;
    int rc = soq__vocab_gguf_init(&v, g, err);

    if (rc)
        return rc;
    rc = soq__tokenizer_create(&v.desc, tok_out, err);
    soq__vocab_gguf_done(&v);
    if (rc && soq__gguf_path(g))
        soq__fail_prefix(err, "%s", soq__gguf_path(g));
    return rc;
}
