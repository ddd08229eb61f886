/* Lookup by name: a sorted order, so that the time is bounded whatever the names are, and duplicates are neighbours. */
#include "model/gguf_internal.h"

#include <stdlib.h>

#include "base/alloc.h"

static const struct soq__gguf_str *name_at(const struct soq__gguf_index *index, uint32_t entry)
{
    return (const void *)(index->entries + entry * index->stride);
}

static int compare(const struct soq__gguf_str *a, const char *b, size_t b_len)
{
    int order = memcmp(a->data, b, a->len < b_len ? a->len : b_len);

    return order ? order : (a->len > b_len) - (a->len < b_len);
}

static int compare_entries(const void *a, const void *b, void *index)
{
    const struct soq__gguf_str *name = name_at(index, *(const uint32_t *)b);

    return compare(name_at(index, *(const uint32_t *)a), name->data, name->len);
}

bool soq__gguf_index_build(struct soq__gguf_index *index, const void *entries, size_t stride, size_t n)
{
    *index = (struct soq__gguf_index){.entries = entries, .stride = stride, .n = n};
    index->order = soq__alloc_array(n, sizeof *index->order);
    if (!index->order)
        return false;
    for (size_t i = 0; i < n; i++)
        index->order[i] = (uint32_t)i;
    qsort_r(index->order, n, sizeof *index->order, compare_entries, index);
    return true;
}

void soq__gguf_index_done(struct soq__gguf_index *index)
{
    soq__free(index->order);
    *index = (struct soq__gguf_index){0};
}

const void *soq__gguf_index_find(const struct soq__gguf_index *index, const char *name)
{
    size_t low = 0, high = index->n, len = strlen(name);

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct soq__gguf_str *found = name_at(index, index->order[middle]);
        int order = compare(found, name, len);

        if (order == 0)
            return found;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const struct soq__gguf_str *soq__gguf_index_duplicate(const struct soq__gguf_index *index)
{
    for (size_t i = 1; i < index->n; i++)
        if (compare_entries(&index->order[i - 1], &index->order[i], (void *)(uintptr_t)index) == 0)
            return name_at(index, index->order[i]);
    return NULL;
}
