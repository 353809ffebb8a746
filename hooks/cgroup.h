/* Which cgroup is the container's, and is it really the container's own? */
#ifndef AGC_CGROUP_H
#define AGC_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

#include "container.h"
#include "error.h"

/* The absolute path of BASE, the cgroup that the runtime made for the container. Refuses one that config.json does not
 * explain (under --cgroups=disabled init lives in the engine's own cgroup) or that holds the engine. */
int find_base(const struct container *c, char *base, size_t size, struct error *err);

/* Does linux.cgroupsPath, or without one the id, lead to this path below the cgroup2 mount? Runtimes may put init one
 * level down: crun in "container" or in what run.oci.systemd.subgroup names. */
bool cgroup_explained(const char *path, const char *cgroups_path, const char *id, const char *subgroup);

#endif
