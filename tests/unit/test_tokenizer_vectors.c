/* Real vocabularies: ids that llama.cpp computed for the same texts, and what must hold for any text.
 *
 * SOQ_TEST_GEN/vocab has the unpacked GGUF vocabularies of tests/data/vocab; SOQ_MODELS has smollm2.gguf and gemma3.gguf. A
 * test whose vocabulary is not there is skipped. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/utf8.h"
#include "model/vocab_gguf.h"
#include "tests/unit/support.h"

static struct soq_error err = SOQ_ERROR_INIT;

TestSuite(tokenizer_vectors, .timeout = 120);

static struct soq__tokenizer *load(const char *env, const char *name)
{
    const char *dir = getenv(env);
    struct soq__tokenizer *tok = NULL;
    struct soq__gguf *file;
    char path[4096];

    snprintf(path, sizeof path, "%s/%s.gguf", dir ? dir : ".", name);
    if (!soq__path_is_file(path))
        cr_skip_test("%s.gguf is not in the folder that %s names", name, env);
    cr_assert_eq(soq__gguf_open(path, &file, &err), 0, "%s", err.text);
    cr_assert_eq(soq__tokenizer_from_gguf(file, &tok, &err), 0, "%s", err.text);
    soq__gguf_close(file); /* nothing of the tokenizer lies in the file */
    return tok;
}

static void read_data(const char *name, const char *suffix, struct soq_buf *out)
{
    char file[256];

    snprintf(file, sizeof file, "vocab/%s%s", name, suffix);
    cr_assert_eq(soq__file_read(soq__test_data(file), 1 << 20, out, &err), 0, "%s", err.text);
}

static void encode(const struct soq__tokenizer *tok, const char *text, size_t n, unsigned flags, struct soq__ids *ids)
{
    ids->n = 0;
    cr_assert_eq(soq__tokenizer_encode(tok, &(struct soq__encode_args){.text = text, .n = n, .flags = flags}, ids, &err), 0,
                 "%s", err.text);
}

/* Token by token, only whole code points come out. */
static void stream(const struct soq__tokenizer *tok, const char *text, size_t n, const struct soq__ids *ids)
{
    struct soq_buf out = SOQ_BUF_INIT;
    struct soq__detok d;

    soq__detok_init(&d, tok, false, true);
    for (size_t i = 0; i < ids->n; i++) {
        cr_assert_eq(soq__detok_push(&d, ids->data[i], &out, &err), 0);
        cr_assert(soq__utf8_valid(soq__buf_str(&out), out.len));
    }
    cr_assert_eq(soq__detok_flush(&d, &out, &err), 0);
    cr_assert_eq(out.len, n, "\"%.*s\" comes back as \"%s\"", (int)n, text, soq__buf_str(&out));
    cr_assert_eq(memcmp(soq__buf_str(&out), text, n), 0);
    soq__buf_done(&out);
}

/* Reads one line of ids and compares. Returns the next line. */
static const char *expect_line(const char *line, const struct soq__ids *ids, int number)
{
    const char *end = strchr(line, '\n');
    char *next;

    for (size_t i = 0; i < ids->n; i++, line = next) {
        long want = strtol(line, &next, 10);

        cr_assert(next != line && (!end || next <= end), "text %d has more than %zu tokens", number, i);
        cr_assert_eq(ids->data[i], want, "text %d, token %zu: %d, not %ld", number, i, (int)ids->data[i], want);
    }
    line += strspn(line, " ");
    cr_assert(*line == '\n' || !*line, "text %d has only %zu tokens", number, ids->n);
    return end ? end + 1 : line;
}

