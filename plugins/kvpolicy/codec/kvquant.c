/* KV codec `kvquant`: codes of 2 to 4 bits from a table that fits the model, a few outliers kept as they are, and keys as they
 * were before RoPE (C. Hooper et al., "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization",
 * NeurIPS 2024, sections 3.1 to 3.5).
 *
 * A number x between the thresholds lo and hi of its vector becomes z = 2 (x - lo) / (hi - lo) - 1 and then the index of the
 * nearest entry of the layer's table; x' = lo + (entry + 1) / 2 (hi - lo). Vectors are the channels of keys and the rows of
 * values. What thresholds are:
 *   tile        per vector of the tile, `outliers` percent of its numbers (at least one), those farthest from its mean, are
 *               kept exactly; lo and hi are the least and the largest of the others. Values always are of this kind.
 *               The ranges of small tiles are narrower than those that the file's table of keys is made for.
 *   calibrated  keys: of the channel, from the calibration file. Numbers beyond them are kept exactly, the farthest
 *               first, up to `outliers` percent of the tile; if there are more, the others become lo or hi. The first token
 *               of a text is unlike all others and kept as it is: tiles have a row for it.
 *
 * Without a calibration file the table is uniform, not weighted, and thresholds are the tile's. Outliers cost an index of 2
 * bytes each, beside the number.
 *
 * Keys reach a codec after RoPE. Undoing it, and redoing it when decoding, takes the position of the tile, which is kept in
 * it; so keys that are stored so do not go with policies that select. A constant vector comes back as it is, up to the rounding
 * of lo. */
#include <math.h>

#include "calibration.h"
#include "codec.h"
#include "ropeundo.h"

enum { TOKENS_MAX = 256, NUMBERS_MAX = 65536, STRIP = 32, OUTLIERS_MAX = NUMBERS_MAX / 20 };

struct kvquant {
    const struct soq_host *host;
    struct calibration calibration;
    struct soq_kv_shape shape; /* n_rot 0: keys stay as they come */
    uint32_t bits, weighted, pre_rope, calibrated, metadata;
    double outliers; /* share */
};

/* ---- The instance -------------------------------------------------------------------------------------------------------- */

static int kvquant_init(void *self, const struct soq_host *host, const struct soq_config *config, struct soq_error *err)
{
    const char *path = config->get_string(config->ctx, "calibration");
    struct kvquant *codec = self;

    *codec = (struct kvquant){
        .host = host,
        .bits = (uint32_t)config->get_int(config->ctx, "bits"),
        .outliers = config->get_float(config->ctx, "outliers") / 100,
        .weighted = strcmp(config->get_string(config->ctx, "weights"), "sensitivity") == 0,
        .pre_rope = strcmp(config->get_string(config->ctx, "keys"), "pre_rope") == 0,
        .calibrated = *path && strcmp(config->get_string(config->ctx, "thresholds"), "calibrated") == 0,
        .metadata = codec_metadata(config),
    };
    if (codec->weighted && !*path)
        return plugin_fail(err, SOQ_EINVAL,
                           "[kv.kvquant] weights = sensitivity takes tables from a calibration file, and there is none: set "
                           "calibration to one that soquete calibrate wrote for this model, or weights to plain");
    return *path ? calibration_read(path, host, &codec->calibration, err) : 0;
}

static void kvquant_shutdown(void *self)
{
    struct kvquant *codec = self;

    codec->host->free(codec->host->ctx, codec->calibration.layers);
}

static int kvquant_prepare(void *self, const struct soq_kv_shape *shape, struct soq_error *err)
{
    struct kvquant *codec = self;

    codec->shape = *shape;
    return codec->calibration.layers ? calibration_fits("kvquant", &codec->calibration, shape, err) : 0;
}

/* ---- A tile -------------------------------------------------------------------------------------------------------------- */

/* first_position, number of outliers (4 bytes each); lo [vectors], hi [vectors]; the first token's keys [width]; the outliers,
 * their indices (2 bytes); codes as kvtile has them. */
