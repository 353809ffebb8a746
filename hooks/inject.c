#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "deadline.h"
#include "files.h"
#include "kernel.h"
#include "payload.h"
#include "rundir.h"

#define LOCKED (ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
#define DEV_DIR "agentcgroup"

void injection_init(struct injection *in, const struct container *c)
{
    in->c = c;
    in->dev = in->dir = in->calls = in->hint = -1;
}

static int clone_mount(int at, const char *path, uint64_t set, uint64_t clear, const char *what, struct error *err)
{
    int tree = clone_tree(at, path, set, clear);
    if (tree >= 0)
        return tree;
    return fail(err, errno, "clone a mount of %s%s", what, errno == ENOSYS ? " (Linux 5.12 is needed)" : "");
}

/* By its descriptor: under its name there may be another one by now. /run is noexec on Debian. */
static int clone_shim(int payload, struct error *err)
{
    return clone_mount(payload, "", LOCKED, ATTR_NOEXEC, "a shim", err);
}

static int prepare_shims(struct injection *in, int run, uint32_t ack_ms, struct error *err)
{
    int payloads[TARGETS_MAX]; /* open until the hook ends */
    for (unsigned i = 0; i < in->targets.count; i++) {
        const struct target *t = &in->targets.list[i];
        payloads[i] = t->same_as >= 0 ? payloads[t->same_as] : payload_open(run, t, ack_ms, err);
        if (payloads[i] < 0 || (in->shims[i] = clone_shim(payloads[i], err)) < 0)
            return -1;
    }
    in->hint = clone_shim(payloads[0], err);
    return in->hint < 0 ? -1 : 0;
}

int injection_prepare(struct injection *in, const struct places *at, const char *const *candidates, uint32_t ack_ms,
                      struct notes *notes, struct error *err)
{
    struct stat st;
    if (fstat(at->run, &st))
        return fail(err, errno, "stat the run directory");
    targets_find(&in->targets, at->rootfs, at->table, st.st_dev, candidates, notes);
    if (!in->targets.present)
        return note(notes, "the image has no shell to wrap"), 1;
    if (in->targets.wrapped_count && in->targets.count)
        note(notes, "%s is not wrapped: an earlier run of the hook was cut short", in->targets.list[0].path);
    if (in->targets.wrapped_count)
        return 1;
    if (!in->targets.count)
        return fail(err, 0, "%s", notes->count ? notes->text[notes->count - 1] : "no shell can be wrapped");
    if (own_dev(at->rootfs, at->table, &in->dev, err) || prepare_shims(in, at->run, ack_ms, err)
        || container_dir_add_shells(at->dir, &in->targets, err))
        return -1;
    in->dir = clone_mount(at->dir, "", LOCKED | ATTR_NOEXEC, 0, "the container's directory", err);
    return in->dir < 0 ? -1 : 0;
}

int injection_add_view(struct injection *in, const char *base, struct error *err)
{
    char path[PATH_MAX];
    if (text(path, sizeof path, "%s/agentcgroup/calls", base))
        return fail(err, errno, "path of calls/");
    in->calls = clone_mount(AT_FDCWD, path, LOCKED | ATTR_NOEXEC, 0, path, err);
    return in->calls < 0 ? -1 : 0;
}

static int attach(struct injection *in, int tree, int on, const char *what, struct error *err)
{
    if (!ms_until(DEADLINE_MS))
        return fail(err, ETIMEDOUT, "mount %s", what);
    if (attach_tree(tree, on))
        return fail(err, errno, "mount %s", what);
    in->attached[in->attached_count++] = tree;
    return 0;
}

