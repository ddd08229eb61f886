/* Two tiny vocabularies, one of each family, for tests and the fuzz target: every byte, a few merges, every kind of token. */
#ifndef SOQ_TESTS_VOCAB_SUPPORT_H
#define SOQ_TESTS_VOCAB_SUPPORT_H

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

#define TINY_MAX 400
#define TINY_BYTES 3 /* ids 3 .. 258 are the bytes in both */

struct tiny {
    struct soq__vocab_desc desc;
    struct soq__text tokens[TINY_MAX], merges[16];
    float scores[TINY_MAX];
    int32_t types[TINY_MAX];
    char room[TINY_MAX][8];
};

static inline int32_t tiny_add(struct tiny *t, const char *text, enum soq__token_type type, float score)
{
    uint32_t i = t->desc.n_tokens++;

    t->tokens[i] = (struct soq__text){text, strlen(text)};
    t->types[i] = (int32_t)type;
    t->scores[i] = score;
    return (int32_t)i;
}

static inline void tiny_begin(struct tiny *t, const char *model)
{
    memset(t, 0, sizeof *t);
    soq__vocab_desc_init(&t->desc);
    t->desc.model = model;
    t->desc.tokens = t->tokens;
    t->desc.types = t->types;
    t->desc.scores = t->scores;
    t->desc.roles[SOQ_ROLE_UNK] = tiny_add(t, "<unk>", SOQ_TOKEN_UNKNOWN, 0);
    t->desc.roles[SOQ_ROLE_BOS] = tiny_add(t, "<s>", SOQ_TOKEN_CONTROL, 0);
    t->desc.roles[SOQ_ROLE_EOS] = tiny_add(t, "</s>", SOQ_TOKEN_CONTROL, 0);
}

static inline void tiny_specials(struct tiny *t)
{
    tiny_add(t, "<|im_start|>", SOQ_TOKEN_CONTROL, 0);
    tiny_add(t, "<|im_end|>", SOQ_TOKEN_USER_DEFINED, 0); /* as some files have it */
    tiny_add(t, "<|turn|>", SOQ_TOKEN_USER_DEFINED, 0);
    tiny_add(t, "<table>", SOQ_TOKEN_USER_DEFINED, 0);
    tiny_add(t, "\n\n", SOQ_TOKEN_USER_DEFINED, 0);
    tiny_add(t, "\n\n\n", SOQ_TOKEN_USER_DEFINED, 0);
}

/* pre: NULL = default. */
static inline void tiny_byte_level(struct tiny *t, const char *pre)
{
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 hello", "a a", "aa aa", "< |"};

    tiny_begin(t, "gpt2");
    t->desc.pre = pre;
    t->desc.scores = NULL;
    for (unsigned b = 0, extra = 256; b < 256; b++) {
        bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
        int32_t id = tiny_add(t, "", SOQ_TOKEN_NORMAL, 0);

        t->tokens[id] = (struct soq__text){t->room[id], soq__utf8_encode(printable ? b : extra++, t->room[id])};
    }
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        size_t n = strlen(merges[i]), at = (size_t)(strchr(merges[i], ' ') - merges[i]);
        int32_t id = tiny_add(t, "", SOQ_TOKEN_NORMAL, 0);

        memcpy(t->room[id], merges[i], at);
        memcpy(t->room[id] + at, merges[i] + at + 1, n - at - 1);
        t->tokens[id] = (struct soq__text){t->room[id], n - 1};
        t->merges[i] = (struct soq__text){merges[i], n};
    }
    t->desc.merges = t->merges;
    t->desc.n_merges = sizeof merges / sizeof merges[0];
    tiny_specials(t);
}

static inline void tiny_sentencepiece(struct tiny *t)
{
    static const char *const words[] = {"\xE2\x96\x81", "h", "e", "l", "o", "a", "<", "s", ">", "|"};
    static const char *const merged[] = {"ll", "he", "hell", "hello", "\xE2\x96\x81hello", "aa", "aaaa", "<s"};

    tiny_begin(t, "llama");
    for (unsigned b = 0; b < 256; b++) {
        int32_t id = tiny_add(t, "", SOQ_TOKEN_BYTE, 0);

        snprintf(t->room[id], sizeof t->room[id], "<0x%02X>", b);
        t->tokens[id] = (struct soq__text){t->room[id], 6};
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        tiny_add(t, words[i], SOQ_TOKEN_NORMAL, -100);
    for (size_t i = 0; i < sizeof merged / sizeof merged[0]; i++)
        tiny_add(t, merged[i], SOQ_TOKEN_NORMAL, -(float)i);
    tiny_specials(t);
}

#endif
