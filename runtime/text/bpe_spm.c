/* SentencePiece-style BPE (Kudo and Richardson 2018, in the form of Llama's and Gemma's tokenizers): a text starts as its code
 * points, with spaces written as U+2581, and neighbours merge if together they are a token, best score first. What is no token
 * in the end is written with the byte tokens <0x00> ... <0xFF>. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#define SPACE "\xE2\x96\x81" /* U+2581 */

int soq__spm_init(struct soq__tokenizer *tok, const struct soq__vocab_desc *desc, struct soq_error *err)
{
    if (!desc->scores)
        return soq__fail(err, SOQ_EINVAL, "tokenizer.ggml.scores is missing: tokenizer.ggml.model = \"llama\" needs it");
    if (desc->remove_extra_whitespaces == 1)
        return soq__fail(
            err, SOQ_EUNSUPPORTED,
            "tokenizer.ggml.remove_extra_whitespaces = true is not supported for tokenizer.ggml.model = \"llama\"");
    tok->spm.space_prefix = desc->add_space_prefix != 0;
    tok->spm.scores = soq__alloc_array(desc->n_tokens, sizeof *tok->spm.scores);
    if (!tok->spm.scores)
        return soq__fail(err, SOQ_ENOMEM, "out of memory for %u scores", desc->n_tokens);
    for (int b = 0; b < 256; b++) {
        char text = (char)b;

        tok->byte_ids[b] = soq__vocab_find_plain(&tok->vocab, &text, 1);
    }
    for (uint32_t i = 0; i < desc->n_tokens; i++) {
        struct soq__text text = soq__vocab_text(&tok->vocab, i);

        if (isnan(desc->scores[i]))
            return soq__fail(err, SOQ_ECORRUPT, "tokenizer.ggml.scores[%u] is not a number", i);
        tok->spm.scores[i] = desc->scores[i];
        if (soq__vocab_type(&tok->vocab, i) == SOQ_TOKEN_BYTE)
            tok->byte_ids[soq__vocab_byte_value(text.data, text.len)] = (int32_t)i;
    }
    return 0;
}

void soq__spm_done(struct soq__tokenizer *tok)
{
    soq__free(tok->spm.scores);
}

struct merge {
    const struct soq__tokenizer *tok;
    const char *text;
};

static bool rule(const void *ctx, const struct soq__bpe_sym *left, const struct soq__bpe_sym *right, float *cost_out,
                 int32_t *id_out)
{
    const struct merge *m = ctx;
    int32_t id = soq__vocab_find_plain(&m->tok->vocab, m->text + left->start, left->len + right->len);

    if (id < 0)
        return false;
    *cost_out = -m->tok->spm.scores[id];
    *id_out = id;
    return true;
}

/* The text as the vocabulary writes it. Returns the number of symbols that it starts as. */
static size_t normalise(const struct soq__tokenizer *tok, struct soq__text text, struct soq_buf *out)
{
    size_t n = 0;
    uint32_t cp;

    soq__buf_clear(out);
    if (tok->spm.space_prefix) {
        soq__buf_puts(out, SPACE);
        n++;
    }
    for (size_t i = 0, len; i < text.len; i += len, n++) {
        len = soq__utf8_decode(text.data + i, text.len - i, &cp);
        len = len ? len : 1;
        if (text.data[i] == ' ')
            soq__buf_puts(out, SPACE);
        else
            soq__buf_append(out, text.data + i, len);
    }
    return n;
}

int soq__spm_encode(const struct soq__tokenizer *tok, struct soq__text text, struct soq__encode_work *work,
                    struct soq__ids *ids, struct soq_error *err)
{
    size_t n_syms = normalise(tok, text, &work->text), n = work->text.len;
    const char *s = work->text.data;
    struct merge merge = {tok, s};
    uint32_t cp;
    int rc;

    if (!soq__buf_ok(&work->text))
        return soq__fail(err, SOQ_ENOMEM, "out of memory while encoding a text of %zu bytes", text.len);
    if ((rc = soq__bpe_begin(&work->bpe, n_syms, err)))
        return rc;
    for (size_t i = 0, len; i < n; i += len) {
        len = soq__utf8_decode(s + i, n - i, &cp);
        len = len ? len : 1;
        soq__bpe_add(&work->bpe, (uint32_t)i, (uint32_t)len, soq__vocab_find_plain(&tok->vocab, s + i, len));
    }
    soq__bpe_merge(&work->bpe, rule, &merge);
    for (uint32_t i = 0; i != SOQ__BPE_END && !rc; i = work->bpe.syms[i].next) {
        const struct soq__bpe_sym *sym = &work->bpe.syms[i];

        rc = sym->id >= 0 ? soq__ids_push(ids, sym->id, err) : soq__emit_bytes(tok, s + sym->start, sym->len, ids, err);
    }
    return rc;
}
