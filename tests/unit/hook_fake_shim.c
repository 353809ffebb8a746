/* Stands in for the shim, and with -DSHELL="\"name\"" for an image's shell: says what it is and goes on to the real shell. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/shim/payload.h"

#ifdef SHELL
int main(int argc, char **argv)
{
    return printf("real shell " SHELL " as %s with %s\n", argv[0], argc > 1 ? argv[1] : "nothing") < 0;
}
#else
volatile struct agc_payload payload __attribute__((aligned(8), used)) = {.magic = "AGCSHIM1"};

int main(int argc, char **argv)
{
    char real[128];
    struct agc_payload p;
    memcpy(&p, (const void *)&payload, sizeof p);
    snprintf(real, sizeof real, "/dev/agentcgroup/real/%.31s", p.name);
    printf("shim name=%.32s shim_len=%llu shell_len=%llu ack_ms=%u\n", p.name, (unsigned long long)p.shim_len,
           (unsigned long long)p.shell_len, p.ack_ms);
    fflush(stdout);
    if (argc < 2)
        return 0;
    execv(real, argv);
    perror(real);
    return 126;
}
#endif
