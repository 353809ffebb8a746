/* Containers that could undo a limit, or leave their call's cgroup, by their own means. There the view of calls/ is not
 * mounted, the daemon moves the calls, and the limits of single calls are cooperative. */
#ifndef AGC_COOPERATIVE_H
#define AGC_COOPERATIVE_H

#include "container.h"
#include "error.h"

/* Adds one short reason each; none means that the view can be mounted. `table` is init's mountinfo, `rootfs` the real
 * path of the container's root in it. */
void cooperative_reasons(const struct container *c, const char *table, const char *rootfs, struct notes *reasons);

#endif
