/* What is mounted over an image's shell: the shim, with that shell behind it (runtime/shim/payload.h). */
#ifndef AGC_PAYLOADS_H
#define AGC_PAYLOADS_H

#include <stdint.h>

#include "error.h"
#include "targets.h"

#define PAYLOAD_KEY_MAX 192

/* Makes shims/KEY below the directory `run` unless it is there. The key names the shim's file and the shell's, so neither
 * upgrade meets an old copy, and everything that is written into the copy. */
int payload_make(int run, const struct target *shell, uint32_t ack_ms, char key[PAYLOAD_KEY_MAX], struct error *err);

#endif
