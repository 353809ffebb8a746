/* agentcgroup-hint: what the next call will need, in the agent's words. */
#include "shim.h"

#include <string.h>
#include <unistd.h>

static int fail(const char *why)
{
    say(why);
    return 1;
}

/* All words joined by spaces; 0 if they do not fit. */
static size_t hint_message(char **words)
{
    size_t at = put_text(message, 0, sizeof message, "AGC1") + 1;
    at = put_text(message, at, sizeof message, "n=");
    for (char **word = words; *word; word++) {
        if (at + strlen(*word) + 2 > sizeof message)
            return 0;
        if (word != words)
            at = put_text(message, at, sizeof message, " ");
        at = put_text(message, at, sizeof message, *word);
    }
    return at + 1;
}

int send_hint(char **words)
{
    if (!*words)
        return fail("usage: agentcgroup-hint KEY:VALUE ... (as in memory:2g time:90s)\n");
    size_t length = hint_message(words);
    if (!length)
        return fail("agentcgroup-hint: the hint is longer than 16 KiB\n");
    int sock = dial();
    if (sock < 0)
        return fail("agentcgroup-hint: no daemon at " AGC_DIR "/sock; nothing was noted\n");
    ssize_t n = tell(sock, length) ? -1 : hear(sock, message, sizeof message, (int)ack_ms());
    if (n < 0)
        return fail("agentcgroup-hint: the daemon did not answer in time\n");
    if (n && message[n - 1] != '\n')
        message[n++] = '\n';
    return write(1, message, (size_t)n) == n ? 0 : 1;
}
