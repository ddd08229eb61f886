/* Opening a GGUF file: one pass over header, metadata and tensor table with a cursor that cannot leave the file.
 *
 * File: magic, version u32, tensor count u64, key count u64, then the entries {key, type u32, value}, then the tensors {name,
 * dimension count u32, dimensions u64, type u32, offset u64}, then the data, aligned. A string is a u64 length and its bytes.
 * Every count is compared with what is left of the file before anything is allocated for it. */
#include "model/gguf.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "model/gguf_internal.h"

/* Where the pass stands, for reading and for messages. */
struct parser {
    const struct soq__gguf *g;
    size_t pos;
    const char *section;       /* "key" or "tensor" */
    size_t number, count;      /* the entry being read, from 1, and how many there are; 0 in the header */
    struct soq__gguf_str name; /* of the entry, once it is known */
    struct soq_error *err;
};

/* Smallest encodings: {length, 1 byte, type, 1 byte} and {length, 1 byte, count, 1 dimension, type, offset}. */
enum { MIN_KEY_BYTES = 8 + 1 + 4 + 1, MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8 };

SOQ_PRINTF(3, 4) static int fail(const struct parser *p, enum soq_error_code code, const char *fmt, ...)
{
    const char *path = p->g->path;
    char text[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (p->name.len)
        return soq__fail(p->err, code, "%s: %s '%.*s': %s", path, p->section, soq__gguf_shown(p->name), p->name.data, text);
    if (p->number)
        return soq__fail(p->err, code, "%s: %s %zu of %zu: %s", path, p->section, p->number, p->count, text);
    return soq__fail(p->err, code, "%s: %s", path, text);
}

/* The next n bytes, or NULL with a message. */
static const unsigned char *take(struct parser *p, uint64_t n, const char *what)
{
    const unsigned char *at = p->g->map.data + p->pos;

    if (n > p->g->map.size - p->pos) {
        fail(p, SOQ_ECORRUPT, "truncated: %s needs %llu bytes at byte %zu, but the file ends at %zu", what,
             (unsigned long long)n, p->pos, p->g->map.size);
        return NULL;
    }
    p->pos += (size_t)n;
    return at;
}

static int read_u32(struct parser *p, const char *what, uint32_t *out)
{
    const unsigned char *at = take(p, 4, what);

    if (!at)
        return -SOQ_ECORRUPT;
    *out = soq__load_u32(at);
    return 0;
}

static int read_u64(struct parser *p, const char *what, uint64_t *out)
{
    const unsigned char *at = take(p, 8, what);

    if (!at)
        return -SOQ_ECORRUPT;
    *out = soq__load_u64(at);
    return 0;
}

/* UTF-8 without C0 and C1 control characters. */
static bool printable(struct soq__gguf_str s)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        size_t n = soq__utf8_decode(s.data + i, s.len - i, &cp);

        if (n == 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
            return false;
        i += n;
    }
    return true;
}

/* A key or tensor name. */
static int read_name(struct parser *p, size_t max, struct soq__gguf_str *out)
{
    struct soq__gguf_str name;
    uint64_t len;
    int rc = read_u64(p, "the name's length", &len);

    if (rc)
        return rc;
    if (len == 0)
        return fail(p, SOQ_ECORRUPT, "the name is empty");
    if (len > max)
        return fail(p, SOQ_ECORRUPT, "the name's length is %llu, more than %zu", (unsigned long long)len, max);
    name.data = (const char *)take(p, len, "the name");
    name.len = (size_t)len;
    if (!name.data)
        return -SOQ_ECORRUPT;
    if (!printable(name))
        return fail(p, SOQ_ECORRUPT, "the name is not UTF-8 text without control characters");
    *out = name;
    return 0;
}

