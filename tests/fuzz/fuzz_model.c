/* Fuzzes the loading of a model file: whatever loads must be consistent, for the engine computes with it without further
 * checks. Seeds are whole tiny models, with and without a vocabulary. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        abort();
}

/* What must be readable is read; the sum keeps the reads. */
static unsigned touch(const struct soq__gguf_tensor *t)
{
    const unsigned char *p = t->data;
    unsigned sum = 0;

    for (size_t i = 0; i < t->bytes; i += 64)
        sum += p[i];
    return sum + (t->bytes ? p[t->bytes - 1] : 0);
}

static unsigned use_tensors(const struct soq__model *m)
{
    unsigned sum = touch(m->token_embd) + touch(m->output_norm) + (m->output ? touch(m->output) : 0);

    for (uint32_t l = 0; l < m->hparams.n_layers; l++)
        for (int i = 0; i < SOQ__N_LAYER_TENSORS; i++)
            if (m->layers[l].tensors[i])
                sum += touch(m->layers[l].tensors[i]);
            else
                must(soq__layer_tensors[i].feature != 0);
    return sum;
}

static void use_rope(const struct soq__rope_params *rope)
{
    float *inv_freq = soq__alloc_array(rope->n_rot / 2, sizeof *inv_freq), mscale;

    must(inv_freq != NULL);
    soq__rope_frequencies(rope, inv_freq, &mscale);
    must(mscale > 0);
    for (uint32_t i = 0; i < rope->n_rot / 2; i++)
        must(inv_freq[i] >= 0); /* and is a number */
    soq__free(inv_freq);
}

static void use_tokenizer(const struct soq__tokenizer *tok)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__ids ids = {0};
    struct soq__encode_args args = {.text = "Hello, w\xc3\xb6rld 42", .n = 15, .flags = SOQ_TOK_BOS};

    if (soq__tokenizer_encode(tok, &args, &ids, &err) == 0)
        for (size_t i = 0; i < ids.n; i++)
            must(ids.data[i] >= 0 && ids.data[i] < soq__tokenizer_n_tokens(tok));
    soq__ids_done(&ids);
}

static unsigned use(const struct soq__model *m)
{
    const struct soq__hparams *hp = &m->hparams;

    must(hp->n_layers && hp->n_heads && hp->n_kv_heads && hp->n_heads % hp->n_kv_heads == 0 && hp->context_train);
    must(hp->rope.n_rot >= 2 && hp->rope.n_rot % 2 == 0 && hp->rope.n_rot <= hp->head_dim_k);
    must(!hp->window || hp->window_pattern);
    for (int i = 0; i < SOQ__DIM_COUNT; i++)
        must(hp->dim[i] > 0);
    must(hp->norm_eps > 0 && hp->attn_scale > 0 && hp->embed_scale > 0 && hp->attn_softcap >= 0 && hp->logit_softcap >= 0);
    use_rope(&hp->rope);
    if (hp->window)
        use_rope(&hp->window_rope);
    if (m->tokenizer)
        use_tokenizer(m->tokenizer);
    return use_tensors(m);
}

static volatile unsigned touched; /* so that the reads are not left out */

/* A file that lives in memory; its name in /proc is the same for every input. */
static const char *file_of(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    must(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__model *m = NULL;
    int64_t live = soq__alloc_live();

    if (soq__model_load(file_of(data, size), NULL, &m, &err) == 0)
        touched = use(m);
    else
        must(!m && err.text[0]);
    soq__model_free(m);
    must(soq__alloc_live() == live);
    return 0;
}
