/* The container as the engine tells it: the state on stdin, config.json in the bundle, and /proc of its init. */
#ifndef AGC_CONTAINER_H
#define AGC_CONTAINER_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"
#include "json.h"

#define ID_MAX 129 /* 128 characters */
#define POLICY_NAME_MAX 64

struct container {
    char id[ID_MAX];
    pid_t pid;   /* init's on the host; 0 once it is gone */
    bool stopped;
    const char *bundle;
    char rootfs[PATH_MAX]; /* as init's mount namespace names it before pivot_root(2) */
    const struct json *config;
    const struct json *annotations; /* config.json's, else the state's; may be NULL */
    uid_t uid; /* host ids of the container's root */
    gid_t gid;
    long long start_time; /* field 22 of /proc/PID/stat, clock ticks after boot */
    struct json_doc state_doc, config_doc;
    char *state_text, *config_text;
};

/* Reads the state from fd. id is set first, so that a later failure can be logged under it. */
int container_read_state(struct container *c, int fd, struct error *err);
/* Reads config.json and /proc/PID. */
int container_read_config(struct container *c, struct error *err);

/* The string value of an annotation or NULL. */
const char *annotation(const struct container *c, const char *key);
/* The name of the policy asked for. NULL without error: the annotations speak of other containers of the pod only.
 * A name that could be a path is an error. */
int policy_name(const struct container *c, const char **name, struct error *err);
/* A pod's annotations reach all its containers; those that mean another one are no business of this one's. */
bool is_meant(const struct container *c);
/* "podman", "docker", "crio" or "other". */
const char *engine_name(const struct container *c);

#endif
