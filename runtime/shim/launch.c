/* From verdict to running shell: the child is born in the call's cgroup, or asks to be moved there. */
#define _GNU_SOURCE
#include "shim.h"
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CLONE_INTO_CGROUP 0x200000000ULL /* Linux 5.7, ef2c41cf38a7 */
#define CALL_VARIABLE "AGENTCGROUP_CALL="
#define OOM_RAISE 500
#define OOM_MAX 1000
#define PATH_ROOM (sizeof AGC_DIR + 64)

/* struct clone_args of clone3(2), VER2; musl ships no kernel headers. */
struct clone_request {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* What the shell must find as the caller left it. Raw masks: musl's sigset calls hide signals 32 to 34. */
struct signals {
    uint64_t mask;
    struct sigaction on_child;
};

static void block_signals(struct signals *saved)
{
    static const uint64_t all = ~0ULL;
    static const struct sigaction standard = {.sa_handler = SIG_DFL};
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &saved->mask, sizeof all);
    sigaction(SIGCHLD, &standard, &saved->on_child); /* an inherited SIG_IGN would reap the shell and lose its status */
}

static void restore_signals(const struct signals *saved)
{
    if (saved->on_child.sa_handler == SIG_IGN)
        sigaction(SIGCHLD, &saved->on_child, NULL);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &saved->mask, NULL, sizeof saved->mask);
}

static int open_call(uint32_t number)
{
    char path[PATH_ROOM];
    size_t at = put_text(path, 0, sizeof path, AGC_DIR "/calls/");
    if (number)
        put_number(path, at, sizeof path, number);
    else
        put_text(path, at, sizeof path, "fallback");
    return lift(openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC));
}

/* A number without a directory is void where the view exists; without a view (cooperative container) the daemon moves. */
static void find_directory(struct call *call)
{
    call->dir = open_call(call->number);
    if (call->dir >= 0 || !call->number || call->verdict == RUN_MOVED)
        return;
    call->dir = open_call(0);
    if (call->dir < 0) {
        call->verdict = RUN_MOVED;
        return;
    }
    call->verdict = RUN_FALLBACK;
    call->number = 0;
    hang_up(call);
}

/* An OOM above our subtree must take the call before the agent. Raising needs no privilege: proc(5). */
static void raise_oom_score(void)
{
    char text[16];
    int fd = openat(AT_FDCWD, "/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n > 0) {
        text[n] = 0;
        int score = atoi(text) + OOM_RAISE;
        size_t at = put_text(text, 0, sizeof text, score < 0 ? "-" : "");
        at = put_number(text, at, sizeof text, (uint32_t)(score > OOM_MAX ? OOM_MAX : score < 0 ? -score : score));
        if (pwrite(fd, text, at, 0) < 0) { /* a read-only /proc: the daemon raises it from outside */
        }
    }
    close(fd);
}

/* Runs the shell with AGENTCGROUP_CALL naming this call's feedback. */
static void exec_in_call(char **argv, uint32_t number) __attribute__((noreturn));
static void exec_in_call(char **argv, uint32_t number)
{
    char variable[sizeof CALL_VARIABLE + PATH_ROOM];
    size_t n = 0;
    while (environ[n])
        n++;
    char *envp[n + 2]; /* execve(2) bounds arguments and environment to a quarter of the stack */
    size_t at = put_text(variable, 0, sizeof variable, CALL_VARIABLE AGC_DIR "/feedback/");
    at = put_number(variable, at, sizeof variable, number);
    put_text(variable, at, sizeof variable, ".json");

    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], CALL_VARIABLE, sizeof CALL_VARIABLE - 1))
            envp[kept++] = environ[i];
    envp[kept++] = variable;
    envp[kept] = NULL;
    exec_real(argv, envp);
}

static void become_shell(const struct call *call, const struct signals *saved) __attribute__((noreturn, noinline));
static void become_shell(const struct call *call, const struct signals *saved)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != call->self)
        _exit(128 + SIGKILL); /* died before prctl could tell us */
    restore_signals(saved);
    if (call->verdict == RUN_MOVED && !ask_to_be_moved(call->number))
        exec_real(call->argv, environ);
    raise_oom_score();
    TRACE(TRACE_CHILD);
    TRACE_FLUSH_CHILD();
    if (!call->number)
        exec_real(call->argv, environ);
    exec_in_call(call->argv, call->number);
}

/*
 * clone3 on the caller's own stack, which CLONE_VM shares: the system call must not sit in a function that returns to
 * its caller in the child, so no libc wrapper, and nothing but the one call may follow in the child.
 *
 * Sharing memory until exec saves copying it and the faults of both sides after: 601 us more than plain bash instead of
 * 715 (p50, n=800). What it costs: we wait for the exec, killable but deaf to other signals, and exec in a held cgroup
 * can take as long as one piece of a hold. oom_score_adj is the child's alone even so (fs/proc/base.c __set_oom_adj).
 */
static __attribute__((noinline)) pid_t clone_shell(struct clone_request *request, const struct call *call,
                                                   const struct signals *saved)
{
#if defined __x86_64__
    long result;
    request->flags |= CLONE_VM | CLONE_VFORK;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_clone3), "D"(request), "S"(sizeof *request)
                     : "rcx", "r11", "memory");
#elif defined __aarch64__
    register long result __asm__("x0") = (long)request;
    register long size __asm__("x1") = sizeof *request;
    register long number __asm__("x8") = SYS_clone3;
    request->flags |= CLONE_VM | CLONE_VFORK;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(size), "r"(number) : "memory");
#else
    long result = syscall(SYS_clone3, request, sizeof *request);
#endif
    if (result == 0)
        become_shell(call, saved);
    return (pid_t)result;
}

static pid_t fork_shell(const struct call *call, const struct signals *saved)
{
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        become_shell(call, saved);
    return child;
}

/* The shell's pid, or 0 when this process must become the shell itself. */
pid_t launch(struct call *call)
{
    struct clone_request request = {.flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD};
    struct signals saved;
    pid_t child = -1;
    find_directory(call);
    if (call->verdict == RUN_FALLBACK && call->dir < 0)
        return 0;
    block_signals(&saved); /* nothing may be lost between clone and the first wait */
    request.cgroup = (uint64_t)call->dir;
    if (call->verdict != RUN_MOVED)
        child = clone_shell(&request, call, &saved);
    if (child < 0 && call->number) {
        announce(call); /* before the child asks for the number */
        /* clone3 answers ENOSYS to seccomp profiles, ENOENT from a deeper cgroup namespace, EAGAIN at pids.max */
        call->verdict = RUN_MOVED;
        child = fork_shell(call, &saved);
    }
    if (child > 0)
        return child;
    restore_signals(&saved);
    return 0;
}
