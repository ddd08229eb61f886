/* The tokenizers' rules, on tiny vocabularies: who may write special tokens, BOS and EOS, bytes, streaming, refusals. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "tests/unit/vocab_support.h"
#include "text/pretokenize.h"

static int64_t live;
static struct tiny tiny;
static struct soq_error err;

static void setup(void)
{
    live = soq__alloc_live();
    err = (struct soq_error)SOQ_ERROR_INIT;
}

static void teardown(void)
{
    cr_assert_eq(soq__alloc_live(), live, "%lld blocks leaked", (long long)(soq__alloc_live() - live));
}

TestSuite(tokenizer, .init = setup, .fini = teardown, .timeout = 60);

static struct soq__tokenizer *create(void)
{
    struct soq__tokenizer *tok = NULL;

    cr_assert_eq(soq__tokenizer_create(&tiny.desc, &tok, &err), 0, "%s", err.text);
    return tok;
}

static struct soq__tokenizer *byte_level(void)
{
    tiny_byte_level(&tiny, "gpt-2");
    return create();
}

static struct soq__tokenizer *sentencepiece(void)
{
    tiny_sentencepiece(&tiny);
    return create();
}

/* The ids as text: "[<s>] [he]". */
static const char *tokens_of(const struct soq__tokenizer *tok, struct soq__encode_args args)
{
    static char line[4096];
    struct soq__ids ids = {0};
    size_t at = 0;

    line[0] = '\0';
    cr_assert_eq(soq__tokenizer_encode(tok, &args, &ids, &err), 0, "%s", err.text);
    for (size_t i = 0; i < ids.n; i++) {
        struct soq__text text = soq__tokenizer_text(tok, ids.data[i]);

        at += (size_t)snprintf(line + at, sizeof line - at, "%s[%.*s]", i ? " " : "", (int)text.len, text.data);
        cr_assert_lt(at, sizeof line);
    }
    soq__ids_done(&ids);
    return line;
}

static const char *tokens(const struct soq__tokenizer *tok, const char *text, unsigned flags)
{
    return tokens_of(tok, (struct soq__encode_args){.text = text, .n = strlen(text), .flags = flags});
}

static void decode_equals(const struct soq__tokenizer *tok, const char *text, size_t n)
{
    struct soq__encode_args args = {.text = text, .n = n};
    struct soq__ids ids = {0};
    struct soq_buf out = SOQ_BUF_INIT;

    cr_assert_eq(soq__tokenizer_encode(tok, &args, &ids, &err), 0, "%s", err.text);
    cr_assert_eq(soq__tokenizer_decode(tok, ids.data, ids.n, false, &out, &err), 0, "%s", err.text);
    cr_assert_eq(out.len, n, "%zu bytes became %zu", n, out.len);
    cr_assert_eq(memcmp(soq__buf_str(&out), text, n), 0);
    soq__ids_done(&ids);
    soq__buf_done(&out);
}

Test(tokenizer, merges_by_rank)
{
    struct soq__tokenizer *tok = byte_level();

    cr_assert_str_eq(tokens(tok, "hello", 0), "[hello]");
    cr_assert_str_eq(tokens(tok, "hello hello", 0), "[hello] [\xC4\xA0hello]");
    cr_assert_str_eq(tokens(tok, "aaaaaaa", 0), "[aaaa] [aa] [a]");
    cr_assert_str_eq(tokens(tok, "hellhe", 0), "[hell] [he]");
    cr_assert_str_eq(tokens(tok, "", 0), "");
    soq__tokenizer_free(tok);
}

Test(tokenizer, merges_by_score)
{
    struct soq__tokenizer *tok = sentencepiece();

    cr_assert_str_eq(tokens(tok, "hello", 0), "[\xE2\x96\x81hello]");
    cr_assert_str_eq(tokens(tok, "hello hello", 0), "[\xE2\x96\x81hello] [\xE2\x96\x81hello]");
    cr_assert_str_eq(tokens(tok, "a\xC3\xA4", 0), "[\xE2\x96\x81] [a] [<0xC3>] [<0xA4>]");
    cr_assert_str_eq(tokens(tok, "aaaaaaa", 0), "[\xE2\x96\x81] [aaaa] [aa] [a]");
    soq__tokenizer_free(tok);
    tiny.desc.add_space_prefix = 0;
    tok = create();
    cr_assert_str_eq(tokens(tok, "hello", 0), "[hello]");
    cr_assert_str_eq(tokens(tok, "", SOQ_TOK_BOS), "[<s>]");
    soq__tokenizer_free(tok);
}

