/* The hook protocol (docs/architecture.md): one connection, one JSON object a message. */
#ifndef AGC_DAEMON_H
#define AGC_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "container.h"
#include "error.h"
#include "json.h"
#include "json_write.h"

#define MESSAGE_MAX (64u << 10)
#define SHELLS_MAX 16

enum verdict { VERDICT_NONE, VERDICT_YES, VERDICT_REFUSED }; /* NONE: no daemon, or no answer in time */

struct answer {
    enum verdict verdict;
    bool required, quiet; /* quiet: the annotations mean another container of the pod */
    bool inject;
    uint32_t ack_ms;
    const char *policy;   /* or NULL */
    const char *refusal;  /* with VERDICT_REFUSED */
    const char *shells[SHELLS_MAX + 1];
    struct json_doc doc;
    char *text;
};

/* -1 without a daemon. */
int daemon_connect(struct error *err);

/* Sends a message; does not wait. */
int daemon_tell(int fd, const struct json_out *message, struct error *err);

/* Sends a message and reads the answer. With VERDICT_NONE err says why. fd may be -1. */
void daemon_ask(int fd, const struct json_out *message, int until_ms, struct answer *answer, struct error *err);

#endif
