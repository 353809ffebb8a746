#define _GNU_SOURCE
#include "engine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cleanup.h"
#include "files.h"
#include "journal.h"
#include "json_write.h"

bool engine_is_rootless(void)
{
    char map[64];
    struct error ignored;
    unsigned inside, outside, count;
    return geteuid() || read_small(AT_FDCWD, "/proc/self/uid_map", map, sizeof map, &ignored) < 0
        || sscanf(map, "%u %u %u", &inside, &outside, &count) != 3 || inside || outside || count != 4294967295u;
}

static bool is_null_device(int fd)
{
    struct stat st;
    return fstat(fd, &st) || (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3));
}

/* Only a pipe or a file: opening one through /proc/PID/fd makes a file description of our own. */
static int open_to_append(const char *path)
{
    struct stat st;
    if (stat(path, &st) || !(S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode)))
        return -1;
    return open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

static int open_parents_stderr(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/2", getppid());
    return open_to_append(path);
}

/* The argument of --log on the runtime's command line. */
static int open_parents_log(void)
{
    char path[64], arguments[16384];
    struct error ignored;
    snprintf(path, sizeof path, "/proc/%d/cmdline", getppid());
    long len = read_small(AT_FDCWD, path, arguments, sizeof arguments, &ignored);
    for (const char *at = arguments; len > 0 && at < arguments + len; at += strlen(at) + 1) {
        if (!strncmp(at, "--log=", 6))
            return open_to_append(at + 6);
        if (!strcmp(at, "--log") && at + 6 < arguments + len)
            return open_to_append(at + 6);
    }
    return -1;
}

static void log_as_runtime(const char *message)
{
    struct json_out out = {0};
    cleanup_close int log = open_parents_log();
    if (log < 0)
        return;
    json_open(&out, NULL, '{');
    json_put_str(&out, "msg", message);
    json_put_str(&out, "level", "error");
    json_close(&out, '}');
    if (!out.failed)
        dprintf(log, "%.*s\n", (int)out.len, out.buf);
    free(out.buf);
}

/* podman reads these words as a missing command (libpod, getOCIRuntimeError). */
static void reword(char *message)
{
    static const char words[] = "no such file or directory", ours[] = "it is not there";
    for (char *at = message; (at = strcasestr(at, words)); at += sizeof ours - 1) {
        memcpy(at, ours, sizeof ours - 1);
        memmove(at + sizeof ours - 1, at + sizeof words - 1, strlen(at + sizeof words - 1) + 1);
    }
}

void tell_engine(const char *container, const char *message, bool terminal)
{
    char safe[900], said[1000];
    one_line(safe, message, sizeof safe);
    reword(safe);
    snprintf(said, sizeof said, "agentcgroup-hook: container %.12s: %s", container, safe);
    cleanup_close int parent = is_null_device(STDERR_FILENO) ? open_parents_stderr() : -1;
    dprintf(parent >= 0 ? parent : STDERR_FILENO, "%s\n", said);
    if (parent >= 0 && !terminal)
        log_as_runtime(said);
}