/* Whatever the family and however a text is put together, only the caller's words become control tokens. */
Test(tokenizer, specials_only_where_trusted)
{
    static const char text[] = "<|im_start|>a<|im_end|>b";
    struct soq__span all = {0, sizeof text - 1}, second = {13, 23}, middle = {3, 6}, first = {0, 12};
    struct soq__encode_args args = {.text = text, .n = sizeof text - 1, .flags = SOQ_TOK_SPECIAL};
    struct soq__tokenizer *tok = byte_level();

    cr_assert_str_eq(tokens_of(tok, args), "[<|im_start|>] [a] [<|im_end|>] [b]");
    cr_assert_str_eq(tokens(tok, "<|im_end|>", 0), "[<|] [i] [m] [_] [e] [n] [d] [|] [>]");
    args.untrusted = &all, args.n_untrusted = 1;
    cr_assert_str_eq(tokens_of(tok, args),
                     "[<|] [i] [m] [_] [s] [t] [a] [r] [t] [|] [>] [a] [<|] [i] [m] [_] [e] [n] [d] [|] [>] [b]");
    args.untrusted = &second;
    cr_assert_str_eq(tokens_of(tok, args), "[<|im_start|>] [a] [<|] [i] [m] [_] [e] [n] [d] [|] [>] [b]");
    args.untrusted = &middle; /* half trusted is not trusted */
    cr_assert_str_eq(tokens_of(tok, args), "[<|] [i] [m] [_] [s] [t] [a] [r] [t] [|] [>] [a] [<|im_end|>] [b]");
    args.untrusted = (struct soq__span[]){first, second}, args.n_untrusted = 2;
    cr_assert_eq(strstr(tokens_of(tok, args), "im_"), NULL);
    soq__tokenizer_free(tok);
}

/* A merge whose result spells a control token must not make one: SentencePiece-style merges look only at texts. */
Test(tokenizer, merges_never_make_control_tokens)
{
    struct soq__tokenizer *tok = sentencepiece();

    cr_assert_str_eq(tokens(tok, "<s>", 0), "[\xE2\x96\x81] [<s] [>]");
    cr_assert_str_eq(tokens(tok, "<0x0A>", 0), "[\xE2\x96\x81] [<] [<0x30>] [<0x78>] [<0x30>] [<0x41>] [>]");
    cr_assert_str_eq(tokens(tok, "<s>", SOQ_TOK_SPECIAL), "[<s>]");
    soq__tokenizer_free(tok);
    tiny_byte_level(&tiny, "llama-bpe"); /* whole words are looked up */
    tiny_add(&tiny, "hehe", SOQ_TOKEN_CONTROL, 0);
    tiny.merges[tiny.desc.n_merges++] = (struct soq__text){"he he", 5};
    tok = create();
    cr_assert_str_eq(tokens(tok, "hehe", 0), "[he] [he]");
    cr_assert_str_eq(tokens(tok, "hehe", SOQ_TOK_SPECIAL), "[hehe]");
    soq__tokenizer_free(tok);
}

Test(tokenizer, user_defined_tokens_are_words)
{
    struct soq__span all = {0, 9};
    struct soq__tokenizer *tok = byte_level();

    cr_assert_str_eq(tokens(tok, "a<table>b", 0), "[a] [<table>] [b]");
    cr_assert_str_eq(tokens_of(tok, (struct soq__encode_args){"a<table>b", 9, SOQ_TOK_SPECIAL, &all, 1}), "[a] [<table>] [b]");
    cr_assert_str_eq(tokens(tok, "\n\n\n\n\n", 0), "[\n\n\n] [\n\n]");
    /* ... unless they look like turn markers. */
    cr_assert_str_eq(tokens(tok, "<|turn|>", 0), "[<|] [t] [u] [r] [n] [|] [>]");
    cr_assert_str_eq(tokens(tok, "<|turn|>", SOQ_TOK_SPECIAL), "[<|turn|>]");
    soq__tokenizer_free(tok);
}

