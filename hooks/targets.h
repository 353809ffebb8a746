/* The shells of an image: which files the shim goes over. */
#ifndef AGC_TARGETS_H
#define AGC_TARGETS_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "container.h"
#include "error.h"

#define TARGETS_MAX 8
#define SHELL_NAME_MAX 32 /* agc_payload.name */

struct target {
    int fd; /* O_PATH, in the container's mount namespace */
    struct stat st;
    int same_as;              /* an earlier target with the same inode under another path, or -1 */
    char path[PATH_MAX];      /* in the container */
    char name[SHELL_NAME_MAX]; /* of the mountpoint /dev/agentcgroup/real/NAME */
};

struct targets {
    struct target list[TARGETS_MAX];
    unsigned count;
    unsigned present; /* candidates that exist, refused ones included */
    const char *wrapped[TARGETS_MAX]; /* candidates that lead to a shim already: the hook runs for the second time */
    unsigned wrapped_count;
};

/* Resolves every candidate below rootfs before anything is mounted, so that none of them can be a shim, and keeps those
 * that can be wrapped. The others are noted with the reason. `table` is init's mountinfo, run_dev
 * the device of RUNDIR. */
void targets_find(struct targets *found, int rootfs, const char *table, dev_t run_dev, const char *const *candidates,
                  struct notes *notes);

/* Is the container's /dev a tmpfs of its own, where a directory can be made? Sets *dev to an O_PATH descriptor. */
int own_dev(int rootfs, const char *table, int *dev, struct error *err);

/* An O_PATH descriptor of the container's root and its real path in init's mount namespace. */
int open_rootfs(const struct container *c, char *path, size_t size, struct error *err);

#endif
