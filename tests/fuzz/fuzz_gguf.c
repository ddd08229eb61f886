/* Fuzzes the GGUF reader: whatever opens is then read completely, every value by every getter and every block of every tensor
 * that can be decoded, so that a view or size that opening got wrong is found. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/dequant.h"
#include "model/gguf.h"

static volatile unsigned sink; /* what is read has to be read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the views point to must be readable; the sum keeps the reads. */
static unsigned touch(const void *data, size_t n)
{
    const unsigned char *p = data;
    unsigned sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += p[i];
    return sum;
}

static unsigned read_kv(const struct soq__gguf *g, const struct soq__gguf_kv *kv)
{
    struct soq_error err = SOQ_ERROR_INIT;
    char *key = soq__strndup(kv->key.data, kv->key.len);
    const struct soq__gguf_kv *array;
    struct soq__gguf_str text;
    unsigned sum = 0;
    uint64_t u64;
    uint32_t u32;
    int64_t i64;
    float f32;
    bool flag;

    if (soq__gguf_find(g, key) != kv)
        abort();
    sum += soq__gguf_u32(g, key, &u32, &err) ? touch(err.text, strlen(err.text)) : u32;
    sum += soq__gguf_u64(g, key, &u64, &err) ? 0 : (unsigned)u64;
    sum += soq__gguf_i64(g, key, &i64, &err) ? 0 : (unsigned)i64;
    sum += soq__gguf_f32(g, key, &f32, &err) ? 0 : (unsigned)(f32 > 0);
    sum += soq__gguf_bool(g, key, &flag, &err) ? 0 : flag;
    sum += soq__gguf_string(g, key, &text, &err) ? 0 : touch(text.data, text.len);
    sum += (unsigned)(soq__gguf_ints(g, key, &array, &err) + soq__gguf_floats(g, key, &array, &err) +
                      soq__gguf_strings(g, key, &array, &err));
    for (uint64_t i = 0; i <= kv->count; i++) {
        text = soq__gguf_str_at(kv, i);
        sum += touch(text.data, text.len) + (unsigned)soq__gguf_int_at(kv, i) + (soq__gguf_float_at(kv, i) > 0);
    }
    soq__free(key);
    return sum;
}

static unsigned read_tensor(const struct soq__gguf *g, const struct soq__gguf_tensor *t)
{
    struct soq_error err = SOQ_ERROR_INIT;
    char *name = soq__strndup(t->name.data, t->name.len);
    const struct soq__gguf_tensor *found;
    unsigned sum = t->data ? touch(t->data, (size_t)t->bytes) : 0;

    if (soq__gguf_tensor_find(g, name) != t)
        abort();
    if (soq__gguf_tensor_need(g, name, &found, &err) == 0) {
        const unsigned char *block = t->data;
        float out[256];

        for (uint64_t i = 0; i < t->elements; i += t->dtype->elements, block += t->dtype->bytes) {
            soq__dequant((enum soq_dtype)t->type)(block, out, 1);
            sum += out[0] > 0;
        }
        if (block != (const unsigned char *)t->data + t->bytes)
            abort();
    }
    soq__free(name);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__gguf *g = NULL;
    int64_t live = soq__alloc_live();

    if (soq__gguf_open_memory(data, size, "fuzz", &g, &err) == 0) {
        for (size_t i = 0; i < soq__gguf_n_kv(g); i++)
            sink += read_kv(g, soq__gguf_kv_at(g, i));
        for (size_t i = 0; i < soq__gguf_n_tensors(g); i++)
            sink += read_tensor(g, soq__gguf_tensor_at(g, i));
    } else if (g || !err.text[0]) {
        abort();
    }
    soq__gguf_close(g);
    if (soq__alloc_live() != live)
        abort();
    return 0;
}
