/* The search order of plugin directories. */
#include "plugin/dirs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"

/* Set by the build: where plugins are installed, and TOP/plugins/stage of the build tree, "" for none. */
#ifndef SOQ_PLUGIN_DIR
#define SOQ_PLUGIN_DIR ""
#endif
#ifndef SOQ_BUILD_PLUGIN_DIR
#define SOQ_BUILD_PLUGIN_DIR ""
#endif

#define DIRS_MAX 64

bool soq__is_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

static bool has(const struct soq__dirs *dirs, const char *path)
{
    for (size_t i = 0; i < dirs->count; i++) {
        if (strcmp(dirs->paths[i], path) == 0)
            return true;
    }
    return false;
}

/* 0, or errno's reason why path is no directory that can be read; real: PATH_MAX bytes. */
static int look_up(const char *path, char *real)
{
    struct stat st;

    if (!realpath(path, real) || stat(real, &st))
        return errno;
    if (!S_ISDIR(st.st_mode))
        return ENOTDIR;
    return access(real, R_OK | X_OK) ? errno : 0;
}

/* origin: who asked for it, when it is an error that it is not there; else NULL. */
static int add(struct soq__dirs *dirs, const char *path, const char *origin, struct soq_error *err)
{
    char real[PATH_MAX];
    char **paths;
    int problem = look_up(path, real);

    if (problem && origin)
        return soq__fail(err, SOQ_ENOTFOUND, "%s: plugin directory %s: %s", origin, path, strerror(problem));
    if (!problem && has(dirs, real))
        return 0;
    soq__buf_printf(&dirs->searched, "%s%s", dirs->searched.len ? ", " : "", problem ? path : real);
    if (problem) {
        soq__buf_printf(&dirs->searched, " (%s)", strerror(problem));
        return 0;
    }
    if (dirs->count == DIRS_MAX)
        return soq__fail(err, SOQ_ELIMIT, "more than %d plugin directories", DIRS_MAX);
    paths = soq__realloc_array(dirs->paths, dirs->count + 1, sizeof *paths);
    if (!paths)
        return soq__fail(err, SOQ_ENOMEM, "plugin directories: out of memory");
    dirs->paths = paths;
    paths[dirs->count] = soq__strdup(real);
    if (!paths[dirs->count])
        return soq__fail(err, SOQ_ENOMEM, "plugin directories: out of memory");
    dirs->count++;
    return 0;
}

static int add_list(struct soq__dirs *dirs, const char *const *paths, size_t count, const char *origin, struct soq_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < count && !rc; i++)
        rc = add(dirs, paths[i], origin, err);
    return rc;
}

/* Relative elements, the empty one among them, would mean the current directory. */
static int add_environment(struct soq__dirs *dirs, struct soq_error *err)
{
    const char *at = getenv(SOQ_PLUGIN_PATH_ENV);
    int rc = 0;

    while (at && *at && !rc) {
        size_t n = strcspn(at, ":");
        char path[PATH_MAX];

        if (n && (at[0] != '/' || n >= sizeof path)) {
            soq__log(SOQ_LOG_WARN, "%s: %.*s is not an absolute path and ignored", SOQ_PLUGIN_PATH_ENV, (int)n, at);
        } else if (n) {
            memcpy(path, at, n);
            path[n] = '\0';
            rc = add(dirs, path, NULL, err);
        }
        at += n + (at[n] == ':');
    }
    return rc;
}

/* Whether the running program lies in the build tree that it came from. */
static bool runs_uninstalled(void)
{
    char exe[PATH_MAX], top[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    size_t top_len;

    if (n <= 0 || !realpath(SOQ_BUILD_PLUGIN_DIR "/../..", top))
        return false;
    exe[n] = '\0';
    top_len = strlen(top);
    return strncmp(exe, top, top_len) == 0 && exe[top_len] == '/';
}

int soq__dirs_init(struct soq__dirs *dirs, const struct soq__registry_params *params, bool privileged, struct soq_error *err)
{
    static const struct soq__registry_params defaults = {.n_dirs = 0};
    bool use_build = sizeof SOQ_BUILD_PLUGIN_DIR > 1 && !privileged && runs_uninstalled();
    int rc;

    params = params ? params : &defaults;
    *dirs = (struct soq__dirs){.count = 0};
    rc = add_list(dirs, params->dirs, params->n_dirs, "--plugin-dir", err);
    if (!rc)
        rc = add_list(dirs, params->config_dirs, params->n_config_dirs, "[runtime] plugin_dir", err);
    if (!rc && !params->only_dirs && !privileged)
        rc = add_environment(dirs, err);
    if (!rc && !params->only_dirs)
        rc = add(dirs, use_build ? SOQ_BUILD_PLUGIN_DIR : SOQ_PLUGIN_DIR, NULL, err);
    if (!rc && !soq__buf_ok(&dirs->searched))
        rc = soq__fail(err, SOQ_ENOMEM, "plugin directories: out of memory");
    if (rc)
        soq__dirs_done(dirs);
    return rc;
}

void soq__dirs_done(struct soq__dirs *dirs)
{
    for (size_t i = 0; i < dirs->count; i++)
        soq__free(dirs->paths[i]);
    soq__free(dirs->paths);
    soq__buf_done(&dirs->searched);
    *dirs = (struct soq__dirs){.count = 0};
}
