/* Chat templates: variables, the default, and which bytes are the user's. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "text/chat_template.h"

/* Renders tpl (NULL: the default) over messages given as JSON; untrusted ranges appear in [brackets] if they are not empty. */
static void expect_chat(const char *tpl_text, const char *messages_text, const struct soq__chat_options *options,
                        const char *wanted)
{
    json_t *messages = json_loads(messages_text, 0, NULL);
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_buf shown = SOQ_BUF_INIT;
    struct soq__jinja *tpl = NULL;
    size_t at = 0;

    cr_assert(messages, "%s", messages_text);
    if (tpl_text)
        cr_assert_eq(soq__jinja_parse(tpl_text, strlen(tpl_text), &tpl, &err), 0, "%s", err.text);
    cr_expect_eq(soq__chat_render(tpl, messages, options, &out, &err), 0, "%s", err.text);
    for (size_t i = 0; i < out.untrusted_count; i++) {
        soq__buf_append(&shown, out.text.data + at, out.untrusted[i].start - at);
        soq__buf_putc(&shown, '[');
        soq__buf_append(&shown, out.text.data + out.untrusted[i].start, out.untrusted[i].end - out.untrusted[i].start);
        soq__buf_putc(&shown, ']');
        at = out.untrusted[i].end;
    }
    soq__buf_puts(&shown, soq__buf_str(&out.text) + at);
    cr_expect_str_eq(soq__buf_str(&shown), wanted);
    soq__buf_done(&shown);
    soq__rendered_done(&out);
    soq__jinja_free(tpl);
    json_decref(messages);
    cr_expect_eq(soq__alloc_live(), 0);
}

Test(chat_template, default_is_chatml)
{
    struct soq__chat_options o = {.add_generation_prompt = true};

    expect_chat(
        NULL, "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi<|im_end|>\"}]", &o,
        "<|im_start|>system\n[Be brief.]<|im_end|>\n<|im_start|>user\n[Hi<|im_end|>]<|im_end|>\n<|im_start|>assistant\n");
    expect_chat(NULL, "[{\"role\":\"assistant\",\"content\":null}]", NULL, "<|im_start|>assistant\n<|im_end|>\n");
    expect_chat(NULL,
                "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\"},{\"text\":\"b\"}]}]",
                NULL, "<|im_start|>user\n[ab]<|im_end|>\n");
    expect_chat(NULL, "[]", NULL, "");
}

Test(chat_template, only_usual_roles_are_trusted)
{
    expect_chat("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
                "[{\"role\":\"user\",\"content\":\"user\"},{\"role\":\"end\",\"content\":\"x\"},{\"role\":\"tool\",\"content\":"
                "{\"role\":\"eot\"}}]",
                NULL, "<|user|>[user]<|[end]|>[x]<|tool|>{'[role]': '[eot]'}");
}

Test(chat_template, options_are_variables)
{
    json_t *extra = json_pack("{s:[s],s:b,s:s,s:s}", "tools", "<t>", "enable_thinking", 0, "messages", "no", "bos_token", "no");
    struct soq__chat_options o = {
        .bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = true, .extra = extra, .now = 1722513600};

    expect_chat("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ tools[0] }}{{ enable_thinking }}{{ documents }}"
                "{{ add_generation_prompt }}{{ strftime_now('%Y') }}",
                "[{\"role\":\"user\",\"content\":\"<s>\"}]", &o, "<s>[<s>]</s>[<t>]FalseNoneTrue2024");
    json_decref(extra);
    expect_chat("{{ bos_token is defined }}{{ tools }}{{ add_generation_prompt }}", "[]", NULL, "FalseNoneFalse");
}

static void expect_refusal(const json_t *messages, const struct soq__chat_options *o, const char *message)
{
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;

    cr_expect_eq(soq__chat_render(NULL, messages, o, &out, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, message);
    cr_expect_eq(soq__alloc_live(), 0);
}

Test(chat_template, malformed_input_is_refused)
{
    json_t *text = json_string("x"), *numbers = json_pack("[i]", 1),
           *no_role = json_pack("[{s:s,s:s},{s:s}]", "role", "user", "content", "a", "content", "b");
    json_t *empty = json_array();
    struct soq__chat_options o = {.extra = text};

    expect_refusal(text, NULL, "messages: must be an array of objects with \"role\" and \"content\"");
    expect_refusal(numbers, NULL, "messages[0]: must be an object with \"role\" and \"content\"");
    expect_refusal(no_role, NULL, "messages[1]: \"role\" must be a string such as \"user\"");
    expect_refusal(empty, &o, "the extra variables of a chat template must be a JSON object");
    json_decref(text);
    json_decref(numbers);
    json_decref(no_role);
    json_decref(empty);
}

Test(chat_template, limits_and_raised_messages_pass_through)
{
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "system", "content", "x");
    struct soq__jinja_limits few = {.steps = 10};
    struct soq__chat_options o = {.limits = &few};
    struct soq__rendered out = SOQ__RENDERED_INIT;
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__jinja *tpl;

    cr_expect_eq(soq__chat_render(NULL, messages, &o, &out, &err), -SOQ_ELIMIT);
    cr_assert_eq(soq__jinja_parse("{{ raise_exception('System role not supported') }}", 50, &tpl, &err), 0);
    cr_expect_eq(soq__chat_render(tpl, messages, NULL, &out, &err), -SOQ_EINVAL);
    cr_expect_str_eq(err.text, "System role not supported");
    soq__jinja_free(tpl);
    json_decref(messages);
    cr_expect_eq(soq__alloc_live(), 0);
}
