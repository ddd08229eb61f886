/* Validation of the tensor table: sizes, places, overlaps. */
#include "model/gguf_internal.h"

#include <stdlib.h>

#include "base/alloc.h"

#define TENSOR "%s: tensor '%.*s': "
#define TENSOR_ARGS(g, t) (g)->path, soq__gguf_shown((t)->name), (t)->name.data
#define LLU(x) ((unsigned long long)(x))

static int count_elements(const struct soq__gguf *g, struct soq__gguf_tensor *t, struct soq_error *err)
{
    t->elements = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->ne[i] == 0)
            return soq__fail(err, SOQ_ECORRUPT, TENSOR "dimension %u is 0", TENSOR_ARGS(g, t), i);
        if (__builtin_mul_overflow(t->elements, t->ne[i], &t->elements) || t->elements > INT64_MAX)
            return soq__fail(err, SOQ_ECORRUPT, TENSOR "too many elements: %llu x %llu x %llu x %llu", TENSOR_ARGS(g, t),
                             LLU(t->ne[0]), LLU(t->ne[1]), LLU(t->ne[2]), LLU(t->ne[3]));
    }
    return 0;
}

static int count_bytes(const struct soq__gguf *g, struct soq__gguf_tensor *t, struct soq_error *err)
{
    uint64_t row;

    t->dtype = soq__dtype(t->type);
    if (!t->dtype)
        return 0;
    if (t->ne[0] % t->dtype->elements)
        return soq__fail(err, SOQ_ECORRUPT, TENSOR "rows of %llu elements are not a whole number of %s blocks of %u",
                         TENSOR_ARGS(g, t), LLU(t->ne[0]), t->dtype->name, t->dtype->elements);
    if (!soq__dtype_row_bytes(t->dtype, t->ne[0], &row) || __builtin_mul_overflow(row, t->elements / t->ne[0], &t->bytes))
        return soq__fail(err, SOQ_ECORRUPT, TENSOR "%llu elements of type %s are too many bytes", TENSOR_ARGS(g, t),
                         LLU(t->elements), t->dtype->name);
    return 0;
}

static int place(const struct soq__gguf *g, struct soq__gguf_tensor *t, struct soq_error *err)
{
    uint64_t start, end, size = g->map.size;

    if (t->offset % g->alignment)
        return soq__fail(err, SOQ_ECORRUPT, TENSOR "offset %llu is not a multiple of the alignment %u", TENSOR_ARGS(g, t),
                         LLU(t->offset), g->alignment);
    if (__builtin_add_overflow(t->offset, g->data_offset, &start) || __builtin_add_overflow(start, t->bytes, &end) ||
        end > size)
        return soq__fail(err, SOQ_ECORRUPT,
                         TENSOR "%llu bytes at offset %llu of the data, which begins at byte %llu, end beyond the file of %llu "
                                "bytes; is it complete?",
                         TENSOR_ARGS(g, t), LLU(t->bytes), LLU(t->offset), LLU(g->data_offset), LLU(size));
    t->offset = start;
    t->data = t->dtype ? g->map.data + start : NULL;
    return 0;
}

static int by_offset(const void *a, const void *b, void *tensors)
{
    const struct soq__gguf_tensor *all = tensors;
    uint64_t x = all[*(const uint32_t *)a].offset, y = all[*(const uint32_t *)b].offset;

    return (x > y) - (x < y);
}

static int check_overlaps(const struct soq__gguf *g, struct soq_error *err)
{
    uint32_t *order = soq__alloc_array(g->n_tensors, sizeof *order);
    int rc = 0;

    if (!order)
        return soq__fail(err, SOQ_ENOMEM, "%s: out of memory for %zu tensors", g->path, g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, g->n_tensors, sizeof *order, by_offset, g->tensors);
    for (size_t i = 1; i < g->n_tensors && !rc; i++) {
        const struct soq__gguf_tensor *a = &g->tensors[order[i - 1]], *b = &g->tensors[order[i]];

        if (a->offset == b->offset || a->offset + a->bytes > b->offset)
            rc = soq__fail(err, SOQ_ECORRUPT, TENSOR "overlaps with tensor '%.*s' at byte %llu", TENSOR_ARGS(g, a),
                           soq__gguf_shown(b->name), b->name.data, LLU(b->offset));
    }
    soq__free(order);
    return rc;
}

int soq__gguf_check_tensors(struct soq__gguf *g, struct soq_error *err)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct soq__gguf_tensor *t = &g->tensors[i];
        int rc = count_elements(g, t, err);

        if (!rc)
            rc = count_bytes(g, t, err);
        if (!rc)
            rc = place(g, t, err);
        if (rc)
            return rc;
    }
    return check_overlaps(g, err);
}
