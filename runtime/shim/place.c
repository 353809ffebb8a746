/* Shells that are no tool call, as far as this process can tell; the daemon has the last word. */
#include "shim.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* comm is cut at 15 bytes (TASK_COMM_LEN, proc(5)). podman mounts catatonit as podman-init. */
static const char *const inits[] = {
    "catatonit",  "podman-init", "docker-init", "tini",       "tini-static", "dumb-init",
    "s6-svscan", "systemd",     "init",        "openrc-init", "runit",       "supervisord",
};

static const char *const shells[] = {"bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "busybox", "fish"};

static const char *const interactive[] = {"-i", "-l", "-il", "-li", "--login"};

#define LISTED(name, list) listed(name, list, sizeof(list) / sizeof *(list))

static int listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, list[i]))
            return 1;
    return 0;
}

static int is_known_init(void)
{
    char comm[32];
    ssize_t n = read_whole(AT_FDCWD, "/proc/1/comm", comm, sizeof comm);
    if (n <= 0)
        return 0;
    comm[n - 1] = 0; /* the newline */
    return LISTED(comm, inits);
}

/* PID 1 is a shell that runs a script or a text: what it starts is the agent or prepares it. */
static int is_entrypoint_shell(void)
{
    ssize_t n = read_whole(AT_FDCWD, "/proc/1/cmdline", message, sizeof message);
    if (n <= 0)
        return 0;
    const char *slash = strrchr(message, '/');
    const char *name = slash ? slash + 1 : message + (*message == '-');
    if (!LISTED(name, shells))
        return 0;
    for (const char *arg = message + strlen(message) + 1; arg < message + n; arg += strlen(arg) + 1)
        if (!LISTED(arg, interactive))
            return 1;
    return 0;
}

/* A parent outside our PID namespace (podman exec) reads as 0, and so does PID 1's own: getppid(2). */
int belongs_to_agent(pid_t parent)
{
    if (parent == 0)
        return getpid() == 1;
    return parent == 1 && (is_known_init() || is_entrypoint_shell());
}

static int ends_with(const char *text, const char *end, const char *tail)
{
    size_t length = strlen(tail);
    return (size_t)(end - text) >= length && !memcmp(end - length, tail, length);
}

/* In a call or among the helpers: the line "0::PATH" of /proc/self/cgroup ends so (cgroup_namespaces(7)). */
int is_placed(void)
{
    if (read_whole(AT_FDCWD, "/proc/self/cgroup", message, sizeof message) <= 0)
        return 0;
    char *line = message;
    while (strncmp(line, "0::", 3)) {
        line = strchr(line, '\n');
        if (!line)
            return 0;
        line++;
    }
    char *end = line + strcspn(line, "\n");
    *end = 0;
    const char *name = strrchr(line, '/');
    return ends_with(line, end, "/agentcgroup/helpers") || (name && name[1] && ends_with(line, name, "/agentcgroup/calls"));
}
