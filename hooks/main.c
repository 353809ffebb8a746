/* agentcgroup-hook: the OCI hook for prestart (createRuntime) and poststop. Reads the container's state on stdin, makes
 * its cgroups, has the daemon govern them, and mounts the shim over the image's shells. docs/architecture.md has the
 * protocol; the environment steers nothing, and of the arguments only "poststop", which the state says as well. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "container.h"
#include "daemon.h"
#include "deadline.h"
#include "engine.h"
#include "govern.h"
#include "journal.h"
#include "messages.h"

static struct container container;
static struct outcome outcome = {.priority = PRIORITY_WARNING, .result = "failed"};

/* The container is gone. The daemon sees that for itself; this only speeds it up. */
static void stop(void)
{
    struct json_out message;
    struct error err;
    int daemon = daemon_connect(&err);
    short_message(&message, "stop", container.id);
    int failed = daemon < 0 || daemon_tell(daemon, &message, &err);
    outcome.result = "stopped";
    outcome.priority = PRIORITY_INFO;
    /* nothing was governed, and the start has said so, or said nothing */
    outcome.silent = (daemon < 0 && engine_is_rootless()) || (container.annotations && !is_meant(&container));
    fail(&outcome.cause, 0, "stopped%s%.200s", failed ? ", the daemon was not told: " : "", failed ? err.text : "");
}

static int finish(void)
{
    const char *id = *container.id ? container.id : "?";
    struct log_line line = {outcome.priority, id, outcome.result, outcome.cause.text, elapsed_us()};
    if (!outcome.silent)
        journal_send(&line);
    if (outcome.stop_container)
        tell_engine(id, outcome.cause.text, json_true(json_get(container.config, "process", "terminal", NULL)));
    return outcome.stop_container ? EXIT_FAILURE : EXIT_SUCCESS;
}

static void expire(void)
{
    govern_hangs(&outcome);
    _exit(finish());
}

int main(int argc, char **argv)
{
    deadline_start(expire);
    signal(SIGPIPE, SIG_IGN); /* a stderr that nobody reads is no reason to stop a container */
    umask(022);
    if (!container_read_state(&container, STDIN_FILENO, &outcome.cause)) {
        if (container.stopped || (argc > 1 && !strcmp(argv[1], "poststop")))
            stop();
        else
            govern(&container, &outcome);
    }
    return finish();
}
