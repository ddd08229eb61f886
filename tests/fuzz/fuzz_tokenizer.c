/* Fuzz target of the tokenizers. The first byte chooses what the rest is:
 * even: a text, encoded with a tiny vocabulary; the second byte chooses the vocabulary, the third the flags, the next two an
 * untrusted span. What must hold is checked. Odd: a vocabulary, which may be refused, and a text encoded with it. */
#include <stdlib.h>

#include "tests/unit/vocab_support.h"
#include "text/pretokenize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static struct soq__tokenizer *tiny_tokenizer(unsigned choice)
{
    static struct soq__tokenizer *toks[256];
    static struct tiny tiny;
    unsigned n_names = 0;

    while (soq__pretok_name(n_names))
        n_names++;
    choice %= n_names + 1;
    if (toks[choice])
        return toks[choice];
    if (choice == n_names)
        tiny_sentencepiece(&tiny);
    else
        tiny_byte_level(&tiny, soq__pretok_name(choice));
    tiny.desc.add_space_prefix = 0; /* then every text comes back as it was */
    must(!soq__tokenizer_create(&tiny.desc, &toks[choice], NULL));
    return toks[choice];
}

/* The bytes come back. SentencePiece alone cannot tell U+2581 from a space. */
static void check_decode(const struct soq__tokenizer *tok, const struct soq__encode_args *args, const struct soq__ids *ids)
{
    struct soq_buf out = SOQ_BUF_INIT;
    bool lossy = false;

    for (size_t i = 0; i + 3 <= args->n; i++)
        lossy = lossy || !memcmp(args->text + i, "\xE2\x96\x81", 3);
    must(!soq__tokenizer_decode(tok, ids->data, ids->n, true, &out, NULL));
    if (!lossy)
        must(out.len == args->n && (!args->n || !memcmp(soq__buf_str(&out), args->text, args->n)));
    soq__buf_done(&out);
}

/* With BOS the ids are the same, after one BOS if the vocabulary wants it and there is none. */
static void check_bos(const struct soq__tokenizer *tok, struct soq__encode_args args, const struct soq__ids *without)
{
    int32_t bos = soq__tokenizer_role(tok, SOQ_ROLE_BOS);
    size_t added = soq__tokenizer_adds_bos(tok) && !(without->n && without->data[0] == bos);
    struct soq__ids ids = {0};

    args.flags |= SOQ_TOK_BOS;
    must(!soq__tokenizer_encode(tok, &args, &ids, NULL));
    must(ids.n == without->n + added && (!added || ids.data[0] == bos));
    must(!without->n || !memcmp(ids.data + added, without->data, without->n * sizeof *ids.data));
    soq__ids_done(&ids);
}

static void fuzz_text(const uint8_t *data, size_t size)
{
    struct soq__tokenizer *tok = tiny_tokenizer(data[0]);
    size_t n = size - 4;
    struct soq__span span = {data[2] < n ? data[2] : n, data[2] + data[3] < n ? (size_t)(data[2] + data[3]) : n};
    struct soq__encode_args args = {(const char *)data + 4, n, data[1] & SOQ_TOK_SPECIAL, &span, 1};
    struct soq__ids ids = {0};

    must(!soq__tokenizer_encode(tok, &args, &ids, NULL));
    check_decode(tok, &args, &ids);
    check_bos(tok, args, &ids);
    for (size_t i = 0; i < ids.n && !(args.flags & SOQ_TOK_SPECIAL); i++)
        must(soq__tokenizer_type(tok, ids.data[i]) != SOQ_TOKEN_CONTROL);
    soq__ids_done(&ids);
}

/* Tokens, then merges, then a text, all separated by newlines; a token's first byte gives its type and score. */
static void fuzz_vocabulary(const uint8_t *data, size_t size)
{
    static struct tiny tiny;
    const char *at = (const char *)data + 2, *end = (const char *)data + size, *line;
    struct soq__tokenizer *tok = NULL;
    struct soq__ids ids = {0};
    struct soq_buf out = SOQ_BUF_INIT;

    tiny_begin(&tiny, data[0] & 1 ? "gpt2" : "llama");
    for (uint32_t i = 0; i < (uint32_t)data[0] >> 1 && (line = memchr(at, '\n', (size_t)(end - at))) != NULL;
         at = line + 1, i++) {
        if (at == line)
            continue;
        tiny_add(&tiny, "", (enum soq__token_type)(*at & 7), (float)(*at >> 3));
        tiny.tokens[tiny.desc.n_tokens - 1] = (struct soq__text){at + 1, (size_t)(line - at) - 1};
    }
    tiny.desc.merges = tiny.merges;
    for (; tiny.desc.n_merges < (data[1] & 15u) && (line = memchr(at, '\n', (size_t)(end - at))) != NULL; at = line + 1)
        tiny.merges[tiny.desc.n_merges++] = (struct soq__text){at, (size_t)(line - at)};
    tiny.desc.roles[data[1] >> 5] = (int32_t)(data[1] & 15) - 1;
    if (!soq__tokenizer_create(&tiny.desc, &tok, NULL)) {
        struct soq__encode_args args = {at, (size_t)(end - at), SOQ_TOK_SPECIAL | SOQ_TOK_BOS, NULL, 0};

        if (!soq__tokenizer_encode(tok, &args, &ids, NULL))
            must(!soq__tokenizer_decode(tok, ids.data, ids.n, true, &out, NULL));
    }
    soq__ids_done(&ids);
    soq__buf_done(&out);
    soq__tokenizer_free(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 5 && !(data[0] & 1))
        fuzz_text(data + 1, size - 1);
    else if (size >= 3)
        fuzz_vocabulary(data + 1, size - 1);
    return 0;
}
