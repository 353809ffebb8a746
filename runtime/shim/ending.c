/* The end of a call: what its cgroup counted, what the daemon has to say, and a death like the shell's own. */
#define _GNU_SOURCE
#include "shim.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNLINK_MS 1

/* Opened while the shell starts: a first look into a cgroup's directory takes longer than three reads at the end. */
void open_counters(struct call *call)
{
    static const char *const files[AGC_COUNTERS] = {"memory.events", "pids.events", "cgroup.events"};
    for (int i = 0; i < AGC_COUNTERS; i++)
        call->counters[i] = call->dir < 0 ? -1 : openat(call->dir, files[i], O_RDONLY | O_CLOEXEC);
}

/* Lines of "NAME NUMBER": any digit but 0 is news. A missing controller has no file and no news. */
static int counted(int file)
{
    char text[512];
    ssize_t n = file < 0 ? 0 : pread(file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return strpbrk(text, "123456789") != NULL;
}

/*
 * The last counter is whether the cgroup is populated. Since Linux 6.19 (d245698d727a) a task leaves its cgroup only
 * after its last switch, a moment after we could reap it: that gets a second look.
 */
static int has_counted(const struct call *call)
{
    const int *populated = call->counters + AGC_COUNTERS - 1;
    for (const int *counter = call->counters; counter < populated; counter++)
        if (counted(*counter))
            return 1;
    if (!counted(*populated))
        return 0;
    poll(NULL, 0, UNLINK_MS);
    return counted(*populated);
}

/*
 * How long to wait for what the daemon has to say, in ack times; 0: there is no news. When something has happened its
 * cause is worth more than a start is held up for: a machine short of memory or CPU is slow just then. Past 128 a shell
 * reports the signal that ended a command. Without the view any failure may be news, but a grep that finds nothing is none.
 */
static int patience(const struct call *call, int status)
{
    if (WIFSIGNALED(status) || WEXITSTATUS(status) > 128 || (call->dir >= 0 && has_counted(call)))
        return 10;
    return call->dir < 0 && status;
}

/*
 * At most PIPE_BUF bytes: then a pipe that polls writable takes all without blocking (pipe(7)). If fd 2 was closed it is
 * still, or one of our counters, which nobody can write.
 */
static void print(const char *text, size_t length)
{
    struct pollfd out = {.fd = 2, .events = POLLOUT};
    if (poll(&out, 1, (int)ack_ms()) == 1 && out.revents & POLLOUT)
        if (write(2, text, length < PIPE_BUF ? length : PIPE_BUF) < 0)
            return; /* the reader has gone */
}

void print_feedback(const struct call *call, int status, int was_long)
{
    if (call->sock < 0)
        return;
    int acks = patience(call, status);
    int quiet = !acks && !was_long && !call->hinted;
    size_t at = put_text(message, 0, sizeof message, "AGC1") + 1;
    at = put_text(message, at, sizeof message, "e=");
    at = put_number(message, at, sizeof message, (uint32_t)status) + 1;
    if (quiet)
        at = put_text(message, at, sizeof message, "q=1") + 1;
    if (tell(call->sock, at) || quiet)
        return;
    ssize_t n = hear(call->sock, message, sizeof message, (int)ack_ms() * (acks ? acks : 1));
    if (n > 0)
        print(message, (size_t)n);
}

/* Orphans of the call that have ended since: PID 1 may be an agent that waits for nobody, and zombies count in pids.max. */
static void reap_orphans(void)
{
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

/* The same exit code or the same signal, but no second core dump: pipe handlers ignore RLIMIT_CORE (core(5)). */
void end_like(int status)
{
    static const struct rlimit none = {0, 0};
    static const struct sigaction standard = {.sa_handler = SIG_DFL};
    reap_orphans();
    if (!WIFSIGNALED(status))
        _exit(WEXITSTATUS(status));
    int sig = WTERMSIG(status);
    uint64_t one = 1ULL << (sig - 1);
    syscall(SYS_prlimit64, 0, RLIMIT_CORE, &none, NULL);
    prctl(PR_SET_DUMPABLE, 0);
    sigaction(sig, &standard, NULL);
    kill(getpid(), sig);
    syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &one, NULL, sizeof one);
    _exit(128 + sig);
}
