/* A candidate's way: manifest, ABI, CPU, device files, library. */
#include "plugin/candidate.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "plugin/needs.h"

void soq__candidate_set(struct soq__candidate *c, enum soq__candidate_state state, const char *fmt, ...)
{
    va_list args;

    c->state = state;
    va_start(args, fmt);
    vsnprintf(c->reason, sizeof c->reason, fmt, args);
    va_end(args);
}

const char *soq__candidate_state_text(enum soq__candidate_state state)
{
    static const char *const texts[] = {
        [SOQ_CANDIDATE_UNTRIED] = "not tried",    [SOQ_CANDIDATE_CHOSEN] = "chosen",    [SOQ_CANDIDATE_USABLE] = "not needed",
        [SOQ_CANDIDATE_LOWER] = "lower priority", [SOQ_CANDIDATE_ABSENT] = "no device", [SOQ_CANDIDATE_REFUSED] = "refused",
    };

    return texts[state];
}

/* ---- The manifest */

static char *join(const char *dir, const char *middle, const char *file)
{
    struct soq_buf path = SOQ_BUF_INIT;

    soq__buf_printf(&path, "%s/%s%s", dir, middle, file);
    return soq__buf_steal(&path);
}

/* Beside the manifest, or where libtool puts it. */
static char *find_library(const char *dir, const char *file)
{
    char *path = join(dir, "", file);
    char *built = join(dir, ".libs/", file);

    if (path && built && !soq__path_is_file(path) && soq__path_is_file(built)) {
        soq__free(path);
        return built;
    }
    if (!built) {
        soq__free(path);
        return NULL;
    }
    soq__free(built);
    return path;
}

/* Fails only without memory. */
static int read_manifest(struct soq__candidate *c, const char *dir)
{
    struct soq_error why = SOQ_ERROR_INIT;
    int rc = soq__manifest_read(c->manifest_path, &c->manifest, &why);

    if (rc == -SOQ_ENOMEM)
        return rc;
    if (rc) {
        soq__candidate_set(c, SOQ_CANDIDATE_REFUSED, "manifest: %s", why.text);
        c->id = soq__strdup(c->manifest_path);
        return c->id ? 0 : -SOQ_ENOMEM;
    }
    c->readable = true;
    c->id = soq__plugin_id(&c->manifest);
    c->library_path = find_library(dir, c->manifest.library);
    soq__candidate_set(c, SOQ_CANDIDATE_UNTRIED, "nothing asked for it");
    return c->id && c->library_path ? 0 : -SOQ_ENOMEM;
}

int soq__candidate_create(const char *dir, size_t rank, const char *file, struct soq__candidate **candidate_out,
                          struct soq_error *err)
{
    struct soq__candidate *c = soq__alloc_zero(1, sizeof *c);

    if (!c)
        return soq__fail(err, SOQ_ENOMEM, "plugins: out of memory");
    c->dir = rank;
    c->manifest_path = join(dir, "", file);
    if (!c->manifest_path || read_manifest(c, dir)) {
        soq__candidate_free(c);
        return soq__fail(err, SOQ_ENOMEM, "plugins: out of memory");
    }
    *candidate_out = c;
    return 0;
}

void soq__candidate_free(struct soq__candidate *c)
{
    if (!c)
        return;
    soq__plugin_free(c->plugin);
    soq__manifest_done(&c->manifest);
    soq__free(c->library_path);
    soq__free(c->manifest_path);
    soq__free(c->id);
    soq__free(c);
}

int soq__candidate_compare(const void *a, const void *b)
{
    const struct soq__candidate *x = *(struct soq__candidate *const *)a;
    const struct soq__candidate *y = *(struct soq__candidate *const *)b;
    int order = y->readable - x->readable;

    if (!order && x->readable) {
        order = (y->manifest.priority > x->manifest.priority) - (y->manifest.priority < x->manifest.priority);
        order = order ? order : strcmp(x->manifest.name, y->manifest.name);
        order = order ? order : strcmp(x->manifest.variant, y->manifest.variant);
    }
    order = order ? order : (x->dir > y->dir) - (x->dir < y->dir);
    return order ? order : strcmp(x->manifest_path, y->manifest_path);
}

/* ---- Loading */

static int load(struct soq__candidate *c, struct soq_error *err)
{
    const struct soq__manifest *m = &c->manifest;
    int rc;

    if (m->abi != SOQ_ABI_MAJOR)
        return soq__fail(err, SOQ_EABI, "abi %d, but this host speaks %d", m->abi, SOQ_ABI_MAJOR);
    rc = soq__needs_met(m, err);
    return rc ? rc : soq__plugin_load(c->library_path, m, &c->plugin, err);
}

int soq__candidate_load(struct soq__candidate *c, struct soq_error *err)
{
    struct soq_error why = SOQ_ERROR_INIT;
    int rc;

    if (c->plugin)
        return 0;
    if (c->state == SOQ_CANDIDATE_REFUSED)
        return soq__fail(err, SOQ_EUNSUPPORTED, "%s", c->reason);
    rc = load(c, &why);
    if (!rc)
        return 0;
    if (rc != -SOQ_ENOMEM)
        soq__candidate_set(c, SOQ_CANDIDATE_REFUSED, "%s", why.text);
    return soq__fail(err, (enum soq_error_code) - rc, "%s", why.text);
}
