/* Reading an open file: accessors, and metadata values with their types and ranges checked. */
#include "model/gguf.h"

#include <math.h>

#include "base/utf8.h"
#include "model/gguf_internal.h"

#define KEY "%s: key '%s' "

/* Any integer: its bits as 64-bit two's complement, and its sign. */
struct integer {
    uint64_t bits;
    bool negative;
};

static struct integer signed_integer(int64_t value)
{
    return (struct integer){(uint64_t)value, value < 0};
}

static bool is_integer(enum soq__gguf_type type)
{
    return type <= SOQ__GGUF_I32 || type == SOQ__GGUF_U64 || type == SOQ__GGUF_I64;
}

static struct integer load_integer(enum soq__gguf_type type, const unsigned char *data, uint64_t i)
{
    switch (type) {
    case SOQ__GGUF_U8:
    case SOQ__GGUF_BOOL:
        return (struct integer){data[i], false};
    case SOQ__GGUF_I8:
        return signed_integer((int8_t)data[i]);
    case SOQ__GGUF_U16:
        return (struct integer){soq__load_u16(data + 2 * i), false};
    case SOQ__GGUF_I16:
        return signed_integer((int16_t)soq__load_u16(data + 2 * i));
    case SOQ__GGUF_U32:
        return (struct integer){soq__load_u32(data + 4 * i), false};
    case SOQ__GGUF_I32:
        return signed_integer((int32_t)soq__load_u32(data + 4 * i));
    case SOQ__GGUF_U64:
        return (struct integer){soq__load_u64(data + 8 * i), false};
    case SOQ__GGUF_I64:
        return signed_integer((int64_t)soq__load_u64(data + 8 * i));
    default:
        return (struct integer){0};
    }
}

static double load_float(enum soq__gguf_type type, const unsigned char *data, uint64_t i)
{
    if (type == SOQ__GGUF_F32) {
        uint32_t bits = soq__load_u32(data + 4 * i);
        float value;

        memcpy(&value, &bits, sizeof value);
        return (double)value;
    } else {
        uint64_t bits = soq__load_u64(data + 8 * i);
        double value;

        memcpy(&value, &bits, sizeof value);
        return value;
    }
}

int soq__gguf_shown(struct soq__gguf_str name)
{
    return (int)soq__utf8_complete(name.data, name.len < 100 ? name.len : 100);
}

const char *soq__gguf_path(const struct soq__gguf *g)
{
    return g->path;
}

uint32_t soq__gguf_version(const struct soq__gguf *g)
{
    return g->version;
}

uint64_t soq__gguf_size(const struct soq__gguf *g)
{
    return g->map.size;
}

uint64_t soq__gguf_data_offset(const struct soq__gguf *g)
{
    return g->data_offset;
}

uint32_t soq__gguf_alignment(const struct soq__gguf *g)
{
    return g->alignment;
}

