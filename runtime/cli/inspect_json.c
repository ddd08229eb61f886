/* `soquete inspect --json`: one object,
 * {"file", "version", "size", "alignment", "data_offset",
 *  "metadata": {KEY: {"type", "item" and "count" of an array, "value"}},
 *  "tensors": [{"name", "type", "shape", "elements", "bytes", "offset"}], "types": {NAME: {"tensors", "elements", "bytes"}},
 *  "problems": [{"problem": true or false, "text"}]}.
 * A text that is no UTF-8 is escaped, a number that is not finite is null, an unknown type is its id. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "cli/inspect.h"

enum { SHORT_ITEMS = 16 };

static json_t *json_text(struct soq__gguf_str s)
{
    json_t *json = json_stringn(s.data, s.len);
    struct soq_buf escaped = SOQ_BUF_INIT;

    if (json)
        return json;
    soq__inspect_escape(&escaped, s, SIZE_MAX);
    json = soq__buf_ok(&escaped) ? json_string(soq__buf_str(&escaped)) : NULL;
    soq__buf_done(&escaped);
    return json;
}

static json_t *json_item(const struct soq__gguf_kv *kv, uint64_t i)
{
    switch (kv->item) {
    case SOQ__GGUF_STRING:
        return json_text(soq__gguf_str_at(kv, i));
    case SOQ__GGUF_F32:
    case SOQ__GGUF_F64:
        return isfinite(soq__gguf_float_at(kv, i)) ? json_real(soq__gguf_float_at(kv, i)) : json_null();
    case SOQ__GGUF_BOOL:
        return json_boolean(soq__gguf_int_at(kv, i));
    case SOQ__GGUF_U64: /* JSON integers end at 2^63 - 1 here */
        return soq__gguf_int_at(kv, i) < 0 ? json_real((double)(uint64_t)soq__gguf_int_at(kv, i))
                                           : json_integer(soq__gguf_int_at(kv, i));
    default:
        return json_integer(soq__gguf_int_at(kv, i));
    }
}

static json_t *json_kv(const struct soq__gguf_kv *kv, bool whole)
{
    const char *type = soq__gguf_type_name(kv->type);
    uint64_t shown = whole || kv->count < SHORT_ITEMS ? kv->count : SHORT_ITEMS;
    json_t *items;

    if (kv->type != SOQ__GGUF_ARRAY)
        return json_pack("{ss so}", "type", type, "value", json_item(kv, 0));
    items = json_array();
    for (uint64_t i = 0; i < shown; i++)
        if (json_array_append_new(items, json_item(kv, i))) {
            json_decref(items);
            return NULL;
        }
    return json_pack("{ss ss sI so}", "type", type, "item", soq__gguf_type_name(kv->item), "count", (json_int_t)kv->count,
                     "value", items);
}

static json_t *json_meta(const struct soq__gguf *g, bool whole)
{
    json_t *meta = json_object();

    for (size_t i = 0; i < soq__gguf_n_kv(g); i++) {
        const struct soq__gguf_kv *kv = soq__gguf_kv_at(g, i);

        if (json_object_setn_new(meta, kv->key.data, kv->key.len, json_kv(kv, whole))) {
            json_decref(meta);
            return NULL;
        }
    }
    return meta;
}

static json_t *json_tensor(const struct soq__gguf_tensor *t)
{
    json_t *shape = json_array();

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)t->ne[i]))) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{so so so sI sI sI}", "name", json_text(t->name), "type",
                     t->dtype ? json_string(t->dtype->name) : json_integer(t->type), "shape", shape, "elements",
                     (json_int_t)t->elements, "bytes", (json_int_t)t->bytes, "offset", (json_int_t)t->offset);
}

static json_t *json_tensors(const struct soq__gguf *g)
{
    json_t *tensors = json_array();

    for (size_t i = 0; i < soq__gguf_n_tensors(g); i++)
        if (json_array_append_new(tensors, json_tensor(soq__gguf_tensor_at(g, i)))) {
            json_decref(tensors);
            return NULL;
        }
    return tensors;
}

static json_t *json_totals(const struct soq__gguf *g)
{
    json_t *types = json_object();

    for (uint32_t id = 0; id < 256; id++) {
        struct soq__inspect_total total = soq__inspect_total(g, id);

        if (soq__dtype(id) && total.tensors &&
            json_object_set_new(types, soq__dtype(id)->name,
                                json_pack("{sI sI sI}", "tensors", (json_int_t)total.tensors, "elements",
                                          (json_int_t)total.elements, "bytes", (json_int_t)total.bytes))) {
            json_decref(types);
            return NULL;
        }
    }
    return types;
}

/* The context is the array; it becomes one item short if memory runs out, as the rest does then. */
static void append_problem(void *context, bool is_problem, const char *text)
{
    json_array_append_new(context, json_pack("{sb ss}", "problem", is_problem, "text", text));
}

static int append_bytes(const char *data, size_t n, void *out)
{
    soq__buf_append(out, data, n);
    return soq__buf_ok(out) ? 0 : -1;
}

size_t soq__inspect_json(const struct soq__gguf *g, const struct soq__inspect *show, struct soq_buf *out)
{
    json_t *list = json_array();
    size_t problems = soq__inspect_problems(g, append_problem, list);
    const char *path = soq__gguf_path(g);
    json_t *root = json_pack("{so si sI si sI}", "file", json_text((struct soq__gguf_str){path, strlen(path)}), "version",
                             (int)soq__gguf_version(g), "size", (json_int_t)soq__gguf_size(g), "alignment",
                             (int)soq__gguf_alignment(g), "data_offset", (json_int_t)soq__gguf_data_offset(g));
    int rc = root ? 0 : -1;

    if (show->meta)
        rc |= json_object_set_new(root, "metadata", json_meta(g, show->whole));
    if (show->tensors) {
        rc |= json_object_set_new(root, "tensors", json_tensors(g));
        rc |= json_object_set_new(root, "types", json_totals(g));
    }
    rc |= json_object_set_new(root, "problems", list);
    if (rc || json_dump_callback(root, append_bytes, out, JSON_REAL_PRECISION(17)))
        out->failed = true;
    json_decref(root);
    soq__buf_putc(out, '\n');
    return problems;
}
