/* `soquete logits`: token ids in, a NumPy file of logits out. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/job.h"
#include "cli/load.h"
#include "cli/npy.h"
#include "cli/out.h"
#include "cli/term.h"

#define MAX_OUTPUTS 64 /* rows of logits in one step: enough to be quick, little memory for large vocabularies */

struct logits_options {
    const char *ids, *out;
    bool all;
};

static const struct soq__opt opts[] = {
    SOQ__MODEL_OPTION,
    SOQ__VALUE(SOQ__OPT_TEXT, struct logits_options, ids, "ids", 0, "LIST",
               "The tokens, 1,2,3; - reads them from standard input."),
    SOQ__VALUE(SOQ__OPT_TEXT, struct logits_options, out, "out", 'o', "FILE", "The file to write; -: standard output."),
    SOQ__FLAG(struct logits_options, all, "all", 0, "A row for every position, not only for the last."),
    SOQ__CONTEXT_OPTION,
    SOQ__THREADS_OPTION,
};

static const struct soq__usage usage = {
    .command = "logits",
    .args = "",
    .about = "Writes the logits that follow the tokens: float32 [positions, vocabulary].",
    .opts = opts,
    .n_opts = sizeof opts / sizeof opts[0],
};

struct writer {
    FILE *file;
    uint32_t n_tokens;
    int failure; /* errno of the first write that failed */
};

static void on_logits(void *arg, uint32_t position, const float *logits, uint32_t n_vocab)
{
    struct writer *w = arg;

    if (!w->failure && soq__npy_row(w->file, logits, n_vocab))
        w->failure = errno;
    soq__progress("position %u of %u", position + 1, w->n_tokens);
}

static int compute(const struct logits_options *o, struct soq_model *model, const struct soq__ids *ids, struct writer *w,
                   struct soq_error *err)
{
    struct soq__sequence *seq;
    struct soq__job job;
    int rc = soq__sequence_create(model->engine, &seq, err);

    if (rc)
        return rc;
    rc = soq__job_init(&job, seq, ids->data, ids->n, err);
    if (!rc) {
        job.logits_from = o->all ? 0 : job.n_prompt - 1;
        job.on_logits = on_logits;
        job.arg = w;
        w->n_tokens = job.n_prompt;
        if (soq__npy_begin(w->file, job.n_prompt - job.logits_from, model->model->hparams.dim[SOQ__DIM_VOCAB]))
            w->failure = errno;
        rc = soq__job_run(&job, err);
    }
    soq__progress_clear();
    soq__sequence_free(seq);
    return rc;
}

/* Removes what could not be written completely, unless it is a device or a pipe. */
static void remove_partial(const char *path)
{
    if (soq__path_is_file(path))
        unlink(path);
}

static int write_file(const struct logits_options *o, struct soq_model *model, const struct soq__ids *ids,
                      struct soq_error *err)
{
    bool to_stdout = strcmp(o->out, "-") == 0;
    struct writer w = {.file = to_stdout ? stdout : fopen(o->out, "wb")};
    int rc;

    if (!w.file)
        return soq__fail(err, SOQ_EIO, "%s: cannot write: %s", o->out, strerror(errno));
    rc = compute(o, model, ids, &w, err);
    if (to_stdout)
        return rc;
    if (fclose(w.file) && !w.failure)
        w.failure = errno;
    if (!rc && w.failure)
        rc = soq__fail(err, SOQ_EIO, "%s: cannot write: %s", o->out, strerror(w.failure));
    if (rc)
        remove_partial(o->out);
    return rc;
}

static int read_ids(const struct logits_options *o, struct soq__ids *ids, struct soq_error *err)
{
    struct soq_buf text = SOQ_BUF_INIT;
    int rc;

    if (!o->ids || !o->out)
        return soq__fail(err, SOQ_EINVAL, "--%s is missing; see --help", o->ids ? "out" : "ids");
    if (strcmp(o->ids, "-") != 0)
        return soq__input_ids(o->ids, ids, err);
    rc = soq__input_text(NULL, &text, err);
    if (!rc)
        rc = soq__input_ids(soq__buf_str(&text), ids, err);
    soq__buf_done(&text);
    return rc;
}

int soq__cmd_logits(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct logits_options options = {0};
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq_runtime *runtime = NULL;
    struct soq_model *model = NULL;
    struct soq__ids ids = {0};
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, &options);

    if (status == SOQ__GO_ON) {
        soq__interrupt_catch();
        rc = soq__cli_runtime(&args, &runtime, &err);
        if (!rc)
            rc = read_ids(&options, &ids, &err);
        if (!rc)
            rc = soq__cli_no_prefixes(runtime, &err);
        if (!rc)
            rc = soq__cli_model(runtime, options.all ? MAX_OUTPUTS : 0, &model, &err);
        if (!rc)
            rc = write_file(&options, model, &ids, &err);
        status = rc ? soq__cli_fail("logits", rc, &err) : SOQ_EXIT_OK;
    }
    soq__ids_done(&ids);
    soq_model_free(model);
    soq_runtime_free(runtime);
    soq__args_done(&args);
    return soq__out_finish("logits", status);
}
