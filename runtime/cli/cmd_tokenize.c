/* `soquete tokenize`: text to token ids, and back. Reads the vocabulary only. */
#include <string.h>

#include "cli/input.h"
#include "cli/json_out.h"
#include "cli/load.h"
#include "cli/out.h"

struct tokenize_options {
    const char *file;
    bool bos, special, decode, json;
};

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    SOQ__VALUE(SOQ__OPT_TEXT, struct tokenize_options, file, "file", 'f', "FILE", "Read FILE instead of standard input."),
    SOQ__FLAG(struct tokenize_options, bos, "bos", 0, "Begin with BOS if the vocabulary asks for it."),
    SOQ__FLAG(struct tokenize_options, special, "special", 0,
              "Control tokens count: their names in a text become them, and --decode writes them."),
    SOQ__FLAG(struct tokenize_options, decode, "decode", 'd', "The other way: ids to text, exactly the text's bytes."),
    SOQ__FLAG(struct tokenize_options, json, "json", 0, "One JSON object: ids and tokens, or with --decode text."),
};

static const struct soq__usage usage = {
    .command = "tokenize",
    .args = "",
    .about = "Reads a text, byte for byte, and prints its token ids on one line, with blanks between.",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

/* ---- Text to ids */

static int print_ids(const struct soq__ids *ids)
{
    struct soq_buf line = SOQ_BUF_INIT;
    int rc;

    for (size_t i = 0; i < ids->n; i++)
        soq__buf_printf(&line, "%s%d", i ? " " : "", ids->data[i]);
    soq__buf_putc(&line, '\n');
    rc = soq__buf_ok(&line) ? soq__out_write(soq__buf_str(&line), line.len) : -1;
    soq__buf_done(&line);
    return rc;
}

static int print_ids_json(const struct soq__tokenizer *tokenizer, const struct soq__ids *ids)
{
    json_t *list = json_array(), *tokens = json_array();
    int rc = 0;

    for (size_t i = 0; i < ids->n && !rc; i++) {
        struct soq__text piece = soq__tokenizer_piece(tokenizer, ids->data[i], true);

        rc = json_array_append_new(list, json_integer(ids->data[i])) |
             json_array_append_new(tokens, soq__json_text(piece.data, piece.len));
    }
    if (!rc)
        return soq__json_line(json_pack("{so so}", "ids", list, "tokens", tokens));
    json_decref(list);
    json_decref(tokens);
    return -1;
}

static int encode(const struct soq__tokenizer *tokenizer, const struct tokenize_options *o, const struct soq_buf *text,
                  struct soq_error *err)
{
    struct soq__encode_args args = {
        .text = soq__buf_str(text),
        .n = text->len,
        .flags = (o->bos ? (unsigned)SOQ_TOK_BOS : 0) | (o->special ? (unsigned)SOQ_TOK_SPECIAL : 0),
    };
    struct soq__ids ids = {0};
    int rc = soq__tokenizer_encode(tokenizer, &args, &ids, err);

    if (!rc && (o->json ? print_ids_json(tokenizer, &ids) : print_ids(&ids)) && !soq__out_lost())
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory for the output");
    soq__ids_done(&ids);
    return rc;
}

/* ---- Ids to text */

static int decode(const struct soq__tokenizer *tokenizer, const struct tokenize_options *o, const struct soq_buf *input,
                  struct soq_error *err)
{
    struct soq__ids ids = {0};
    struct soq_buf text = SOQ_BUF_INIT;
    int rc = soq__input_ids(soq__buf_str(input), &ids, err);

    for (size_t i = 0; i < ids.n && !rc; i++)
        if (ids.data[i] >= soq__tokenizer_n_tokens(tokenizer))
            rc = soq__fail(err, SOQ_EINVAL, "token id %d is none of the vocabulary's, 0 to %d", ids.data[i],
                           soq__tokenizer_n_tokens(tokenizer) - 1);
    if (!rc)
        rc = soq__tokenizer_decode(tokenizer, ids.data, ids.n, o->special, &text, err);
    if (!rc && o->json)
        soq__json_line(json_pack("{so}", "text", soq__json_text(soq__buf_str(&text), text.len)));
    else if (!rc)
        soq__out_write(soq__buf_str(&text), text.len);
    soq__ids_done(&ids);
    soq__buf_done(&text);
    return rc;
}

int soq__cmd_tokenize(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct tokenize_options options = {0};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *runtime = NULL;
    struct soq__tokenizer *tokenizer = NULL;
    struct soq_buf input = SOQ_BUF_INIT;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON) {
        rc = soq__cli_runtime(&args, &runtime, &err);
        if (!rc)
            rc = soq__cli_tokenizer(runtime, &tokenizer, &err);
        if (!rc)
            rc = soq__input_text(options.file, &input, &err);
        if (!rc)
            rc = options.decode ? decode(tokenizer, &options, &input, &err) : encode(tokenizer, &options, &input, &err);
        status = rc ? soq__cli_fail("tokenize", rc, &err) : SOQ_EXIT_OK;
    }
    soq__buf_done(&input);
    soq__tokenizer_free(tokenizer);
    soq_runtime_free(runtime);
    soq__args_done(&args);
    return soq__out_finish("tokenize", status);
}
