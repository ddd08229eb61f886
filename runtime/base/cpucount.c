/* CPUs by affinity and cgroup quota.
 *
 * A process may see its cgroup's path from outside (host namespace, container mount) or from inside; therefore the quota is
 * looked for at the path and at all its ancestors up to the mount's root, and files that are not there say nothing. */
#include "base/cpucount.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"

#define FILE_MAX (64u * 1024)

static bool read_text(const char *path, struct soq_buf *out)
{
    soq__buf_clear(out);
    return soq__file_read(path, FILE_MAX, out, NULL) == 0;
}

static uint32_t tighter(uint32_t a, uint32_t b)
{
    return !a || (b && b < a) ? b : a;
}

static uint32_t round_up(int64_t quota, int64_t period)
{
    int64_t cpus;

    if (quota <= 0 || period <= 0)
        return 0;
    cpus = quota / period + (quota % period != 0);
    return cpus < UINT32_MAX ? (uint32_t)cpus : 0;
}

/* cpu.max is "QUOTA PERIOD" or "max PERIOD". */
static uint32_t quota_v2(const char *dir, struct soq_buf *text)
{
    char path[PATH_MAX];
    int64_t quota, period;

    if (snprintf(path, sizeof path, "%s/cpu.max", dir) >= (int)sizeof path || !read_text(path, text))
        return 0;
    return sscanf(soq__buf_str(text), "%" SCNd64 " %" SCNd64, &quota, &period) == 2 ? round_up(quota, period) : 0;
}

static bool read_number(const char *dir, const char *file, struct soq_buf *text, int64_t *number_out)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof path, "%s/%s", dir, file) < (int)sizeof path && read_text(path, text) &&
           sscanf(soq__buf_str(text), "%" SCNd64, number_out) == 1;
}

static uint32_t quota_v1(const char *dir, struct soq_buf *text)
{
    int64_t quota, period;

    if (!read_number(dir, "cpu.cfs_quota_us", text, &quota) || !read_number(dir, "cpu.cfs_period_us", text, &period))
        return 0;
    return round_up(quota, period);
}

/* The tightest quota of mount + path and its ancestors down to mount. */
static uint32_t walk(const char *mount, const char *path, uint32_t (*quota)(const char *dir, struct soq_buf *text))
{
    struct soq_buf text = SOQ_BUF_INIT;
    size_t mount_len = strlen(mount);
    char dir[PATH_MAX];
    uint32_t best = 0;
    char *slash;

    if (snprintf(dir, sizeof dir, "%s%s", mount, path) >= (int)sizeof dir)
        return 0;
    for (;;) {
        best = tighter(best, quota(dir, &text));
        slash = strrchr(dir, '/');
        if (!slash || slash < dir + mount_len)
            break;
        *slash = '\0';
    }
    soq__buf_done(&text);
    return best;
}

/* Whether a v1 line's controllers, "cpu,cpuacct", have cpu. */
static bool has_cpu(const char *controllers)
{
    for (const char *at = controllers; *at; at += strspn(at, ",")) {
        size_t n = strcspn(at, ",");

        if (n == 3 && memcmp(at, "cpu", 3) == 0)
            return true;
        at += n;
    }
    return false;
}

/* One line of /proc/self/cgroup: "ID:CONTROLLERS:PATH"; v2 has ID 0 and no controllers. */
static uint32_t line_quota(const char *root, char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    char mount[PATH_MAX];

    if (!path)
        return 0;
    *controllers++ = '\0';
    *path++ = '\0';
    if (!*controllers) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        return walk(mount, path, quota_v2);
    }
    if (!has_cpu(controllers))
        return 0;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
    return walk(mount, path, quota_v1);
}

uint32_t soq__cpu_quota(const char *root)
{
    struct soq_buf text = SOQ_BUF_INIT;
    char path[PATH_MAX];
    uint32_t best = 0;

    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (read_text(path, &text)) {
        char *save = NULL;

        for (char *line = strtok_r(text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
            best = tighter(best, line_quota(root, line));
    }
    soq__buf_done(&text);
    return best;
}

static uint32_t affinity(void)
{
    cpu_set_t sets[8]; /* room for 8192 CPUs */

    if (sched_getaffinity(0, sizeof sets, sets))
        return 1;
    return (uint32_t)CPU_COUNT_S(sizeof sets, sets);
}

uint32_t soq__cpu_count(void)
{
    uint32_t allowed = affinity();
    uint32_t quota = soq__cpu_quota("");

    return quota && quota < allowed ? quota : allowed;
}