/* Bytes per item; 0 for strings and arrays, whose size varies, and for ids that do not exist. */
static size_t item_size(uint32_t type)
{
    static const unsigned char sizes[] = {
        [SOQ__GGUF_U8] = 1,  [SOQ__GGUF_I8] = 1,  [SOQ__GGUF_U16] = 2, [SOQ__GGUF_I16] = 2,
        [SOQ__GGUF_U32] = 4, [SOQ__GGUF_I32] = 4, [SOQ__GGUF_F32] = 4, [SOQ__GGUF_BOOL] = 1,
        [SOQ__GGUF_U64] = 8, [SOQ__GGUF_I64] = 8, [SOQ__GGUF_F64] = 8,
    };

    return type < sizeof sizes ? sizes[type] : 0;
}

static int read_numbers(struct parser *p, struct soq__gguf_kv *kv)
{
    uint64_t bytes;

    if (__builtin_mul_overflow(kv->count, (uint64_t)item_size(kv->item), &bytes))
        return fail(p, SOQ_ECORRUPT, "an array of %llu items cannot be in a file of %zu bytes", (unsigned long long)kv->count,
                    p->g->map.size);
    kv->data = take(p, bytes, "the value");
    if (!kv->data)
        return -SOQ_ECORRUPT;
    for (uint64_t i = 0; kv->item == SOQ__GGUF_BOOL && i < kv->count; i++)
        if (kv->data[i] > 1)
            return fail(p, SOQ_ECORRUPT, "a bool has the value %u", kv->data[i]);
    return 0;
}

/* Notes where each string begins, so that item i is found at once. */
static int read_strings(struct parser *p, struct soq__gguf_kv *kv)
{
    size_t first = p->pos;
    uint64_t *starts = NULL;

    if (kv->count > (p->g->map.size - first) / 8)
        return fail(p, SOQ_ECORRUPT, "truncated: %llu strings cannot be in the %zu bytes that are left of the file",
                    (unsigned long long)kv->count, p->g->map.size - first);
    if (kv->type == SOQ__GGUF_ARRAY) {
        starts = soq__alloc_array((size_t)kv->count, sizeof *starts);
        if (!starts)
            return fail(p, SOQ_ENOMEM, "out of memory for %llu strings", (unsigned long long)kv->count);
        kv->starts = starts; /* freed by soq__gguf_close() from here on */
    }
    kv->data = p->g->map.data + first;
    for (uint64_t i = 0; i < kv->count; i++) {
        size_t start = p->pos - first;
        uint64_t len;
        int rc = read_u64(p, "a string's length", &len);

        if (rc)
            return rc;
        if (!take(p, len, "a string"))
            return -SOQ_ECORRUPT;
        if (starts)
            starts[i] = start;
    }
    return 0;
}

static int read_array_type(struct parser *p, struct soq__gguf_kv *kv)
{
    uint32_t item;
    int rc = read_u32(p, "the array's item type", &item);

    if (!rc)
        rc = read_u64(p, "the array's length", &kv->count);
    if (rc)
        return rc;
    if (item == SOQ__GGUF_ARRAY)
        return fail(p, SOQ_EUNSUPPORTED, "an array of arrays is not supported");
    if (item != SOQ__GGUF_STRING && !item_size(item))
        return fail(p, SOQ_ECORRUPT, "the array's item type %u does not exist", item);
    kv->item = (enum soq__gguf_type)item;
    return 0;
}

static int read_kv(struct parser *p, struct soq__gguf_kv *kv)
{
    uint32_t type;
    int rc = read_name(p, SOQ__GGUF_MAX_KEY, &kv->key);

    if (rc)
        return rc;
    p->name = kv->key;
    rc = read_u32(p, "the value's type", &type);
    if (rc)
        return rc;
    if (type != SOQ__GGUF_ARRAY && type != SOQ__GGUF_STRING && !item_size(type))
        return fail(p, SOQ_ECORRUPT, "the value's type %u does not exist", type);
    kv->type = kv->item = (enum soq__gguf_type)type;
    kv->count = 1;
    if (type == SOQ__GGUF_ARRAY)
        rc = read_array_type(p, kv);
    if (rc)
        return rc;
    return kv->item == SOQ__GGUF_STRING ? read_strings(p, kv) : read_numbers(p, kv);
}

