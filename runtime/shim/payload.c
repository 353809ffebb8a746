/* The one structure that the hook patches. A file of its own, and volatile: no value here is known when we compile. */
#include "payload.h"

#include "shim.h"

__attribute__((used, aligned(8))) volatile struct agc_payload agc_payload = {
    .magic = {'A', 'G', 'C', 'S', 'H', 'I', 'M', '1'},
    .ack_ms = 200,
    .name = "bash",
};

uint32_t ack_ms(void)
{
    return agc_payload.ack_ms ? agc_payload.ack_ms : 200;
}

uint64_t payload_offset(void)
{
    return agc_payload.shim_len;
}

uint64_t payload_length(void)
{
    return agc_payload.shell_len;
}

void payload_name(char name[32])
{
    for (int i = 0; i < 32; i++)
        name[i] = agc_payload.name[i];
    name[31] = 0;
}