const char *soq__gguf_type_name(enum soq__gguf_type type)
{
    static const char *const names[] = {
#define NAME(name, id, text) [id] = text,
        SOQ__GGUF_TYPES(NAME)
#undef NAME
    };

    return (size_t)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

bool soq__gguf_str_equal(struct soq__gguf_str a, const char *b)
{
    return a.len == strlen(b) && memcmp(a.data, b, a.len) == 0;
}

size_t soq__gguf_n_kv(const struct soq__gguf *g)
{
    return g->n_kvs;
}

const struct soq__gguf_kv *soq__gguf_kv_at(const struct soq__gguf *g, size_t i)
{
    return i < g->n_kvs ? &g->kvs[i] : NULL;
}

const struct soq__gguf_kv *soq__gguf_find(const struct soq__gguf *g, const char *key)
{
    return soq__gguf_index_find(&g->kv_index, key);
}

/* "array of float32" needs two parts; for a single value the first is empty. */
static int wrong_type(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv *kv, const char *expected,
                      struct soq_error *err)
{
    return soq__fail(err, SOQ_EINVAL, KEY "is %s%s, expected %s", g->path, key, kv->type == SOQ__GGUF_ARRAY ? "array of " : "",
                     soq__gguf_type_name(kv->item), expected);
}

static int find(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv **out, struct soq_error *err)
{
    *out = soq__gguf_find(g, key);
    return *out ? 0 : soq__fail(err, SOQ_ENOTFOUND, KEY "is missing", g->path, key);
}

static int get_integer(const struct soq__gguf *g, const char *key, struct integer *out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    int rc = find(g, key, &kv, err);

    if (rc)
        return rc;
    if (!is_integer(kv->type))
        return wrong_type(g, key, kv, "an integer", err);
    *out = load_integer(kv->type, kv->data, 0);
    return 0;
}

int soq__gguf_u64(const struct soq__gguf *g, const char *key, uint64_t *out, struct soq_error *err)
{
    struct integer value;
    int rc = get_integer(g, key, &value, err);

    if (rc)
        return rc;
    if (value.negative)
        return soq__fail(err, SOQ_EINVAL, KEY "is %lld, expected 0 or more", g->path, key, (long long)value.bits);
    *out = value.bits;
    return 0;
}

int soq__gguf_u32(const struct soq__gguf *g, const char *key, uint32_t *out, struct soq_error *err)
{
    uint64_t value = 0;
    int rc = soq__gguf_u64(g, key, &value, err);

    if (rc)
        return rc;
    if (value > UINT32_MAX)
        return soq__fail(err, SOQ_EINVAL, KEY "is %llu, expected at most %u", g->path, key, (unsigned long long)value,
                         UINT32_MAX);
    *out = (uint32_t)value;
    return 0;
}

int soq__gguf_i64(const struct soq__gguf *g, const char *key, int64_t *out, struct soq_error *err)
{
    struct integer value;
    int rc = get_integer(g, key, &value, err);

    if (rc)
        return rc;
    if (!value.negative && value.bits > INT64_MAX)
        return soq__fail(err, SOQ_EINVAL, KEY "is %llu, expected at most %lld", g->path, key, (unsigned long long)value.bits,
                         (long long)INT64_MAX);
    *out = (int64_t)value.bits;
    return 0;
}

int soq__gguf_f32(const struct soq__gguf *g, const char *key, float *out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    double value;
    int rc = find(g, key, &kv, err);

    if (rc)
        return rc;
    if (kv->type != SOQ__GGUF_F32 && kv->type != SOQ__GGUF_F64)
        return wrong_type(g, key, kv, "a floating-point number", err);
    value = load_float(kv->type, kv->data, 0);
    if (!(fabs(value) <= (double)__FLT_MAX__))
        return soq__fail(err, SOQ_EINVAL, KEY "is %g, expected a finite float32", g->path, key, value);
    *out = (float)value;
    return 0;
}

int soq__gguf_bool(const struct soq__gguf *g, const char *key, bool *out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    int rc = find(g, key, &kv, err);

    if (rc)
        return rc;
    if (kv->type != SOQ__GGUF_BOOL)
        return wrong_type(g, key, kv, "bool", err);
    *out = kv->data[0];
    return 0;
}

int soq__gguf_string(const struct soq__gguf *g, const char *key, struct soq__gguf_str *out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    int rc = find(g, key, &kv, err);

    if (rc)
        return rc;
    if (kv->type != SOQ__GGUF_STRING)
        return wrong_type(g, key, kv, "a string", err);
    *out = soq__gguf_str_at(kv, 0);
    return 0;
}

int soq__gguf_u32_or(const struct soq__gguf *g, const char *key, uint32_t absent, uint32_t *out, struct soq_error *err)
{
    if (soq__gguf_find(g, key))
        return soq__gguf_u32(g, key, out, err);
    *out = absent;
    return 0;
}

int soq__gguf_f32_or(const struct soq__gguf *g, const char *key, float absent, float *out, struct soq_error *err)
{
    if (soq__gguf_find(g, key))
        return soq__gguf_f32(g, key, out, err);
    *out = absent;
    return 0;
}

int soq__gguf_bool_or(const struct soq__gguf *g, const char *key, bool absent, bool *out, struct soq_error *err)
{
    if (soq__gguf_find(g, key))
        return soq__gguf_bool(g, key, out, err);
    *out = absent;
    return 0;
}

int soq__gguf_ints(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv **out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    int rc = find(g, key, &kv, err);

    if (rc)
        return rc;
    if (kv->type != SOQ__GGUF_ARRAY || !(is_integer(kv->item) || kv->item == SOQ__GGUF_BOOL))
        return wrong_type(g, key, kv, "an array of integers", err);
    for (uint64_t i = 0; kv->item == SOQ__GGUF_U64 && i < kv->count; i++) {
        uint64_t value = load_integer(kv->item, kv->data, i).bits;

        if (value > INT64_MAX)
            return soq__fail(err, SOQ_EINVAL, KEY "has %llu as item %llu, expected at most %lld", g->path, key,
                             (unsigned long long)value, (unsigned long long)i, (long long)INT64_MAX);
    }
    *out = kv;
    return 0;
}

int soq__gguf_floats(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv **out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    int rc = find(g, key, &kv, err);

    if (rc)
        return rc;
    if (kv->type != SOQ__GGUF_ARRAY || (kv->item != SOQ__GGUF_F32 && kv->item != SOQ__GGUF_F64))
        return wrong_type(g, key, kv, "an array of floating-point numbers", err);
    *out = kv;
    return 0;
}

int soq__gguf_strings(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv **out, struct soq_error *err)
{
    const struct soq__gguf_kv *kv;
    int rc = find(g, key, &kv, err);

    if (rc)
        return rc;
    if (kv->type != SOQ__GGUF_ARRAY || kv->item != SOQ__GGUF_STRING)
        return wrong_type(g, key, kv, "an array of strings", err);
    *out = kv;
    return 0;
}

int64_t soq__gguf_int_at(const struct soq__gguf_kv *kv, uint64_t i)
{
    return i < kv->count ? (int64_t)load_integer(kv->item, kv->data, i).bits : 0;
}

double soq__gguf_float_at(const struct soq__gguf_kv *kv, uint64_t i)
{
    bool is_float = kv->item == SOQ__GGUF_F32 || kv->item == SOQ__GGUF_F64;

    return is_float && i < kv->count ? load_float(kv->item, kv->data, i) : 0.0;
}

struct soq__gguf_str soq__gguf_str_at(const struct soq__gguf_kv *kv, uint64_t i)
{
    const unsigned char *at = kv->data;

    if (kv->item != SOQ__GGUF_STRING || i >= kv->count)
        return (struct soq__gguf_str){"", 0};
    if (kv->starts)
        at += kv->starts[i];
    return (struct soq__gguf_str){(const char *)at + 8, (size_t)soq__load_u64(at)};
}

size_t soq__gguf_n_tensors(const struct soq__gguf *g)
{
    return g->n_tensors;
}

const struct soq__gguf_tensor *soq__gguf_tensor_at(const struct soq__gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct soq__gguf_tensor *soq__gguf_tensor_find(const struct soq__gguf *g, const char *name)
{
    return soq__gguf_index_find(&g->tensor_index, name);
}

int soq__gguf_tensor_need(const struct soq__gguf *g, const char *name, const struct soq__gguf_tensor **out,
                          struct soq_error *err)
{
    const struct soq__gguf_tensor *t = soq__gguf_tensor_find(g, name);

    if (!t)
        return soq__fail(err, SOQ_ENOTFOUND, "%s: tensor '%s' is missing", g->path, name);
    if (!t->dtype)
        return soq__fail(err, SOQ_EUNSUPPORTED, "%s: tensor '%s' has the unknown type id %u", g->path, name, t->type);
    if (!t->dtype->supported)
        return soq__fail(err, SOQ_EUNSUPPORTED, "%s: tensor '%s' has the unsupported type %s; supported are %s", g->path, name,
                         t->dtype->name, soq__dtype_supported_names());
    *out = t;
    return 0;
}

bool soq__gguf_mapped(const struct soq__gguf *g)
{
    return g->mapped;
}

void soq__gguf_tensor_drop(const struct soq__gguf *g, const struct soq__gguf_tensor *tensor)
{
    if (g->mapped)
        soq__map_drop(&g->map, (size_t)tensor->offset, (size_t)tensor->bytes);
}
