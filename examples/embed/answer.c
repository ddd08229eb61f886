/* The smallest program that embeds Soquete: answers one question, streaming.
 *
 *     cc answer.c $(pkg-config --cflags --libs soquete) -o answer
 *     ./answer model.gguf "Why is the sky blue?" */
#include <soquete/soquete.h>
#include <stdio.h>

static int print_text(void *ctx, const struct soq_event *event)
{
    fwrite(event->text, 1, event->text_size, ctx);
    return fflush(ctx); /* nonzero, for example when the reader has gone, ends the answer */
}

static int answer(const char *path, const char *question, struct soq_error *err)
{
    const struct soq_message message = {.role = "user", .content = question};
    struct soq_request request = SOQ_REQUEST_INIT;
    struct soq_runtime *runtime = NULL;
    struct soq_model *model = NULL;
    struct soq_session *session = NULL;
    int rc;

    request.messages = &message;
    request.n_messages = 1;
    request.on_event = print_text;
    request.ctx = stdout;
    rc = soq_runtime_create(NULL, &runtime, err);
    if (!rc)
        rc = soq_model_load(runtime, path, NULL, &model, err);
    if (!rc)
        rc = soq_session_create(model, &session, err);
    if (!rc)
        rc = soq_generate(session, &request, NULL, err);
    soq_session_free(session);
    soq_model_free(model);
    soq_runtime_free(runtime);
    return rc;
}

int main(int argc, char **argv)
{
    struct soq_error err = SOQ_ERROR_INIT;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL QUESTION\n", argv[0]);
        return 2;
    }
    if (answer(argv[1], argv[2], &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    putchar('\n');
    return 0;
}
