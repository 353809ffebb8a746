#define _GNU_SOURCE
#include "journal.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "paths.h"

void one_line(char *s, const char *from, size_t size)
{
    size_t i;
    for (i = 0; from[i] && i + 1 < size; i++)
        s[i] = (unsigned char)from[i] < 0x20 || from[i] == 0x7f ? ' ' : from[i];
    s[i] = 0;
}

static int send_datagram(const char *text, size_t len)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = JOURNAL_SOCKET};
    cleanup_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    /* A full queue of a stopped journald must not hold up a container. */
    return sendto(fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&to, sizeof to) < 0 ? -1 : 0;
}

void journal_send(const struct log_line *line)
{
    char container[256], message[900], datagram[2048];
    one_line(container, line->container, sizeof container);
    one_line(message, line->message, sizeof message);
    if (text(datagram, sizeof datagram,
             "MESSAGE=container %.12s: %s (%lld.%lld ms)\nPRIORITY=%d\nSYSLOG_IDENTIFIER=agentcgroup-hook\n"
             "AGENTCGROUP_CONTAINER=%s\nAGENTCGROUP_RESULT=%s\nAGENTCGROUP_HOOK_USEC=%lld\n",
             container, message, line->us / 1000, line->us / 100 % 10, line->priority, container, line->result, line->us)
        || send_datagram(datagram, strlen(datagram)))
        dprintf(STDERR_FILENO, "agentcgroup-hook: container %.12s: %s: %s\n", container, line->result, message);
}
