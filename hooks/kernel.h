/* System calls and constants that musl 1.2.3 has no names for; its headers do not mix with linux/mount.h. */
#ifndef AGC_KERNEL_H
#define AGC_KERNEL_H

#include <stdint.h>

#define CGROUP2_MAGIC 0x63677270 /* linux/magic.h */
#define TMPFS_MAGIC 0x01021994

#define RESOLVE_NO_SYMLINKS 0x04 /* openat2(2), Linux 5.6 */
#define RESOLVE_IN_ROOT 0x10

#define ATTR_RDONLY 0x01 /* MOUNT_ATTR_*: mount_setattr(2), Linux 5.12 */
#define ATTR_NOSUID 0x02
#define ATTR_NODEV 0x04
#define ATTR_NOEXEC 0x08

int open_in(int root, const char *path, int flags, uint64_t resolve);
/* A detached copy, private, of the mount and the place in it that at/path names; "" for `at` itself. */
int clone_tree(int at, const char *path, uint64_t set, uint64_t clear);
/* Mounts a detached tree on the file or directory that fd `on` is. */
int attach_tree(int tree, int on);
/* The number that starts this mount's line in mountinfo (STATX_MNT_ID, Linux 5.8). */
int mount_id(int fd, unsigned long long *id);

#endif
