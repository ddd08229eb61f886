/* `soquete inspect` for people: aligned tables. */
#include "cli/inspect.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/utf8.h"

enum { SHORT_ITEMS = 6, SHORT_TEXT = 60, SHORT_ITEM_TEXT = 20, WIDEST_NAME = 48 };

void soq__inspect_escape(struct soq_buf *out, struct soq__gguf_str s, size_t max)
{
    size_t shown = 0;

    for (size_t i = 0; i < s.len; shown++) {
        uint32_t cp = 0;
        size_t n = soq__utf8_decode(s.data + i, s.len - i, &cp);

        if (shown == max) {
            soq__buf_puts(out, "...");
            return;
        }
        if (cp == '\n' || cp == '\t')
            soq__buf_puts(out, cp == '\n' ? "\\n" : "\\t");
        else if (cp == '"' || cp == '\\')
            soq__buf_printf(out, "\\%c", (char)cp);
        else if (n == 0 || cp < 0x20 || cp == 0x7f)
            soq__buf_printf(out, "\\x%02x", (unsigned char)s.data[i]);
        else if (cp >= 0x80 && cp < 0xa0)
            soq__buf_printf(out, "\\u%04x", cp);
        else
            soq__buf_append(out, s.data + i, n);
        i += n ? n : 1;
    }
}

static void append_item(struct soq_buf *out, const struct soq__gguf_kv *kv, uint64_t i, size_t max)
{
    switch (kv->item) {
    case SOQ__GGUF_STRING:
        soq__buf_putc(out, '"');
        soq__inspect_escape(out, soq__gguf_str_at(kv, i), max);
        soq__buf_putc(out, '"');
        return;
    case SOQ__GGUF_F32:
    case SOQ__GGUF_F64:
        soq__buf_printf(out, kv->item == SOQ__GGUF_F32 ? "%.7g" : "%.15g", soq__gguf_float_at(kv, i));
        return;
    case SOQ__GGUF_BOOL:
        soq__buf_puts(out, soq__gguf_int_at(kv, i) ? "true" : "false");
        return;
    case SOQ__GGUF_U64:
        soq__buf_printf(out, "%llu", (unsigned long long)soq__gguf_int_at(kv, i));
        return;
    default:
        soq__buf_printf(out, "%lld", (long long)soq__gguf_int_at(kv, i));
    }
}

static void append_value(struct soq_buf *out, const struct soq__gguf_kv *kv, bool whole)
{
    size_t max = whole ? SIZE_MAX : kv->type == SOQ__GGUF_ARRAY ? SHORT_ITEM_TEXT : SHORT_TEXT;
    uint64_t shown = whole || kv->count < SHORT_ITEMS ? kv->count : SHORT_ITEMS;

    for (uint64_t i = 0; i < shown; i++) {
        soq__buf_puts(out, i ? ", " : "");
        append_item(out, kv, i, max);
    }
    if (shown < kv->count)
        soq__buf_puts(out, ", ...");
}

static int wider(int width, struct soq__gguf_str name)
{
    return (int)name.len > width ? (name.len < WIDEST_NAME ? (int)name.len : WIDEST_NAME) : width;
}

static void append_meta(struct soq_buf *out, const struct soq__gguf *g, bool whole)
{
    int width = 0;

    for (size_t i = 0; i < soq__gguf_n_kv(g); i++)
        width = wider(width, soq__gguf_kv_at(g, i)->key);
    soq__buf_printf(out, "\nMetadata (%zu keys)\n", soq__gguf_n_kv(g));
    for (size_t i = 0; i < soq__gguf_n_kv(g); i++) {
        const struct soq__gguf_kv *kv = soq__gguf_kv_at(g, i);
        char type[40];

        snprintf(type, sizeof type, "%s", soq__gguf_type_name(kv->item));
        if (kv->type == SOQ__GGUF_ARRAY)
            snprintf(type, sizeof type, "%s[%llu]", soq__gguf_type_name(kv->item), (unsigned long long)kv->count);
        soq__buf_printf(out, "  %-*.*s  %-15s ", width, (int)kv->key.len, kv->key.data, type);
        append_value(out, kv, whole);
        soq__buf_putc(out, '\n');
    }
}

static void append_tensors(struct soq_buf *out, const struct soq__gguf *g)
{
    int width = 0;

    for (size_t i = 0; i < soq__gguf_n_tensors(g); i++)
        width = wider(width, soq__gguf_tensor_at(g, i)->name);
    soq__buf_printf(out, "\nTensors (%zu): type, shape (row length first), bytes, offset\n", soq__gguf_n_tensors(g));
    for (size_t i = 0; i < soq__gguf_n_tensors(g); i++) {
        const struct soq__gguf_tensor *t = soq__gguf_tensor_at(g, i);
        char shape[100], type[16];
        int n = 0;

        for (uint32_t d = 0; d < t->n_dims; d++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%llu", d ? " x " : "", (unsigned long long)t->ne[d]);
        snprintf(type, sizeof type, "%u", t->type);
        soq__buf_printf(out, "  %-*.*s  %-7s  %-20s %12llu  @%llu\n", width, (int)t->name.len, t->name.data,
                        t->dtype ? t->dtype->name : type, shape, (unsigned long long)t->bytes, (unsigned long long)t->offset);
    }
}

static void append_total(struct soq_buf *out, const char *name, struct soq__inspect_total total)
{
    soq__buf_printf(out, "  %-7s  %5zu tensors  %14llu elements  ", name, total.tensors, (unsigned long long)total.elements);
    soq__buf_puts(out, SOQ__SIZE(total.bytes));
    soq__buf_printf(out, "  (%.2f bits per element)\n",
                    total.elements ? 8.0 * (double)total.bytes / (double)total.elements : 0.0);
}

static void append_totals(struct soq_buf *out, const struct soq__gguf *g)
{
    soq__buf_puts(out, "\nTypes\n");
    for (uint32_t id = 0; id < 256; id++) {
        struct soq__inspect_total total = soq__inspect_total(g, id);

        if (soq__dtype(id) && total.tensors)
            append_total(out, soq__dtype(id)->name, total);
    }
    append_total(out, "all", soq__inspect_total(g, UINT32_MAX));
}

static void append_problem(void *context, bool is_problem, const char *text)
{
    soq__buf_printf(context, "  %s: %s\n", is_problem ? "problem" : "note", text);
}

size_t soq__inspect_text(const struct soq__gguf *g, const struct soq__inspect *show, struct soq_buf *out)
{
    size_t start, problems;

    soq__buf_printf(out, "%s: GGUF version %u, ", soq__gguf_path(g), soq__gguf_version(g));
    soq__buf_puts(out, SOQ__SIZE(soq__gguf_size(g)));
    soq__buf_printf(out, ", %zu keys, %zu tensors, data from byte %llu aligned to %u\n", soq__gguf_n_kv(g),
                    soq__gguf_n_tensors(g), (unsigned long long)soq__gguf_data_offset(g), soq__gguf_alignment(g));
    if (show->meta)
        append_meta(out, g, show->whole);
    if (show->tensors) {
        append_tensors(out, g);
        append_totals(out, g);
    }
    soq__buf_puts(out, "\nProblems\n");
    start = out->len;
    problems = soq__inspect_problems(g, append_problem, out);
    if (out->len == start)
        soq__buf_puts(out, "  none\n");
    return problems;
}
