/* Prompts, texts and token ids. */
#include "cli/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define TEXT_MAX ((size_t)256 << 20) /* bytes */

static int join_words(const struct soq__args *args, struct soq_buf *out, struct soq_error *err)
{
    for (int i = 0; i < args->n_words; i++) {
        soq__buf_puts(out, i ? " " : "");
        soq__buf_puts(out, args->words[i]);
    }
    return soq__buf_ok(out) ? 0 : soq__fail(err, SOQ_ENOMEM, "out of memory for the prompt");
}

static int read_prompt(const char *path, struct soq_buf *out, struct soq_error *err)
{
    int rc = soq__file_read(path, TEXT_MAX, out, err);

    if (rc)
        return rc;
    if (out->len && out->data[out->len - 1] == '\n')
        out->data[--out->len] = '\0';
    if (memchr(soq__buf_str(out), '\0', out->len))
        return soq__fail(err, SOQ_EINVAL, "%s: the prompt has a zero byte; it must be text", path);
    return 0;
}

static int read_any_prompt(const struct soq__args *args, const char *file, struct soq_buf *out, struct soq_error *err)
{
    bool dash = args->n_words == 1 && strcmp(args->words[0], "-") == 0;

    if (file && args->n_words)
        return soq__fail(err, SOQ_EINVAL, "a prompt as arguments and -f %s: give one of them", file);
    if (file)
        return read_prompt(file, out, err);
    if (args->n_words && !dash)
        return join_words(args, out, err);
    if (!dash && isatty(STDIN_FILENO))
        return soq__fail(err, SOQ_EINVAL, "no prompt: give it as arguments, with -f FILE, or on standard input");
    return read_prompt("-", out, err);
}

int soq__input_prompt(const struct soq__args *args, const char *file, struct soq_buf *out, struct soq_error *err)
{
    int rc = read_any_prompt(args, file, out, err);

    if (!rc && !out->len)
        rc = soq__fail(err, SOQ_EINVAL, "the prompt is empty: give it as arguments, with -f FILE, or on standard input");
    return rc;
}

int soq__input_text(const char *file, struct soq_buf *out, struct soq_error *err)
{
    if (!file && isatty(STDIN_FILENO))
        return soq__fail(err, SOQ_EINVAL, "no text: give it with -f FILE, or on standard input");
    return soq__file_read(file ? file : "-", TEXT_MAX, out, err);
}

int soq__input_text_ids(const char *file, const struct soq__tokenizer *tokenizer, struct soq__ids *ids, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    int rc = tokenizer ? soq__input_text(file, &text, err)
                       : soq__fail(err, SOQ_EUNSUPPORTED, "the model has no vocabulary to read a text with");

    if (!rc)
        rc = soq__tokenizer_encode(
            tokenizer, &(struct soq__encode_args){.text = soq__buf_str(&text), .n = text.len, .flags = SOQ_TOK_BOS}, ids, err);
    soq__buf_done(&text);
    return rc;
}

void soq__input_begin_chunk(const struct soq__tokenizer *tokenizer, int32_t *chunk)
{
    if (soq__tokenizer_adds_bos(tokenizer))
        chunk[0] = soq__tokenizer_role(tokenizer, SOQ_ROLE_BOS);
}

int soq__input_ids(const char *text, struct soq__ids *ids, struct soq_error *err)
{
    static const char gaps[] = ", \t\r\n";
    size_t before = ids->n;

    for (text += strspn(text, gaps); *text; text += strspn(text, gaps)) {
        size_t n = strcspn(text, gaps);
        char word[16], *end;
        long value;
        int rc;

        memcpy(word, text, n < sizeof word ? n : sizeof word - 1);
        word[n < sizeof word ? n : sizeof word - 1] = '\0';
        errno = 0;
        value = strtol(word, &end, 10);
        if (n >= sizeof word || *end || errno || value < 0 || value > INT32_MAX)
            return soq__fail(err, SOQ_EINVAL, "'%.*s' is no token id; expected numbers with commas between",
                             (int)(n < 40 ? n : 40), text);
        rc = soq__ids_push(ids, (int32_t)value, err);
        if (rc)
            return rc;
        text += n;
    }
    return ids->n > before ? 0 : soq__fail(err, SOQ_EINVAL, "no token ids; expected numbers with commas between");
}
