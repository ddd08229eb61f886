#include "check/child.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { OUTPUT_MAX = 64 << 10, POLL_MS = 20 };

/* ---- The sandbox */

static const struct {
    const char *folder, *variable;
} places[] = {{"cwd", NULL}, {"home", "HOME"}, {"tmp", "TMPDIR"}, {"cache", "XDG_CACHE_HOME"}};

int soq__sandbox_create(struct soq__sandbox *sandbox, struct soq_error *err)
{
    const char *tmp = getenv("TMPDIR");
    char path[300];

    snprintf(sandbox->root, sizeof sandbox->root, "%.200s/soquete-check-XXXXXX", tmp && *tmp == '/' ? tmp : "/tmp");
    if (!mkdtemp(sandbox->root))
        return soq__fail(err, SOQ_EIO, "%s: %s", sandbox->root, strerror(errno));
    for (size_t i = 0; i < SOQ__COUNT(places); i++) {
        snprintf(path, sizeof path, "%s/%s", sandbox->root, places[i].folder);
        if (mkdir(path, 0700)) {
            soq__fail(err, SOQ_EIO, "%s: %s", path, strerror(errno));
            soq__sandbox_remove(sandbox);
            return -SOQ_EIO;
        }
    }
    return 0;
}

static char found[256];
static size_t root_length;

static int look(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)type;
    if (where->level < 2 || strncmp(path + root_length, "/cache/", 7) == 0)
        return 0;
    snprintf(found, sizeof found, "%s", path + root_length + 1);
    return 1;
}

const char *soq__sandbox_found(const struct soq__sandbox *sandbox)
{
    root_length = strlen(sandbox->root);
    return nftw(sandbox->root, look, 8, FTW_PHYS) == 1 ? found : NULL;
}

static int take_away(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)type;
    (void)where;
    return remove(path) && errno != ENOENT;
}

void soq__sandbox_remove(struct soq__sandbox *sandbox)
{
    nftw(sandbox->root, take_away, 8, FTW_PHYS | FTW_DEPTH);
}

/* ---- The child */

static void enter(const struct soq__sandbox *sandbox)
{
    char path[300];

    for (size_t i = 0; i < SOQ__COUNT(places); i++) {
        snprintf(path, sizeof path, "%s/%s", sandbox->root, places[i].folder);
        if (places[i].variable ? setenv(places[i].variable, path, 1) : chdir(path))
            _exit(1);
    }
}

static _Noreturn void be_child(struct soq__kit *kit, void (*run)(struct soq__kit *kit), const struct soq__sandbox *sandbox,
                               int output)
{
    int null = open("/dev/null", O_RDONLY);

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (!kit->shared->facts.devices)
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0});
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    if (dup2(null, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)
        _exit(1);
    close(null);
    close(output);
    setvbuf(stdout, NULL, _IONBF, 0);
    enter(sandbox);
    run(kit);
    soq__kit_pass(kit);
}

/* ---- The parent */

static void judge(const struct soq__kit_shared *shared, int status, bool late, double limit, struct soq__check_result *result)
{
    const char *at = *shared->at ? shared->at : "first steps", *name;

    result->reason[0] = '\0';
    if (late) {
        result->verdict = SOQ__HANG;
        snprintf(result->reason, sizeof result->reason, "not done after %g s, at: %s", limit, at);
    } else if (WIFSIGNALED(status)) {
        name = sigabbrev_np(WTERMSIG(status));
        result->verdict = SOQ__CRASH;
        snprintf(result->reason, sizeof result->reason, "SIG%s%s, at: %s", name ? name : "?",
                 WTERMSIG(status) == SIGXFSZ ? " (wrote to a file)" : "", at);
    } else if (shared->verdict < 0 || WEXITSTATUS(status)) {
        result->verdict = SOQ__CRASH;
        snprintf(result->reason, sizeof result->reason, "ended the process with status %d, at: %s", WEXITSTATUS(status), at);
    } else {
        result->verdict = (enum soq__verdict)shared->verdict;
        memcpy(result->reason, shared->reason, sizeof result->reason);
    }
}

/* False at the end of what can be read. */
static bool drain(int fd, struct soq_buf *output)
{
    char bytes[4096];
    ssize_t n = read(fd, bytes, sizeof bytes);

    if (n > 0 && output->len < OUTPUT_MAX)
        soq__buf_append(output, bytes, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Until the child has ended or the time is over. True if it was killed for that. */
static bool watch(pid_t pid, int fd, double limit, struct soq_buf *output, int *status_out)
{
    double end = soq__clock_now() + limit;
    bool open = true, late = false;

    for (;;) {
        struct pollfd p = {.fd = open ? fd : -1, .events = POLLIN};

        if (poll(&p, 1, open ? POLL_MS : 1) > 0)
            open = drain(fd, output);
        if (waitpid(pid, status_out, WNOHANG) == pid)
            break;
        if (soq__clock_now() < end)
            continue;
        late = true;
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL);
        waitpid(pid, status_out, 0);
        break;
    }
    while (open && poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) > 0)
        open = drain(fd, output);
    kill(-pid, SIGKILL); /* what it may have started */
    return late;
}

int soq__child_run(struct soq__kit *kit, void (*run)(struct soq__kit *kit), const struct soq__sandbox *sandbox, double limit,
                   struct soq_buf *output, struct soq__check_result *result, struct soq_error *err)
{
    double start = soq__clock_now();
    int ends[2], status = 0;
    bool late;
    pid_t pid;

    kit->shared->verdict = -1;
    kit->shared->at[0] = kit->shared->reason[0] = '\0';
    if (pipe2(ends, O_CLOEXEC))
        return soq__fail(err, SOQ_EIO, "no pipe to a check: %s", strerror(errno));
    pid = fork();
    if (pid == 0)
        be_child(kit, run, sandbox, ends[1]);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return soq__fail(err, SOQ_ENOMEM, "no process for a check: %s", strerror(errno));
    }
    setpgid(pid, pid);
    late = watch(pid, ends[0], limit, output, &status);
    close(ends[0]);
    judge(kit->shared, status, late, limit, result);
    result->seconds = soq__clock_now() - start;
    return 0;
}
