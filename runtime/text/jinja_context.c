/* JSON to values. Strings are not copied: the JSON outlives the rendering. */
#include <string.h>

#include "text/jinja_run.h"

static int from_array(struct jrun *r, const json_t *j, bool untrusted, struct jvalue *out)
{
    size_t n = json_array_size(j);
    struct jseq *s = soq__jseq_new(&r->mem, n);

    for (size_t i = 0; s && i < n; i++)
        if (soq__jfrom_json(r, json_array_get(j, i), untrusted, &s->items[s->count++]))
            break;
    *out = jv_seq(J_LIST, s);
    return r->mem.rc;
}

static bool is_known_role(const struct jrun *r, const char *key, const json_t *value)
{
    if (!r->roles || strcmp(key, "role") != 0 || !json_is_string(value))
        return false;
    for (const char *const *role = r->roles; *role; role++)
        if (strlen(*role) == json_string_length(value) && strcmp(*role, json_string_value(value)) == 0)
            return true;
    return false;
}

static int from_object(struct jrun *r, const json_t *j, bool untrusted, struct jvalue *out)
{
    json_t *object = (json_t *)(uintptr_t)j; /* jansson's iterators want it mutable */
    struct jdict *d = soq__jdict_new(&r->mem, json_object_size(j));

    for (void *i = json_object_iter(object); d && i; i = json_object_iter_next(object, i)) {
        const struct jstr *key = soq__jstr_view(&r->mem, json_object_iter_key(i), json_object_iter_key_len(i), untrusted);
        bool known = untrusted && is_known_role(r, json_object_iter_key(i), json_object_iter_value(i));
        struct jvalue v;

        if (!key || soq__jfrom_json(r, json_object_iter_value(i), untrusted && !known, &v) ||
            !soq__jdict_add(&r->mem, d, jv_str(key), v))
            break;
    }
    *out = (struct jvalue){.kind = J_DICT, .dict = d};
    return r->mem.rc;
}

int soq__jfrom_json(struct jrun *r, const json_t *j, bool untrusted, struct jvalue *out)
{
    int rc = 0;

    if (!soq__jstep(r, 1) || !soq__jenter(r))
        return r->mem.rc;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        rc = from_object(r, j, untrusted, out);
        break;
    case JSON_ARRAY:
        rc = from_array(r, j, untrusted, out);
        break;
    case JSON_STRING:
        *out = jv_str(soq__jstr_view(&r->mem, json_string_value(j), json_string_length(j), untrusted));
        rc = r->mem.rc;
        break;
    case JSON_INTEGER:
        *out = jv_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = jv_float(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jv_bool(json_is_true(j));
        break;
    default:
        *out = jv_none();
        break;
    }
    soq__jleave(r);
    return rc;
}