struct layout {
    uint32_t vectors, per_vector;   /* thresholds in the tile, and outliers of each */
    uint32_t capacity;              /* outliers in all */
    uint64_t first_at, first_bytes; /* calibrated: the keys of position 0, in the tile that has it */
    uint64_t low_at, high_at, index_at, value_at, bytes;
    struct kvtile codes;
};

static uint64_t round_up(uint64_t n)
{
    return (n + 7) / 8 * 8;
}

static uint32_t share_of(const struct kvquant *codec, uint32_t n)
{
    uint32_t some = (uint32_t)(codec->outliers * n + 0.5);

    return codec->outliers > 0 && some == 0 ? 1 : some;
}

static struct layout layout_of(const struct kvquant *codec, const struct soq_kv_tile *tile)
{
    const struct soq_kv_format f = {.kind = SOQ_FORMAT_CODEBOOK,
                                    .dtype = SOQ_DTYPE_F32,
                                    .bits = codec->bits,
                                    .group_tokens = tile->tokens,
                                    .group_dims = tile->width};
    bool keys = tile->role == SOQ_PLANE_KEY;
    uint64_t element = codec->metadata == SOQ_DTYPE_F32 ? 4 : 2;
    struct layout l = {.codes = kvtile_of(&f, tile->role, tile->tokens, tile->width), .low_at = 8};
    uint64_t codes_at;

    if (!keys || !codec->calibrated) {
        l.vectors = keys ? tile->width : tile->tokens;
        l.per_vector = share_of(codec, keys ? tile->tokens : tile->width);
    }
    l.capacity = l.vectors ? l.vectors * l.per_vector : share_of(codec, tile->tokens * tile->width);
    l.high_at = l.low_at + l.vectors * element;
    l.first_at = l.high_at + l.vectors * element;
    l.first_bytes = l.vectors ? 0 : tile->width * element;
    l.value_at = round_up(l.first_at + l.first_bytes);
    l.index_at = l.value_at + l.capacity * element;
    codes_at = round_up(l.index_at + (uint64_t)l.capacity * 2);
    for (uint32_t i = 0; i < l.codes.n_planes; i++)
        l.codes.planes[i].at += codes_at - 8; /* kvtile has one scale of 4 bytes in front, and 4 zeros */
    l.bytes = l.codes.bytes + codes_at - 8;
    return l;
}

static int kvquant_describe(void *self, const struct soq_kv_tile *tile, struct soq_kv_format *format_out, struct soq_error *err)
{
    const struct kvquant *codec = self;
    int rc = codec_check_tile("kvquant", tile, err);

    if (rc)
        return rc;
    if (tile->tokens > TOKENS_MAX || (uint64_t)tile->tokens * tile->width > NUMBERS_MAX)
        return plugin_fail(err, SOQ_EINVAL,
                           "kv codec kvquant: a tile of %u tokens x %u numbers cannot be stored; it takes up to "
                           "%d tokens and %d numbers",
                           tile->tokens, tile->width, TOKENS_MAX, NUMBERS_MAX);
    format_out->kind = SOQ_FORMAT_OPAQUE;
    format_out->dtype = codec->metadata;
    format_out->tail_dtype = SOQ_DTYPE_F16;
    format_out->bits = codec->bits;
    format_out->outliers = share_of(codec, tile->role == SOQ_PLANE_KEY ? tile->tokens : tile->width);
    format_out->tile_bytes = layout_of(codec, tile).bytes;
    if (tile->role != SOQ_PLANE_KEY || !codec->pre_rope)
        format_out->waived = SOQ_CODEC_NEEDS_POSITIONS;
    return 0;
}

/* What a layer's numbers are read with. */
struct table {
    float entry[16], middle[16]; /* middle[i] lies between entries i and i + 1 */
    uint32_t n;
};

static struct table table_of(const struct kvquant *codec, const struct soq_kv_tile *tile)
{
    const struct soq_calibration_header *h = &codec->calibration.header;
    enum soq_calibration_tensor tensor = tile->role != SOQ_PLANE_KEY ? SOQ_CALIBRATION_VALUES
                                         : codec->pre_rope           ? SOQ_CALIBRATION_KEYS
                                                                     : SOQ_CALIBRATION_ROPED_KEYS;
    struct table t = {.n = 1u << codec->bits};

