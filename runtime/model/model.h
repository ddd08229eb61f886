/* A model as a file: hyperparameters, tensors, tokenizer, chat template. Knows no backend; nothing is computed here. */
#ifndef SOQ_MODEL_MODEL_H
#define SOQ_MODEL_MODEL_H

#include "model/gguf.h"
#include "model/hparams.h"
#include "text/tokenizer.h"

struct soq__jinja;

/* Tensors of one layer; NULL where the family has none. */
struct soq__model_layer {
    const struct soq__gguf_tensor *tensors[SOQ__N_LAYER_TENSORS];
};

/* Read-only after load; any number of threads may use it. */
struct soq__model {
    struct soq__gguf *gguf;
    struct soq__hparams hparams;
    struct soq__tokenizer *tokenizer; /* NULL when the file has no vocabulary */
    struct soq__jinja *chat_template; /* NULL: the default template, unless template_error says otherwise */
    struct soq_error template_error;  /* code != 0: the file's own template cannot be parsed; whoever needs it reports this */
    const struct soq__gguf_tensor *token_embd, *output_norm;
    const struct soq__gguf_tensor *output;     /* NULL: tied to token_embd */
    const struct soq__gguf_tensor *rope_freqs; /* F32 [n_rot / 2] divisors, or NULL */
    struct soq__model_layer *layers;           /* [hparams.n_layers] */
    uint64_t n_parameters;
};

/* Opens and checks everything: every tensor of the family present, with the right shape, no tensor that the forward pass would
 * ignore at its peril. Unknown tensors outside the layers are warned of. template_path: a Jinja file instead of the model's own
 * template, or NULL. */
int soq__model_load(const char *path, const char *template_path, struct soq__model **out, struct soq_error *err);
void soq__model_free(struct soq__model *model);

#endif
