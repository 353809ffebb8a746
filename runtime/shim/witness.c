/*
 * Who got a signal: this process alone, or its whole process group and so the shell too?
 *
 * kill(pid) and kill(-pgid) look alike to the receiver: siginfo_t has the sender, not the target. Passing both on runs
 * the shell's trap twice for a group signal, passing none on loses the signal for those who know only our pid. What the
 * shell has received cannot be read either: a caught signal leaves no mark in /proc/PID/status once its handler ran.
 *
 * So a witness joins the process group: a clone that shares our memory, blocks every signal and does nothing but answer
 * whether a signal is pending for it, which also clears it. It has it exactly when the group got it. The group is
 * signalled newest member first (kernel/pid.c attach_pid adds at the head, kill_pgrp walks from there), so shell and
 * witness have theirs before we have ours; kill(-1) and pkill go the other way, and for them we ask once more later.
 *
 * It costs a clone without a copy of memory, and a kill at the end; so it is hired only once a call has lasted longer
 * than a trivial one. Until then only the terminal's signals, which the kernel sends, count as the group's: a double is
 * better than a loss.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUTEX_WAIT_PRIVATE 128 /* futex(2): FUTEX_WAIT | FUTEX_PRIVATE_FLAG */
#define FUTEX_WAKE_PRIVATE 129
#define ANSWER_MS 1000      /* far more than a busy machine keeps a witness from running */
#define CONTINUED_MS 50     /* one that a stop of the group has stopped does not answer: this SIGCONT was ours alone */
#define SECOND_LOOK_MS 5
#define STACK_SIZE 4096

enum helper { WITNESS, WATCH, HELPERS };

static pid_t helpers[HELPERS]; /* 0: none */
AGC_LAST _Alignas(16) char helper_stacks[HELPERS][STACK_SIZE];

static pid_t self;
static int watched; /* pidfd of the shell */
static uint32_t question; /* a signal's number until it is answered, then 0 */
static int answer;

/* Helpers share errno with us: what runs beside them may not read it. */
static void futex(int op, uint32_t value, const struct timespec *limit)
{
    syscall(SYS_futex, &question, op, value, limit);
}

static void bind_to_parent(const char *name)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self)
        _exit(0);
    prctl(PR_SET_NAME, name);
}

static int testify(void *unused) __attribute__((noreturn));
static int testify(void *unused)
{
    static const struct timespec now = {0};
    (void)unused;
    bind_to_parent("agc-witness");
    for (;;) {
        uint32_t sig = __atomic_load_n(&question, __ATOMIC_ACQUIRE);
        if (!sig) {
            futex(FUTEX_WAIT_PRIVATE, 0, NULL);
            continue;
        }
        uint64_t one = 1ULL << (sig - 1);
        answer = syscall(SYS_rt_sigtimedwait, &one, NULL, &now, sizeof one) == (long)sig;
        __atomic_store_n(&question, 0, __ATOMIC_RELEASE);
        futex(FUTEX_WAKE_PRIVATE, 1, NULL);
    }
}

/* A pidfd is readable once its process has ended (pidfd_open(2)). */
static int wake_at_death(void *unused)
{
    struct pollfd shell = {.fd = watched, .events = POLLIN};
    (void)unused;
    bind_to_parent("agc-watch");
    if (poll(&shell, 1, -1) == 1)
        kill(self, SIGCONT);
    return 0;
}

static void hire(enum helper who, int (*work)(void *))
{
    self = getpid();
    pid_t pid = clone(work, helper_stacks[who] + STACK_SIZE, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
    helpers[who] = pid > 0 ? pid : 0;
}

static void dismiss(enum helper who)
{
    pid_t pid = helpers[who];
    if (!pid)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    helpers[who] = 0;
}

void helper_ended(pid_t pid)
{
    for (int i = 0; i < HELPERS; i++)
        if (helpers[i] == pid)
            helpers[i] = 0;
}

void hire_witness(void)
{
    hire(WITNESS, testify);
}

void dismiss_witness(void)
{
    dismiss(WITNESS);
}

/* A shell that dies while we are stopped wakes us. */
void hire_watch(pid_t shell)
{
    watched = (int)syscall(SYS_pidfd_open, shell, 0);
    if (watched >= 0)
        hire(WATCH, wake_at_death);
}

void dismiss_watch(void)
{
    dismiss(WATCH);
    if (watched >= 0)
        close(watched);
}

/* 1 or 0, or -1 without a witness that answers; then another takes its place. */
static int ask_witness(int sig)
{
    int64_t ms = sig == SIGCONT ? CONTINUED_MS : ANSWER_MS;
    struct timespec limit = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    if (!helpers[WITNESS])
        return -1;
    int64_t until = now_ms() + ms;
    __atomic_store_n(&question, (uint32_t)sig, __ATOMIC_RELEASE);
    futex(FUTEX_WAKE_PRIVATE, 1, NULL);
    do /* the wake of an earlier answer may come only now */
        futex(FUTEX_WAIT_PRIVATE, (uint32_t)sig, &limit);
    while (__atomic_load_n(&question, __ATOMIC_ACQUIRE) && now_ms() < until);
    if (!__atomic_load_n(&question, __ATOMIC_ACQUIRE))
        return answer;
    dismiss(WITNESS);
    question = 0;
    hire_witness();
    return -1;
}

/* A terminal's hang-up reaches the session leader alone (drivers/tty/tty_jobctrl.c tty_signal_session_leader). */
int hung_up(int sig, const siginfo_t *info)
{
    return info->si_code == SI_KERNEL && (sig == SIGHUP || sig == SIGCONT) && getsid(0) == getpid();
}

/* What the kernel sends for a terminal goes to its foreground group, an orphaned group's SIGHUP and SIGCONT to all. */
static int sent_by_terminal(int sig, const siginfo_t *info)
{
    static const char signals[] = {SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH, SIGHUP, SIGCONT};
    return info->si_code == SI_KERNEL && memchr(signals, sig, sizeof signals);
}

int group_got(int sig, const siginfo_t *info, int ask_twice)
{
    int group = ask_witness(sig);
    if (group < 0)
        return sent_by_terminal(sig, info);
    if (group || !ask_twice || info->si_code != SI_USER)
        return group;
    poll(NULL, 0, SECOND_LOOK_MS);
    return ask_witness(sig) > 0;
}
