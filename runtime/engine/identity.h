/* What the contents of a cache depend on besides tokens, as text: for whoever keeps such contents beyond their sequence. */
#ifndef SOQ_ENGINE_IDENTITY_H
#define SOQ_ENGINE_IDENTITY_H

#include "base/buf.h"
#include "engine/engine.h"

/* Appends lines "key = value": the model's fingerprint, codecs and policies with all their options, which layers each policy
 * rules, the size of a block. Of a file that an option names, a calibration for example, it has the contents' hash, wherever
 * the file lies: to be asked once, when the plugins have just read it. The same in every process and on every machine. */
int soq__identity_write(const struct soq__engine *engine, struct soq_buf *out, struct soq_error *err);
/* Appends what else a saved sequence fits: groups of layers and heads, how blocks are stored, the sampler. */
void soq__identity_write_layout(const struct soq__engine *engine, struct soq_buf *out);

/* The first line in which two texts differ, for messages: copied to here and there, which have room for `size` bytes each; ""
 * where a text ends. False: they are equal. */
bool soq__identity_differs(const char *here, const char *there, char *here_out, char *there_out, size_t size);

#endif
