/* A llama of 1 layer, 32 wide, 40 tokens, written in memory; each test may change one key and one tensor of it. */
#ifndef SOQ_TESTS_TINY_MODEL_H
#define SOQ_TESTS_TINY_MODEL_H

#include <unistd.h>

#include "tests/unit/gguf_build.h"

#define TINY_VOCAB 40u
#define TINY_ABSENT 99u /* as a type: leave it out */

struct tiny_kv {
    const char *key;
    uint32_t type; /* SOQ__GGUF_U32, F32, STRING, or an ARRAY of U32 */
    double number;
    const char *text; /* of a STRING; of an ARRAY: numbers with blanks between */
};

struct tiny_tensor {
    const char *name;
    uint32_t type;       /* 0: F32, 1: F16 */
    uint64_t cols, rows; /* rows 0: one-dimensional */
};

static const struct tiny_kv tiny_kvs[] = {
    {"general.architecture", SOQ__GGUF_STRING, 0, "llama"},
    {"llama.block_count", SOQ__GGUF_U32, 1, NULL},
    {"llama.context_length", SOQ__GGUF_U32, 64, NULL},
    {"llama.embedding_length", SOQ__GGUF_U32, 32, NULL},
    {"llama.feed_forward_length", SOQ__GGUF_U32, 32, NULL},
    {"llama.attention.head_count", SOQ__GGUF_U32, 2, NULL},
    {"llama.attention.head_count_kv", SOQ__GGUF_U32, 1, NULL},
    {"llama.attention.layer_norm_rms_epsilon", SOQ__GGUF_F32, 1e-5, NULL},
    {"llama.rope.freq_base", SOQ__GGUF_F32, 10000, NULL},
};

static const struct tiny_tensor tiny_tensors[] = {
    {"token_embd.weight", 0, 32, TINY_VOCAB}, {"output_norm.weight", 0, 32, 0},        {"output.weight", 0, 32, TINY_VOCAB},
    {"blk.0.attn_norm.weight", 0, 32, 0},     {"blk.0.attn_q.weight", 0, 32, 32},      {"blk.0.attn_k.weight", 0, 32, 16},
    {"blk.0.attn_v.weight", 0, 32, 16},       {"blk.0.attn_output.weight", 0, 32, 32}, {"blk.0.ffn_norm.weight", 0, 32, 0},
    {"blk.0.ffn_gate.weight", 0, 32, 32},     {"blk.0.ffn_up.weight", 0, 32, 32},      {"blk.0.ffn_down.weight", 0, 32, 32},
};

#define TINY_COUNT(array) (sizeof(array) / sizeof(array)[0])

static inline void tiny_put_kv(struct soq_buf *b, const struct tiny_kv *kv)
{
    if (kv->type == SOQ__GGUF_STRING) {
        gguf_key_string(b, kv->key, kv->text);
    } else if (kv->type == SOQ__GGUF_F32) {
        gguf_key_f32(b, kv->key, (float)kv->number);
    } else if (kv->type == SOQ__GGUF_U32) {
        gguf_key_u32(b, kv->key, (uint32_t)kv->number);
    } else {
        uint64_t n = 0;
        char *end = (char *)(uintptr_t)kv->text, *at = end;

        while (strtoul(at, &end, 10), end != at)
            at = end, n++;
        gguf_key_array(b, kv->key, SOQ__GGUF_U32, n);
        for (at = end = (char *)(uintptr_t)kv->text; n--; at = end)
            gguf_u32(b, strtoul(at, &end, 10));
    }
}

static inline uint64_t tiny_bytes(const struct tiny_tensor *t)
{
    return t->cols * (t->rows ? t->rows : 1) * (t->type ? 2 : 4);
}

/* Norms are near 1, matrices near 0. */
static inline void tiny_put_data(struct soq_buf *b, const struct tiny_tensor *t)
{
    static uint32_t state = 1;

    for (uint64_t i = 0; i < t->cols * (t->rows ? t->rows : 1); i++) {
        state = state * 1664525u + 1013904223u;
        if (t->type)
            gguf_u8(b, 0), gguf_u8(b, t->rows ? 0x30 + (state >> 28) : 0x3c); /* halves of 0.125 and more */
        else
            gguf_f32(b, (t->rows ? 0.0f : 1.0f) + (float)((int32_t)state >> 8) / (1 << 25));
    }
    gguf_pad(b, 32);
}

/* kv and tensor replace those of the same name or are added; NULL: nothing is changed. */
static inline void tiny_build(struct soq_buf *b, const struct tiny_kv *kv, const struct tiny_tensor *tensor)
{
    struct tiny_kv kvs[TINY_COUNT(tiny_kvs) + 1];
    struct tiny_tensor tensors[TINY_COUNT(tiny_tensors) + 1];
    size_t n_kvs = TINY_COUNT(tiny_kvs), n_tensors = TINY_COUNT(tiny_tensors), at, n_left = 0;
    uint64_t offset = 0;

    memcpy(kvs, tiny_kvs, sizeof tiny_kvs);
    memcpy(tensors, tiny_tensors, sizeof tiny_tensors);
    for (at = 0; kv && at < n_kvs && strcmp(kvs[at].key, kv->key) != 0; at++)
        ;
    if (kv) {
        kvs[at] = *kv;
        n_kvs += at == n_kvs;
    }
    for (at = 0; tensor && at < n_tensors && strcmp(tensors[at].name, tensor->name) != 0; at++)
        ;
    if (tensor) {
        tensors[at] = *tensor;
        n_tensors += at == n_tensors;
    }
    for (at = 0; at < n_kvs; at++)
        if (kvs[at].type != TINY_ABSENT)
            kvs[n_left++] = kvs[at];
    n_kvs = n_left;
    n_left = 0;
    for (at = 0; at < n_tensors; at++)
        if (tensors[at].type != TINY_ABSENT)
            tensors[n_left++] = tensors[at];
    n_tensors = n_left;
    gguf_header(b, 3, n_tensors, n_kvs);
    for (at = 0; at < n_kvs; at++)
        tiny_put_kv(b, &kvs[at]);
    for (at = 0; at < n_tensors; at++) {
        const uint64_t ne[2] = {tensors[at].cols, tensors[at].rows};

        gguf_tensor(b, tensors[at].name, tensors[at].type, offset, tensors[at].rows ? 2 : 1, ne);
        offset += (tiny_bytes(&tensors[at]) + 31) / 32 * 32;
    }
    gguf_pad(b, 32);
    for (at = 0; at < n_tensors; at++)
        tiny_put_data(b, &tensors[at]);
}

/* Writes bytes to a new file; path must be freed and the file unlinked by the caller. */
static inline char *tiny_file(const void *data, size_t n)
{
    const char *dir = getenv("TMPDIR");
    char path[4096];
    FILE *file;
    int fd;

    snprintf(path, sizeof path, "%s/soquete-tiny-XXXXXX", dir ? dir : P_tmpdir);
    fd = mkstemp(path);
    file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!file || fwrite(data, 1, n, file) != n || fclose(file))
        abort();
    return strdup(path);
}

#endif