static void check_vectors(const char *env, const char *name, const char *data, int n_texts)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    struct soq__tokenizer *tok = load(env, name);
    struct soq_buf in = SOQ_BUF_INIT, out = SOQ_BUF_INIT;
    struct soq__ids ids = {0};
    const char *text, *line;
    int number = 0;

    read_data(data, ".inp", &in);
    read_data(data, ".out", &out);
    line = soq__buf_str(&out);
    for (text = soq__buf_str(&in); text; number++) {
        const char *end = strstr(text, separator);
        size_t n = end ? (size_t)(end - text) : strlen(text);

        encode(tok, text, n, 0, &ids);
        line = expect_line(line, &ids, number);
        stream(tok, text, n, &ids);
        text = end ? end + strlen(separator) : NULL;
    }
    cr_assert_eq(number, n_texts);
    soq__ids_done(&ids);
    soq__buf_done(&in);
    soq__buf_done(&out);
    soq__tokenizer_free(tok);
    cr_assert_eq(soq__alloc_live(), 0);
}

#define VECTORS(name, env, file, data, n_texts)                                                                                \
    Test(tokenizer_vectors, name)                                                                                              \
    {                                                                                                                          \
        check_vectors(env, file, data, n_texts);                                                                               \
    }

VECTORS(gpt_2, "SOQ_TEST_GEN", "vocab/ggml-vocab-gpt-2", "ggml-vocab-gpt-2.gguf", 47)
VECTORS(llama_bpe, "SOQ_TEST_GEN", "vocab/ggml-vocab-llama-bpe", "ggml-vocab-llama-bpe.gguf", 47)
VECTORS(phi_3, "SOQ_TEST_GEN", "vocab/ggml-vocab-phi-3", "ggml-vocab-phi-3.gguf", 47)
VECTORS(smollm2, "SOQ_MODELS", "smollm2", "smollm2", 68)
VECTORS(gemma3, "SOQ_MODELS", "gemma3", "gemma3", 68)

