/* GGUF files, versions 2 and 3, little-endian: key/value metadata and the tensor table, read in place.
 *
 * Opening checks every count, length, type, offset and product once; afterwards lookups cannot fail on the file's content and
 * views point straight into the mapping. Keys and tensor names are UTF-8 without control characters, so messages may print
 * them. What is refused at open, each with a message that names the file, the key or tensor and the value: other formats (named
 * when recognised), version 1, big-endian files, parts of a split file, nested arrays, duplicate keys or tensors, tensors that
 * overlap, are misaligned or lie beyond the end, rows that are no whole number of blocks. A tensor of an unknown type id does
 * not keep a file from being inspected; soq__gguf_tensor_need() refuses it.
 *
 * Memory: at most a small multiple of the file's header. Read-only after open, so any number of threads may read. */
#ifndef SOQ_MODEL_GGUF_H
#define SOQ_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/dtype.h"

#define SOQ__GGUF_MAX_DIMS 4
#define SOQ__GGUF_MAX_KEY 65535          /* bytes, the specification's limit */
#define SOQ__GGUF_MAX_NAME 64            /* bytes of a tensor name, likewise */
#define SOQ__GGUF_MIN_ALIGNMENT 8        /* general.alignment: a power of two */
#define SOQ__GGUF_MAX_ALIGNMENT 65536    /* the largest page size in use */
#define SOQ__GGUF_MAX_ENTRIES (1u << 20) /* keys, and tensors */

/* X(name, id, text): types of metadata values. */
#define SOQ__GGUF_TYPES(X)                                                                                                     \
    X(SOQ__GGUF_U8, 0, "uint8")                                                                                                \
    X(SOQ__GGUF_I8, 1, "int8")                                                                                                 \
    X(SOQ__GGUF_U16, 2, "uint16")                                                                                              \
    X(SOQ__GGUF_I16, 3, "int16")                                                                                               \
    X(SOQ__GGUF_U32, 4, "uint32")                                                                                              \
    X(SOQ__GGUF_I32, 5, "int32")                                                                                               \
    X(SOQ__GGUF_F32, 6, "float32")                                                                                             \
    X(SOQ__GGUF_BOOL, 7, "bool")                                                                                               \
    X(SOQ__GGUF_STRING, 8, "string")                                                                                           \
    X(SOQ__GGUF_ARRAY, 9, "array")                                                                                             \
    X(SOQ__GGUF_U64, 10, "uint64")                                                                                             \
    X(SOQ__GGUF_I64, 11, "int64")                                                                                              \
    X(SOQ__GGUF_F64, 12, "float64")

enum soq__gguf_type {
#define SOQ__GGUF_ENUM(name, id, text) name = id,
    SOQ__GGUF_TYPES(SOQ__GGUF_ENUM)
#undef SOQ__GGUF_ENUM
};

struct soq__gguf; /* an open file */

/* Bytes inside the file; not NUL-terminated; valid until close. Values may hold any byte. */
struct soq__gguf_str {
    const char *data;
    size_t len;
};

/* One metadata entry. Values are read with the getters below. */
struct soq__gguf_kv {
    struct soq__gguf_str key;
    enum soq__gguf_type type;  /* SOQ__GGUF_ARRAY: see the next three */
    enum soq__gguf_type item;  /* type of the items, never an array; = type for a single value */
    uint64_t count;            /* items; 1 for a single value */
    const uint64_t *starts;    /* [count] where an array's strings begin, relative to data; else NULL */
    const unsigned char *data; /* the first item */
};

struct soq__gguf_tensor {
    struct soq__gguf_str name;
    uint32_t type;                   /* id as in the file */
    const struct soq__dtype *dtype;  /* NULL if the id is unknown */
    uint32_t n_dims;                 /* 1 .. 4 */
    uint64_t ne[SOQ__GGUF_MAX_DIMS]; /* ne[0] = row length, contiguous; 1 beyond n_dims; never 0 */
    uint64_t elements;               /* product of ne */
    uint64_t offset;                 /* of the first byte, from the start of the file */
    uint64_t bytes;                  /* 0 if the type is unknown */
    const void *data;                /* in the mapping; NULL if the type is unknown */
};

