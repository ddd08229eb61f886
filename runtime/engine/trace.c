#include "engine/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"

struct soq__trace {
    FILE *file;
    char *path;
    int failed; /* errno of the first write that failed */
};

static void write_kept(void *arg, const struct soq__kv_kept *kept)
{
    struct soq__trace *trace = arg;

    if (trace->failed)
        return;
    fprintf(trace->file, "{\"event\":\"keep\",\"sequence\":%" PRIu64 ",\"position\":%u,\"layer\":%u,\"head\":%u,\"kept\":[",
            kept->sequence, kept->position, kept->layer, kept->head);
    for (uint32_t i = 0; i < kept->n_kept; i++)
        fprintf(trace->file, "%s%u", i ? "," : "", kept->kept[i]);
    if (fprintf(trace->file, "],\"bytes\":%" PRIu64 "}\n", kept->bytes) < 0 || ferror(trace->file))
        trace->failed = errno ? errno : EIO;
}

int soq__trace_create(const char *path, struct soq__trace **trace_out, struct soq_error *err)
{
    struct soq__trace *trace = soq__alloc_zero(1, sizeof *trace);
    int rc = 0;

    if (trace)
        trace->path = soq__strdup(path);
    if (!trace || !trace->path)
        rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    else if (!(trace->file = fopen(path, "we")))
        rc = soq__fail(err, SOQ_EIO, "[kv] trace = %s: %s", path, strerror(errno));
    if (rc) {
        soq__trace_free(trace);
        return rc;
    }
    setvbuf(trace->file, NULL, _IOLBF, BUFSIZ); /* whole lines, for whoever reads along */
    *trace_out = trace;
    return 0;
}

void soq__trace_free(struct soq__trace *trace)
{
    if (!trace)
        return;
    if (trace->file && fclose(trace->file) && !trace->failed)
        trace->failed = errno;
    if (trace->failed)
        soq__log(SOQ_LOG_WARN, "[kv] trace = %s is not complete: %s", trace->path, strerror(trace->failed));
    soq__free(trace->path);
    soq__free(trace);
}

struct soq__kv_trace soq__trace_hook(struct soq__trace *trace)
{
    return (struct soq__kv_trace){.fn = write_kept, .arg = trace, .measures = true};
}
