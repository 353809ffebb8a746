/* The JSON that the hook writes: messages to the daemon and the record of a container. */
#ifndef AGC_MESSAGES_H
#define AGC_MESSAGES_H

#include "container.h"
#include "inject.h"
#include "json_write.h"

void plan_message(struct json_out *out, const struct container *c, const char *base, const struct notes *reasons);
/* {"v":1,"op":OP,"id":ID} */
void short_message(struct json_out *out, const char *op, const char *id);
void ready_message(struct json_out *out, const struct container *c, const struct injection *in, const struct notes *notes,
                   long long us);

struct record {
    const struct container *c;
    const char *base, *policy; /* policy may be NULL */
    const struct notes *reasons;
    const struct injection *in;  /* NULL as long as nothing is mounted */
    const struct notes *notes;   /* with in */
};

void record_json(struct json_out *out, const struct record *r);

#endif
