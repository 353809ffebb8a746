#define _GNU_SOURCE
#include "targets.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "files.h"
#include "kernel.h"
#include "mountinfo.h"

/* Where candidates are looked for. */
struct place {
    int rootfs;
    char path[PATH_MAX]; /* of rootfs, in init's mount namespace */
    const char *table;
    dev_t run_dev; /* of RUNDIR, where shims come from */
};

/* The path of an open file as its own mount namespace names it. */
static int path_of(int fd, char *out, size_t size, struct error *err)
{
    char link[FD_PATH_MAX];
    ssize_t n = readlink(fd_path(fd, link), out, size - 1);
    if (n < 0)
        return fail(err, errno, "readlink %s", link);
    out[n] = 0;
    return 0;
}

int open_rootfs(const struct container *c, char *path, size_t size, struct error *err)
{
    char init_root[64];
    snprintf(init_root, sizeof init_root, "/proc/%d/root", c->pid);
    cleanup_close int top = open(init_root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        return fail(err, errno, "open %s", init_root);
    /* RESOLVE_IN_ROOT: an absolute link on the way must lead through init's mount namespace, not through ours */
    int rootfs = open_in(top, c->rootfs, O_PATH | O_DIRECTORY, RESOLVE_IN_ROOT);
    if (rootfs < 0)
        return fail(err, errno, "open the container's root %s", c->rootfs);
    if (path_of(rootfs, path, size, err)) {
        close(rootfs);
        return -1;
    }
    return rootfs;
}

/* The mount that fd is on must not be in a peer group: what is mounted there appears in the peers too, and with
 * `-v /usr:/usr:rshared` the shim would go over the host's own shell. */
static int in_private_mount(const char *table, int fd, struct mount_entry *entry, struct error *err)
{
    int found = mountinfo_of(table, fd, entry, err);
    if (found < 0)
        return -1;
    if (!found)
        return fail(err, 0, "its mount is not in the container's namespace");
    return entry->shared ? fail(err, 0, "its mount is shared with others") : 0;
}

int own_dev(int rootfs, const char *table, int *dev, struct error *err)
{
    struct stat host, st;
    struct statfs fs;
    struct mount_entry entry;
    struct error why;
    int fd = open_in(rootfs, "/dev", O_PATH | O_DIRECTORY, RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS);
    if (fd < 0)
        return fail(err, errno, "open the container's /dev");
    if (fstat(fd, &st) || fstatfs(fd, &fs) || stat("/dev", &host))
        fail(err, errno, "stat the container's /dev");
    else if (st.st_dev == host.st_dev) /* devtmpfs has tmpfs' magic number too */
        fail(err, 0, "the container's /dev is the host's");
    else if (fs.f_type != TMPFS_MAGIC)
        fail(err, 0, "the container's /dev is no tmpfs");
    else if (in_private_mount(table, fd, &entry, &why))
        fail(err, 0, "the container's /dev cannot be used: %s", why.text);
    else
        return *dev = fd, 0;
    close(fd);
    return -1;
}

/* One program that acts by the name it is called with. The shim over it would catch every tool of the image. */
static bool is_multi_call_name(const char *name)
{
    return !strncmp(name, "busybox", 7) || !strncmp(name, "toybox", 6) || !strncmp(name, "coreutils", 9);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether errno says that a path leads nowhere. Anything else may hide a file. */
static bool is_absent(void)
{
    return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENAMETOOLONG;
}

/* busybox installed as hard links has no telling name, but /bin/cat is the same file then. What cannot be seen may be. */
static bool is_also_a_tool(int rootfs, const struct stat *shell)
{
    static const char *const tools[] = {"/bin/cat", "/bin/ls"};
    struct stat st;
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++) {
        cleanup_close int fd = open_in(rootfs, tools[i], O_PATH, RESOLVE_IN_ROOT);
        if (fd < 0 ? !is_absent() : fstat(fd, &st) || same_file(&st, shell))
            return true;
    }
    return false;
}

static int read_magic(int fd, char magic[4], struct error *err)
{
    char path[FD_PATH_MAX];
    cleanup_close int in = open(fd_path(fd, path), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (in < 0 || pread(in, magic, 4, 0) != 4)
        return fail(err, 0, "it cannot be read");
    return 0;
}

static int usable_name(const char *path, char *name, struct error *err)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    size_t len = strspn(base, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-");
    if (!len || base[len] || len >= SHELL_NAME_MAX || *base == '.')
        return fail(err, 0, "its name cannot be used");
    memcpy(name, base, len + 1);
    return 0;
}

static int can_be_wrapped(const struct target *t, int rootfs, struct error *err)
{
    char magic[4];
    if (is_multi_call_name(t->name) || is_also_a_tool(rootfs, &t->st))
        return fail(err, 0, "it is a multi-call binary (%s)", t->name);
    if (!(t->st.st_mode & S_IXOTH) || t->st.st_mode & (S_ISUID | S_ISGID))
        return fail(err, 0, "its mode is %04o", t->st.st_mode & 07777);
    if (read_magic(t->fd, magic, err))
        return -1;
    return memcmp(magic, "\177ELF", 4) ? fail(err, 0, "it is not an ELF program") : 0;
}

/* Two shells of one name in different directories get "bash" and "bash.2". */
static int make_unique(const struct targets *found, struct target *t, struct error *err)
{
    char base[SHELL_NAME_MAX];
    strcpy(base, t->name);
    for (unsigned i = 0, n = 2; i < found->count; i++) {
        if (found->list[i].same_as >= 0 || strcmp(found->list[i].name, t->name))
            continue;
        if (text(t->name, sizeof t->name, "%s.%u", base, n++))
            return fail(err, 0, "its name is too long");
        i = (unsigned)-1; /* from the start again, with the new name */
    }
    return 0;
}

enum twin { TWIN_NONE, TWIN_PATH, TWIN_INODE };

/* /bin/bash and /usr/bin/bash are one path on a merged /usr. Hard links are two places for one payload. */
static enum twin find_twin(const struct targets *found, struct target *t)
{
    t->same_as = -1;
    for (unsigned i = 0; i < found->count; i++) {
        if (!same_file(&found->list[i].st, &t->st))
            continue;
        if (!strcmp(found->list[i].path, t->path))
            return TWIN_PATH;
        if (found->list[i].same_as < 0)
            t->same_as = (int)i;
    }
    return t->same_as < 0 ? TWIN_NONE : TWIN_INODE;
}

/* A shim over a shim would lose the real shell. */
static bool is_wrapped(const struct target *t, const struct mount_entry *entry, dev_t run_dev)
{
    return t->st.st_dev == run_dev && strstr(entry->root, "/shims/");
}

/* Fills in path, inode and place. */
static int look_at(struct target *t, const char *rootfs_path, struct error *err)
{
    char full[PATH_MAX];
    size_t skip = strcmp(rootfs_path, "/") ? strlen(rootfs_path) : 0;
    if (fstat(t->fd, &t->st))
        return fail(err, errno, "it cannot be examined");
    if (path_of(t->fd, full, sizeof full, err))
        return -1;
    strcpy(t->path, strncmp(full, rootfs_path, skip) ? full : full + skip);
    return 0;
}

/* 1: t is a target. 0: nothing new there. -1: there is something that cannot be wrapped. */
static int examine(struct targets *found, struct target *t, const struct place *in, const char *candidate, struct error *err)
{
    struct mount_entry entry;
    if (look_at(t, in->path, err))
        return -1;
    enum twin twin = find_twin(found, t);
    if (!S_ISREG(t->st.st_mode) || twin == TWIN_PATH)
        return 0;
    found->present++;
    if (in_private_mount(in->table, t->fd, &entry, err))
        return -1;
    if (is_wrapped(t, &entry, in->run_dev)) {
        if (found->wrapped_count < TARGETS_MAX)
            found->wrapped[found->wrapped_count++] = candidate;
        return 0;
    }
    if (found->count == TARGETS_MAX)
        return fail(err, 0, "there are more than %d shells", TARGETS_MAX);
    if (usable_name(t->path, t->name, err) || can_be_wrapped(t, in->rootfs, err))
        return -1;
    if (twin == TWIN_INODE)
        strcpy(t->name, found->list[t->same_as].name);
    else if (make_unique(found, t, err))
        return -1;
    return 1;
}

void targets_find(struct targets *found, int rootfs, const char *table, dev_t run_dev, const char *const *candidates,
                  struct notes *notes)
{
    struct place in = {.rootfs = rootfs, .table = table, .run_dev = run_dev};
    struct error why;
    struct target spare, *t;
    struct stat refused = {0}; /* /bin/sh and /usr/bin/sh need not be said twice */
    found->count = found->present = found->wrapped_count = 0;
    if (path_of(rootfs, in.path, sizeof in.path, &why)) {
        found->present = 1; /* for all that is known */
        note(notes, "%s", why.text);
        return;
    }
    for (; *candidates; candidates++) {
        t = found->count < TARGETS_MAX ? &found->list[found->count] : &spare;
        if ((t->fd = open_in(rootfs, *candidates, O_PATH, RESOLVE_IN_ROOT)) < 0) {
            if (!is_absent()) {
                found->present++;
                note(notes, "%s is not wrapped: open it: %s", *candidates, strerror(errno));
            }
            continue;
        }
        int is_new = examine(found, t, &in, *candidates, &why);
        if (is_new < 0 && !same_file(&t->st, &refused)) {
            note(notes, "%s is not wrapped: %s", *candidates, why.text);
            refused = t->st;
        }
        if (is_new > 0)
            found->count++;
        else
            close(t->fd);
    }
}
