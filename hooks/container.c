#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "files.h"
#include "pod.h"

#define STATE_MAX (1u << 20)
#define CONFIG_MAX (16u << 20)
#define POD_KEY "policy.agentcgroup.io/"

static const char word_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

/* The id becomes a file name below /run/agentcgroup. */
static int take_id(struct container *c, const char *id, struct error *err)
{
    if (!id || !*id)
        return fail(err, 0, "the state has no id");
    size_t len = strspn(id, word_chars);
    if (id[len] || len >= sizeof c->id || strchr("._-", *id))
        return fail(err, 0, "the id is not made of 1 to 128 of A-Z a-z 0-9 . _ - with a letter or digit first");
    strcpy(c->id, id);
    return 0;
}

int container_read_state(struct container *c, int fd, struct error *err)
{
    size_t len;
    struct error why;
    if (!(c->state_text = read_fd(fd, STATE_MAX, &len, "the state on stdin", err)))
        return -1;
    if (json_parse(&c->state_doc, c->state_text, len, &why))
        return fail(err, 0, "the state on stdin is not valid JSON: %s", why.text);
    const struct json *state = &c->state_doc.root;
    if (take_id(c, json_str(json_member(state, "id")), err))
        return -1;
    const char *status = json_str(json_member(state, "status"));
    long long pid = json_int(json_member(state, "pid"), 0);
    c->pid = pid > 0 && pid <= INT_MAX ? (pid_t)pid : 0;
    c->stopped = !c->pid || (status && !strcmp(status, "stopped"));
    c->bundle = json_str(json_member(state, "bundle"));
    c->annotations = json_member(state, "annotations");
    return 0;
}

/* Host id of the container's id 0: the map's line that starts at 0 (user_namespaces(7)). */
static int mapped_root(pid_t pid, const char *map, unsigned *id, struct error *err)
{
    char path[64], lines[4096];
    unsigned inside, outside;
    snprintf(path, sizeof path, "/proc/%d/%s", pid, map);
    if (read_small(AT_FDCWD, path, lines, sizeof lines, err) < 0)
        return -1;
    for (const char *line = lines; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (sscanf(line, "%u %u", &inside, &outside) == 2 && !inside) {
            *id = outside;
            return 0;
        }
    return fail(err, 0, "%s maps no root", path);
}

static int read_start_time(struct container *c, struct error *err)
{
    char path[64], stat[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", c->pid);
    if (read_small(AT_FDCWD, path, stat, sizeof stat, err) < 0)
        return -1;
    const char *at = strrchr(stat, ')'); /* the name before it may hold anything, proc_pid_stat(5) */
    for (int field = 2; at && field < 22; field++)
        at = (at = strchr(at, ' ')) ? at + 1 : NULL;
    if (!at || sscanf(at, "%lld", &c->start_time) != 1)
        return fail(err, 0, "%s has no start time", path);
    return 0;
}

int container_read_config(struct container *c, struct error *err)
{
    char path[PATH_MAX];
    size_t len;
    struct error why;
    if (!c->bundle || *c->bundle != '/')
        return fail(err, 0, "the state has no absolute bundle path");
    if (text(path, sizeof path, "%s/config.json", c->bundle))
        return fail(err, 0, "the bundle's path is too long for this hook: %.80s...", c->bundle);
    if (!(c->config_text = read_file(AT_FDCWD, path, CONFIG_MAX, &len, err)))
        return -1;
    if (json_parse(&c->config_doc, c->config_text, len, &why))
        return fail(err, 0, "%s is not valid JSON: %s", path, why.text);
    c->config = &c->config_doc.root;
    const struct json *annotations = json_member(c->config, "annotations");
    if (annotations)
        c->annotations = annotations;
    /* runc's state has no "root", so config.json is asked in any case; there it may be relative to the bundle. */
    const char *root = json_str(json_get(c->config, "root", "path", NULL));
    if (!root || text(c->rootfs, sizeof c->rootfs, "%s%s%s", *root == '/' ? "" : c->bundle, *root == '/' ? "" : "/", root))
        return fail(err, 0, "%s has no usable root.path", path);
    if (read_start_time(c, err) || mapped_root(c->pid, "uid_map", &c->uid, err))
        return -1;
    return mapped_root(c->pid, "gid_map", &c->gid, err);
}

const char *annotation(const struct container *c, const char *key)
{
    return json_str(json_member(c->annotations, key));
}

/* The key POD_KEY + container name, where the pod's keys reach all its containers. */
static const char *pod_policy(const struct container *c)
{
    char key[512];
    const char *name = annotation(c, "io.kubernetes.container.name");
    return name && !text(key, sizeof key, POD_KEY "%s", name) ? annotation(c, key) : NULL;
}

int policy_name(const struct container *c, const char **name, struct error *err)
{
    const char *found = pod_policy(c);
    if (!found)
        found = annotation(c, "agentcgroup.io/policy");
    if (!found)
        found = annotation(c, "agentcgroup.policy");
    *name = NULL;
    if (!found || is_sandbox(c->annotations))
        return 0;
    size_t len = strlen(found);
    if (!len || len > POLICY_NAME_MAX || strspn(found, word_chars) != len || *found == '.')
        return fail(err, 0, "policy name \"%.64s\": 1 to 64 of A-Z a-z 0-9 . _ - are allowed, no dot first", found);
    *name = found;
    return 0;
}

bool is_meant(const struct container *c)
{
    const char *name;
    struct error ignored;
    return policy_name(c, &name, &ignored) || name;
}

/* The runtime's folder of a task is named after containerd's namespace, and that by dockerd (its --containerd-namespace). */
static bool is_dockers(const char *bundle)
{
    const char *name = bundle ? strrchr(bundle, '/') : NULL;
    static const char folder[] = "/moby";
    size_t len = sizeof folder - 1;
    return name && name - bundle >= (ptrdiff_t)len && !strncmp(name - len, folder, len);
}

const char *engine_name(const struct container *c)
{
    if (is_dockers(c->bundle))
        return "docker";
    const char *manager = annotation(c, "io.container.manager");
    if (manager && !strcmp(manager, "libpod"))
        return "podman";
    return manager && !strcmp(manager, "cri-o") ? "crio" : "other";
}
