/* [kv] trace: what the cache keeps, written to a file as JSON lines, one object for each layer and KV head:
 *
 *     {"event":"keep","sequence":1,"position":6000,"layer":0,"head":0,"kept":[0,1,...],"bytes":524288} */
#ifndef SOQ_ENGINE_TRACE_H
#define SOQ_ENGINE_TRACE_H

#include "base/error.h"
#include "kv/trace.h"

struct soq__trace;

/* Writes path anew. */
int soq__trace_create(const char *path, struct soq__trace **trace_out, struct soq_error *err);
/* Closes the file; warns where it is not complete. */
void soq__trace_free(struct soq__trace *trace);
/* What the cache calls. */
struct soq__kv_trace soq__trace_hook(struct soq__trace *trace);

#endif
