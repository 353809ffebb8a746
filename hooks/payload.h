/* What is mounted over an image's shell: the shim, with that shell behind it (runtime/shim/payload.h). */
#ifndef AGC_PAYLOADS_H
#define AGC_PAYLOADS_H

#include <stdint.h>

#include "error.h"
#include "targets.h"

/* A descriptor for reading of the file below the directory `run`, shims/KEY, that is made unless it is there. */
int payload_open(int run, const struct target *shell, uint32_t ack_ms, struct error *err);

#endif