static int read_tensor(struct parser *p, struct soq__gguf_tensor *t)
{
    int rc = read_name(p, SOQ__GGUF_MAX_NAME, &t->name);

    if (rc)
        return rc;
    p->name = t->name;
    rc = read_u32(p, "the number of dimensions", &t->n_dims);
    if (rc)
        return rc;
    if (t->n_dims < 1 || t->n_dims > SOQ__GGUF_MAX_DIMS)
        return fail(p, SOQ_ECORRUPT, "%u dimensions, must be 1 to %d", t->n_dims, SOQ__GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < SOQ__GGUF_MAX_DIMS; i++)
        t->ne[i] = 1;
    for (uint32_t i = 0; i < t->n_dims && !rc; i++)
        rc = read_u64(p, "a dimension", &t->ne[i]);
    if (!rc)
        rc = read_u32(p, "the tensor's type", &t->type);
    return rc ? rc : read_u64(p, "the tensor's offset", &t->offset);
}

static int read_kvs(struct parser *p, struct soq__gguf *g)
{
    const struct soq__gguf_str *twice;

    p->section = "key";
    p->count = g->n_kvs;
    for (size_t i = 0; i < g->n_kvs; i++) {
        int rc;

        p->number = i + 1;
        p->name = (struct soq__gguf_str){0};
        rc = read_kv(p, &g->kvs[i]);
        if (rc)
            return rc;
    }
    p->number = 0;
    p->name = (struct soq__gguf_str){0};
    if (!soq__gguf_index_build(&g->kv_index, g->kvs, sizeof *g->kvs, g->n_kvs))
        return fail(p, SOQ_ENOMEM, "out of memory for %zu keys", g->n_kvs);
    twice = soq__gguf_index_duplicate(&g->kv_index);
    if (twice)
        return fail(p, SOQ_ECORRUPT, "key '%.*s' is there twice", soq__gguf_shown(*twice), twice->data);
    return 0;
}

static int read_tensors(struct parser *p, struct soq__gguf *g)
{
    const struct soq__gguf_str *twice;

    p->section = "tensor";
    p->count = g->n_tensors;
    for (size_t i = 0; i < g->n_tensors; i++) {
        int rc;

        p->number = i + 1;
        p->name = (struct soq__gguf_str){0};
        rc = read_tensor(p, &g->tensors[i]);
        if (rc)
            return rc;
    }
    p->number = 0;
    p->name = (struct soq__gguf_str){0};
    if (!soq__gguf_index_build(&g->tensor_index, g->tensors, sizeof *g->tensors, g->n_tensors))
        return fail(p, SOQ_ENOMEM, "out of memory for %zu tensors", g->n_tensors);
    twice = soq__gguf_index_duplicate(&g->tensor_index);
    if (twice)
        return fail(p, SOQ_ECORRUPT, "tensor '%.*s' is there twice", soq__gguf_shown(*twice), twice->data);
    return 0;
}

static int read_count(struct parser *p, const char *what, size_t min_bytes, size_t *out)
{
    uint64_t n;
    int rc = read_u64(p, what, &n);

    if (rc)
        return rc;
    if (n > SOQ__GGUF_MAX_ENTRIES)
        return fail(p, SOQ_ELIMIT, "%s is %llu, more than %u", what, (unsigned long long)n, SOQ__GGUF_MAX_ENTRIES);
    if (n > (p->g->map.size - p->pos) / min_bytes)
        return fail(p, SOQ_ECORRUPT, "truncated: %s is %llu, more than a file of %zu bytes can hold", what,
                    (unsigned long long)n, p->g->map.size);
    *out = (size_t)n;
    return 0;
}

