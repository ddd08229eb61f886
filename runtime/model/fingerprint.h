/* Which model this is, for whoever keeps something that belongs to it: prefixes, sessions. */
#ifndef SOQ_MODEL_FINGERPRINT_H
#define SOQ_MODEL_FINGERPRINT_H

#include "base/hash.h"
#include "model/gguf.h"

/* Over the file's whole header (hyperparameters, vocabulary, tensor table) and three samples of each tensor's data, at its
 * start, in its middle and at its end: reading all of a large model would take longer than what it saves. */
int soq__model_fingerprint(const struct soq__gguf *gguf, struct soq__hash *out, struct soq_error *err);

#endif
