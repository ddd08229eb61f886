/* Chat templates over the Jinja interpreter: the variables they expect, and a default. */
#include "text/chat_template.h"

#include <string.h>

const char soq__chat_default_template[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' ~ message.role ~ '\\n' }}"
    "{% if message.content is string %}{{ message.content }}"
    "{% elif message.content is iterable %}{{ message.content | selectattr('text', 'defined') | map(attribute='text') | join }}"
    "{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char *const roles[] = {"system", "developer", "user",    "assistant",   "model",
                                    "tool",   "function",  "ipython", "observation", NULL};

static int check_messages(const json_t *messages, struct soq_error *err)
{
    if (!json_is_array(messages))
        return soq__fail(err, SOQ_EINVAL, "messages: must be an array of objects with \"role\" and \"content\"");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);

        if (!json_is_object(m))
            return soq__fail(err, SOQ_EINVAL, "messages[%zu]: must be an object with \"role\" and \"content\"", i);
        if (!json_is_string(json_object_get(m, "role")))
            return soq__fail(err, SOQ_EINVAL, "messages[%zu]: \"role\" must be a string such as \"user\"", i);
    }
    return 0;
}

/* The three objects of a rendering's variables; release with variables_done. */
struct variables {
    json_t *trusted, *untrusted, *extra;
};

static void variables_done(struct variables *v)
{
    json_decref(v->trusted);
    json_decref(v->untrusted);
    json_decref(v->extra);
}

static bool set_string(json_t *object, const char *key, const char *value)
{
    return !value || json_object_set_new(object, key, json_stringn_nocheck(value, strlen(value))) == 0;
}

static bool set_default(json_t *object, const char *key)
{
    return json_object_get(object, key) || json_object_set_new(object, key, json_null()) == 0;
}

/* Shallow: messages and what extra holds are shared. */
static int variables_init(struct variables *v, const json_t *messages, const struct soq__chat_options *o, struct soq_error *err)
{
    json_t *extra = (json_t *)(uintptr_t)o->extra, *shared = (json_t *)(uintptr_t)messages; /* jansson counts references */

    *v = (struct variables){
        .trusted = json_object(), .untrusted = json_object(), .extra = extra ? json_copy(extra) : json_object()};
    if (v->trusted && v->untrusted && v->extra && set_string(v->trusted, "bos_token", o->bos_token) &&
        set_string(v->trusted, "eos_token", o->eos_token) && json_object_set(v->untrusted, "messages", shared) == 0 &&
        json_object_set_new(v->untrusted, "add_generation_prompt", json_boolean(o->add_generation_prompt)) == 0 &&
        set_default(v->extra, "tools") && set_default(v->extra, "documents"))
        return 0;
    variables_done(v);
    return soq__fail(err, SOQ_ENOMEM, "out of memory");
}

int soq__chat_render(const struct soq__jinja *tpl, const json_t *messages, const struct soq__chat_options *options,
                     struct soq__rendered *out, struct soq_error *err)
{
    static const struct soq__chat_options none;
    const struct soq__chat_options *o = options ? options : &none;
    struct soq__jinja_context context = {.roles = roles, .now = o->now};
    struct soq__jinja *fallback = NULL;
    struct variables v;
    int rc = check_messages(messages, err);

    if (rc)
        return rc;
    if (o->extra && !json_is_object(o->extra))
        return soq__fail(err, SOQ_EINVAL, "the extra variables of a chat template must be a JSON object");
    if (!tpl && (rc = soq__jinja_parse(soq__chat_default_template, sizeof soq__chat_default_template - 1, &fallback, err)))
        return rc;
    rc = variables_init(&v, messages, o, err);
    if (!rc) {
        context.trusted = v.trusted;
        context.untrusted = v.untrusted;
        context.extra = v.extra;
        rc = soq__jinja_render(tpl ? tpl : fallback, &context, o->limits, out, err);
        variables_done(&v);
    }
    soq__jinja_free(fallback);
    return rc;
}
