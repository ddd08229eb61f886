/* Writes GGUF files in memory, good ones and bad ones: every function appends; nothing is checked. */
#ifndef SOQ_TESTS_GGUF_BUILD_H
#define SOQ_TESTS_GGUF_BUILD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "model/gguf.h"

static inline void gguf_u8(struct soq_buf *b, unsigned v)
{
    soq__buf_putc(b, (char)v);
}

static inline void gguf_u32(struct soq_buf *b, uint64_t v)
{
    for (int i = 0; i < 4; i++)
        gguf_u8(b, (unsigned)(v >> (8 * i) & 255));
}

static inline void gguf_u64(struct soq_buf *b, uint64_t v)
{
    gguf_u32(b, v & UINT32_MAX);
    gguf_u32(b, v >> 32);
}

static inline void gguf_f32(struct soq_buf *b, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    gguf_u32(b, bits);
}

static inline void gguf_string(struct soq_buf *b, const char *s)
{
    gguf_u64(b, strlen(s));
    soq__buf_puts(b, s);
}

static inline void gguf_header(struct soq_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    soq__buf_puts(b, "GGUF");
    gguf_u32(b, version);
    gguf_u64(b, n_tensors);
    gguf_u64(b, n_keys);
}

/* The value follows. */
static inline void gguf_key(struct soq_buf *b, const char *key, uint32_t type)
{
    gguf_string(b, key);
    gguf_u32(b, type);
}

/* The items follow. */
static inline void gguf_key_array(struct soq_buf *b, const char *key, uint32_t item_type, uint64_t count)
{
    gguf_key(b, key, SOQ__GGUF_ARRAY);
    gguf_u32(b, item_type);
    gguf_u64(b, count);
}

static inline void gguf_key_u32(struct soq_buf *b, const char *key, uint32_t value)
{
    gguf_key(b, key, SOQ__GGUF_U32);
    gguf_u32(b, value);
}

static inline void gguf_key_f32(struct soq_buf *b, const char *key, float value)
{
    gguf_key(b, key, SOQ__GGUF_F32);
    gguf_f32(b, value);
}

static inline void gguf_key_string(struct soq_buf *b, const char *key, const char *value)
{
    gguf_key(b, key, SOQ__GGUF_STRING);
    gguf_string(b, value);
}

static inline void gguf_tensor(struct soq_buf *b, const char *name, uint32_t type, uint64_t offset, uint32_t n_dims,
                               const uint64_t *ne)
{
    gguf_string(b, name);
    gguf_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gguf_u64(b, ne[i]);
    gguf_u32(b, type);
    gguf_u64(b, offset);
}

static inline void gguf_zeros(struct soq_buf *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gguf_u8(b, 0);
}

static inline void gguf_pad(struct soq_buf *b, size_t alignment)
{
    while (b->len % alignment)
        gguf_u8(b, 0);
}

/* One word of a script and its arguments; returns what follows. */
static inline const char *gguf_build_word(struct soq_buf *b, const char *word, const char *args)
{
    char text[80] = "";
    uint64_t n[7] = {0};
    uint32_t count = 0;
    char *end = (char *)(uintptr_t)args;

    if (strchr("ktsr", word[0])) { /* key, tensor, str, raw: a name comes first */
        int used = 0;

        sscanf(args, " %79s%n", text, &used);
        end += used;
    }
    for (const char *at = end; count < 7; at = end) {
        n[count] = strtoull(at, &end, 0);
        if (end == at)
            break;
        count++;
    }
    if (strcmp(word, "header") == 0)
        gguf_header(b, (uint32_t)n[0], n[1], n[2]);
    else if (strcmp(word, "key") == 0)
        gguf_key(b, text, (uint32_t)n[0]);
    else if (strcmp(word, "tensor") == 0)
        gguf_tensor(b, text, (uint32_t)n[0], n[1], count - 2, n + 2);
    else if (strcmp(word, "str") == 0)
        gguf_string(b, text);
    else if (strcmp(word, "raw") == 0)
        soq__buf_puts(b, text);
    else if (strcmp(word, "pad") == 0)
        gguf_pad(b, n[0]);
    else if (strcmp(word, "zeros") == 0)
        gguf_zeros(b, n[0]);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(word, "u8") == 0)
            gguf_u8(b, (unsigned)n[i]);
        else if (strcmp(word, "u32") == 0)
            gguf_u32(b, n[i]);
        else if (strcmp(word, "u64") == 0)
            gguf_u64(b, n[i]);
    return end;
}

/* A file as text, for tables of test cases: "header 3 1 1 key a.b 4 u32 7 tensor w 0 0 8 2 pad 32 zeros 64". The words:
 * header VERSION TENSORS KEYS, key NAME TYPE, tensor NAME TYPE OFFSET DIMENSION..., str TEXT (with its length), raw TEXT,
 * u8 / u32 / u64 NUMBER..., pad ALIGNMENT, zeros COUNT. Names and texts have no blanks. */
static inline void gguf_build(struct soq_buf *b, const char *script)
{
    char word[16];
    int used;

    while (sscanf(script, " %15s%n", word, &used) == 1)
        script = gguf_build_word(b, word, script + used);
}

#endif
