/* Which configuration file counts when none, or one, is named. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "config/settings.h"

/* base + rest to path_out if that is a file; NULL if not. A relative base, which the XDG specification tells to ignore, and an
 * absent one give NULL. */
static int try_file(const char *base, const char *rest, char **path_out, struct soq_error *err)
{
    struct soq_buf path = SOQ_BUF_INIT;

    *path_out = NULL;
    if (!base || base[0] != '/')
        return 0;
    soq__buf_printf(&path, "%s/%s", base, rest);
    if (!soq__buf_ok(&path))
        return soq__fail(err, SOQ_ENOMEM, "settings: out of memory");
    if (soq__path_is_file(path.data))
        *path_out = path.data;
    else
        soq__buf_done(&path);
    return 0;
}

int soq__settings_locate(const char *config, char **path_out, struct soq_error *err)
{
    const char *xdg = getenv("XDG_CONFIG_HOME");
    bool has_xdg = xdg && xdg[0] == '/';
    char *path = NULL;
    int rc = 0;

    if (config) {
        path = soq__strdup(config);
        rc = path ? 0 : soq__fail(err, SOQ_ENOMEM, "settings: out of memory");
    } else {
        rc = has_xdg ? try_file(xdg, "soquete/soquete.ini", &path, err)
                     : try_file(getenv("HOME"), ".config/soquete/soquete.ini", &path, err);
        if (!rc && !path)
            rc = try_file(SOQ_SYSCONFDIR, "soquete/soquete.ini", &path, err);
    }
    if (!rc)
        *path_out = path;
    return rc;
}
