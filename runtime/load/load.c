/*
 * agentcgroup-load stands for an agent and its tool calls: it takes and gives back memory as a plan says, and says how
 * long each step took. docs/benchmarks.md has the method; runtime/agentcgroup/bench writes the plan.
 *
 *     agentcgroup-load agent FOLDER        as PID 1 of a container: its own memory, and a `bash -c` for each call
 *     agentcgroup-load call FOLDER N       in that bash: the memory of call N
 *
 * FOLDER/plan has a line each, in the order of time, with milliseconds from the beginning of the whole or of the call:
 *
 *     own MS BYTES      what the agent itself has from then on
 *     call MS N END     call N begins; in the plan it is over at END
 *     step N MS BYTES   what call N has from then on
 *
 * A call that begins after the end of others in the plan waits for them; what is late by that stays late. FOLDER/log gets
 * `begin NS`, `step N NS NS BYTES` (it was due, it was done, how much more), `ended N NS STATUS` and `end NS`, by
 * CLOCK_MONOTONIC. All waits for FOLDER/go to be opened for writing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RESERVE (64ULL << 30) /* of addresses, for what is never that much */
#define PAGE 4096
#define NS_PER_MS 1000000LL

struct line {
    char kind; /* 'o'wn, 'c'all, 's'tep */
    int number;
    long long ms, value; /* bytes, or the call's end in ms */
};

struct running {
    pid_t pid;
    int number;
    long long end_ms;
    struct running *next;
};

static const char *folder;
static struct line *lines;
static size_t count;
static char *memory;
static long long taken; /* bytes */
static int log_fd;

static void fail(const char *what)
{
    fprintf(stderr, "agentcgroup-load: %s: %s\n", what, strerror(errno));
    _exit(125);
}

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(long long ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000LL, .tv_nsec = ns % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (write(log_fd, text, (size_t)n) != n) /* O_APPEND: whole lines, of several processes */
        fail("log");
}

static int open_in_folder(const char *name, int flags)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0)
        fail(path);
    return fd;
}

static void read_plan(void)
{
    FILE *file = fdopen(open_in_folder("plan", O_RDONLY), "r");
    char text[128];
    size_t room = 0;
    while (fgets(text, sizeof text, file)) {
        struct line line = {.kind = text[0]};
        int ok = line.kind == 'o'   ? sscanf(text, "own %lld %lld", &line.ms, &line.value) == 2
                 : line.kind == 'c' ? sscanf(text, "call %lld %d %lld", &line.ms, &line.number, &line.value) == 3
                                    : sscanf(text, "step %d %lld %lld", &line.number, &line.ms, &line.value) == 3;
        if (count == room && !(lines = realloc(lines, (room = 2 * room + 64) * sizeof *lines)))
            fail("plan");
        if (!ok) {
            errno = EINVAL;
            fail(text);
        }
        lines[count++] = line;
    }
    fclose(file);
}

/* Has that many bytes from now on; every page is written to. */
static void have(long long bytes, int number, long long due_ns)
{
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    for (long long at = taken; at < bytes; at += PAGE)
        memory[at] = 1;
    if (bytes < taken && madvise(memory + bytes, (size_t)(taken - bytes), MADV_DONTNEED))
        fail("madvise");
    long long more = bytes - taken;
    taken = bytes;
    say("step %d %lld %lld %lld\n", number, due_ns, now_ns(), more);
}

static int call(int number)
{
    long long began = now_ns();
    for (size_t i = 0; i < count; i++) {
        const struct line *line = &lines[i];
        if (line->kind != 's' || line->number != number)
            continue;
        long long due = began + line->ms * NS_PER_MS, now = now_ns();
        if (due > now)
            sleep_until(due);
        else
            began += now - due; /* what was late stays late */
        have(line->value, number, due > now ? due : now);
    }
    return 0;
}

static struct running *start(const struct line *line, struct running *others)
{
    char text[PATH_MAX + 64];
    struct running *one = malloc(sizeof *one);
    snprintf(text, sizeof text, "exec /load/agentcgroup-load call %s %d", folder, line->number);
    if (!one || (one->pid = fork()) < 0)
        fail("fork");
    if (!one->pid) {
        execl("/bin/bash", "bash", "-c", text, (char *)NULL);
        fail("/bin/bash");
    }
    one->number = line->number;
    one->end_ms = line->value;
    one->next = others;
    return one;
}

static void reap(struct running **all, struct running *one, int status)
{
    say("ended %d %lld %d\n", one->number, now_ns(), status);
    while (*all != one)
        all = &(*all)->next;
    *all = one->next;
    free(one);
}

/* Waits until none of them is to be over by `ms` of the plan. */
static void wait_for_calls(struct running **all, long long ms)
{
    for (struct running *one = *all, *next; one; one = next) {
        int status;
        next = one->next;
        if (one->end_ms > ms)
            continue;
        while (waitpid(one->pid, &status, 0) < 0)
            if (errno != EINTR)
                fail("waitpid");
        reap(all, one, status);
    }
}

static int agent(void)
{
    struct running *all = NULL;
    long long began;
    close(open_in_folder("go", O_RDONLY)); /* a FIFO: opened when the runner opens its other end */
    began = now_ns();
    say("begin %lld\n", began);
    for (size_t i = 0; i < count; i++) {
        const struct line *line = &lines[i];
        if (line->kind == 's')
            continue;
        wait_for_calls(&all, line->ms);
        long long due = began + line->ms * NS_PER_MS, now = now_ns();
        if (due > now)
            sleep_until(due);
        else
            began += now - due;
        if (line->kind == 'c')
            all = start(line, all);
        else
            have(line->value, 0, due > now ? due : now);
    }
    wait_for_calls(&all, LLONG_MAX);
    say("end %lld\n", now_ns());
    munmap(memory, RESERVE); /* as if it ended here; but the runner reads its counters first */
    pause();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3 || (argc < 4 && strcmp(argv[1], "agent"))) {
        fprintf(stderr, "usage: agentcgroup-load agent FOLDER | call FOLDER N\n");
        return 2;
    }
    folder = argv[2];
    log_fd = open_in_folder("log", O_WRONLY | O_APPEND | O_CREAT);
    memory = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    madvise(memory, RESERVE, MADV_NOHUGEPAGE); /* so that a step is as large as it says */
    read_plan();
    return strcmp(argv[1], "agent") ? call(atoi(argv[3])) : agent();
}
