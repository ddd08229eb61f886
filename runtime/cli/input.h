/* What users hand over: prompts, texts and token ids. */
#ifndef SOQ_CLI_INPUT_H
#define SOQ_CLI_INPUT_H

#include "base/buf.h"
#include "cli/options.h"
#include "text/tokenizer.h"

/* The prompt: the words joined by blanks; else the file; else standard input ("-", or nothing named and it is no terminal). A
 * file loses one final newline. Exactly one source, valid as a C string. */
int soq__input_prompt(const struct soq__args *args, const char *file, struct soq_buf *out, struct soq_error *err);
/* The same for texts that are taken byte for byte: only a file or standard input, nothing removed. */
int soq__input_text(const char *file, struct soq_buf *out, struct soq_error *err);
/* That text in tokens, a BOS in front where the vocabulary adds one. tokenizer may be NULL, which fails. Appends. */
int soq__input_text_ids(const char *file, const struct soq__tokenizer *tokenizer, struct soq__ids *ids, struct soq_error *err);
/* A piece of it that is computed on its own: its first token makes room for a BOS where the vocabulary adds one. */
void soq__input_begin_chunk(const struct soq__tokenizer *tokenizer, int32_t *chunk);
/* "1,2,3", commas or white space between; at least one. Appends. */
int soq__input_ids(const char *text, struct soq__ids *ids, struct soq_error *err);

#endif
