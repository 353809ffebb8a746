/* The engine that runs the hook: whose it is, and what its user sees of a hook that stopped a container. */
#ifndef AGC_ENGINE_H
#define AGC_ENGINE_H

#include <stdbool.h>

/* A user's own engine runs hooks as root of the user's namespace: it can reach neither the daemon nor the cgroups. */
bool engine_is_rootless(void);

/* Says the cause on stderr, which runc passes on. crun gives hooks /dev/null: there it goes to crun's own stderr, which
 * CRI-O shows, and into crun's log. podman shows that log and nothing else as long as it is one JSON object; when it
 * holds two, crun's stderr is shown (libpod, readConmonPipeData). With a terminal conmon passes no stderr on, and podman
 * has to be left with the log. */
void tell_engine(const char *container, const char *message, bool terminal);

#endif
