/* acme-attention: one table, attention, for another plugin's memory: the domain "host", whose buffer handles are addresses.
 *
 *     use = acme-attention, cpu
 *
 * The layers live on the CPU backend, which owns all memory; this plugin comes before it, so the host gives it the attention
 * and with that the cache: it is told where the blocks lie, which block a sequence's entries are in, and what each row may see.
 *
 * Vocabulary (soquete/step.h): a sequence has a slot, a line of its own in the table; an entry is a place in its cache; entry e
 * lies in block table[slot][e / P], at e % P. A block holds P entries of all layers of a group: [plane][layer][head][P][width].
 */
#include <math.h>
#include <soquete/plugin.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { KEY, VALUE, WIDTH_MAX = 1024 };

/* Keys or values of a group. */
struct plane {
    uint32_t heads, width, dtype; /* F16 or F32 */
    uint64_t offset, tile_bytes;  /* of the plane in a block; of one layer and head */
};

/* Where blocks lie. Groups whose layers or heads have budgets of their own share one. */
struct storage {
    uint32_t n_blocks;
    uint8_t **blocks; /* [n_blocks] */
};

/* Layers that share a table. */
struct group {
    struct group *next;
    uint32_t index, n_layers, block_tokens, max_blocks;
    uint64_t block_bytes;
    struct plane planes[2];
    soq_block_ref *table;    /* [max_slots][max_blocks] */
    struct storage own;      /* empty where another group's is used */
    struct storage *storage; /* own, or that of the group named at creation, which outlives this one */
};

struct attention {
    const struct soq_host *host;
    struct soq_backend_params params;
    struct group *groups;
    struct soq_step *step; /* a copy: the host's is its own again when begin returns */
    uint64_t capacity;     /* bytes of it */
    uint64_t serial;       /* of the last step whose edits and copies were done */
    struct soq_error error;
};

__attribute__((format(printf, 3, 4))) static int fail(struct soq_error *err, enum soq_error_code code, const char *fmt, ...)
{
    va_list args;
    int n;

    if (!err)
        return -(int)code;
    err->code = -(int)code;
    n = snprintf(err->text, sizeof err->text, "acme-attention: ");
    va_start(args, fmt);
    vsnprintf(err->text + n, sizeof err->text - (size_t)n, fmt, args);
    va_end(args);
    return -(int)code;
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------------- */

/* Finite halves: the factors move the exponent's bias between 15 and 127; the rounding is to nearest, ties to even. */
static float from_half(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7fff) << 13;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value * 0x1p112f;
}

static uint16_t to_half(float value)
{
    uint32_t bits, magnitude;
    float grid = fabsf(value);

    grid = grid < 65504.0f ? grid : 65504.0f;
    memcpy(&bits, &value, sizeof bits);
    if (grid < 0x1p-14f) /* subnormal: multiples of 2^-24 */
        return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)rintf(grid * 0x1p24f));
    grid *= 0x1p-112f;
    memcpy(&magnitude, &grid, sizeof magnitude);
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)((bits >> 16 & 0x8000) | magnitude >> 13);
}

static void load(const struct plane *p, const uint8_t *src, float *out)
{
    uint16_t half;

    if (p->dtype == SOQ_DTYPE_F32)
        memcpy(out, src, p->width * sizeof *out);
    else
        for (uint32_t i = 0; i < p->width; i++, src += sizeof half) {
            memcpy(&half, src, sizeof half);
            out[i] = from_half(half);
        }
}

static void store(const struct plane *p, const float *src, uint8_t *dst)
{
    if (p->dtype == SOQ_DTYPE_F32)
        memcpy(dst, src, p->width * sizeof *src);
    else
        for (uint32_t i = 0; i < p->width; i++, dst += sizeof(uint16_t)) {
            uint16_t half = to_half(src[i]);

            memcpy(dst, &half, sizeof half);
        }
}

/* ---- Groups -------------------------------------------------------------------------------------------------------------- */

static struct group *find(const struct attention *a, uint32_t index)
{
    struct group *g = a->groups;

    while (g && g->index != index)
        g = g->next;
    return g;
}

