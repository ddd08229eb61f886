/* Runtime and model. */
#include "cli/load.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/interrupt.h"
#include "cli/out.h"
#include "cli/term.h"
#include "config/settings.h"
#include "model/vocab_gguf.h"

static void log_line(void *ctx, int level, const char *text)
{
    (void)ctx;
    soq__progress_clear();
    fprintf(stderr, "soquete: %s: %s\n", soq__log_level_text((enum soq_log_level)level), text);
}

int soq__cli_runtime(const struct soq__args *args, struct soq_runtime **runtime_out, struct soq_error *err)
{
    struct soq_runtime_params params = SOQ_RUNTIME_PARAMS_INIT;
    int rc;

    params.config = args->globals.config;
    params.plugin_dirs = args->globals.plugin_dirs;
    params.settings = args->globals.overrides;
    params.log = log_line;
    rc = soq_runtime_create(&params, runtime_out, err);
    if (rc && rc != -SOQ_ENOMEM)
        rc = -SOQ_EINVAL; /* whatever is wrong here was written by the user */
    return rc;
}

void soq__cli_profile(struct soq_runtime *runtime)
{
    const struct soq__setting *level = soq__settings_find(runtime->settings, "runtime", "log_level");

    runtime->profile = true;
    if (strcmp(level->origin, "default") == 0)
        soq__log_install(runtime->log, runtime->log_ctx, SOQ_LOG_INFO);
}

int soq__cli_model_path(const struct soq_runtime *runtime, const char **path_out, struct soq_error *err)
{
    const char *path = soq__settings_string(runtime->settings, "model", "path");

    if (!*path)
        return soq__fail(err, SOQ_EINVAL, "no model is named: give one with -m FILE, or set [model] path in the configuration");
    *path_out = path;
    return 0;
}

const char *soq__base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* What is wrong in a file is no wrong argument: another exit code. */
static int blame_file(int rc)
{
    return rc == -SOQ_EINVAL ? -SOQ_ECORRUPT : rc;
}

int soq__cli_gguf(const struct soq_runtime *runtime, struct soq__gguf **gguf_out, struct soq__hparams *hparams_out,
                  struct soq_error *err)
{
    struct soq__gguf *gguf;
    const char *path = NULL;
    int rc = soq__cli_model_path(runtime, &path, err);

    if (rc)
        return rc;
    rc = soq__gguf_open(path, &gguf, err);
    if (rc)
        return blame_file(rc);
    rc = soq__hparams_read(gguf, hparams_out, err);
    if (rc)
        soq__gguf_close(gguf);
    else
        *gguf_out = gguf;
    return blame_file(rc);
}

int soq__cli_hparams(const struct soq_runtime *runtime, struct soq__hparams *hparams_out, struct soq_error *err)
{
    struct soq__gguf *gguf = NULL;
    int rc = soq__cli_gguf(runtime, &gguf, hparams_out, err);

    soq__gguf_close(gguf);
    return rc;
}

int soq__cli_tokenizer(const struct soq_runtime *runtime, struct soq__tokenizer **tokenizer_out, struct soq_error *err)
{
    struct soq__gguf *gguf;
    const char *path = NULL;
    int rc = soq__cli_model_path(runtime, &path, err);

    if (rc)
        return rc;
    rc = soq__gguf_open(path, &gguf, err);
    if (rc)
        return blame_file(rc);
    rc = soq__tokenizer_from_gguf(gguf, tokenizer_out, err);
    soq__gguf_close(gguf);
    return blame_file(rc);
}

static int show_progress(void *ctx, uint64_t done, uint64_t total)
{
    soq__progress("loading %s %3.0f %%", (const char *)ctx, total ? 100.0 * (double)done / (double)total : 100.0);
    return soq__interrupted();
}

int soq__cli_model(struct soq_runtime *runtime, uint32_t max_outputs, struct soq_model **model_out, struct soq_error *err)
{
    struct soq_model_params params = SOQ_MODEL_PARAMS_INIT;
    struct soq__hparams hparams;
    const char *path = NULL;
    int rc = soq__cli_hparams(runtime, &hparams, err); /* first, so that a bad file is told from a bad configuration */

    if (!rc)
        rc = soq__cli_model_path(runtime, &path, err);
    if (rc)
        return rc;
    params.progress = show_progress;
    params.progress_ctx = (void *)(uintptr_t)soq__base_name(path);
    rc = soq__model_open(runtime, path, &params, max_outputs, model_out, err);
    soq__progress_clear();
    return rc;
}

void soq__cli_note_template(const char *command, const struct soq_model *model)
{
    if (!model->model->chat_template && !model->model->template_error.code)
        soq__cli_say(command,
                     "the model has no chat template: messages are laid out as ChatML; [model] template = FILE gives it one");
}

int soq__cli_no_prefixes(struct soq_runtime *runtime, struct soq_error *err)
{
    const struct soq__setting *set = soq__settings_find(runtime->settings, "kv", "prefix_cache");
    int rc;

    if (strcmp(set->origin, "default") != 0)
        return 0;
    rc = soq__settings_set(runtime->settings, "kv", "prefix_cache", "off", err);
    return rc ? rc : soq__settings_set(runtime->settings, "kv", "prefix_pin", "", err);
}