static void expect_ids(const struct soq__tokenizer *tok, const char *text, unsigned flags, const int32_t *want, size_t n)
{
    struct soq__ids ids = {0};

    encode(tok, text, strlen(text), flags, &ids);
    cr_assert_eq(ids.n, n, "\"%s\": %zu tokens", text, ids.n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(ids.data[i], want[i], "\"%s\", token %zu: %d", text, i, (int)ids.data[i]);
    soq__ids_done(&ids);
}

#define EXPECT_IDS(tok, text, flags, ...)                                                                                      \
    expect_ids(tok, text, flags, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* The file's own tokens: each of these is what its own text becomes. */
Test(tokenizer_vectors, gemma3_tokens_encode_to_themselves)
{
    struct soq__tokenizer *tok = load("SOQ_MODELS", "gemma3");
    struct soq__ids ids = {0};
    int n_user = 0, n_byte = 0, n_chars = 0;

    for (int32_t id = 0; id < soq__tokenizer_n_tokens(tok); id++) {
        struct soq__text piece = soq__tokenizer_piece(tok, id, false);
        enum soq__token_type type = soq__tokenizer_type(tok, id);
        uint32_t cp;
        bool user = type == SOQ_TOKEN_USER_DEFINED, byte = type == SOQ_TOKEN_BYTE && (piece.data[0] & 0x80);
        bool one_char = type == SOQ_TOKEN_NORMAL && piece.len && soq__utf8_decode(piece.data, piece.len, &cp) == piece.len;

        if (!user && !byte && !one_char)
            continue;
        encode(tok, piece.data, piece.len, 0, &ids);
        cr_assert_eq(ids.n, 1, "token %d \"%.*s\" becomes %zu tokens", (int)id, (int)piece.len, piece.data, ids.n);
        cr_assert_eq(ids.data[0], id, "token %d \"%.*s\" becomes %d", (int)id, (int)piece.len, piece.data, (int)ids.data[0]);
        n_user += user, n_byte += byte, n_chars += one_char;
    }
    cr_assert_eq(n_byte, 128);
    cr_assert_gt(n_user, 150);
    cr_assert_gt(n_chars, 10000);
    soq__ids_done(&ids);
    soq__tokenizer_free(tok);
}

Test(tokenizer_vectors, gemma3_special_tokens)
{
    struct soq__tokenizer *tok = load("SOQ_MODELS", "gemma3");
    int32_t turn = soq__tokenizer_find(tok, "<start_of_turn>", 15), end = soq__tokenizer_find(tok, "<end_of_turn>", 13);

    EXPECT_IDS(tok, "<start_of_turn><end_of_turn>\n\n", SOQ_TOK_BOS | SOQ_TOK_SPECIAL, 2, turn, end, 108);
    EXPECT_IDS(tok, "<bos><bos>", SOQ_TOK_BOS | SOQ_TOK_SPECIAL, 2, 2); /* written twice is twice */
    EXPECT_IDS(tok, "  \n\xFF", 0, 138, 107, 238 + 0xFF);
    cr_assert(soq__tokenizer_is_eog(tok, end));
    cr_assert(soq__tokenizer_is_eog(tok, soq__tokenizer_find(tok, "<eos>", 5)));
    cr_assert_not(soq__tokenizer_is_eog(tok, soq__tokenizer_find(tok, "</s>", 4)), "struck-through text");
    soq__tokenizer_free(tok);
}

Test(tokenizer_vectors, smollm2_special_tokens)
{
    struct soq__tokenizer *tok = load("SOQ_MODELS", "smollm2");

    EXPECT_IDS(tok, "<|im_start|><|im_end|>", SOQ_TOK_BOS | SOQ_TOK_SPECIAL, 1, 2);
    cr_assert(soq__tokenizer_is_eog(tok, 2));
    cr_assert(soq__tokenizer_is_eog(tok, 0), "<|endoftext|>");
    cr_assert_not(soq__tokenizer_is_eog(tok, 1));
    soq__tokenizer_free(tok);
}

/* Random bytes from a fixed seed; a third of the time a piece of a control token or of UTF-8. */
static size_t random_text(uint32_t *state, char *out, size_t max)
{
    static const char *const parts[] = {"<|im_end|>",       "<|endoftext|>", "<s>",  "</s>",
                                        "\xF0\x9F\x98\x80", "\xE4\xBD",      " the", "\n"};
    size_t n = 0;

    while (n + 16 < max) {
        *state = *state * 1664525u + 1013904223u;
        if (*state >> 8 & 3)
            out[n++] = (char)(*state >> 16);
        else
            n += (size_t)sprintf(out + n, "%s", parts[*state >> 20 & 7]);
        if (n >= 3 && !memcmp(out + n - 3, "\xE2\x96\x81", 3)) /* a space to SentencePiece */
            n--;
    }
    return n;
}

static void check_random(const char *env, const char *name, bool every_byte)
{
    struct soq__tokenizer *tok = load(env, name);
    struct soq__ids ids = {0};
    struct soq_buf out = SOQ_BUF_INIT;
    uint32_t state = 1;
    char text[200];

    for (int round = 0; round < 300; round++) {
        size_t n = random_text(&state, text, sizeof text);

        encode(tok, text, n, 0, &ids);
        for (size_t i = 0; i < ids.n; i++)
            cr_assert_neq(soq__tokenizer_type(tok, ids.data[i]), SOQ_TOKEN_CONTROL, "text became control token %d",
                          (int)ids.data[i]);
        soq__buf_clear(&out);
        cr_assert_eq(soq__tokenizer_decode(tok, ids.data, ids.n, true, &out, &err), 0, "%s", err.text);
        if (every_byte) {
            cr_assert_eq(out.len, n);
            cr_assert_eq(memcmp(soq__buf_str(&out), text, n), 0);
        }
    }
    soq__ids_done(&ids);
    soq__buf_done(&out);
    soq__tokenizer_free(tok);
}

/* smollm2 has no tokens for bytes that no valid UTF-8 contains; U+FFFD stands for them. */
Test(tokenizer_vectors, random_bytes)
{
    check_random("SOQ_TEST_GEN", "vocab/ggml-vocab-gpt-2", true);
    check_random("SOQ_TEST_GEN", "vocab/ggml-vocab-llama-bpe", true);
    check_random("SOQ_TEST_GEN", "vocab/ggml-vocab-phi-3", true);
}

Test(tokenizer_vectors, random_bytes_models)
{
    check_random("SOQ_MODELS", "gemma3", true);
    check_random("SOQ_MODELS", "smollm2", false);
}