/* path: a regular file, mapped read-only. */
int soq__gguf_open(const char *path, struct soq__gguf **out, struct soq_error *err);
/* data[0..size) is borrowed until close and should be aligned to 8; name is used in messages. */
int soq__gguf_open_memory(const void *data, size_t size, const char *name, struct soq__gguf **out, struct soq_error *err);
void soq__gguf_close(struct soq__gguf *g);

const char *soq__gguf_path(const struct soq__gguf *g);
uint32_t soq__gguf_version(const struct soq__gguf *g);
uint64_t soq__gguf_size(const struct soq__gguf *g);        /* bytes of the file */
uint64_t soq__gguf_data_offset(const struct soq__gguf *g); /* where tensor data begins */
uint32_t soq__gguf_alignment(const struct soq__gguf *g);

const char *soq__gguf_type_name(enum soq__gguf_type type);
bool soq__gguf_str_equal(struct soq__gguf_str a, const char *b);

/* Metadata, in file order or by key (NULL if absent). */
size_t soq__gguf_n_kv(const struct soq__gguf *g);
const struct soq__gguf_kv *soq__gguf_kv_at(const struct soq__gguf *g, size_t i);
const struct soq__gguf_kv *soq__gguf_find(const struct soq__gguf *g, const char *key);

/* Typed values. -SOQ_ENOTFOUND if the key is absent, -SOQ_EINVAL if the type or the range is wrong: any integer type converts
 * if the value fits; f32 takes float32 and float64, finite only; bool and string are exact. */
int soq__gguf_u32(const struct soq__gguf *g, const char *key, uint32_t *out, struct soq_error *err);
int soq__gguf_u64(const struct soq__gguf *g, const char *key, uint64_t *out, struct soq_error *err);
int soq__gguf_i64(const struct soq__gguf *g, const char *key, int64_t *out, struct soq_error *err);
int soq__gguf_f32(const struct soq__gguf *g, const char *key, float *out, struct soq_error *err);
int soq__gguf_bool(const struct soq__gguf *g, const char *key, bool *out, struct soq_error *err);
int soq__gguf_string(const struct soq__gguf *g, const char *key, struct soq__gguf_str *out, struct soq_error *err);
/* The same with a value for an absent key; a wrong type is still an error. */
int soq__gguf_u32_or(const struct soq__gguf *g, const char *key, uint32_t absent, uint32_t *out, struct soq_error *err);
int soq__gguf_f32_or(const struct soq__gguf *g, const char *key, float absent, float *out, struct soq_error *err);
int soq__gguf_bool_or(const struct soq__gguf *g, const char *key, bool absent, bool *out, struct soq_error *err);

/* Arrays: the entry itself, its item type checked here once. ints: any integer type or bool, each item within int64. */
int soq__gguf_ints(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv **out, struct soq_error *err);
int soq__gguf_floats(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv **out, struct soq_error *err);
int soq__gguf_strings(const struct soq__gguf *g, const char *key, const struct soq__gguf_kv **out, struct soq_error *err);
/* Item i, O(1), of an entry of that kind (arrays, and single values as item 0); 0 or "" if i or the kind is wrong. */
int64_t soq__gguf_int_at(const struct soq__gguf_kv *kv, uint64_t i);
double soq__gguf_float_at(const struct soq__gguf_kv *kv, uint64_t i);
struct soq__gguf_str soq__gguf_str_at(const struct soq__gguf_kv *kv, uint64_t i);

/* Tensors, in file order or by name (NULL if absent). */
size_t soq__gguf_n_tensors(const struct soq__gguf *g);
const struct soq__gguf_tensor *soq__gguf_tensor_at(const struct soq__gguf *g, size_t i);
const struct soq__gguf_tensor *soq__gguf_tensor_find(const struct soq__gguf *g, const char *name);
/* -SOQ_ENOTFOUND if absent, -SOQ_EUNSUPPORTED if the runtime cannot compute with its type. */
int soq__gguf_tensor_need(const struct soq__gguf *g, const char *name, const struct soq__gguf_tensor **out,
                          struct soq_error *err);
/* True if tensors lie in a private mapping of the file, whose pages may be dropped. */
bool soq__gguf_mapped(const struct soq__gguf *g);

/* The tensor's bytes will not be read again soon (a backend repacked them). */
void soq__gguf_tensor_drop(const struct soq__gguf *g, const struct soq__gguf_tensor *tensor);

#endif
