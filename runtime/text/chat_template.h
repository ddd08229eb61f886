/* A conversation as the text that a model was trained on: the model's own Jinja template, or ChatML if it has none. */
#ifndef SOQ_TEXT_CHAT_TEMPLATE_H
#define SOQ_TEXT_CHAT_TEMPLATE_H

#include <stdbool.h>

#include "text/jinja.h"

/* What is used where a model brings no template: ChatML, "<|im_start|>role\ncontent<|im_end|>\n". */
extern const char soq__chat_default_template[];

struct soq__chat_options {
    const char *bos_token, *eos_token;      /* texts of the control tokens; NULL = undefined in the template */
    bool add_generation_prompt;             /* end with the head of the assistant's answer */
    const json_t *extra;                    /* object with further variables: tools, documents, enable_thinking; may be NULL */
    const struct soq__jinja_limits *limits; /* NULL = defaults */
    int64_t now;                            /* seconds since 1970 for dates in templates; 0 = the clock */
};

/* messages: an array of objects with a string "role" and, as a rule, "content". `tools` and `documents` are none unless extra
 * has them, as Hugging Face's apply_chat_template passes them. tpl may be NULL (the default above), options may be NULL.
 *
 * out->untrusted tells which bytes stem from strings of messages and extra (keys too): tokenize with these spans, and no text
 * of a user or tool can become a control token. Template text, bos, eos and the usual names of roles are trusted. */
int soq__chat_render(const struct soq__jinja *tpl, const json_t *messages, const struct soq__chat_options *options,
                     struct soq__rendered *out, struct soq_error *err);

#endif
