#include "cooperative.h"

#include <string.h>

#include "mountinfo.h"

static bool has_string(const struct json *array, const char *wanted)
{
    if (array && array->type == JSON_ARRAY)
        for (const struct json *item = array->child; item; item = item->next) {
            const char *s = json_str(item);
            if (s && !strcmp(s, wanted))
                return true;
        }
    return false;
}

/* CAP_SYS_ADMIN mounts a writable cgroup2; with CAP_DAC_READ_SEARCH open_by_handle_at(2) reaches any cgroup's
 * directory, and clone3(CLONE_INTO_CGROUP) takes such a descriptor. */
static void capability_reasons(const struct container *c, struct notes *reasons)
{
    static const char *const powerful[] = {"CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH"};
    const struct json *sets = json_get(c->config, "process", "capabilities", NULL);
    if (!sets || sets->type != JSON_OBJECT)
        note(reasons, "capabilities not limited");
    for (size_t i = 0; i < sizeof powerful / sizeof *powerful; i++)
        if (has_string(json_member(sets, "bounding"), powerful[i]))
            note(reasons, "%s", powerful[i]);
}

/* clone3 through a read-only mount of the host's hierarchy joins any cgroup that root may write. */
static void namespace_reasons(const struct container *c, struct notes *reasons)
{
    const struct json *list = json_get(c->config, "linux", "namespaces", NULL);
    const struct json *own = NULL;
    if (list && list->type == JSON_ARRAY)
        for (const struct json *item = list->child; item; item = item->next) {
            const char *type = json_str(json_member(item, "type"));
            if (type && !strcmp(type, "cgroup"))
                own = item;
        }
    const char *path = json_str(json_member(own, "path"));
    if (!own)
        note(reasons, "host cgroup namespace");
    else if (path && *path)
        note(reasons, "shared cgroup namespace");
}

static bool is_cgroup_mount(const struct json *mount)
{
    const char *type = json_str(json_member(mount, "type"));
    return type && (!strcmp(type, "cgroup") || !strcmp(type, "cgroup2"));
}

static const struct json *configured_mount(const struct json *mounts, const char *destination)
{
    if (mounts && mounts->type == JSON_ARRAY)
        for (const struct json *m = mounts->child; m; m = m->next) {
            const char *to = json_str(json_member(m, "destination"));
            if (to && !strcmp(to, destination) && is_cgroup_mount(m))
                return m;
        }
    return NULL;
}

/* The runtime's own cgroup mounts are judged by what config.json says: crun makes them read-only after the hooks. */
static void configured_reasons(const struct json *mounts, struct notes *reasons)
{
    if (mounts && mounts->type == JSON_ARRAY)
        for (const struct json *m = mounts->child; m; m = m->next) {
            const char *to = json_str(json_member(m, "destination"));
            if (is_cgroup_mount(m) && !has_string(json_member(m, "options"), "ro"))
                note(reasons, "writable cgroup2 at %s", to ? to : "?");
        }
}

static void mounted_reasons(const struct json *mounts, const char *table, const char *rootfs, struct notes *reasons)
{
    struct mount_entry entry;
    size_t len = strcmp(rootfs, "/") ? strlen(rootfs) : 0;
    while (mountinfo_next(&table, &entry)) {
        if (!entry.cgroup2 || !entry.writable || strncmp(entry.point, rootfs, len) || entry.point[len] != '/')
            continue;
        if (!configured_mount(mounts, entry.point + len))
            note(reasons, "writable cgroup2 at %s", entry.point + len);
    }
}

void cooperative_reasons(const struct container *c, const char *table, const char *rootfs, struct notes *reasons)
{
    const struct json *mounts = json_member(c->config, "mounts");
    capability_reasons(c, reasons);
    namespace_reasons(c, reasons);
    configured_reasons(mounts, reasons);
    mounted_reasons(mounts, table, rootfs, reasons);
}
