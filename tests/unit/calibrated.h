/* For tests of models with a calibrated codec: a calibration file that fits the model. */
#ifndef SOQ_TESTS_CALIBRATED_H
#define SOQ_TESTS_CALIBRATED_H

#include <math.h>

#include "model/fingerprint.h"
#include "tests/unit/codec_support.h"
#include "tests/unit/engine_fixture.h"

/* Writes to path: thresholds +-reach for every channel, tables that lie closer in the middle. */
static inline void calibrate_model(const char *model, const char *path, float reach)
{
    struct fixture f = open_model(model, NULL);
    const struct soq__hparams *hp = &f.model->engine->model->hparams;
    struct soq_calibration_header h = {.n_layers = hp->n_layers, .n_kv_heads = hp->n_kv_heads, .head_dim = hp->head_dim_k};
    uint64_t floats = soq_calibration_layer_floats(&h), channels = (uint64_t)2 * h.n_kv_heads * h.head_dim;
    float *layers = soq__alloc_array(h.n_layers, floats * sizeof *layers);
    struct soq__hash hash;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_assert_eq(soq__model_fingerprint(f.model->engine->model->gguf, &hash, &err), 0, "%s", err.text);
    memcpy(h.fingerprint, hash.bytes, sizeof h.fingerprint);
    for (uint32_t l = 0; l < h.n_layers; l++) {
        float *layer = layers + l * floats;

        for (uint64_t i = 0; i < 2 * channels; i++)
            layer[i] = i < channels ? -reach : reach;
        for (uint32_t i = 0; i < 6; i++)
            for (uint32_t bits = 2; bits <= 4; bits++)
                for (uint32_t k = 0; k < 1u << bits; k++) {
                    float x = (float)(2 * k + 1) / (float)(1u << bits) - 1;

                    layer[soq_calibration_table(&h, i / 2, i % 2, bits) + k] = x * (0.5f + 0.5f * fabsf(x));
                }
    }
    codec_write_calibration(path, h, layers);
    soq__free(layers);
    close_model(&f);
}

#endif
