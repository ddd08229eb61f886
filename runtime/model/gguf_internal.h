/* Shared by the reader's files: the open file, and the order by name. */
#ifndef SOQ_MODEL_GGUF_INTERNAL_H
#define SOQ_MODEL_GGUF_INTERNAL_H

#include <string.h>

#include "base/file.h"
#include "model/gguf.h"

/* Entries of any struct that begins with its name (a struct soq__gguf_str), in order of the names. */
struct soq__gguf_index {
    const char *entries; /* borrowed */
    size_t stride;
    uint32_t *order; /* [n] */
    size_t n;
};

struct soq__gguf {
    char *path;
    struct soq_map map; /* of a file; of borrowed memory if !mapped */
    bool mapped;
    uint32_t version;
    uint32_t alignment;
    uint64_t data_offset;
    struct soq__gguf_kv *kvs;
    size_t n_kvs;
    struct soq__gguf_tensor *tensors;
    size_t n_tensors;
    struct soq__gguf_index kv_index;
    struct soq__gguf_index tensor_index;
};

static inline uint16_t soq__load_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t soq__load_u32(const unsigned char *p)
{
    return soq__load_u16(p) | (uint32_t)soq__load_u16(p + 2) << 16;
}

static inline uint64_t soq__load_u64(const unsigned char *p)
{
    return soq__load_u32(p) | (uint64_t)soq__load_u32(p + 4) << 32;
}

/* For "%.*s": the bytes of a name that a message shows; long names are cut between characters. */
int soq__gguf_shown(struct soq__gguf_str name);

/* false if out of memory */
bool soq__gguf_index_build(struct soq__gguf_index *index, const void *entries, size_t stride, size_t n);
void soq__gguf_index_done(struct soq__gguf_index *index);
const void *soq__gguf_index_find(const struct soq__gguf_index *index, const char *name);
/* The name that two entries share, or NULL. */
const struct soq__gguf_str *soq__gguf_index_duplicate(const struct soq__gguf_index *index);

/* Checks the first eight bytes and says what the file is when it is no GGUF file that can be read. */
int soq__gguf_check_magic(const struct soq__gguf *g, struct soq_error *err);
/* Turns the tensors' relative offsets into absolute ones, fills in dtype, sizes and data, and refuses what does not fit. */
int soq__gguf_check_tensors(struct soq__gguf *g, struct soq_error *err);

#endif
