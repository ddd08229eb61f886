/* The tokenizer as a whole: choosing the family, cutting a text at its special tokens, BOS and EOS, looking tokens up. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

int soq__ids_push(struct soq__ids *ids, int32_t id, struct soq_error *err)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 64;
        int32_t *data = soq__realloc_array(ids->data, cap, sizeof *data);

        if (!data)
            return soq__fail(err, SOQ_ENOMEM, "out of memory for %zu token ids", cap);
        ids->data = data;
        ids->cap = cap;
    }
    ids->data[ids->n++] = id;
    return 0;
}

void soq__ids_done(struct soq__ids *ids)
{
    soq__free(ids->data);
    *ids = (struct soq__ids){0};
}

/* BOS and EOS are added if the file says so, else if the family does and there is one. */
static int set_ends(struct soq__tokenizer *tok, const struct soq__vocab_desc *d, bool family_adds_bos, struct soq_error *err)
{
    bool bos = d->roles[SOQ_ROLE_BOS] >= 0, eos = d->roles[SOQ_ROLE_EOS] >= 0;

    if (d->add_bos == 1 && !bos)
        return soq__fail(err, SOQ_EINVAL, "tokenizer.ggml.add_bos_token = true, but tokenizer.ggml.bos_token_id is missing");
    if (d->add_eos == 1 && !eos)
        return soq__fail(err, SOQ_EINVAL, "tokenizer.ggml.add_eos_token = true, but tokenizer.ggml.eos_token_id is missing");
    tok->add_bos = d->add_bos < 0 ? family_adds_bos && bos : d->add_bos;
    tok->add_eos = d->add_eos == 1;
    return 0;
}

int soq__tokenizer_create(const struct soq__vocab_desc *desc, struct soq__tokenizer **tok_out, struct soq_error *err)
{
    bool byte_level = desc->model && !strcmp(desc->model, "gpt2");
    struct soq__tokenizer *tok;
    int rc;

    if (!byte_level && (!desc->model || strcmp(desc->model, "llama")))
        return soq__fail(err, SOQ_EUNSUPPORTED,
                         "tokenizer.ggml.model = \"%.100s\" is not supported; supported: gpt2 (byte-level BPE), llama "
                         "(SentencePiece BPE)",
                         desc->model ? desc->model : "");
    tok = soq__alloc_zero(1, sizeof *tok);
    if (!tok)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for a tokenizer");
    tok->vocab.byte_level = byte_level;
    rc = soq__vocab_init(&tok->vocab, desc, err);
    if (!rc)
        rc = byte_level ? soq__byte_init(tok, desc, err) : soq__spm_init(tok, desc, err);
    if (!rc)
        rc = set_ends(tok, desc, byte_level ? soq__pretok_add_bos(tok->byte.pretok) : true, err);
    if (rc)
        soq__tokenizer_free(tok);
    else
        *tok_out = tok;
    return rc;
}

void soq__tokenizer_free(struct soq__tokenizer *tok)
{
    if (!tok)
        return;
    soq__byte_done(tok);
    soq__spm_done(tok);
    soq__vocab_done(&tok->vocab);
    soq__free(tok);
}

/* What stands for a byte without a token: U+FFFD where texts are bytes anyway, else the unknown token. Some files call the
 * end-of-text token unknown too; a text must not end a generation, so that one is never used. */
static int emit_missing(const struct soq__tokenizer *tok, unsigned char byte, struct soq__ids *ids, struct soq_error *err)
{
    static const unsigned char replacement[] = {0xEF, 0xBF, 0xBD};
    int32_t unk = tok->vocab.roles[SOQ_ROLE_UNK];
    int rc = 0;

    if (tok->vocab.byte_level && tok->byte_ids[0xEF] >= 0 && tok->byte_ids[0xBF] >= 0 && tok->byte_ids[0xBD] >= 0) {
        for (size_t i = 0; i < sizeof replacement && !rc; i++)
            rc = soq__ids_push(ids, tok->byte_ids[replacement[i]], err);
        return rc;
    }
    if (unk >= 0 && !(tok->vocab.attrs[unk] & SOQ__ATTR_EOG))
        return soq__ids_push(ids, unk, err);
    return soq__fail(err, SOQ_EUNSUPPORTED, "the vocabulary has no token for byte 0x%02X and no %s", byte,
                     soq__token_role_key(SOQ_ROLE_UNK));
}

int soq__emit_bytes(const struct soq__tokenizer *tok, const char *data, size_t n, struct soq__ids *ids, struct soq_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i++) {
        unsigned char byte = (unsigned char)data[i];
        int32_t id = tok->byte_ids[byte];

        rc = id >= 0 ? soq__ids_push(ids, id, err) : emit_missing(tok, byte, ids, err);
    }
    return rc;
}

static int check_args(const struct soq__encode_args *a, struct soq_error *err)
{
    if (a->n > SOQ__TEXT_MAX)
        return soq__fail(err, SOQ_ELIMIT, "a text of %zu bytes cannot be encoded at once; the limit is %u", a->n,
                         SOQ__TEXT_MAX);
    for (size_t i = 0; i < a->n_untrusted; i++)
        if (a->untrusted[i].start > a->untrusted[i].end || a->untrusted[i].end > a->n ||
            (i && a->untrusted[i].start < a->untrusted[i - 1].end))
            return soq__fail(err, SOQ_EINVAL,
                             "untrusted span %zu, bytes [%zu, %zu), is out of order or beyond the text's %zu bytes", i,
                             a->untrusted[i].start, a->untrusted[i].end, a->n);
    return 0;
}