    for (uint32_t i = 0; i < t.n; i++)
        t.entry[i] = (float)(2 * i + 1) / (float)t.n - 1;
    if (codec->calibration.layers)
        memcpy(t.entry,
               codec->calibration.layers + tile->layer * soq_calibration_layer_floats(h) +
                   soq_calibration_table(h, tensor, codec->weighted, codec->bits),
               t.n * sizeof t.entry[0]);
    for (uint32_t i = 0; i + 1 < t.n; i++)
        t.middle[i] = (t.entry[i] + t.entry[i + 1]) / 2;
    return t;
}

/* The calibrated thresholds of a key's channels, [width] each. */
static const float *thresholds(const struct kvquant *codec, const struct soq_kv_tile *tile, uint32_t high)
{
    const struct soq_calibration_header *h = &codec->calibration.header;
    uint64_t part = 2 * high + !codec->pre_rope;

    return codec->calibration.layers + tile->layer * soq_calibration_layer_floats(h) +
           (part * h->n_kv_heads + tile->head) * h->head_dim;
}

static int check_place(const struct kvquant *codec, const struct soq_kv_tile *tile, struct soq_error *err)
{
    const struct soq_calibration_header *h = &codec->calibration.header;
    bool keys = tile->role == SOQ_PLANE_KEY;

    if (codec->calibration.layers &&
        (tile->layer >= h->n_layers ||
         (keys && codec->calibrated && (tile->head >= h->n_kv_heads || tile->width != h->head_dim))))
        return plugin_fail(
            err, SOQ_EINVAL,
            "kv codec kvquant: layer %u, head %u of %u numbers is not in the calibration file, which has %u layers, "
            "%u heads of %u",
            tile->layer, tile->head, tile->width, h->n_layers, h->n_kv_heads, h->head_dim);
    return 0;
}

static bool rotates(const struct kvquant *codec, const struct soq_kv_tile *tile)
{
    return tile->role == SOQ_PLANE_KEY && codec->pre_rope && codec->shape.n_rot && codec->shape.n_rot <= tile->width;
}

/* ---- Outliers ------------------------------------------------------------------------------------------------------------ */

/* Of a vector x [n]: marks the `count` numbers farthest from its mean, the first of equal ones, and gives the range of the
 * others. */
static void split(const float *x, uint32_t n, uint32_t count, uint8_t *marks, float *low_out, float *high_out)
{
    double mean = 0;

    memset(marks, 0, n);
    for (uint32_t i = 0; i < n; i++)
        mean += (double)x[i];
    mean /= n;
    for (uint32_t k = 0; k < count; k++) {
        double most = -1;
        uint32_t at = 0;

        for (uint32_t i = 0; i < n; i++) {
            double far = fabs((double)x[i] - mean);

            if (!marks[i] && far > most) {
                most = far;
                at = i;
            }
        }
        marks[at] = 1;
    }
    *low_out = INFINITY;
    *high_out = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (marks[i])
            continue;
        *low_out = x[i] < *low_out ? x[i] : *low_out;
        *high_out = x[i] > *high_out ? x[i] : *high_out;
    }
    if (*low_out > *high_out) /* nothing but outliers */
        *low_out = *high_out = 0;
}

struct outlier {
    float far, value;
    uint16_t index;
};

/* The farthest so far: a heap with the nearest of them, of equal ones the last, on top. */
struct farthest {
    uint32_t n, capacity;
    struct outlier heap[OUTLIERS_MAX + 1];
};

static bool is_nearer(const struct outlier *a, const struct outlier *b)
{
    return a->far < b->far || (a->far == b->far && a->index > b->index);
}

