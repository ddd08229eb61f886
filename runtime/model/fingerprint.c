/* The fingerprint of a model file. */
#include "model/fingerprint.h"

#include "model/gguf_internal.h"

#define SAMPLE 1024 /* bytes */

/* Lets go what it mapped: of a file in the page cache the kernel may map two megabytes for each sample. */
static void add_tensor(struct soq__hasher *h, const struct soq__gguf *gguf, const struct soq__gguf_tensor *t)
{
    uint64_t n = t->bytes < SAMPLE ? t->bytes : SAMPLE;
    const uint64_t starts[] = {0, (t->bytes - n) / 2, t->bytes - n};

    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        soq__hasher_add(h, (const char *)t->data + starts[i], (size_t)n);
    soq__gguf_tensor_drop(gguf, t);
}

int soq__model_fingerprint(const struct soq__gguf *gguf, struct soq__hash *out, struct soq_error *err)
{
    uint64_t header = gguf->data_offset; /* padded: a file without tensors may end before */
    struct soq__hasher h;

    if (!soq__hasher_init(&h))
        return soq__fail(err, SOQ_ENOMEM, "out of memory for the model's fingerprint");
    soq__hasher_add(&h, gguf->map.data, header < gguf->map.size ? (size_t)header : gguf->map.size);
    for (size_t i = 0; i < gguf->n_tensors; i++)
        if (gguf->tensors[i].data)
            add_tensor(&h, gguf, &gguf->tensors[i]);
    *out = soq__hasher_sum(&h);
    soq__hasher_done(&h);
    return 0;
}
