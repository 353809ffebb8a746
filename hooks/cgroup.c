#define _GNU_SOURCE
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "files.h"
#include "kernel.h"
#include "mountinfo.h"

#define INSIDE_US "/agentcgroup/agent" /* where a first run of the hook put init */

static bool is_cgroup2(const char *path)
{
    struct statfs fs;
    return !statfs(path, &fs) && fs.f_type == CGROUP2_MAGIC;
}

static int mount_point(char *out, size_t size, struct error *err)
{
    static const char *const usual[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (is_cgroup2(usual[i]))
            return text(out, size, "%s", usual[i]);
    cleanup_free char *table = mountinfo_read(getpid(), err);
    struct mount_entry entry;
    if (!table)
        return -1;
    for (const char *at = table; mountinfo_next(&at, &entry);)
        if (entry.cgroup2 && !strcmp(entry.root, "/"))
            return text(out, size, "%s", entry.point);
    return fail(err, 0, "no cgroup2 is mounted on this host");
}

/* The "0::" line of /proc/PID/cgroup, cgroups(7). */
static int unified_path(pid_t pid, char *out, size_t size, struct error *err)
{
    char file[64], lines[2 * PATH_MAX];
    snprintf(file, sizeof file, "/proc/%d/cgroup", pid);
    if (read_small(AT_FDCWD, file, lines, sizeof lines, err) < 0)
        return -1;
    const char *line = strncmp(lines, "0::", 3) ? strstr(lines, "\n0::") : lines;
    if (!line)
        return fail(err, 0, "%s has no cgroup2 line", file);
    line = strstr(line, "0::") + 3;
    if (text(out, size, "%.*s", (int)strcspn(line, "\n"), line))
        return fail(err, errno, "%s", file);
    if (strstr(out, "/../") || strstr(out, " (deleted)"))
        return fail(err, 0, "%s names %s, which this host cannot see", file, out);
    return 0;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && !strcmp(s + n - t, tail);
}

/* Takes "/tail" off path if it is there. */
static void strip(char *path, const char *tail)
{
    size_t n = strlen(path), t = strlen(tail);
    if (t && n > t + 1 && ends_with(path, tail) && path[n - t - 1] == '/')
        path[n - t - 1] = 0;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* "slice:prefix:name" is the unit PREFIX-NAME.scope for crun and runc alike; a name that is a slice stays what it is. */
static bool is_unit_of(const char *unit, const char *cgroups_path)
{
    char wanted[NAME_MAX + 1];
    const char *prefix = strchr(cgroups_path, ':') + 1, *colon = strchr(prefix, ':');
    if (!colon || !colon[1])
        return false;
    if (ends_with(colon + 1, ".slice"))
        return !strcmp(unit, colon + 1);
    return !text(wanted, sizeof wanted, "%.*s-%s.scope", (int)(colon - prefix), prefix, colon + 1) && !strcmp(unit, wanted);
}

/* A relative path is taken as lying below the runtime's own cgroup or below the root. */
static bool is_path_of(const char *path, const char *cgroups_path)
{
    char wanted[PATH_MAX];
    while (cgroups_path[0] == '.' && cgroups_path[1] == '/')
        cgroups_path += 2;
    if (*cgroups_path == '/')
        return cgroups_path[1] && !strcmp(path, cgroups_path);
    return *cgroups_path && !text(wanted, sizeof wanted, "/%s", cgroups_path) && ends_with(path, wanted);
}

/* Without cgroupsPath the runtimes name the cgroup by the id: ID, crun-ID.scope, runc-ID.scope. Nothing else may pass:
 * podman --cgroups=disabled leaves the path empty too. */
static bool is_named_by(const char *part, const char *id)
{
    char wanted[3][ID_MAX + 16];
    snprintf(wanted[0], sizeof wanted[0], "%s", id);
    snprintf(wanted[1], sizeof wanted[1], "crun-%s.scope", id);
    snprintf(wanted[2], sizeof wanted[2], "runc-%s.scope", id);
    return !strcmp(part, wanted[0]) || !strcmp(part, wanted[1]) || !strcmp(part, wanted[2]);
}

static bool leads_to(const char *path, const char *cgroups_path, const char *id)
{
    if (!cgroups_path || !*cgroups_path)
        return is_named_by(last_part(path), id);
    if (strchr(cgroups_path, ':'))
        return is_unit_of(last_part(path), cgroups_path);
    return is_path_of(path, cgroups_path);
}

bool cgroup_explained(const char *path, const char *cgroups_path, const char *id, const char *subgroup)
{
    char above[PATH_MAX];
    if (*path != '/' || !path[1] || text(above, sizeof above, "%s", path))
        return false;
    if (leads_to(path, cgroups_path, id))
        return true;
    strip(above, subgroup ? subgroup : "container");
    return strcmp(above, path) && leads_to(above, cgroups_path, id);
}

/* Is `path` the cgroup `above` or below it? */
static bool lies_in(const char *path, const char *above)
{
    size_t n = strlen(above);
    return !strncmp(path, above, n) && (!path[n] || path[n] == '/');
}

int find_base(const struct container *c, char *base, size_t size, struct error *err)
{
    char mount[PATH_MAX], path[PATH_MAX], own[PATH_MAX];
    if (unified_path(c->pid, path, sizeof path, err))
        return -1;
    strip(path, INSIDE_US + 1);
    const char *cgroups_path = json_str(json_get(c->config, "linux", "cgroupsPath", NULL));
    if (!cgroup_explained(path, cgroups_path, c->id, annotation(c, "run.oci.systemd.subgroup")))
        return fail(err, 0, "cgroup %.200s is not the container's own: linux.cgroupsPath is \"%.200s\"", path,
                    cgroups_path ? cgroups_path : "");
    if (unified_path(getpid(), own, sizeof own, err))
        return -1;
    if (lies_in(own, path))
        return fail(err, 0, "cgroup %.200s is not the container's own: the engine runs in it", path);
    if (mount_point(mount, sizeof mount, err))
        return -1;
    return text(base, size, "%s%s", mount, path) ? fail(err, errno, "path of the cgroup") : 0;
}