static int read_header(struct parser *p, struct soq__gguf *g)
{
    int rc = soq__gguf_check_magic(g, p->err);

    if (rc)
        return rc;
    g->version = soq__load_u32(g->map.data + 4);
    p->pos = 8;
    rc = read_count(p, "the number of tensors", MIN_TENSOR_BYTES, &g->n_tensors);
    if (!rc)
        rc = read_count(p, "the number of keys", MIN_KEY_BYTES, &g->n_kvs);
    if (rc)
        return rc;
    g->tensors = soq__alloc_zero(g->n_tensors, sizeof *g->tensors);
    g->kvs = soq__alloc_zero(g->n_kvs, sizeof *g->kvs);
    if (!g->tensors || !g->kvs)
        return fail(p, SOQ_ENOMEM, "out of memory for %zu keys and %zu tensors", g->n_kvs, g->n_tensors);
    return 0;
}

static int check_split(const struct soq__gguf *g, struct soq_error *err)
{
    uint32_t count, number;
    int rc = soq__gguf_u32_or(g, "split.count", 1, &count, err);

    if (!rc)
        rc = soq__gguf_u32_or(g, "split.no", 0, &number, err);
    if (!rc && count > 1)
        return soq__fail(err, SOQ_EUNSUPPORTED,
                         "%s: part %llu of a model split into %u files (key 'split.count'); merge them first", g->path,
                         number + 1ull, count);
    return rc;
}

static int read_alignment(struct soq__gguf *g, struct soq_error *err)
{
    int rc = soq__gguf_u32_or(g, "general.alignment", 32, &g->alignment, err);

    if (rc)
        return rc;
    if (g->alignment & (g->alignment - 1) || g->alignment < SOQ__GGUF_MIN_ALIGNMENT || g->alignment > SOQ__GGUF_MAX_ALIGNMENT)
        return soq__fail(err, SOQ_ECORRUPT, "%s: key 'general.alignment' is %u, must be a power of two from %d to %d", g->path,
                         g->alignment, SOQ__GGUF_MIN_ALIGNMENT, SOQ__GGUF_MAX_ALIGNMENT);
    return 0;
}

static int parse(struct soq__gguf *g, struct soq_error *err)
{
    struct parser p = {.g = g, .err = err};
    int rc = read_header(&p, g);

    if (!rc)
        rc = read_kvs(&p, g);
    if (!rc)
        rc = check_split(g, err);
    if (!rc)
        rc = read_alignment(g, err);
    if (!rc)
        rc = read_tensors(&p, g);
    if (rc)
        return rc;
    g->data_offset = ((uint64_t)p.pos + g->alignment - 1) / g->alignment * g->alignment;
    return soq__gguf_check_tensors(g, err);
}

/* Takes over the map, also when it fails. */
static int open_map(struct soq_map map, bool mapped, const char *name, struct soq__gguf **out, struct soq_error *err)
{
    struct soq__gguf *g = soq__alloc_zero(1, sizeof *g);
    int rc;

    if (!g) {
        if (mapped)
            soq__map_done(&map);
        return soq__fail(err, SOQ_ENOMEM, "%s: out of memory", name);
    }
    g->map = map;
    g->mapped = mapped;
    g->path = soq__strdup(name);
    rc = g->path ? parse(g, err) : soq__fail(err, SOQ_ENOMEM, "%s: out of memory", name);
    if (rc) {
        soq__gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int soq__gguf_open(const char *path, struct soq__gguf **out, struct soq_error *err)
{
    struct soq_map map;
    int rc = soq__map_open(path, &map, err);

    return rc ? rc : open_map(map, true, path, out, err);
}

int soq__gguf_open_memory(const void *data, size_t size, const char *name, struct soq__gguf **out, struct soq_error *err)
{
    return open_map((struct soq_map){.data = data, .size = size}, false, name, out, err);
}

void soq__gguf_close(struct soq__gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; g->kvs && i < g->n_kvs; i++)
        soq__free((void *)(uintptr_t)g->kvs[i].starts);
    soq__free(g->kvs);
    soq__free(g->tensors);
    soq__gguf_index_done(&g->kv_index);
    soq__gguf_index_done(&g->tensor_index);
    if (g->mapped)
        soq__map_done(&g->map);
    soq__free(g->path);
    soq__free(g);
}
