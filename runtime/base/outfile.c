/* Files that appear whole. */
#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"

static int fail_errno(const struct soq__outfile *f, const char *what, struct soq_error *err)
{
    return soq__fail(err, SOQ_EIO, "cannot %s %s: %s", what, f->path, strerror(errno));
}

int soq__outfile_open(struct soq__outfile *f, const char *path, struct soq_error *err)
{
    struct soq_buf name = SOQ_BUF_INIT;
    char behind[PATH_MAX];
    const char *target = realpath(path, behind) ? behind : path;
    struct stat there;
    int fd;

    *f = (struct soq__outfile){0};
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) /* a device would be replaced by the file */
        return soq__fail(err, SOQ_EINVAL, "cannot create %s: it is no regular file; name another", path);
    soq__buf_printf(&name, "%s.XXXXXX", target);
    *f = (struct soq__outfile){.path = soq__strdup(path), .target = soq__strdup(target), .temporary = soq__buf_steal(&name)};
    if (!f->path || !f->target || !f->temporary)
        return soq__fail(err, SOQ_ENOMEM, "%s: out of memory", path);
    fd = mkostemp(f->temporary, O_CLOEXEC);
    if (fd >= 0)
        f->stream = fdopen(fd, "wb");
    if (f->stream)
        return 0;
    fail_errno(f, "create", err);
    if (fd >= 0) {
        close(fd);
        unlink(f->temporary);
    }
    soq__free(f->temporary);
    f->temporary = NULL;
    return -SOQ_EIO;
}

int soq__outfile_write(struct soq__outfile *f, const void *data, size_t n, struct soq_error *err)
{
    return fwrite(data, 1, n, f->stream) == n ? 0 : fail_errno(f, "write", err);
}

int soq__outfile_commit(struct soq__outfile *f, struct soq_error *err)
{
    FILE *stream = f->stream;
    bool ok = fflush(stream) == 0 && fsync(fileno(stream)) == 0;

    f->stream = NULL;
    if ((fclose(stream) == 0 && ok) && rename(f->temporary, f->target) == 0) {
        soq__free(f->temporary);
        f->temporary = NULL;
        return 0;
    }
    return fail_errno(f, "write", err);
}

void soq__outfile_discard(struct soq__outfile *f)
{
    if (f->stream)
        fclose(f->stream);
    if (f->temporary)
        unlink(f->temporary);
    soq__free(f->temporary);
    soq__free(f->target);
    soq__free(f->path);
    *f = (struct soq__outfile){0};
}
