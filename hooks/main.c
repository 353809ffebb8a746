/* agentcgroup-hook: the OCI hook for prestart (createRuntime) and poststop. Reads the container's state on stdin, makes
 * its cgroups, has the daemon govern them, and mounts the shim over the image's shells. docs/architecture.md has the
 * protocol; the environment and the engine's arguments steer nothing. */
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

/* The container is gone. The daemon sees that for itself; this only speeds it up. */
static void stop(const struct container *c, struct outcome *outcome)
{
    struct json_out message;
    struct error err;
    int daemon = daemon_connect(&err);
    short_message(&message, "stop", c->id);
    int failed = daemon < 0 || daemon_tell(daemon, &message, &err);
    outcome->result = "stopped";
    outcome->priority = PRIORITY_INFO;
    outcome->silent = daemon < 0 && engine_is_rootless(); /* it was said at the start that nothing was governed */
    fail(&outcome->cause, 0, "stopped%s%.200s", failed ? ", the daemon was not told: " : "", failed ? err.text : "");
}

static int finish(const struct container *c, const struct outcome *outcome)
{
    const char *id = *c->id ? c->id : "?";
    struct log_line line = {outcome->priority, id, outcome->result, outcome->cause.text, elapsed_us()};
    if (!outcome->silent)
        journal_send(&line);
    if (outcome->stop_container)
        tell_engine(id, outcome->cause.text, json_true(json_get(c->config, "process", "terminal", NULL)));
    return outcome->stop_container ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    static struct container c;
    static struct outcome outcome = {.priority = PRIORITY_WARNING, .result = "failed"};
    deadline_start();
    umask(022);
    if (!container_read_state(&c, STDIN_FILENO, &outcome.cause)) {
        if (c.stopped || (argc > 1 && !strcmp(argv[1], "poststop")))
            stop(&c, &outcome);
        else
            govern(&c, &outcome);
    }
    return finish(&c, &outcome);
}
