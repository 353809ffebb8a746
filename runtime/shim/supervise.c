/* The wait: signals go to the shell exactly once, stops are mirrored, orphans are reaped, nothing of the caller's is held. */
#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WITNESS_AFTER_MS 10 /* several times what `bash -c true` takes: short calls pay nothing */
#define STOP_SETTLES_MS 2
#define BLIND_CLOSES 65536 /* 3 ms; RLIMIT_NOFILE may be a million, and says nothing of what was opened before it */
#define SIGNAL_BIT(sig) (1ULL << ((sig) - 1))

int64_t now_ms(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now); /* finding it in the vDSO costs more than one call */
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A position in /proc/self/fd is a number, so closing on the way skips none. "." and ".." read as 0, which is closed first. */
static int close_listed(unsigned from, unsigned to)
{
    _Alignas(struct dirent) char list[2048];
    int folder = openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return -1;
    for (long n; (n = syscall(SYS_getdents64, folder, list, sizeof list)) > 0;)
        for (const char *at = list; at < list + n; at += ((const struct dirent *)at)->d_reclen) {
            unsigned fd = read_number(((const struct dirent *)at)->d_name);
            if (fd >= from && fd <= to && fd != (unsigned)folder)
                close((int)fd);
        }
    close(folder);
    return 0;
}

/* close_range(2) is Linux 5.9, and old seccomp profiles refuse it; /proc may be missing. */
static void close_span(unsigned from, unsigned to)
{
    if (from > to || !syscall(SYS_close_range, from, to, 0) || !close_listed(from, to))
        return;
    for (unsigned fd = from; fd <= to && fd < BLIND_CLOSES; fd++)
        close((int)fd);
}

/* The caller's pipes end when the shell's copies end, so ours must go. Left are stderr, the connection, the directory. */
static void close_others(const struct call *call)
{
    int low = call->sock < call->dir ? call->sock : call->dir;
    int high = call->sock < call->dir ? call->dir : call->sock;
    unsigned from = 3;
    close_span(0, 1);
    for (int i = 0; i < 2; i++) {
        int kept = i ? high : low;
        if (kept < 0)
            continue;
        close_span(from, (unsigned)kept - 1);
        from = (unsigned)kept + 1;
    }
#ifdef AGC_TRACE
    close_span(from, AGC_TRACE - 1);
    from = AGC_TRACE + 1;
#endif
    close_span(from, ~0U);
}

static int is_pending(int sig)
{
    uint64_t pending = 0;
    syscall(SYS_rt_sigpending, &pending, sizeof pending);
    return (pending & SIGNAL_BIT(sig)) != 0;
}

/*
 * A SIGSTOP for the whole group stops us too, a moment after the shell: stopping once more after its SIGCONT would hang
 * the call. So that moment passes first, and then whoever has continued us or the shell is obeyed.
 */
static int is_still_stopped(pid_t shell)
{
    siginfo_t info = {0};
    poll(NULL, 0, STOP_SETTLES_MS);
    if (is_pending(SIGCONT))
        return 0;
    return waitid(P_PID, (id_t)shell, &info, WCONTINUED | WNOHANG) || !info.si_pid;
}

/* Stops like the shell did, so that the caller's job control sees it. Stopped, we cannot see it die: a watch wakes us. */
static void stop_like(int sig, pid_t shell)
{
    static const struct sigaction standard = {.sa_handler = SIG_DFL};
    struct sigaction saved;
    uint64_t one = SIGNAL_BIT(sig);
    if (!is_still_stopped(shell))
        return;
    hire_watch(shell);
    sigaction(sig, &standard, &saved);
    kill(getpid(), sig);
    syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &one, NULL, sizeof one); /* stops here */
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &one, NULL, sizeof one);
    sigaction(sig, &saved, NULL);
    dismiss_watch();
}

/* As a subreaper we get the call's orphans as well; 1 when the shell itself has ended. */
static int reap(pid_t shell, int *status)
{
    pid_t pid;
    while ((pid = waitpid(-1, status, WNOHANG | WUNTRACED)) > 0) {
        if (pid != shell) {
            if (!WIFSTOPPED(*status))
                helper_ended(pid);
            continue;
        }
        if (!WIFSTOPPED(*status))
            return 1;
        stop_like(WSTOPSIG(*status), shell);
    }
    return 0;
}

static void pass_on(pid_t shell, int sig, siginfo_t *info)
{
    if (info->si_code == SI_QUEUE)
        syscall(SYS_rt_sigqueueinfo, shell, sig, info); /* with its value and its sender */
    else
        kill(shell, sig);
}

/*
 * To the shell, unless its process group, which got the signal as well, is the shell's too. The witness is asked in any
 * case, since asking clears the signal. A hang-up is passed on at once: the shell's read of the terminal ends just then,
 * and an interactive bash that sees the end of file before the signal exits 0 instead of dying by it.
 */
static void deliver(pid_t shell, int sig, siginfo_t *info)
{
    int apart = hung_up(sig, info) || getpgid(shell) != getpgrp();
    if (apart)
        pass_on(shell, sig, info);
    if (!group_got(sig, info, !apart) && !apart)
        pass_on(shell, sig, info);
}

static int next_signal(siginfo_t *info, int64_t limit_ms)
{
    static const uint64_t all = ~0ULL;
    struct timespec limit = {.tv_sec = limit_ms / 1000, .tv_nsec = limit_ms % 1000 * 1000000};
    return (int)syscall(SYS_rt_sigtimedwait, &all, info, limit_ms < 0 ? NULL : &limit, sizeof all);
}

int supervise(struct call *call, pid_t shell, int *was_long)
{
    siginfo_t info;
    int status;
    int hired = 0;
    int64_t began = now_ms();
    *was_long = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    close_others(call);
    open_counters(call);
    for (;;) {
        int sig = next_signal(&info, hired ? -1 : WITNESS_AFTER_MS);
        if (sig == SIGCHLD && reap(shell, &status))
            break;
        if (sig > 0 && sig != SIGCHLD) {
            deliver(shell, sig, &info);
            tell_signal(call, sig); /* a call that is held is frozen: it acts on nothing until it is released */
        }
        if (!hired && now_ms() - began >= WITNESS_AFTER_MS) {
            hire_witness();
            hired = 1;
        }
    }
    if (hired) {
        dismiss_witness();
        *was_long = now_ms() - began > AGC_LONG_CALL_MS;
    }
    return status;
}
