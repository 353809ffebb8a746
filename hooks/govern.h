/* A container's start: everything between the state on stdin and the line in the journal. */
#ifndef AGC_GOVERN_H
#define AGC_GOVERN_H

#include <stdbool.h>

#include "container.h"
#include "error.h"
#include "journal.h"

struct outcome {
    enum priority priority;
    const char *result;  /* one word, AGENTCGROUP_RESULT in the journal */
    struct error cause;  /* what was done, or why it was not */
    bool stop_container; /* a required policy cannot be kept */
    bool silent;
};

/* Brings the container under control as far as that is possible. Whatever fails leaves it as the engine made it, and
 * stops it only if its policy is required. */
void govern(struct container *c, struct outcome *outcome);

/* On another thread, when a system call of govern() hangs for good and the process is about to end. What it has made stays
 * behind: the calls that would take it back could hang too. */
void govern_hangs(struct outcome *outcome);

#endif
