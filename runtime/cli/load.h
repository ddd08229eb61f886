/* From a command line to a runtime and a model, with a line of progress on a terminal. */
#ifndef SOQ_CLI_LOAD_H
#define SOQ_CLI_LOAD_H

#include "cli/options.h"
#include "engine/runtime.h"

/* Both return 0 or a negative code and say nothing but progress. A wrong configuration is -SOQ_EINVAL. */
int soq__cli_runtime(const struct soq__args *args, struct soq_runtime **runtime_out, struct soq_error *err);
/* --profile, before the model is loaded: backends measure what they can, and the log says it, unless it was told otherwise. */
void soq__cli_profile(struct soq_runtime *runtime);
/* max_outputs: rows of logits in one step, beyond what generation needs. Ctrl-C cancels. */
int soq__cli_model(struct soq_runtime *runtime, uint32_t max_outputs, struct soq_model **model_out, struct soq_error *err);

/* The configured model's path; fails where none is named. The string is the settings'. */
int soq__cli_model_path(const struct soq_runtime *runtime, const char **path_out, struct soq_error *err);
/* Only what the file itself says, without weights. The file and the tokenizer are the caller's to close and to free. */
int soq__cli_gguf(const struct soq_runtime *runtime, struct soq__gguf **gguf_out, struct soq__hparams *hparams_out,
                  struct soq_error *err);
int soq__cli_hparams(const struct soq_runtime *runtime, struct soq__hparams *hparams_out, struct soq_error *err);
int soq__cli_tokenizer(const struct soq_runtime *runtime, struct soq__tokenizer **tokenizer_out, struct soq_error *err);

/* "smollm2.gguf" of a path. */
const char *soq__base_name(const char *path);

/* Says on standard error that messages are laid out as ChatML, where the model brings no chat template. */
void soq__cli_note_template(const char *command, const struct soq_model *model);
/* For commands that measure: nothing is taken over from an earlier prompt, unless the user says so. */
int soq__cli_no_prefixes(struct soq_runtime *runtime, struct soq_error *err);

#endif
