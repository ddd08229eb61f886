/* Reads a calibration file (soquete/calibration.h), and says what is wrong with it. */
#ifndef KVCODEC_CALIBRATION_H
#define KVCODEC_CALIBRATION_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "soquete/calibration.h"
#include "soquete/plugin.h"

struct calibration {
    struct soq_calibration_header header;
    float *layers; /* NULL: there is none */
};

static inline int calibration_check_header(const char *path, const struct soq_calibration_header *h, struct soq_error *err)
{
    if (memcmp(h->magic, SOQ_CALIBRATION_MAGIC, sizeof h->magic) != 0)
        return plugin_fail(err, SOQ_ECORRUPT, "%s: not a calibration file; make one with soquete calibrate", path);
    if (h->version != SOQ_CALIBRATION_VERSION)
        return plugin_fail(err, SOQ_EUNSUPPORTED,
                           "%s: version %u of calibration files; this Soquete reads version %d: make it "
                           "anew with soquete calibrate",
                           path, h->version, SOQ_CALIBRATION_VERSION);
    if (!h->n_layers || h->n_layers > 4096 || !h->n_kv_heads || h->n_kv_heads > 4096 || !h->head_dim || h->head_dim > 4096)
        return plugin_fail(err, SOQ_ECORRUPT, "%s: damaged: %u layers of %u heads of %u numbers", path, h->n_layers,
                           h->n_kv_heads, h->head_dim);
    return 0;
}

static inline int calibration_read_layers(FILE *file, const char *path, const struct soq_host *host, struct calibration *out,
                                          struct soq_error *err)
{
    size_t floats = (size_t)(out->header.n_layers * soq_calibration_layer_floats(&out->header));
    int rc = 0;

    out->layers = host->alloc(host->ctx, floats * sizeof(float), 64);
    if (!out->layers)
        return plugin_fail(err, SOQ_ENOMEM, "%s: out of memory for %zu bytes", path, floats * sizeof(float));
    if (fread(out->layers, sizeof(float), floats, file) != floats || fgetc(file) != EOF)
        rc = plugin_fail(err, SOQ_ECORRUPT, "%s: damaged: it is not as long as it says; make it anew with soquete calibrate",
                         path);
    else if (soq_calibration_checksum(&out->header, out->layers) != out->header.checksum)
        rc =
            plugin_fail(err, SOQ_ECORRUPT, "%s: damaged: its checksum does not fit; make it anew with soquete calibrate", path);
    if (rc) {
        host->free(host->ctx, out->layers);
        out->layers = NULL;
    }
    return rc;
}

static inline int calibration_read(const char *path, const struct soq_host *host, struct calibration *out,
                                   struct soq_error *err)
{
    FILE *file = fopen(path, "rbe");
    int rc;

    if (!file)
        return plugin_fail(err, SOQ_ENOTFOUND, "%s: %s; calibration files are made with soquete calibrate", path,
                           strerror(errno));
    if (fread(&out->header, sizeof out->header, 1, file) != 1)
        rc = plugin_fail(err, SOQ_ECORRUPT, "%s: not a calibration file; make one with soquete calibrate", path);
    else
        rc = calibration_check_header(path, &out->header, err);
    if (!rc)
        rc = calibration_read_layers(file, path, host, out, err);
    fclose(file);
    return rc;
}

/* Whether it is of the model, as far as that is known: a mere shape has no fingerprint. */
static inline int calibration_fits(const char *codec, const struct calibration *c, const struct soq_kv_shape *shape,
                                   struct soq_error *err)
{
    static const unsigned char not_known[sizeof shape->fingerprint];
    const struct soq_calibration_header *h = &c->header;

    if (h->n_layers != shape->n_layers || h->n_kv_heads != shape->n_kv_heads || h->head_dim != shape->head_dim)
        return plugin_fail(
            err, SOQ_EINVAL,
            "[kv.%s] calibration: the file is of a model of %u layers, %u KV heads of %u numbers, this one has %u, "
            "%u of %u: make one for it with soquete calibrate",
            codec, h->n_layers, h->n_kv_heads, h->head_dim, shape->n_layers, shape->n_kv_heads, shape->head_dim);
    if (memcmp(shape->fingerprint, not_known, sizeof not_known) != 0 &&
        memcmp(h->fingerprint, shape->fingerprint, sizeof h->fingerprint) != 0)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.%s] calibration: the file is of another model: make one for this model with soquete calibrate",
                           codec);
    return 0;
}

#endif
