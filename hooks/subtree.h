/* BASE/agentcgroup and what is in it (docs/architecture.md, "The subtree"). */
#ifndef AGC_SUBTREE_H
#define AGC_SUBTREE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

struct subtree {
    const char *base;
    pid_t init;
    bool created;          /* by this run: only then may it be undone */
    char enabled[64];      /* controllers this run switched on in BASE: " memory pids" */
    struct notes notes;    /* its own, since it may be made by another thread */
};

/* Makes what is missing, moves init and whatever else is in BASE to agent/, switches the controllers on. A missing
 * controller is noted. */
int subtree_make(struct subtree *t, struct error *err);

/* Puts BASE back as it was, if this run made the tree. Best effort: it runs where something failed already. */
void subtree_undo(const struct subtree *t);

#endif