/* The tile of (layer, head) in a block. */
static uint8_t *tile(const struct group *g, int plane, uint8_t *block, uint32_t layer, uint32_t head)
{
    const struct plane *p = &g->planes[plane];

    return block + p->offset + ((uint64_t)layer * p->heads + head) * p->tile_bytes;
}

static size_t row_bytes(const struct plane *p)
{
    return p->width * (p->dtype == SOQ_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

static uint8_t *block_at(const struct group *g, soq_block_ref ref)
{
    return ref < g->storage->n_blocks ? g->storage->blocks[ref] : NULL;
}

/* The block of an entry, NULL if there is none. */
static uint8_t *block_of(const struct group *g, uint32_t slot, uint32_t entry)
{
    uint32_t at = entry / g->block_tokens;
    soq_block_ref ref = at < g->max_blocks ? g->table[(size_t)slot * g->max_blocks + at] : SOQ_BLOCK_NONE;

    return block_at(g, ref);
}

static bool is_plain(uint32_t format, uint32_t dtype, uint32_t width)
{
    return format == SOQ_FORMAT_PLAIN && (dtype == SOQ_DTYPE_F32 || dtype == SOQ_DTYPE_F16) && width <= WIDTH_MAX;
}

static bool is_known(const struct soq_kv_plane *p, uint32_t role)
{
    return p->role == role && p->alias < 0 && p->tokens_per_entry == 1 && !p->format.rotation &&
           is_plain(p->format.kind, p->format.dtype, p->width);
}

static int take_planes(struct group *g, const struct soq_kv_group_desc *desc, struct soq_error *err)
{
    uint64_t offset = 0;

    if ((desc->kind != SOQ_GROUP_FULL && desc->kind != SOQ_GROUP_WINDOW) || desc->n_planes != 2)
        return fail(err, SOQ_EUNSUPPORTED, "group %u: kind %u, %u planes", desc->index, desc->kind, desc->n_planes);
    for (uint32_t i = KEY; i <= VALUE; i++) {
        const struct soq_kv_plane *p = (const void *)((const char *)desc->planes + (size_t)i * desc->plane_stride);

        if (!is_known(p, i == KEY ? SOQ_PLANE_KEY : SOQ_PLANE_VALUE))
            return fail(err, SOQ_EUNSUPPORTED, "group %u: plane %u of role %u and format %u", desc->index, i, p->role,
                        p->format.kind);
        g->planes[i] = (struct plane){p->heads, p->width, p->format.dtype, offset, p->format.tile_bytes};
        offset += (uint64_t)desc->n_layers * p->heads * p->format.tile_bytes;
    }
    return 0;
}

static void group_free(void *self, soq_kv_group handle)
{
    struct attention *a = self;
    struct group *g = (struct group *)(uintptr_t)handle, **link = &a->groups;

    while (*link && *link != g)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = g->next;
    a->host->free(a->host->ctx, g->table);
    a->host->free(a->host->ctx, g->own.blocks);
    a->host->free(a->host->ctx, g);
}

static int group_create(void *self, const struct soq_kv_group_desc *desc, soq_kv_group *group_out, struct soq_error *err)
{
    struct attention *a = self;
    size_t n = (size_t)a->params.max_slots * desc->max_blocks;
    struct group *g = a->host->alloc(a->host->ctx, sizeof *g, 64);
    int rc;

    if (!g)
        return fail(err, SOQ_ENOMEM, "out of memory for group %u", desc->index);
    *g = (struct group){
        .next = a->groups,
        .index = desc->index,
        .n_layers = desc->n_layers,
        .block_tokens = desc->block_tokens,
        .max_blocks = desc->max_blocks,
        .block_bytes = desc->block_bytes,
    };
    g->storage = desc->storage ? ((struct group *)(uintptr_t)desc->storage)->storage : &g->own;
    a->groups = g;
    rc = take_planes(g, desc, err);
    if (!rc) {
        g->table = a->host->alloc(a->host->ctx, n * sizeof *g->table, 64);
        rc = g->table ? 0 : fail(err, SOQ_ENOMEM, "out of memory for %zu table entries", n);
    }
    if (rc) {
        group_free(a, (soq_kv_group)(uintptr_t)g);
        return rc;
    }
    for (size_t i = 0; i < n; i++)
        g->table[i] = SOQ_BLOCK_NONE;
    a->serial = 0; /* no step has told this group anything */
    *group_out = (soq_kv_group)(uintptr_t)g;
    return 0;
}

/* Between steps. The slab was allocated by whoever owns the memory; here its handle is its address. */
static int group_slab(void *self, soq_kv_group handle, uint32_t block_class, uint32_t first_block, uint32_t n_blocks,
                      soq_buffer slab, struct soq_error *err)
{
    struct attention *a = self;
    const struct group *g = (const struct group *)(uintptr_t)handle;
    struct storage *s = g->storage;
    uint32_t end = first_block + n_blocks;
    uint8_t **blocks;

    if (block_class)
        return fail(err, SOQ_EUNSUPPORTED, "block class %u", block_class);
    if (end > s->n_blocks) {
        blocks = a->host->alloc(a->host->ctx, end * sizeof *blocks, 64);
        if (!blocks)
            return fail(err, SOQ_ENOMEM, "out of memory for the addresses of %u blocks", end);
        memset(blocks, 0, end * sizeof *blocks);
        if (s->n_blocks)
            memcpy(blocks, s->blocks, s->n_blocks * sizeof *blocks);
        a->host->free(a->host->ctx, s->blocks);
        s->blocks = blocks;
        s->n_blocks = end;
    }
    for (uint32_t i = 0; i < n_blocks; i++)
        s->blocks[first_block + i] = slab ? (uint8_t *)(uintptr_t)slab + i * g->block_bytes : NULL;
    return 0;
}

/* ---- The step ------------------------------------------------------------------------------------------------------------ */

static const void *part(const struct soq_step *step, uint32_t offset)
{
    return (const char *)step + offset;
}

/* Copy on write: the first entries of every tile. */
static void copy_block(const struct group *g, const struct soq_step_copy *copy)
{
    uint8_t *src = block_at(g, copy->src), *dst = block_at(g, copy->dst);

    for (int plane = KEY; plane <= VALUE && src && dst; plane++)
        for (uint32_t l = 0; l < g->n_layers; l++)
            for (uint32_t h = 0; h < g->planes[plane].heads; h++)
                memcpy(tile(g, plane, dst, l, h), tile(g, plane, src, l, h), copy->n_tokens * row_bytes(&g->planes[plane]));
}

/* What another backend's groups are told is not for us. */
static void update_tables(struct attention *a)
{
    const struct soq_step *step = a->step;
    const struct soq_step_edit *edits = part(step, step->off_edits);
    const struct soq_step_copy *copies = part(step, step->off_copies);
    const struct group *g;

    for (uint32_t i = 0; i < step->n_edits; i++)
        if ((g = find(a, edits[i].group)) && edits[i].slot < a->params.max_slots && edits[i].index < g->max_blocks)
            g->table[(size_t)edits[i].slot * g->max_blocks + edits[i].index] = edits[i].block;
    for (uint32_t i = 0; i < step->n_copies; i++)
        if ((g = find(a, copies[i].group)))
            copy_block(g, &copies[i]);
}

/* A step comes back with the same serial after ops of another backend: its edits and copies are done only once. */
static int begin(void *self, const struct soq_step *step, struct soq_error *err)
{
    struct attention *a = self;

    if (!(step->flags & SOQ_STEP_LINEAR))
        return fail(err, SOQ_EUNSUPPORTED, "begin: no trees of drafts");
    if (step->total_bytes > a->capacity) {
        struct soq_step *bigger = a->host->alloc(a->host->ctx, (size_t)step->total_bytes * 2, 64);

        if (!bigger)
            return fail(err, SOQ_ENOMEM, "out of memory for a step of %u bytes", step->total_bytes);
        a->host->free(a->host->ctx, a->step);
        a->step = bigger;
        a->capacity = (uint64_t)step->total_bytes * 2;
    }
    memcpy(a->step, step, step->total_bytes);
    a->error = (struct soq_error)SOQ_ERROR_INIT;
    if (step->serial != a->serial)
        update_tables(a);
    a->serial = step->serial;
    return 0;
}

static int end(void *self, struct soq_error *err)
{
    const struct attention *a = self;

    if (a->error.code && err) {
        err->code = a->error.code;
        snprintf(err->text, sizeof err->text, "%s", a->error.text);
    }
    return a->error.code;
}

/* ---- Ops ----------------------------------------------------------------------------------------------------------------- */

static float *row_at(const struct soq_view *v, uint32_t r)
{
    return (float *)(uintptr_t)(v->buffer + v->offset) + (size_t)r * v->row_stride;
}

static bool fits(const struct soq_view *v, uint32_t rows, uint32_t cols)
{
    return v->buffer && v->rows == rows && v->cols == cols && v->dtype == SOQ_DTYPE_F32 && v->row_stride >= cols;
}

/* Every entry that rows write or see has a block. */
static bool has_blocks(const struct attention *a, const struct group *g)
{
    const struct soq_step_seq *seqs = part(a->step, a->step->off_seqs);
    const struct soq_step_row *rows = part(a->step, a->step->off_rows);
    const struct soq_step_segment *segments = part(a->step, a->step->off_segments);

    for (uint32_t r = 0; r < a->step->n_rows; r++)
        if (!block_of(g, seqs[rows[r].seq].slot, rows[r].entry))
            return false;
    for (uint32_t s = 0; s < a->step->n_seqs; s++)
        for (uint32_t i = 0; i < seqs[s].n_segments; i++) {
            const struct soq_step_segment *seg = &segments[seqs[s].first_segment + i];

            for (uint32_t e = 0; seg->group == g->index && e < seg->n_entries; e += g->block_tokens)
                if (!block_of(g, seqs[s].slot, seg->first_entry + e))
                    return false;
        }
    return true;
}

static int kv_append(void *self, const struct soq_kv_append_args *args)
{
    struct attention *a = self;
    const struct group *g = (const struct group *)(uintptr_t)args->group;
    const struct soq_step_seq *seqs = part(a->step, a->step->off_seqs);
    const struct soq_step_row *rows = part(a->step, a->step->off_rows);
    const struct soq_view *views[2] = {&args->k, &args->v};

    if (a->error.code)
        return a->error.code;
    for (int plane = KEY; plane <= VALUE; plane++)
        if (!fits(views[plane], a->step->n_rows, g->planes[plane].heads * g->planes[plane].width))
            return fail(&a->error, SOQ_EINVAL, "kv_append: a matrix of %u x %u", views[plane]->rows, views[plane]->cols);
    if (args->layer >= g->n_layers || !has_blocks(a, g))
        return fail(&a->error, SOQ_EINVAL, "kv_append: layer %u of group %u has no place for a row", args->layer, g->index);
    for (int plane = KEY; plane <= VALUE; plane++) {
        const struct plane *p = &g->planes[plane];

        for (uint32_t r = 0; r < a->step->n_rows; r++) {
            uint8_t *block = block_of(g, seqs[rows[r].seq].slot, rows[r].entry);

            for (uint32_t h = 0; h < p->heads; h++)
                store(p, row_at(views[plane], r) + (size_t)h * p->width,
                      tile(g, plane, block, args->layer, h) + rows[r].entry % g->block_tokens * row_bytes(p));
        }
    }
    return 0;
}

/* One head of one row. */
struct query {
    const struct soq_attention_args *args;
    const struct group *group;
    const struct soq_step_row *row;
    uint32_t slot, kv_head;
    const float *q;   /* [head_dim_k] */
    float *out;       /* [head_dim_v]: sum of e^(score - max) v */
    float max, total; /* the largest score; sum of e^(score - max) */
};

static float score(const struct query *q, const float *k)
{
    float s = 0.0f;

    for (uint32_t i = 0; i < q->args->head_dim_k; i++)
        s += q->q[i] * k[i];
    s *= q->args->scale;
    return q->args->softcap > 0.0f ? q->args->softcap * tanhf(s / q->args->softcap) : s;
}

/* Softmax in one pass (Milakov and Gimelshein, 2018, arXiv:1805.02867): a larger score shrinks what was summed before. */
static void see(struct query *q, uint32_t entry)
{
    const struct group *g = q->group;
    uint8_t *block = block_of(g, q->slot, entry);
    uint32_t at = entry % g->block_tokens;
    float numbers[WIDTH_MAX], s, weight, shrink;

    load(&g->planes[KEY], tile(g, KEY, block, q->args->layer, q->kv_head) + at * row_bytes(&g->planes[KEY]), numbers);
    s = score(q, numbers);
    load(&g->planes[VALUE], tile(g, VALUE, block, q->args->layer, q->kv_head) + at * row_bytes(&g->planes[VALUE]), numbers);
    shrink = s > q->max ? expf(q->max - s) : 1.0f;
    q->max = s > q->max ? s : q->max;
    weight = expf(s - q->max);
    q->total = q->total * shrink + weight;
    for (uint32_t i = 0; i < q->args->head_dim_v; i++)
        q->out[i] = q->out[i] * shrink + weight * numbers[i];
}

/* A row sees committed entries and those before it in the step, itself included, as far as the window lets it. */
static void see_segment(struct query *q, const struct soq_step_segment *seg)
{
    const struct soq_attention_args *args = q->args;
    int64_t here = q->row->position;

    if (seg->group != q->group->index || args->layer - seg->first_layer >= seg->n_layers ||
        q->kv_head - seg->first_head >= seg->n_heads)
        return;
    for (uint32_t i = 0; i < seg->n_entries && seg->first_entry + i <= q->row->entry; i++) {
        int64_t position = (int64_t)seg->first_entry + i + seg->position_offset;

        if (position <= here && (!args->window || position > here - args->window || position < args->sinks))
            see(q, seg->first_entry + i);
    }
}

struct job {
    const struct attention *a;
    const struct soq_attention_args *args;
};

static void attend(const struct job *job, uint32_t r, uint32_t head)
{
    const struct soq_attention_args *args = job->args;
    const struct soq_step *step = job->a->step;
    const struct soq_step_row *row = (const struct soq_step_row *)part(step, step->off_rows) + r;
    const struct soq_step_seq *seq = (const struct soq_step_seq *)part(step, step->off_seqs) + row->seq;
    const struct soq_step_segment *segments = part(step, step->off_segments);
    struct query q = {
        .args = args,
        .group = (const struct group *)(uintptr_t)args->group,
        .row = row,
        .slot = seq->slot,
        .kv_head = head / (args->n_heads / args->n_kv_heads),
        .q = row_at(&args->q, r) + (size_t)head * args->head_dim_k,
        .out = row_at(&args->out, r) + (size_t)head * args->head_dim_v,
        .max = -INFINITY,
    };

    memset(q.out, 0, args->head_dim_v * sizeof *q.out);
    for (uint32_t i = 0; i < seq->n_segments; i++)
        see_segment(&q, &segments[seq->first_segment + i]);
    for (uint32_t i = 0; i < args->head_dim_v && q.total > 0.0f; i++)
        q.out[i] /= q.total;
}

static void share(void *arg, const struct soq_worker *worker)
{
    const struct job *job = arg;
    uint32_t n = job->a->step->n_rows * job->args->n_heads;

    for (uint32_t i = worker->index; i < n; i += worker->count)
        attend(job, i / job->args->n_heads, i % job->args->n_heads);
}

static int attention(void *self, const struct soq_attention_args *args)
{
    struct attention *a = self;
    const struct group *g = (const struct group *)(uintptr_t)args->group;
    struct job job = {a, args};
    int rc;

    if (!a->error.code && a->host->cancelled(a->host->ctx))
        fail(&a->error, SOQ_ECANCELLED, "attention: cancelled");
    if (a->error.code)
        return a->error.code;
    if (args->mass || args->sink_logits)
        return fail(&a->error, SOQ_EUNSUPPORTED, "attention: neither mass nor sink logits");
    if (!fits(&args->q, a->step->n_rows, args->n_heads * args->head_dim_k) ||
        !fits(&args->out, a->step->n_rows, args->n_heads * args->head_dim_v) || args->layer >= g->n_layers ||
        args->n_kv_heads != g->planes[KEY].heads || args->head_dim_k != g->planes[KEY].width ||
        args->head_dim_v != g->planes[VALUE].width || !has_blocks(a, g))
        return fail(&a->error, SOQ_EINVAL, "attention: shapes or blocks of group %u do not fit", g->index);
    rc = a->host->parallel(a->host->ctx, a->host->cpu_count(a->host->ctx), share, &job);
    return rc ? fail(&a->error, (enum soq_error_code) - rc, "attention: no threads to compute with") : 0;
}

static const struct soq_attention_ops attention_ops = {
    .struct_size = sizeof attention_ops,
    .group_create = group_create,
    .group_free = group_free,
    .group_slab = group_slab,
    .kv_append = kv_append,
    .attention = attention,
};

/* ---- The backend --------------------------------------------------------------------------------------------------------- */

static int devices(const struct soq_host *host, const struct soq_config *config, struct soq_device *list, uint32_t stride,
                   uint32_t capacity, uint32_t *count_out, struct soq_error *err)
{
    struct soq_device d = {.struct_size = sizeof d, .name = "the host's processor"};

    (void)host, (void)config, (void)err;
    if (capacity)
        memcpy(list, &d, stride < sizeof d ? stride : sizeof d);
    *count_out = 1;
    return 0;
}

static int init(void *self, const struct soq_host *host, const struct soq_config *config,
                const struct soq_backend_params *params, struct soq_error *err)
{
    struct attention *a = self;

    (void)config;
    if (params->device)
        return fail(err, SOQ_ENOTFOUND, "there is no device %u", params->device);
    a->host = host;
    a->params = *params;
    return 0;
}

static void shutdown(void *self)
{
    struct attention *a = self;

    a->host->free(a->host->ctx, a->step); /* groups were freed one by one before */
    a->step = NULL;
}

static int supports(void *self, const struct soq_op_desc *desc, struct soq_error *why)
{
    const uint32_t known = SOQ_OPDESC_SOFTCAP | SOQ_OPDESC_WINDOW | SOQ_OPDESC_SEGMENTS;

    (void)self;
    if (desc->op != SOQ_OP_ATTENTION && desc->op != SOQ_OP_KV_APPEND)
        return fail(why, SOQ_EUNSUPPORTED, "attention is all that it computes");
    if (desc->flags & ~known)
        return fail(why, SOQ_EUNSUPPORTED, "no trees of drafts, no attention mass, no evicted entries (flags %u)", desc->flags);
    if (!is_plain(desc->key_format, desc->key_dtype, desc->head_dim_k) ||
        !is_plain(desc->value_format, desc->value_dtype, desc->head_dim_v))
        return fail(why, SOQ_EUNSUPPORTED, "keys and values must be plain F16 or F32, at most %d wide", WIDTH_MAX);
    if (!desc->n_kv_heads || desc->n_heads % desc->n_kv_heads)
        return fail(why, SOQ_EUNSUPPORTED, "%u heads over %u kv heads", desc->n_heads, desc->n_kv_heads);
    return 0;
}

static const struct soq_backend_ops backend = {
    .struct_size = sizeof backend,
    .flags = SOQ_BACKEND_BATCH_INVARIANT,
    .domain = "host",
    .instance_size = sizeof(struct attention),
    .devices = devices,
    .init = init,
    .shutdown = shutdown,
    .supports = supports,
    .begin = begin,
    .end = end,
    .attention = &attention_ops,
};

static const struct soq_role_entry roles[] = {
    {
        .struct_size = sizeof roles[0],
        .role = SOQ_ROLE_BACKEND,
        .minor = SOQ_BACKEND_MINOR,
        .min_minor = SOQ_BACKEND_MINOR,
        .ops = &backend,
    },
};

const struct soq_plugin soquete_plugin_v0 = {
    .struct_size = sizeof soquete_plugin_v0,
    .abi_major = SOQ_ABI_MAJOR,
    .name = "acme-attention",
    .variant = "",
    .version = "1.0.0",
    .summary = "Attention alone, over the host's memory",
    .licence = "Apache-2.0",
    .n_roles = 1,
    .role_stride = sizeof roles[0],
    .roles = roles,
};