/* On a mountpoint inside the container's directory. */
static int attach_inside(struct injection *in, int tree, const char *path, struct error *err)
{
    cleanup_close int on = openat(in->dir, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (on < 0)
        return fail(err, errno, "open /dev/" DEV_DIR "/%s", path);
    return attach(in, tree, on, path, err);
}

static int unmount(int fd)
{
    char path[FD_PATH_MAX];
    return umount2(fd_path(fd, path), MNT_DETACH);
}

/* What an earlier run, cut short before the shims, left on /dev/agentcgroup is taken away. */
static int clear_dev_dir(struct injection *in, int on, struct error *err)
{
    struct stat there, ours;
    unsigned long long dev_mount, dir_mount;
    if (mount_id(in->dev, &dev_mount) || mount_id(on, &dir_mount) || fstat(on, &there) || fstat(in->dir, &ours))
        return fail(err, errno, "examine /dev/" DEV_DIR);
    if (dev_mount == dir_mount)
        return 0;
    if (there.st_dev != ours.st_dev || there.st_ino != ours.st_ino)
        return fail(err, 0, "something else is mounted on /dev/" DEV_DIR);
    return unmount(on) ? fail(err, errno, "unmount /dev/" DEV_DIR) : 1;
}

/* In a tmpfs of another user namespace the maker must have an id there (EOVERFLOW, fs/namei.c:may_o_create). */
static int make_dev_dir(struct injection *in, struct error *err)
{
    setfsgid(in->c->gid);
    setfsuid(in->c->uid);
    int failed = mkdirat(in->dev, DEV_DIR, 0755) && errno != EEXIST;
    int why = errno;
    setfsuid(0);
    setfsgid(0);
    return failed ? fail(err, why, "mkdir /dev/" DEV_DIR) : 0;
}

static int open_dev_dir(struct injection *in, struct error *err)
{
    int on = open_in(in->dev, DEV_DIR, O_PATH | O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS);
    return on >= 0 ? on : fail(err, errno, "open /dev/" DEV_DIR);
}

static int attach_dir(struct injection *in, struct error *err)
{
    for (int again = 1; again;) {
        cleanup_close int on = open_dev_dir(in, err);
        if (on < 0 || (again = clear_dev_dir(in, on, err)) < 0)
            return -1;
        if (!again)
            return attach(in, in->dir, on, "/dev/" DEV_DIR, err);
    }
    return -1;
}

/* Cloned here, as a mount of the container's namespace can be cloned only from inside it. */
static int attach_real_shells(struct injection *in, struct error *err)
{
    char path[SHELL_NAME_MAX + 8], what[256];
    for (unsigned i = 0; i < in->targets.count; i++) {
        const struct target *t = &in->targets.list[i];
        if (t->same_as >= 0)
            continue;
        snprintf(what, sizeof what, "%.200s of the image", t->path);
        int real = clone_mount(t->fd, "", ATTR_RDONLY, 0, what, err); /* open until the hook ends: undoing needs it */
        snprintf(path, sizeof path, "real/%s", t->name);
        if (real < 0 || attach_inside(in, real, path, err))
            return -1;
    }
    return 0;
}

static int attach_all(struct injection *in, struct error *err)
{
    if (make_dev_dir(in, err) || attach_dir(in, err))
        return -1;
    if (in->calls >= 0 && attach_inside(in, in->calls, "calls", err))
        return -1;
    if (attach_real_shells(in, err) || attach_inside(in, in->hint, "agentcgroup-hint", err))
        return -1;
    for (unsigned i = 0; i < in->targets.count; i++)
        if (attach(in, in->shims[i], in->targets.list[i].fd, in->targets.list[i].path, err))
            return -1;
    return 0;
}

static void detach_all(struct injection *in)
{
    while (in->attached_count)
        unmount(in->attached[--in->attached_count]);
    unlinkat(in->dev, DEV_DIR, AT_REMOVEDIR);
}

static int open_namespace(const char *of, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/mnt", of);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    return ns >= 0 ? ns : fail(err, errno, "open %s", path);
}

int injection_apply(struct injection *in, struct error *err)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%d", in->c->pid);
    cleanup_close int home = open_namespace("self", err), away = home < 0 ? -1 : open_namespace(pid, err);
    if (away < 0)
        return -1;
    /* setns(2) wants a root directory and cwd that no other thread shares */
    if (unshare(CLONE_FS) || setns(away, CLONE_NEWNS))
        return fail(err, errno, "enter the container's mount namespace");
    int failed = attach_all(in, err);
    if (failed)
        detach_all(in);
    if (setns(home, CLONE_NEWNS))
        return fail(err, errno, "leave the container's mount namespace");
    return failed;
}