static void sift_down(struct farthest *f, uint32_t i)
{
    for (;;) {
        uint32_t child = 2 * i + 1;
        struct outlier swapped = f->heap[i];

        if (child >= f->n)
            return;
        if (child + 1 < f->n && is_nearer(&f->heap[child + 1], &f->heap[child]))
            child++;
        if (!is_nearer(&f->heap[child], &f->heap[i]))
            return;
        f->heap[i] = f->heap[child];
        f->heap[child] = swapped;
        i = child;
    }
}

static void offer(struct farthest *f, struct outlier o)
{
    uint32_t i = f->n;

    if (f->n == f->capacity) {
        if (!f->n || !is_nearer(&f->heap[0], &o))
            return;
        f->heap[0] = o;
        sift_down(f, 0);
        return;
    }
    f->heap[f->n++] = o;
    for (; i && is_nearer(&f->heap[i], &f->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        struct outlier swapped = f->heap[i];

        f->heap[i] = f->heap[(i - 1) / 2];
        f->heap[(i - 1) / 2] = swapped;
    }
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------------ */

struct encoder {
    const struct kvquant *codec;
    const struct soq_kv_tile *tile;
    struct layout layout;
    struct table table;
    uint8_t *dst;
    uint32_t n_outliers;
};

static void put_outlier(struct encoder *e, uint32_t index, float value)
{
    ((uint16_t *)(void *)(e->dst + e->layout.index_at))[e->n_outliers] = (uint16_t)index;
    codec_put(e->codec->metadata, e->dst + e->layout.value_at, e->n_outliers++, value);
}

/* Codes of x [n] between lo and hi; what lies beyond gets the first or the last. */
static void codes_of(const struct table *t, const float *x, uint32_t n, float low, float high, uint8_t *codes)
{
    float inverse = codec_inverse((high - low) / 2);

    memset(codes, 0, n);
    for (uint32_t k = 0; k + 1 < t->n; k++)
        for (uint32_t i = 0; i < n; i++)
            codes[i] = (uint8_t)(codes[i] + ((x[i] - low) * inverse - 1 > t->middle[k]));
}

/* A vector with thresholds of its own. Its i-th number is number first + i * step of the tile. */
static void encode_vector(struct encoder *e, uint32_t vector, const float *x, uint32_t n, uint32_t first, uint32_t step,
                          uint8_t *codes)
{
    uint8_t marks[KVTILE_WIDTH_MAX];
    float low, high;

    split(x, n, e->layout.per_vector, marks, &low, &high);
    codec_put(e->codec->metadata, e->dst + e->layout.low_at, vector, low);
    codec_put(e->codec->metadata, e->dst + e->layout.high_at, vector, high);
    codes_of(&e->table, x, n, low, high, codes);
    for (uint32_t i = 0; i < n; i++) {
        if (!marks[i])
            continue;
        codes[i] = 0;
        put_outlier(e, first + i * step, x[i]);
    }
}

/* A channel with calibrated thresholds. */
static void encode_channel(struct encoder *e, uint32_t channel, const float *x, struct farthest *found, uint8_t *codes)
{
    float low = thresholds(e->codec, e->tile, 0)[channel], high = thresholds(e->codec, e->tile, 1)[channel];
    float scale = codec_inverse(high - low);

    codes_of(&e->table, x, e->tile->tokens, low, high, codes);
    for (uint32_t i = e->tile->first_position == 0; i < e->tile->tokens; i++) {
        float beyond = x[i] < low ? low - x[i] : x[i] - high;

        if (beyond > 0)
            offer(found, (struct outlier){.far = scale > 0 ? beyond * scale : beyond,
                                          .value = x[i],
                                          .index = (uint16_t)(i * e->tile->width + channel)});
    }
}

static void put_strip(struct encoder *e, uint32_t first, uint32_t n, uint8_t codes[STRIP][TOKENS_MAX])
{
    struct kvtile part = e->layout.codes;

    part.inner = n;
    for (uint32_t i = 0; i < part.n_planes; i++)
        part.planes[i].at += (uint64_t)(first / (32 / part.planes[i].bits)) * part.outer * 4;
    for (uint32_t t = 0; t < e->tile->tokens; t++) {
        uint8_t row[STRIP] = {0};

        for (uint32_t d = 0; d < n; d++)
            row[d] = codes[d][t];
        for (uint32_t i = 0; i < part.n_planes; i++)
            kvtile_put_key(&part, &part.planes[i], e->dst, t, row);
    }
}

/* 32 channels at a time, each as a vector over the tokens. */
static void encode_keys(struct encoder *e, const float *src, struct farthest *found)
{
    const struct soq_kv_tile *tile = e->tile;
    uint8_t codes[STRIP][TOKENS_MAX];
    float x[STRIP][TOKENS_MAX];

    for (uint32_t first = 0; first < tile->width; first += STRIP) {
        uint32_t n = tile->width - first < STRIP ? tile->width - first : STRIP;

        for (uint32_t d = 0; d < n; d++)
            for (uint32_t t = 0; t < tile->tokens; t++)
                x[d][t] = codec_finite(src[(size_t)t * tile->width + first + d]);
        for (uint32_t d = 0; rotates(e->codec, tile) && d < n; d++)
            rope_undo_channel(&e->codec->shape, tile, src, first + d, x[d]);
        for (uint32_t d = 0; d < n; d++) {
            if (e->layout.vectors)
                encode_vector(e, first + d, x[d], tile->tokens, first + d, tile->width, codes[d]);
            else
                encode_channel(e, first + d, x[d], found, codes[d]);
        }
        put_strip(e, first, n, codes);
    }
    for (uint32_t d = 0; e->layout.first_bytes && d < tile->width; d++)
        codec_put(e->codec->metadata, e->dst + e->layout.first_at, d, codec_finite(src[d]));
    for (uint32_t i = 0; !e->layout.vectors && i < found->n; i++)
        put_outlier(e, found->heap[i].index, found->heap[i].value);
}

static void encode_values(struct encoder *e, const float *src)
{
    const struct soq_kv_tile *tile = e->tile;
    struct kvtile_rows rows = {0};
    float x[KVTILE_WIDTH_MAX];

    for (uint32_t t = 0; t < tile->tokens; t++) {
        for (uint32_t d = 0; d < tile->width; d++)
            x[d] = codec_finite(src[(size_t)t * tile->width + d]);
        encode_vector(e, t, x, tile->width, t * tile->width, 1, rows.code[t % 4]);
        if (t % 4 == 3 || t + 1 == tile->tokens) {
            for (uint32_t r = t % 4 + 1; r < 4; r++)
                memset(rows.code[r], 0, tile->width);
            kvtile_put_rows(&e->layout.codes, tile->role, e->dst, t / 4 * 4, &rows);
        }
    }
}

static int kvquant_encode(void *self, const struct soq_kv_tile *tile, const float *src, void *dst, struct soq_error *err)
{
    struct encoder e = {.codec = self, .tile = tile, .layout = layout_of(self, tile), .dst = dst};
    struct farthest found;
    int rc = check_place(self, tile, err);

    if (rc)
        return rc;
    e.table = table_of(self, tile);
    found.n = 0;
    found.capacity = e.layout.capacity;
    memset(dst, 0, e.layout.codes.planes[0].at);
    if (tile->role == SOQ_PLANE_KEY)
        encode_keys(&e, src, &found);
    else
        encode_values(&e, src);
    memcpy(dst, &tile->first_position, 4);
    memcpy(e.dst + 4, &e.n_outliers, 4);
    return 0;
}

/* ---- Decoding ------------------------------------------------------------------------------------------------------------ */

static void decode_keys(const struct kvquant *codec, const struct soq_kv_tile *tile, const struct layout *l,
                        const struct table *table, const uint8_t *src, float *dst)
{
    float low[KVTILE_WIDTH_MAX], half[KVTILE_WIDTH_MAX];
    struct kvtile_rows rows;

    for (uint32_t d = 0; d < tile->width; d++) {
        float high = l->vectors ? codec_get(codec->metadata, src + l->high_at, d) : thresholds(codec, tile, 1)[d];

        low[d] = l->vectors ? codec_get(codec->metadata, src + l->low_at, d) : thresholds(codec, tile, 0)[d];
        half[d] = (high - low[d]) / 2;
    }
    for (uint32_t t = 0; t < tile->tokens; t++) {
        if (t % 4 == 0)
            kvtile_get_rows(&l->codes, tile->role, src, t, &rows);
        for (uint32_t d = 0; d < tile->width; d++)
            dst[(size_t)t * tile->width + d] = low[d] + (table->entry[rows.code[t % 4][d]] + 1) * half[d];
    }
}

static void decode_values(const struct kvquant *codec, const struct soq_kv_tile *tile, const struct layout *l,
                          const struct table *table, const uint8_t *src, float *dst)
{
    struct kvtile_rows rows;

    for (uint32_t t = 0; t < tile->tokens; t++) {
        float low = codec_get(codec->metadata, src + l->low_at, t);
        float half = (codec_get(codec->metadata, src + l->high_at, t) - low) / 2;

        if (t % 4 == 0)
            kvtile_get_rows(&l->codes, tile->role, src, t, &rows);
        for (uint32_t d = 0; d < tile->width; d++)
            dst[(size_t)t * tile->width + d] = low + (table->entry[rows.code[t % 4][d]] + 1) * half;
    }
}

static int kvquant_decode(void *self, const struct soq_kv_tile *tile, const void *src, float *dst, struct soq_error *err)
{
    const struct kvquant *codec = self;
    struct layout l = layout_of(codec, tile);
    struct table table;
    struct soq_kv_tile placed = *tile;
    const uint8_t *bytes = src;
    uint32_t n_outliers;
    int rc = check_place(codec, tile, err);

    if (rc)
        return rc;
    table = table_of(codec, tile);
    if (tile->role == SOQ_PLANE_KEY)
        decode_keys(codec, tile, &l, &table, bytes, dst);
    else
        decode_values(codec, tile, &l, &table, bytes, dst);
    memcpy(&n_outliers, bytes + 4, 4);
    for (uint32_t i = 0; i < n_outliers && i < l.capacity; i++) {
        uint32_t at = ((const uint16_t *)(const void *)(bytes + l.index_at))[i];

        if (at < tile->tokens * tile->width)
            dst[at] = codec_get(codec->metadata, bytes + l.value_at, i);
    }
    memcpy(&placed.first_position, bytes, 4);
    if (rotates(codec, tile))
        rope_redo(&codec->shape, &placed, dst);
    for (uint32_t d = 0; l.first_bytes && placed.first_position == 0 && d < tile->width; d++)
        dst[d] = codec_get(codec->metadata, bytes + l.first_at, d);
    return 0;
}

/* ---- The plugin ---------------------------------------------------------------------------------------------------------- */

static const struct soq_option kvquant_options[] = {
    OPTION_INT("bits", "3", 2, 4, "Bits of a code."),
    OPTION_FLOAT("outliers", "1", 0, 5, "Percent of the numbers that are kept as they are."),
    OPTION_PATH("calibration", "What soquete calibrate wrote for this model; without it tables are uniform."),
    OPTION_ENUM("weights", "plain", "plain|sensitivity", "Which of the tables in the calibration file; sensitivity needs one."),
    OPTION_ENUM("keys", "pre_rope", "pre_rope|post_rope", "Undo RoPE before keys are stored, or not."),
    OPTION_ENUM("thresholds", "calibrated", "calibrated|tile",
                "Ranges of channels of keys: from the calibration file, if there is one, or each tile's own."),
    OPTION_METADATA("f16"),
};

static const struct soq_kv_codec_ops kvquant_ops = {
    .struct_size = sizeof kvquant_ops,
    .traits = SOQ_CODEC_NEEDS_POSITIONS,
    .instance_size = sizeof(struct kvquant),
    .init = kvquant_init,
    .shutdown = kvquant_shutdown,
    .describe = kvquant_describe,
    .encode = kvquant_encode,
    .decode = kvquant_decode,
    .prepare = kvquant_prepare,
};

KV_CODEC_PLUGIN(kvquant, "2 to 4 bits from a table of the model, outliers kept, keys before RoPE");
