/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the hook writes into the copy of the shim that it lays over an image's shell.
 *
 * The copy is the shim followed by the image's own shell. The hook finds this structure in the shim's file by its
 * magic, which occurs once, and fills in the rest; so the shim learns who it is without a read at run time.
 */
#ifndef AGC_PAYLOAD_H
#define AGC_PAYLOAD_H

#include <stdint.h>

#define AGC_PAYLOAD_MAGIC "AGCSHIM1"

/* Little endian, 8-byte aligned. */
struct agc_payload {
	char magic[8];
	uint64_t shim_len;  /* where the image's shell begins in the file; 0: none was appended */
	uint64_t shell_len; /* its length; nothing follows it */
	uint32_t ack_ms;    /* how long the daemon may take to answer */
	uint32_t flags;     /* none yet: 0 */
	char name[32];      /* the file below AGC_DIR/real/ to run, NUL-terminated */
};

_Static_assert(sizeof(struct agc_payload) == 64, "the hook patches this layout");

#endif
