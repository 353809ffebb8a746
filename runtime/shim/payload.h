/* What the hook tells the shim, in the shim's own file.
 *
 * The shim holds one struct agc_payload in .data. The hook copies the shim to /run/agentcgroup/shims/KEY, puts the
 * image's own shell behind it and fills the struct in, so that the shim finds the real shell even where
 * /dev/agentcgroup is not visible (bwrap --dev /dev). The hook finds the struct by its magic. All little endian. */
#ifndef AGC_PAYLOAD_H
#define AGC_PAYLOAD_H

#include <stdint.h>

#define AGC_PAYLOAD_MAGIC "AGCSHIM1"

struct agc_payload {
    char magic[8];      /* AGC_PAYLOAD_MAGIC without a NUL; once in the shim, 8-byte aligned */
    uint64_t shim_len;  /* bytes; offset of the appended shell in the file. 0: nothing is appended */
    uint64_t shell_len; /* bytes; length of the appended shell */
    uint32_t ack_ms;    /* ms to wait for the daemon; 0: the default, 200 */
    uint32_t flags;     /* none yet */
    char name[32];      /* NUL-padded; the real shell is /dev/agentcgroup/real/NAME */
};

_Static_assert(sizeof(struct agc_payload) == 64, "hook and shim are built apart and must agree");

#endif