Test(tokenizer, bos_and_eos_are_never_doubled)
{
    struct soq__span all = {0, 4};
    struct soq__tokenizer *tok;

    tiny_sentencepiece(&tiny);
    tiny.desc.add_space_prefix = 0;
    tiny.desc.add_eos = 1;
    tok = create();
    cr_assert(soq__tokenizer_adds_bos(tok));
    cr_assert_str_eq(tokens(tok, "a", SOQ_TOK_BOS), "[<s>] [a]");
    cr_assert_str_eq(tokens(tok, "<s>a", SOQ_TOK_BOS | SOQ_TOK_SPECIAL), "[<s>] [a]");
    cr_assert_str_eq(tokens(tok, "<s>a", SOQ_TOK_BOS), "[<s>] [<s] [>] [a]");
    cr_assert_str_eq(tokens_of(tok, (struct soq__encode_args){"<s>a", 4, SOQ_TOK_BOS | SOQ_TOK_SPECIAL, &all, 1}),
                     "[<s>] [<s] [>] [a]");
    cr_assert_str_eq(tokens(tok, "a", SOQ_TOK_EOS), "[a] [</s>]");
    cr_assert_str_eq(tokens(tok, "a</s>", SOQ_TOK_EOS | SOQ_TOK_SPECIAL), "[a] [</s>]");
    cr_assert_str_eq(tokens(tok, "", SOQ_TOK_BOS | SOQ_TOK_EOS), "[<s>] [</s>]");
    soq__tokenizer_free(tok);
    tok = byte_level(); /* this family adds BOS only if the file or the pre-tokenizer says so */
    cr_assert_not(soq__tokenizer_adds_bos(tok));
    cr_assert_str_eq(tokens(tok, "a", SOQ_TOK_BOS | SOQ_TOK_EOS), "[a]");
    soq__tokenizer_free(tok);
    tiny_byte_level(&tiny, "llama-bpe");
    tok = create();
    cr_assert_str_eq(tokens(tok, "a", SOQ_TOK_BOS), "[<s>] [a]");
    soq__tokenizer_free(tok);
}

Test(tokenizer, what_ends_a_generation)
{
    struct soq__tokenizer *tok = byte_level();
    int32_t end = soq__tokenizer_find(tok, "<|im_end|>", 10);

    cr_assert(soq__tokenizer_is_eog(tok, end));
    cr_assert_eq(soq__tokenizer_type(tok, end), SOQ_TOKEN_CONTROL, "whatever the file says");
    cr_assert(soq__tokenizer_is_eog(tok, soq__tokenizer_role(tok, SOQ_ROLE_EOS)));
    cr_assert_not(soq__tokenizer_is_eog(tok, soq__tokenizer_find(tok, "<|im_start|>", 12)));
    cr_assert_not(soq__tokenizer_is_eog(tok, -1));
    cr_assert_not(soq__tokenizer_is_eog(tok, soq__tokenizer_n_tokens(tok)));
    soq__tokenizer_free(tok);

    /* In a vocabulary whose BOS is not <s>, </s> is markup. */
    tiny_byte_level(&tiny, "gpt-2");
    tiny.desc.roles[SOQ_ROLE_BOS] = tiny.desc.roles[SOQ_ROLE_EOS] = -1;
    tiny.types[2] = SOQ_TOKEN_USER_DEFINED;
    tok = create();
    cr_assert_not(soq__tokenizer_is_eog(tok, 2));
    cr_assert_str_eq(tokens(tok, "</s>", 0), "[</s>]");
    soq__tokenizer_free(tok);

    /* In Harmony <|end|> ends a message, not the answer; elsewhere it ends both. */
    tiny_byte_level(&tiny, "gpt-2");
    end = tiny_add(&tiny, "<|end|>", SOQ_TOKEN_CONTROL, 0);
    tok = create();
    cr_assert(soq__tokenizer_is_eog(tok, end));
    soq__tokenizer_free(tok);
    tiny_add(&tiny, "<|return|>", SOQ_TOKEN_CONTROL, 0);
    tok = create();
    cr_assert_not(soq__tokenizer_is_eog(tok, end));
    cr_assert(soq__tokenizer_is_eog(tok, end + 1));
    soq__tokenizer_free(tok);
}

