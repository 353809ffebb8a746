/*
 * agentcgroup-shim stands where the image's shells were. It claims a cgroup for the tool call that it was started for,
 * runs the real shell in it, passes signals on, says what happened and ends the same way.
 *
 * It runs on every tool call: it links no stdio, allocates nothing and asks the daemon only when it must.
 */
#define _GNU_SOURCE
#include "shim.h"
#include "trace.h"

#include <string.h>
#include <unistd.h>

#ifdef AGC_TRACE
uint64_t trace_stamps[TRACE_POINTS];
#endif

static int is_hint_program(const char *name)
{
    const char *slash = name ? strrchr(name, '/') : NULL;
    return name && !strcmp(slash ? slash + 1 : name, "agentcgroup-hint");
}

int main(int argc, char **argv)
{
    struct call call = {.argv = argv, .sock = -1, .dir = -1};
    int was_long;
    TRACE(TRACE_MAIN);
    if (argc && is_hint_program(argv[0]))
        return send_hint(argv + 1);
    if (belongs_to_agent(getppid()) || is_placed())
        exec_real(argv, environ);
    decide(&call);
    TRACE(TRACE_TOLD);
    call.self = getpid();
    pid_t shell = call.verdict == RUN_IN_PLACE ? 0 : launch(&call);
    TRACE(TRACE_CLONED);
    if (!shell)
        exec_real(argv, environ);
    announce(&call);
    int status = supervise(&call, shell, &was_long);
    TRACE(TRACE_REAPED);
    print_feedback(&call, status, was_long);
    TRACE(TRACE_END);
    TRACE_FLUSH();
    end_like(status);
}
