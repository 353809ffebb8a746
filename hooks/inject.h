/* The mounts in the container: /dev/agentcgroup and the shims (docs/architecture.md, "Files"). */
#ifndef AGC_INJECT_H
#define AGC_INJECT_H

#include <stdint.h>

#include "container.h"
#include "error.h"
#include "targets.h"

struct injection {
    const struct container *c;
    struct targets targets;
    int dev;                   /* O_PATH, the container's /dev */
    int dir, calls, hint;      /* detached trees, made in the host's namespace; calls is -1 without a view */
    int shims[TARGETS_MAX];
    int attached[2 * TARGETS_MAX + 3]; /* in this order, for undoing */
    unsigned attached_count;
};

/* Where things are; not owned by the injection. */
struct places {
    int run, dir, rootfs; /* RUNDIR, c/ID, the container's root */
    const char *table;    /* init's mountinfo */
};

/* `in` is zeroed memory. */
void injection_init(struct injection *in, const struct container *c);

/* Finds the shells and makes all that is mounted later, except the view of calls/. 0, or 1 if there is nothing to do: no
 * shell, or an earlier run has mounted everything. */
int injection_prepare(struct injection *in, const struct places *at, const char *const *candidates, uint32_t ack_ms,
                      struct notes *notes, struct error *err);

/* The read-only view of BASE/agentcgroup/calls. */
int injection_add_view(struct injection *in, const char *base, struct error *err);

/* Mounts everything in the container's namespace, the shims last, and comes back. All or nothing. */
int injection_apply(struct injection *in, struct error *err);

#endif