Test(tokenizer, pieces)
{
    struct soq__tokenizer *tok = sentencepiece();
    int32_t word = soq__tokenizer_find(tok, "\xE2\x96\x81hello", 8);

    cr_assert_eq(soq__tokenizer_piece(tok, word, false).len, 6);
    cr_assert_eq(memcmp(soq__tokenizer_piece(tok, word, false).data, " hello", 6), 0);
    cr_assert_eq(soq__tokenizer_piece(tok, TINY_BYTES + 0xC3, false).data[0], (char)0xC3);
    cr_assert_eq(soq__tokenizer_piece(tok, 1, false).len, 0, "control tokens are silent");
    cr_assert_eq(soq__tokenizer_piece(tok, 1, true).len, 3);
    cr_assert_eq(soq__tokenizer_piece(tok, -1, true).len, 0);
    cr_assert_eq(soq__tokenizer_piece(tok, soq__tokenizer_n_tokens(tok), true).len, 0);
    cr_assert_eq(soq__tokenizer_find(tok, "nothing", 7), -1);
    soq__tokenizer_free(tok);
}

Test(tokenizer, a_missing_byte_never_ends_the_text)
{
    struct soq__tokenizer *tok;
    struct soq__ids ids = {0};

    tiny_byte_level(&tiny, "gpt-2");
    tiny.types[TINY_BYTES + 0xFF] = SOQ_TOKEN_CONTROL; /* as if it were not there */
    tiny.desc.roles[SOQ_ROLE_UNK] = tiny.desc.roles[SOQ_ROLE_EOS];
    tok = create();
    cr_assert_str_eq(tokens(tok, "a\xFF", 0), "[a] [\xC3\xAF] [\xC2\xBF] [\xC2\xBD]", "U+FFFD in the byte map");
    soq__tokenizer_free(tok);

    tiny_sentencepiece(&tiny);
    tiny.desc.add_space_prefix = 0;
    tiny.types[TINY_BYTES + 0xFF] = SOQ_TOKEN_CONTROL;
    tok = create();
    cr_assert_str_eq(tokens(tok, "a\xFF", 0), "[a] [<unk>]");
    soq__tokenizer_free(tok);
    tiny.desc.roles[SOQ_ROLE_UNK] = tiny.desc.roles[SOQ_ROLE_EOS];
    tok = create();
    cr_assert_eq(soq__tokenizer_encode(tok, &(struct soq__encode_args){.text = "a\xFF", .n = 2}, &ids, &err),
                 -SOQ_EUNSUPPORTED);
    cr_assert(strstr(err.text, "0xFF") && strstr(err.text, "tokenizer.ggml.unknown_token_id"), "%s", err.text);
    cr_assert_eq(ids.n, 0, "a failed call leaves nothing behind");
    soq__ids_done(&ids);
    soq__tokenizer_free(tok);
}

static uint32_t random_state = 12345;

static uint32_t next_random(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* Random bytes, with runs of letters, spaces and pieces of UTF-8 among them; no U+2581, which means a space to SentencePiece.
 */
static size_t random_text(char *out, size_t max)
{
    static const char *const parts[] = {"hello", " ", "a", "\xF0\x9F\x98\x80", "\xE2\x82", "\n", "<|im_end|>", "<s>", "12"};
    size_t n = 0;

    while (n + 16 < max) {
        const char *part = parts[next_random() % 9];

        if (next_random() % 3)
            out[n++] = (char)next_random();
        else
            n += (size_t)sprintf(out + n, "%s", part);
        if (n >= 3 && !memcmp(out + n - 3, "\xE2\x96\x81", 3))
            n--;
    }
    return n;
}

Test(tokenizer, any_bytes_come_back)
{
    struct soq__tokenizer *toks[2] = {byte_level()};
    char text[300];

    tiny_sentencepiece(&tiny);
    tiny.desc.add_space_prefix = 0; /* a prefix after a user-defined token would stay */
    toks[1] = create();
    for (int round = 0; round < 400; round++) {
        size_t n = random_text(text, 20 + next_random() % 280);

        for (size_t i = 0; i < 2; i++)
            decode_equals(toks[i], text, n);
    }
    decode_equals(toks[0], "a\0b", 3);
    decode_equals(toks[1], " a\0b ", 5);
    soq__tokenizer_free(toks[0]);
    soq__tokenizer_free(toks[1]);
}

/* At every cut: what has been emitted is whole code points, and cut and rest together are the text. */
static void stream(const struct soq__tokenizer *tok, const char *text, size_t n)
{
    struct soq_buf out = SOQ_BUF_INIT;
    struct soq__detok d;

    soq__detok_init(&d, tok, false, false);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(soq__detok_push(&d, TINY_BYTES + (unsigned char)text[i], &out, &err), 0);
        cr_assert_eq(out.len, soq__utf8_complete(text, i + 1), "after %zu bytes", i + 1);
        cr_assert_eq(memcmp(soq__buf_str(&out), text, out.len), 0);
    }
    cr_assert_eq(soq__detok_flush(&d, &out, &err), 0);
    cr_assert_eq(out.len, n);
    cr_assert_eq(memcmp(soq__buf_str(&out), text, n), 0);
    soq__buf_done(&out);
}

