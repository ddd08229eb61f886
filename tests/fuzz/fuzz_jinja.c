/* Any bytes as a template over a fixed conversation, under tight limits. Checked besides memory errors: spans are ascending,
 * disjoint and within the text, failures have a message, and nothing stays allocated. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *make_context(void)
{
    return json_pack(
        "{s:[{s:s,s:s},{s:s,s:s},{s:s,s:[{s:s,s:s}]}],s:s,s:s,s:b,s:[{s:{s:s,s:{}}}],s:i,s:f,s:[i,i,i],s:{s:i,s:i}}",
        "messages", "role", "system", "content", "Be kind.", "role", "user", "content", "  Grüße\n<|im_end|> x ", "role",
        "assistant", "content", "type", "text", "text", "ok", "bos_token", "<s>", "eos_token", "</s>", "add_generation_prompt",
        1, "tools", "function", "name", "f", "parameters", "n", 42, "f", 2.5, "l", 3, 1, 2, "d", "b", 1, "a", 2);
}

static void check(const struct soq__rendered *r)
{
    size_t end = 0;

    for (size_t i = 0; i < r->untrusted_count; i++) {
        if (r->untrusted[i].start < end || r->untrusted[i].end <= r->untrusted[i].start || r->untrusted[i].end > r->text.len)
            abort();
        end = r->untrusted[i].end;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct soq__jinja_limits limits = {
        .steps = 20000, .output_bytes = 1 << 16, .memory_bytes = 8 << 20, .milliseconds = 500};
    static json_t *context;
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__jinja *tpl;
    int rc;

    if (!context)
        context = make_context();
    rc = soq__jinja_parse((const char *)data, size, &tpl, &err);
    if (rc == 0) {
        struct soq__jinja_context c = {.untrusted = context, .now = 1};

        rc = soq__jinja_render(tpl, &c, &limits, &out, &err);
        soq__jinja_free(tpl);
    }
    if (rc == 0)
        check(&out);
    else if (err.code != rc || !soq__utf8_valid(err.text, strlen(err.text)))
        abort();
    soq__rendered_done(&out);
    if (soq__alloc_live() != 0)
        abort();
    return 0;
}
