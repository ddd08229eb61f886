/* The file that `soquete calibrate` writes and that codecs read: what the keys and values of a model look like. Little-endian;
 * all numbers of 4 bytes or more lie at multiples of 4.
 *
 * Behind the header, layer by layer, are soq_calibration_layer_floats() numbers of f32:
 *   low[2][n_kv_heads][head_dim], high[2][n_kv_heads][head_dim]   thresholds of every channel of keys, before RoPE and after:
 *                                                                 percentiles 0.5 and 99.5
 *   tables[3][2][28]   of keys before RoPE, keys after RoPE, and values; unweighted, and weighted by sensitivity: 4, 8 and 16
 *                      ascending numbers from -1 to 1, for codes of 2, 3 and 4 bits. They stand for what lies between the
 *                      thresholds of a channel (keys), or between the least and the largest number of a row that are no
 *                      outliers (values). */
#ifndef SOQUETE_CALIBRATION_H
#define SOQUETE_CALIBRATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SOQ_CALIBRATION_MAGIC "SOQCALIB"
enum { SOQ_CALIBRATION_VERSION = 1, SOQ_CALIBRATION_TABLES = 28 };

enum soq_calibration_tensor { SOQ_CALIBRATION_KEYS = 0, SOQ_CALIBRATION_ROPED_KEYS = 1, SOQ_CALIBRATION_VALUES = 2 };

struct soq_calibration_header {
    char magic[8];
    uint32_t version;
    uint32_t n_layers, n_kv_heads, head_dim; /* of the model */
    unsigned char fingerprint[16];           /* soq_kv_shape.fingerprint of the model */
    uint64_t n_tokens;                       /* of the text that the model was run on */
    uint64_t checksum;                       /* of everything else: soq_calibration_checksum() */
};

/* Of one layer. */
static inline uint64_t soq_calibration_layer_floats(const struct soq_calibration_header *header)
{
    return (uint64_t)4 * header->n_kv_heads * header->head_dim + 6 * SOQ_CALIBRATION_TABLES;
}

/* Where, within a layer, the table for codes of `bits` begins. */
static inline uint64_t soq_calibration_table(const struct soq_calibration_header *header, enum soq_calibration_tensor tensor,
                                             uint32_t weighted, uint32_t bits)
{
    return (uint64_t)4 * header->n_kv_heads * header->head_dim +
           (uint64_t)SOQ_CALIBRATION_TABLES * (2 * (uint32_t)tensor + weighted) + ((1u << bits) - 4);
}

/* FNV-1a, 64 bits: of the header up to `checksum`, then of the layers. */
static inline uint64_t soq_calibration_checksum(const struct soq_calibration_header *header, const float *layers)
{
    const unsigned char *parts[2] = {(const unsigned char *)header, (const unsigned char *)layers};
    uint64_t sizes[2], hash = 0xcbf29ce484222325u;

    sizes[0] = offsetof(struct soq_calibration_header, checksum);
    sizes[1] = header->n_layers * soq_calibration_layer_floats(header) * sizeof(float);
    for (int part = 0; part < 2; part++)
        for (uint64_t i = 0; i < sizes[part]; i++)
            hash = (hash ^ parts[part][i]) * 0x100000001b3u;
    return hash;
}

#ifdef __cplusplus
}
#endif
#endif
