/* Mapping and reading whole files, and resolving paths against the file that names them. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

static int fail_errno(struct soq_error *err, const char *doing, const char *path)
{
    enum soq_error_code code = errno == ENOENT ? SOQ_ENOTFOUND : errno == ENOMEM ? SOQ_ENOMEM : SOQ_EIO;

    return soq__fail(err, code, "%s: cannot %s: %s", path, doing, strerror(errno));
}

int soq__map_open(const char *path, struct soq_map *map_out, struct soq_error *err)
{
    struct stat st;
    void *data = NULL;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return fail_errno(err, "open", path);
    if (fstat(fd, &st) < 0)
        rc = fail_errno(err, "stat", path);
    else if (!S_ISREG(st.st_mode))
        rc = soq__fail(err, SOQ_EINVAL, "%s: not a regular file", path);
    else if (st.st_size > 0 && (data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
        rc = fail_errno(err, "map", path);
    close(fd);
    if (rc)
        return rc;
    *map_out = (struct soq_map){.data = data, .size = (size_t)st.st_size};
    return 0;
}

void soq__map_done(struct soq_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (struct soq_map){0};
}

void soq__map_drop(const struct soq_map *map, size_t offset, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t first = (offset + page - 1) / page * page, last = (offset + bytes) / page * page;

    if (last > first)
        madvise((void *)(uintptr_t)(map->data + first), last - first, MADV_DONTNEED);
}

static int read_fd(int fd, const char *path, size_t max, struct soq_buf *out, struct soq_error *err)
{
    size_t start = out->len;

    for (;;) {
        ssize_t n;

        if (!soq__buf_reserve(out, 65536))
            return soq__fail(err, SOQ_ENOMEM, "%s: out of memory while reading", path);
        n = read(fd, out->data + out->len, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno(err, "read", path);
        if (n == 0)
            return 0;
        out->len += (size_t)n;
        out->data[out->len] = '\0';
        if (out->len - start > max)
            return soq__fail(err, SOQ_ELIMIT, "%s: larger than %zu bytes", path, max);
    }
}

int soq__file_read(const char *path, size_t max, struct soq_buf *out, struct soq_error *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    int rc, fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return fail_errno(err, "open", path);
    rc = read_fd(fd, is_stdin ? "standard input" : path, max, out, err);
    if (!is_stdin)
        close(fd);
    return rc;
}

char *soq__path_resolve(const char *from, const char *path)
{
    struct soq_buf b = SOQ_BUF_INIT;
    const char *slash = from ? strrchr(from, '/') : NULL;
    const char *home = getenv("HOME");

    if (strncmp(path, "~/", 2) == 0 && home) {
        soq__buf_puts(&b, home);
        path++;
    } else if (path[0] != '/' && slash) {
        soq__buf_append(&b, from, (size_t)(slash - from) + 1);
    }
    soq__buf_puts(&b, path);
    return soq__buf_steal(&b);
}

bool soq__path_is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}
