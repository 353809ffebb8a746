/* /run/agentcgroup: what the hook makes there. Descriptors of it stay usable in any mount namespace. */
#ifndef AGC_RUNDIR_H
#define AGC_RUNDIR_H

#include "error.h"
#include "json_write.h"
#include "targets.h"

/* The directory, with what belongs into it. tmpfiles.d makes it at boot; a host without that works too. */
int rundir_open(struct error *err);

/* c/ID with its mountpoints. Returns an O_PATH descriptor. */
int container_dir_make(int run, const char *id, struct error *err);
/* A file c/ID/real/NAME for each shell to be mounted on. */
int container_dir_add_shells(int dir, const struct targets *shells, struct error *err);

/* containers/ID.json in one step: a reader meets the old record, the new one or none. */
int record_write(int run, const char *id, const struct json_out *json, struct error *err);

/* Forgets a container that is not governed after all. The daemon may have put files into c/ID: those it removes. */
void container_forget(int run, const char *id);

#endif
