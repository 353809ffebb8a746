#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CLONE_THE_TREE 1 /* OPEN_TREE_CLONE */
#define FROM_EMPTY_PATH 0x04 /* MOVE_MOUNT_F_EMPTY_PATH */
#define TO_EMPTY_PATH 0x40 /* MOVE_MOUNT_T_EMPTY_PATH */
#define WANT_MNT_ID 0x1000 /* STATX_MNT_ID */
#define OPEN_TRIES 100 /* a rename or mount anywhere on the host spoils a ".." below a root (EAGAIN, openat2(2)) */

/* struct open_how and struct mount_attr in their first published sizes */
struct how {
    uint64_t flags, mode, resolve;
};

struct attributes {
    uint64_t set, clear, propagation, userns_fd;
};

/* struct statx up to stx_mnt_id, whose offset is 0x90 */
struct mount_statx {
    uint32_t mask;
    uint8_t between[0x8c];
    uint64_t mnt_id;
    uint8_t rest[0x68];
};

_Static_assert(sizeof(struct mount_statx) == 256, "struct statx has 256 bytes");

int open_in(int root, const char *path, int flags, uint64_t resolve)
{
    struct how how = {.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC), .resolve = resolve};
    int fd, tries = 0;
    do
        fd = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    while (fd < 0 && errno == EAGAIN && ++tries < OPEN_TRIES);
    return fd;
}

int clone_tree(int at, const char *path, uint64_t set, uint64_t clear)
{
    unsigned empty = *path ? 0 : AT_EMPTY_PATH;
    struct attributes attr = {.set = set, .clear = clear, .propagation = MS_PRIVATE};
    int tree = (int)syscall(SYS_open_tree, at, path, CLONE_THE_TREE | O_CLOEXEC | empty);
    if (tree >= 0 && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr)) {
        int why = errno;
        close(tree);
        errno = why;
        return -1;
    }
    return tree;
}

int attach_tree(int tree, int on)
{
    return (int)syscall(SYS_move_mount, tree, "", on, "", FROM_EMPTY_PATH | TO_EMPTY_PATH);
}

int mount_id(int fd, unsigned long long *id)
{
    struct mount_statx sx;
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, WANT_MNT_ID, &sx))
        return -1;
    if (!(sx.mask & WANT_MNT_ID)) {
        errno = ENOSYS;
        return -1;
    }
    *id = sx.mnt_id;
    return 0;
}
