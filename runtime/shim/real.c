/* Becoming the image's own shell. Whatever fails on the way, a shell runs. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXIT_CANNOT_RUN 126 /* POSIX: found, but could not be executed; 127 would say that the command is missing */

/*
 * Runs an open file. Returns only on failure, with errno. The kernel copies the file's name to the new stack too, and
 * /dev/fd/N is as short as /bin/bash: what just fitted into ARG_MAX for our caller still does.
 */
int exec_file(int fd, char **argv, char **envp)
{
    syscall(SYS_execveat, fd, "", argv, envp, AT_EMPTY_PATH);
    if (errno == E2BIG && envp != environ)
        syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH); /* better without our variable than not at all */
    return -1;
}

static void exec_mounted(char **argv, char **envp)
{
    char name[32];
    char path[sizeof AGC_DIR + sizeof "/real/" + sizeof name];
    payload_name(name);
    size_t at = put_text(path, 0, sizeof path, AGC_DIR "/real/");
    put_text(path, at, sizeof path, name);
    execve(path, argv, envp);
    if (errno != E2BIG)
        return;
    int fd = openat(AT_FDCWD, path, O_PATH | O_CLOEXEC);
    if (fd >= 0)
        exec_file(fd, argv, envp);
}

void exec_real(char **argv, char **envp)
{
    char line[256];
    exec_mounted(argv, envp);
    int first = errno;
    exec_copy(argv, envp);
    size_t at = put_text(line, 0, sizeof line, "[agentcgroup] cannot run the image's shell: " AGC_DIR "/real: ");
    at = put_text(line, at, sizeof line, strerror(first));
    at = put_text(line, at, sizeof line, "; its copy in this file: ");
    at = put_text(line, at, sizeof line, strerror(errno));
    put_text(line, at, sizeof line, "\n");
    say(line);
    _exit(EXIT_CANNOT_RUN);
}
