/* The table of model families. */
#include "model/arch.h"

#include <string.h>

static const struct soq__arch archs[] = {
    /* Touvron et al. 2023 and everything converted to it (SmolLM2, Mistral without windows, ...); rows of q and k are stored so
     * that RoPE rotates neighbours. */
    {
        .name = "llama",
        .norm = SOQ_NORM_RMS,
        .rope = SOQ_ROPE_INTERLEAVED,
        .activation = SOQ_ACT_SILU,
    },
    /* Gemma Team 2025: five windowed layers to one global, two RoPE bases, norms around every block. The file's norm weights
     * already include the "1 +". */
    {
        .name = "gemma3",
        .features = SOQ__HAS_QK_NORM | SOQ__HAS_POST_NORM | SOQ__HAS_EMBED_SCALE | SOQ__HAS_WINDOWS,
        .norm = SOQ_NORM_RMS,
        .rope = SOQ_ROPE_HALF,
        .activation = SOQ_ACT_GELU_TANH,
        .window_pattern = 6,
        .window_rope_base = 10000.0f,
    },
};

const struct soq__tensor_spec soq__layer_tensors[SOQ__N_LAYER_TENSORS] = {
#define SPEC(id, suffix, rows, cols, use, feature) [id] = {suffix, SOQ__DIM_##rows, SOQ__DIM_##cols, SOQ_USE_##use, feature},
    SOQ__LAYER_TENSORS(SPEC)
#undef SPEC
};

const struct soq__arch *soq__arch_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strlen(archs[i].name) == len && memcmp(archs[i].name, name, len) == 0)
            return &archs[i];
    return NULL;
}

const char *soq__arch_names(void)
{
    return "llama, gemma3";
}
