/* The identity of a cache's contents. */
#include "engine/identity.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "config/settings.h"

static void write_hash(const struct soq__hash *hash, struct soq_buf *out)
{
    for (size_t i = 0; i < sizeof hash->bytes; i++)
        soq__buf_printf(out, "%02x", hash->bytes[i]);
}

/* A file stands for what is in it; what cannot be read, for its name. */
static void write_value(const struct soq__setting *s, struct soq_buf *out)
{
    struct soq__hash hash;
    struct soq_map map;

    if (s->spec.option.type != SOQ_OPT_PATH || !*s->value.text || soq__map_open(s->value.text, &map, NULL)) {
        soq__buf_puts(out, s->value.text);
        return;
    }
    hash = soq__hash(map.data, map.size);
    soq__map_done(&map);
    write_hash(&hash, out);
}

/* "f16", "snapkv capacity=1024 window=32": every option, given or not, in the order of the plugin's table. */
static void write_plugin(const struct soq__role_instance *role, struct soq_buf *out)
{
    const struct soq__setting *s;

    soq__buf_puts(out, role->plugin->name);
    for (size_t i = 0; (s = soq__settings_at(role->config.settings, i)); i++)
        if (s->known && strcmp(s->section, role->config.section) == 0) {
            soq__buf_printf(out, " %s=", s->spec.option.key);
            write_value(s, out);
        }
}

/* A codec, where it is not that of the layer before. */
static void write_codec(const struct soq__engine *e, const char *what, uint32_t layer, uint32_t index, uint32_t before,
                        struct soq_buf *out)
{
    if (layer && strcmp(e->codecs.words[index], e->codecs.words[before]) == 0)
        return;
    soq__buf_printf(out, layer ? "\n%s from layer %u on = " : "\n%s = ", what, layer);
    write_plugin(&e->codecs.roles[index], out);
}

/* Of the lossy view behind "draft ". */
static void write_codecs(const struct soq__engine *e, enum soq__kv_view view, struct soq_buf *out)
{
    for (uint32_t l = 0; l < e->layout.n_layers; l++) {
        const struct soq__kv_codec_pair *c = &e->codecs.of_layer[view][l], *before = l ? c - 1 : c;

        write_codec(e, view == SOQ__KV_FULL ? "codec_k" : "draft codec_k", l, c->key, before->key, out);
        write_codec(e, view == SOQ__KV_FULL ? "codec_v" : "draft codec_v", l, c->value, before->value, out);
    }
}

/* The policy of each layer, "0"; of each of its heads, "0/1/0", where they differ. */
static void write_layers(const struct soq__engine *e, enum soq__kv_view view, struct soq_buf *out)
{
    uint32_t n_heads = e->layout.n_heads;

    soq__buf_puts(out, view == SOQ__KV_FULL ? "\nlayers =" : "\ndraft layers =");
    for (uint32_t l = 0; l < e->layout.n_layers; l++) {
        const uint32_t *of = e->policies.of[view] + (size_t)l * n_heads;

        soq__buf_printf(out, " %u", of[0]);
        for (uint32_t h = 1; h < n_heads && e->policies.kv[of[0]].n_heads < n_heads; h++)
            soq__buf_printf(out, "/%u", of[h]);
    }
}

int soq__identity_write(const struct soq__engine *e, struct soq_buf *out, struct soq_error *err)
{
    soq__buf_puts(out, "model = ");
    write_hash(&e->fingerprint, out);
    soq__buf_printf(out, "\nblock_tokens = %u", e->layout.block_tokens);
    for (uint32_t view = 0; view < e->layout.n_views; view++)
        write_codecs(e, view, out);
    soq__buf_printf(out, "\npacked every = %u", e->layout.grid); /* behind the codecs: theirs is the difference to tell */
    for (uint32_t i = 0; i < e->policies.n; i++) {
        soq__buf_puts(out, "\npolicy = ");
        write_plugin(&e->policies.roles[i], out);
    }
    for (uint32_t view = 0; view < e->layout.n_views; view++)
        write_layers(e, view, out);
    soq__buf_putc(out, '\n');
    return soq__buf_ok(out) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for what the cache depends on");
}

void soq__identity_write_layout(const struct soq__engine *e, struct soq_buf *out)
{
    for (uint32_t g = 0; g < e->layout.n_groups; g++) {
        const struct soq__kv_group_layout *group = &e->layout.groups[g];

        soq__buf_printf(out, "group = kind %d heads %u-%u block %llu packed %llu residual %u layers", (int)group->kind,
                        group->first_head, group->first_head + group->n_heads - 1, (unsigned long long)group->block_bytes,
                        (unsigned long long)group->packed_bytes, group->residual);
        for (uint32_t l = 0; l < group->n_layers; l++)
            soq__buf_printf(out, " %u", group->layers[l]);
        soq__buf_putc(out, '\n');
    }
    soq__buf_printf(out, "sampler = %s, %zu bytes\n", e->sampler.plugin->name, e->sampler.plugin->ops.sampler->state_size);
}

bool soq__identity_differs(const char *a, const char *b, char *a_out, char *b_out, size_t size)
{
    for (;;) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");

        if (n != m || memcmp(a, b, n) != 0) {
            snprintf(a_out, size, "%.*s", (int)n, a);
            snprintf(b_out, size, "%.*s", (int)m, b);
            return true;
        }
        if (!a[n] && !b[n])
            return false;
        a += n + (a[n] == '\n');
        b += n + (b[n] == '\n');
    }
}