Test(tokenizer, streaming_emits_whole_code_points)
{
    static const char *const texts[] = {"",
                                        "plain",
                                        "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80!",
                                        "\xF0\x9F\x98",
                                        "\xF0\x9F\x98x",
                                        "\xFF\xFE\xC3",
                                        "\xE2",
                                        "\xE2\xE2\x82",
                                        "\xED\xA0\x80 surrogate",
                                        "\xC0\x80",
                                        "\x80\x80\x80",
                                        "\xF4\x90\x80\x80"};
    struct soq__tokenizer *toks[] = {byte_level(), sentencepiece()};

    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
            for (size_t n = 0; n <= strlen(texts[i]); n++)
                stream(toks[t], texts[i], n);
    soq__tokenizer_free(toks[0]);
    soq__tokenizer_free(toks[1]);
}

Test(tokenizer, only_a_text_that_begins_loses_its_space)
{
    struct soq__tokenizer *tok = sentencepiece();
    int32_t word = soq__tokenizer_find(tok, "\xE2\x96\x81hello", 8);
    int32_t ids[] = {1, word, word};
    struct soq_buf out = SOQ_BUF_INIT;
    struct soq__detok d;

    cr_assert_eq(soq__tokenizer_decode(tok, ids, 3, false, &out, &err), 0);
    cr_assert_str_eq(soq__buf_str(&out), "hello hello", "a silent BOS does not count");
    soq__buf_clear(&out);
    soq__detok_init(&d, tok, false, false);
    cr_assert_eq(soq__detok_push(&d, word, &out, &err), 0);
    cr_assert_str_eq(soq__buf_str(&out), " hello");
    soq__buf_clear(&out);
    cr_assert_eq(soq__tokenizer_decode(tok, ids, 3, true, &out, &err), 0);
    cr_assert_str_eq(soq__buf_str(&out), "<s> hello hello");
    soq__buf_done(&out);
    soq__tokenizer_free(tok);
}

static void refused(int code, const char *first, const char *second)
{
    struct soq__tokenizer *tok = NULL;

    cr_assert_eq(soq__tokenizer_create(&tiny.desc, &tok, &err), -code, "%s", err.text);
    cr_assert_eq(tok, NULL);
    cr_assert(strstr(err.text, first), "\"%s\" is not in: %s", first, err.text);
    cr_assert(strstr(err.text, second), "\"%s\" is not in: %s", second, err.text);
}