/* Up to where a guarded token that begins at `at` may reach. *span moves on with `at`. */
static size_t trusted_end(const struct soq__encode_args *a, size_t at, size_t *span)
{
    if (!(a->flags & SOQ_TOK_SPECIAL))
        return at;
    while (*span < a->n_untrusted && a->untrusted[*span].end <= at)
        ++*span;
    return *span < a->n_untrusted ? a->untrusted[*span].start : a->n;
}

static int encode_text(const struct soq__tokenizer *tok, struct soq__text text, struct soq__encode_work *work,
                       struct soq__ids *ids, struct soq_error *err)
{
    if (!text.len)
        return 0;
    return tok->vocab.byte_level ? soq__byte_encode(tok, text, work, ids, err) : soq__spm_encode(tok, text, work, ids, err);
}

/* Special tokens first, leftmost and longest; what lies between them is text. */
static int encode_all(const struct soq__tokenizer *tok, const struct soq__encode_args *a, struct soq__encode_work *work,
                      struct soq__ids *ids, struct soq_error *err)
{
    size_t text_start = 0, span = 0;
    int rc;

    for (size_t at = 0; at < a->n;) {
        int32_t id = soq__vocab_special_at(&tok->vocab, a->text, a->n, at, trusted_end(a, at, &span));

        if (id < 0) {
            at++;
            continue;
        }
        rc = encode_text(tok, (struct soq__text){a->text + text_start, at - text_start}, work, ids, err);
        if (rc || (rc = soq__ids_push(ids, id, err)))
            return rc;
        at += soq__vocab_text(&tok->vocab, (uint32_t)id).len;
        text_start = at;
    }
    return encode_text(tok, (struct soq__text){a->text + text_start, a->n - text_start}, work, ids, err);
}

int soq__tokenizer_encode(const struct soq__tokenizer *tok, const struct soq__encode_args *args, struct soq__ids *ids,
                          struct soq_error *err)
{
    struct soq__encode_work work = {0};
    int32_t bos = tok->vocab.roles[SOQ_ROLE_BOS], eos = tok->vocab.roles[SOQ_ROLE_EOS];
    size_t before = ids->n, span = 0;
    int rc = check_args(args, err);

    if (!rc && args->flags & SOQ_TOK_BOS && tok->add_bos &&
        (!args->n || soq__vocab_special_at(&tok->vocab, args->text, args->n, 0, trusted_end(args, 0, &span)) != bos))
        rc = soq__ids_push(ids, bos, err);
    if (!rc)
        rc = encode_all(tok, args, &work, ids, err);
    if (!rc && args->flags & SOQ_TOK_EOS && tok->add_eos && (ids->n == before || ids->data[ids->n - 1] != eos))
        rc = soq__ids_push(ids, eos, err);
    if (rc)
        ids->n = before;
    soq__bpe_done(&work.bpe);
    soq__cuts_done(&work.cuts);
    soq__buf_done(&work.text);
    return rc;
}

static bool in_range(const struct soq__tokenizer *tok, int32_t id)
{
    return id >= 0 && (uint32_t)id < tok->vocab.n;
}

struct soq__text soq__tokenizer_piece(const struct soq__tokenizer *tok, int32_t id, bool special)
{
    const struct soq__vocab *v = &tok->vocab;
    enum soq__token_type type = soq__tokenizer_type(tok, id);

    if (!in_range(tok, id) || (!special && (type == SOQ_TOKEN_CONTROL || type == SOQ_TOKEN_UNKNOWN)))
        return (struct soq__text){"", 0};
    return (struct soq__text){v->pieces + v->piece_at[id], v->piece_at[id + 1] - v->piece_at[id]};
}

struct soq__text soq__tokenizer_text(const struct soq__tokenizer *tok, int32_t id)
{
    return in_range(tok, id) ? soq__vocab_text(&tok->vocab, (uint32_t)id) : (struct soq__text){"", 0};
}

int32_t soq__tokenizer_n_tokens(const struct soq__tokenizer *tok)
{
    return (int32_t)tok->vocab.n;
}

int32_t soq__tokenizer_find(const struct soq__tokenizer *tok, const char *text, size_t n)
{
    return soq__vocab_find(&tok->vocab, text, n);
}

int32_t soq__tokenizer_role(const struct soq__tokenizer *tok, enum soq__token_role role)
{
    return tok->vocab.roles[role];
}

enum soq__token_type soq__tokenizer_type(const struct soq__tokenizer *tok, int32_t id)
{
    return in_range(tok, id) ? soq__vocab_type(&tok->vocab, (uint32_t)id) : SOQ_TOKEN_UNDEFINED;
}

bool soq__tokenizer_is_eog(const struct soq__tokenizer *tok, int32_t id)
{
    return in_range(tok, id) && tok->vocab.attrs[id] & SOQ__ATTR_EOG;
}

bool soq__tokenizer_adds_bos(const struct soq__tokenizer *tok)
{
    return tok->add_bos;
}
