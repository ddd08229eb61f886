/* `soquete new`: begins a plugin of one's own, in a folder of its own, from a working example. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "cli/options.h"
#include "cli/out.h"
#include "cli/templates.h"
#include "plugin/registry.h"

/* Each kind is a working example; its templates are the files of the example's name, and those of any kind. */
struct kind {
    const char *word, *example, *title;
};

static const char any[] = "anyname";

static const struct kind kinds[] = {
    {"kvpolicy", "heaviest", "KV policy"},
    {"kvcodec", "rowscale", "KV codec"},
};

static const struct soq__usage usage = {
    .command = "new",
    .args = "kvpolicy|kvcodec NAME [DIR]",
    .about = "Writes a plugin to begin with into the folder DIR, by default NAME, which is made: a working source file,\n"
             "its manifest, a Makefile and a README. It builds against the installed headers: make, make check.",
};

/* ---- Names */

static int check_taken(const char *name, const struct soq__cli_globals *globals, struct soq_error *err)
{
    struct soq__registry_params params = {.dirs = globals->plugin_dirs, .n_dirs = globals->n_plugin_dirs};
    struct soq__registry *registry = NULL;
    const struct soq__candidate *c;
    int rc = soq__registry_create(&params, &registry, err);

    for (size_t i = 0; !rc && (c = soq__registry_candidate(registry, i)); i++)
        if (c->readable && strcmp(c->manifest.name, name) == 0)
            rc = soq__fail(err, SOQ_EINVAL, "%s: a plugin of that name is installed (%s); choose another name", name,
                           c->manifest_path);
    soq__registry_free(registry);
    return rc;
}

static int check_name(const char *name, const struct soq__cli_globals *globals, struct soq_error *err)
{
    if (!soq__manifest_is_name(name))
        return soq__fail(err, SOQ_EINVAL,
                         "\"%s\" is no name for a plugin; expected a lower-case letter, then at most 31 "
                         "lower-case letters, digits, - and _",
                         name);
    if (strcmp(name, "layers") == 0)
        return soq__fail(err, SOQ_EINVAL, "layers: [kv.layers] is a section of Soquete's own; choose another name");
    return check_taken(name, globals, err);
}

/* ---- Files */

/* What the plugin is called in a template of the kind; NULL: it is of another kind. */
static const char *name_in(const struct soq__template *t, const struct kind *kind)
{
    const char *const names[] = {kind->example, any};

    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(names[i]);

        if (strncmp(t->file, names[i], n) == 0 && t->file[n] == '.')
            return names[i];
    }
    return NULL;
}

/* "heaviest.c" becomes NAME.c, "anyname.mk" the Makefile. */
static void file_name(const struct soq__template *t, const char *name, const char *dir, struct soq_buf *out)
{
    const char *suffix = strrchr(t->file, '.');

    soq__buf_clear(out);
    soq__buf_printf(out, "%s/", dir);
    if (strcmp(suffix, ".mk") == 0)
        soq__buf_puts(out, "Makefile");
    else if (strcmp(suffix, ".md") == 0)
        soq__buf_puts(out, "README.md");
    else
        soq__buf_printf(out, "%s%s", name, suffix);
}

static void rename_all(const char *text, const char *example, const char *name, struct soq_buf *out)
{
    const char *found;

    soq__buf_clear(out);
    while ((found = strstr(text, example))) {
        soq__buf_append(out, text, (size_t)(found - text));
        soq__buf_puts(out, name);
        text = found + strlen(example);
    }
    soq__buf_puts(out, text);
}

static int write_file(const char *path, const struct soq_buf *text, struct soq_error *err)
{
    FILE *file = fopen(path, "wxe");

    if (!file)
        return soq__fail(err, SOQ_EIO, "%s: %s", path, strerror(errno));
    fwrite(soq__buf_str(text), 1, text->len, file);
    if (ferror(file) | fclose(file))
        return soq__fail(err, SOQ_EIO, "%s: %s", path, strerror(errno));
    return 0;
}

static int write_files(const struct kind *kind, const char *name, const char *dir, struct soq_error *err)
{
    struct soq_buf path = SOQ_BUF_INIT, text = SOQ_BUF_INIT;
    int rc = 0;

    for (size_t i = 0; i < soq__template_count && !rc; i++) {
        const char *example = name_in(&soq__templates[i], kind);

        if (!example)
            continue;
        file_name(&soq__templates[i], name, dir, &path);
        rename_all(soq__templates[i].text, example, name, &text);
        if (soq__buf_ok(&path) && soq__buf_ok(&text))
            rc = write_file(soq__buf_str(&path), &text, err);
        else
            rc = soq__fail(err, SOQ_ENOMEM, "out of memory");
    }
    soq__buf_done(&path);
    soq__buf_done(&text);
    return rc;
}

/* Nothing stays of what was written in vain. */
static void remove_files(const struct kind *kind, const char *name, const char *dir)
{
    struct soq_buf path = SOQ_BUF_INIT;

    for (size_t i = 0; i < soq__template_count; i++) {
        if (!name_in(&soq__templates[i], kind))
            continue;
        file_name(&soq__templates[i], name, dir, &path);
        if (soq__buf_ok(&path))
            unlink(soq__buf_str(&path));
    }
    rmdir(dir);
    soq__buf_done(&path);
}

static int make(const struct kind *kind, const char *name, const char *dir, struct soq_error *err)
{
    int rc;

    if (mkdir(dir, 0777))
        return soq__fail(err, SOQ_EIO, "%s: %s%s", dir, strerror(errno),
                         errno == EEXIST ? "; nothing was written: give another DIR" : "");
    rc = write_files(kind, name, dir, err);
    if (rc)
        remove_files(kind, name, dir);
    return rc;
}

/* ---- The command */

static int begin(const struct soq__args *args, struct soq_error *err)
{
    const char *name = args->words[1], *dir = args->n_words > 2 ? args->words[2] : name;
    const struct kind *kind = NULL;
    int rc;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(args->words[0], kinds[i].word) == 0)
            kind = &kinds[i];
    if (!kind)
        return soq__fail(err, SOQ_EINVAL, "%s: there is no template of that kind; expected kvpolicy or kvcodec",
                         args->words[0]);
    rc = check_name(name, &args->globals, err);
    if (!rc)
        rc = make(kind, name, dir, err);
    if (!rc)
        soq__out_printf("The %s %s begins in %s: %s.c, %s.ini, Makefile, README.md. Now\n\n"
                        "    cd %s && make && make check\n",
                        kind->title, name, dir, name, name, dir);
    return rc;
}

int soq__cmd_new(const struct soq__cli_globals *globals, int argc, char **argv)
{
    struct soq_error err = SOQ_ERROR_INIT;
    struct soq__args args;
    int rc, status = soq__args_init(&args, &usage, globals, argc, argv, NULL);

    if (status == SOQ__GO_ON && (args.n_words < 2 || args.n_words > 3)) {
        soq__cli_say("new", "expected kvpolicy|kvcodec NAME [DIR]; see --help");
        status = SOQ_EXIT_USAGE;
    }
    if (status == SOQ__GO_ON) {
        rc = begin(&args, &err);
        status = rc ? soq__cli_fail("new", rc, &err) : SOQ_EXIT_OK;
    }
    soq__args_done(&args);
    return soq__out_finish("new", status);
}