Test(tokenizer, refusals_name_key_and_value)
{
    tiny_byte_level(&tiny, "gpt-2");
    tiny.desc.model = "wordpiece";
    refused(SOQ_EUNSUPPORTED, "tokenizer.ggml.model = \"wordpiece\"", "supported: gpt2");
    tiny.desc.model = NULL;
    refused(SOQ_EUNSUPPORTED, "tokenizer.ggml.model", "llama");
    tiny_byte_level(&tiny, "qwen-2");
    refused(SOQ_EUNSUPPORTED, "tokenizer.ggml.pre = \"qwen-2\"", "did you mean \"qwen2\"");
    tiny_byte_level(&tiny, "zzzzzzzz");
    refused(SOQ_EUNSUPPORTED, "zzzzzzzz", "supported: default, gpt-2");
    tiny_byte_level(&tiny, "gpt-2");
    tiny.desc.merges = NULL;
    refused(SOQ_EINVAL, "tokenizer.ggml.merges", "missing");
    tiny_byte_level(&tiny, "gpt-2");
    tiny.merges[2] = (struct soq__text){"he x!", 5};
    refused(SOQ_ECORRUPT, "tokenizer.ggml.merges[2]", "he x!");
    tiny.merges[2] = (struct soq__text){"hello", 5};
    refused(SOQ_ECORRUPT, "tokenizer.ggml.merges[2]", "hello");
    tiny.merges[2] = (struct soq__text){NULL, 0};
    refused(SOQ_ECORRUPT, "tokenizer.ggml.merges[2]", "");
    tiny_byte_level(&tiny, "gpt-2");
    tiny.desc.roles[SOQ_ROLE_PAD] = (int32_t)tiny.desc.n_tokens;
    refused(SOQ_EINVAL, "tokenizer.ggml.padding_token_id", "out of range");
    tiny_byte_level(&tiny, "gpt-2");
    tiny.types[7] = 9;
    refused(SOQ_EINVAL, "tokenizer.ggml.token_type[7] = 9", "0 to 6");
    tiny_byte_level(&tiny, "gpt-2");
    tiny.desc.n_tokens = 0;
    refused(SOQ_EINVAL, "tokenizer.ggml.tokens", "empty");
    tiny_byte_level(&tiny, "gpt-2");
    tiny.desc.roles[SOQ_ROLE_BOS] = -1;
    tiny.desc.add_bos = 1;
    refused(SOQ_EINVAL, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id");
    tiny_byte_level(&tiny, "gpt-2");
    tiny.desc.roles[SOQ_ROLE_EOS] = -1;
    tiny.desc.add_eos = 1;
    refused(SOQ_EINVAL, "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id");
    tiny_sentencepiece(&tiny);
    tiny.desc.scores = NULL;
    refused(SOQ_EINVAL, "tokenizer.ggml.scores", "missing");
    tiny_sentencepiece(&tiny);
    tiny.scores[5] = (float)strtod("nan", NULL);
    refused(SOQ_ECORRUPT, "tokenizer.ggml.scores[5]", "not a number");
    tiny_sentencepiece(&tiny);
    tiny.tokens[9].data = "<0xG0>";
    refused(SOQ_ECORRUPT, "tokenizer.ggml.tokens[9]", "<0xG0>");
    tiny_sentencepiece(&tiny);
    tiny.desc.remove_extra_whitespaces = 1;
    refused(SOQ_EUNSUPPORTED, "tokenizer.ggml.remove_extra_whitespaces", "llama");
    tiny_sentencepiece(&tiny);
    tiny.tokens[0].len = 1u << 20;
    refused(SOQ_ELIMIT, "tokenizer.ggml.tokens[0]", "1048576");
}

Test(tokenizer, spans_must_be_in_order)
{
    static const struct soq__span bad[][2] = {{{2, 1}, {3, 4}}, {{0, 3}, {2, 4}}, {{0, 1}, {3, 6}}};
    struct soq__tokenizer *tok = byte_level();
    struct soq__ids ids = {0};

    for (size_t i = 0; i < 3; i++) {
        struct soq__encode_args args = {.text = "hello", .n = 5, .untrusted = bad[i], .n_untrusted = 2};

        cr_assert_eq(soq__tokenizer_encode(tok, &args, &ids, &err), -SOQ_EINVAL);
        cr_assert(strstr(err.text, "untrusted span"), "%s", err.text);
    }
    cr_assert_eq(ids.n, 0);
    soq__ids_done(&ids);
    soq__tokenizer_free(tok);
}

/* Words in [] as each pre-tokenizer cuts them. */
Test(tokenizer, words)
{
    static const struct {
        const char *pre, *words;
    } cases[] = {
        {"gpt-2", "[I]['ll][ take][ 12345][  ][ of][ it][!!][\n]"},
        {"smollm", "[I]['ll][ take][ ][1][2][3][4][5]"},
        {"falcon", "[x][(][123][45][)]"},
        {"llama-bpe", "[I]['LL][ take][ ][123][45][ it][!!\n][ ][ ok]"},
        {"qwen2", "[v][1][2][ done][.\n\n][  ][ x]"},
        {"qwen35", "[a\xCC\x81][ b]"},
        {"deepseek-v3", "[123][45][(foo][ bar][),\n]"},
        {"deepseek-llm", "[one][ two][ ][3][\n][   ]"},
        {"deepseek-coder", "[one][ two][1][2][\n]"},
        {"gpt-4o", "[Hello][World][ don't][ http][://]"},
        {"tekken", "[Hello][World][ don]['t][1][2]"},
        {"kimi-k2", "[\xE4\xBD\xA0\xE5\xA5\xBD][World][ it's]"},
        {"bloom", "[one][ two][,][ three]"},
        {"gpt-2", "[a][\xFF\xFE][ b][\xC3]"}, /* no valid UTF-8 */
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[200] = "", got[400] = "";
        struct soq__cuts cuts = {0};
        struct soq__pretok *p;
        size_t n = 0;

        for (const char *c = cases[i].words; *c; c++)
            if (*c != '[' && *c != ']')
                text[n++] = *c;
        cr_assert_eq(soq__pretok_create(cases[i].pre, &p, &err), 0, "%s", err.text);
        cr_assert_eq(soq__pretok_split(p, text, n, &cuts, &err), 0, "%s", err.text);
        for (size_t k = 0, start = 0, at = 0; k < cuts.n; start = cuts.ends[k++])
            at += (size_t)snprintf(got + at, sizeof got - at, "[%.*s]", (int)(cuts.ends[k] - start), text + start);
        cr_assert_str_eq(got, cases[i].words, "%s: %s", cases[i].pre, got);
        soq__cuts_done(&cuts);
        soq__pretok_free(p);
    }
}

/* Every pre-tokenizer, the same over and over: the suite's timeout is the test. */
Test(tokenizer, long_runs_take_linear_time)
{
    static const char *const units[] = {"a",    " ",     "\n", "\xF0\x9F\x98\x80", "\xED\x95\x9C", "A", "'", "1",
                                        "\xFF", "a\xFF", " \t"};
    enum { size = 1 << 15 };
    char *text = malloc(size + 1);

    for (size_t i = 0; soq__pretok_name(i); i++) {
        struct soq__tokenizer *tok;

        tiny_byte_level(&tiny, soq__pretok_name(i));
        tok = create();
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t len = strlen(units[u]), n = size / len * len;

            for (size_t k = 0; k < n; k++)
                text[k] = units[u][k % len];
            text[n] = 'x'; /* so that a run of spaces has something after it */
            decode_equals(tok, text, n + 1);
        }
        soq__tokenizer_free(tok);
    }
    free(text);
}

