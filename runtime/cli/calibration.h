/* From samples of keys and values to what a calibration file holds of a layer (soquete/calibration.h). Nothing here is random:
 * the same samples give the same bytes. */
#ifndef SOQ_CLI_CALIBRATION_H
#define SOQ_CLI_CALIBRATION_H

#include <stdbool.h>
#include <stddef.h>

#include "soquete/calibration.h"
#include "soquete/soquete.h"

/* Tokens of one layer and kv head. */
struct soq__samples {
    float *keys, *values; /* [n][head_dim], [n][head_dim_v]; keys after RoPE */
    double *weights;      /* [n] */
    uint32_t *positions;  /* [n] */
};

struct soq__calibration_layer {
    const struct soq__samples *heads; /* [shape->n_kv_heads] */
    size_t n;                         /* tokens */
    const struct soq_kv_shape *shape; /* with what it says of RoPE in this layer */
};

/* out: soq_calibration_layer_floats() numbers. */
int soq__calibrate_layer(const struct soq__calibration_layer *layer, const struct soq_calibration_header *header, float *out,
                         struct soq_error *err);

#endif