Test(tokenizer, a_megabyte_of_one_letter)
{
    enum { size = 1 << 20 };
    struct soq__tokenizer *toks[] = {byte_level(), sentencepiece()};
    char *text = malloc(size);

    for (const char *c = "a z"; *c; c++) {
        memset(text, *c, size);
        decode_equals(toks[0], text, size);
        decode_equals(toks[1], text, size);
    }
    free(text);
    soq__tokenizer_free(toks[0]);
    soq__tokenizer_free(toks[1]);
}

Test(tokenizer, every_failed_allocation_is_an_error)
{
    static const char text[] = "hello hello <|im_end|> \xFF aaaaaaa \xF0\x9F\x98\x80";
    struct soq__encode_args args = {.text = text, .n = sizeof text - 1, .flags = SOQ_TOK_SPECIAL | SOQ_TOK_BOS};

    for (int family = 0; family < 2; family++) {
        int rc = -1;
        uint64_t n = 0;

        if (family)
            tiny_sentencepiece(&tiny);
        else
            tiny_byte_level(&tiny, "llama-bpe");
        while (rc) {
            struct soq__tokenizer *tok = NULL;
            struct soq__ids ids = {0};
            struct soq_buf out = SOQ_BUF_INIT;

            soq__alloc_fail_at(++n, false);
            rc = soq__tokenizer_create(&tiny.desc, &tok, &err);
            if (!rc)
                rc = soq__tokenizer_encode(tok, &args, &ids, &err);
            if (!rc)
                rc = soq__tokenizer_decode(tok, ids.data, ids.n, true, &out, &err);
            soq__alloc_fail_at(0, false);
            cr_assert(!rc || rc == -SOQ_ENOMEM, "allocation %llu: %d %s", (unsigned long long)n, rc, err.text);
            soq__ids_done(&ids);
            soq__buf_done(&out);
            soq__tokenizer_free(tok);
            cr_assert_eq(soq__alloc_live(), live, "allocation %llu leaks", (unsigned long long)n);
            cr_assert_lt(n, 1000);
        }
        cr_assert_geq(n, 15, "only %llu allocations were tried", (unsigned long long)n);
    }
}
