/* Talking with the daemon: dial, claim a ticket, tell or ask. Nothing here waits longer than the ack time, but for
 * a verdict that the daemon has asked us to wait for. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define HINT "AGENT_RESOURCE_HINT"
#define HINT_MAX 1024      /* bytes of a hint that are passed on */
#define HINT_HEAD 4096     /* bytes of a command text that are searched for one */
#define HINT_ARGUMENTS 8   /* arguments that may be the command text */
#define FOREVER (-1)

AGC_LAST char message[AGC_MESSAGE_MAX];

static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = AGC_DIR "/sock"};

/* A full backlog refuses a non-blocking connect with EAGAIN; a blocking one obeys SO_SNDTIMEO (unix(7), socket(7)). */
static int dial_patiently(int sock)
{
    struct timeval limit = {.tv_sec = ack_ms() / 1000, .tv_usec = ack_ms() % 1000 * 1000};
    if (setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) || fcntl(sock, F_SETFL, 0))
        return -1;
    return connect(sock, (const void *)&address, sizeof address);
}

/* A connection to the daemon, or -1. */
int dial(void)
{
    int sock = lift(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (sock < 0)
        return -1;
    if (!connect(sock, (const void *)&address, sizeof address))
        return sock;
    if (errno == EAGAIN && !dial_patiently(sock))
        return sock;
    close(sock);
    return -1;
}

/* Sends the first bytes of message; 0 if they are gone. */
int tell(int sock, size_t length)
{
    return send(sock, message, length, MSG_NOSIGNAL) == (ssize_t)length ? 0 : -1;
}

/* One message as NUL-terminated text; its length, or -1 at the time limit and at hang-up. */
ssize_t hear(int sock, char *buf, size_t size, int ms)
{
    struct pollfd wait = {.fd = sock, .events = POLLIN};
    int ready;
    while ((ready = poll(&wait, 1, ms)) < 0 && errno == EINTR)
        ;
    if (ready <= 0)
        return -1;
    ssize_t n = recv(sock, buf, size - 1, MSG_DONTWAIT);
    if (n < 0 || (n == 0 && wait.revents & POLLHUP))
        return -1;
    buf[n] = 0;
    return n;
}

/* The number of a ready directory, or 0. The daemon writes whole records, so a read takes one or none (pipe(7)). */
static uint32_t take_ticket(void)
{
    uint32_t number;
    int fd = openat(AT_FDCWD, AGC_DIR "/tickets", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, &number, sizeof number);
    close(fd);
    return n == sizeof number ? number : 0;
}

/* The daemon reads the hint; that the name stands somewhere near the head is enough to ask it. */
static int text_may_hint(char **argv)
{
    for (int i = 1; i < HINT_ARGUMENTS && argv[i - 1] && argv[i]; i++)
        if (memmem(argv[i], strnlen(argv[i], HINT_HEAD), HINT "=", sizeof HINT))
            return 1;
    return 0;
}

/* Adds a field and its NUL; what does not fit is cut. */
static size_t put_field(size_t at, const char *key, const char *value, size_t limit)
{
    if (at + strlen(key) + 1 >= limit)
        return at;
    at = put_text(message, at, limit, key);
    return put_text(message, at, limit, value) + 1;
}

static int fits(char **argv, size_t room)
{
    for (; *argv; argv++) {
        size_t length = strnlen(*argv, room) + sizeof "a=";
        if (length > room)
            return 0;
        room -= length;
    }
    return 1;
}

static size_t start_message(uint32_t ticket, const char *hint, char **argv)
{
    char digits[12];
    size_t at = put_field(0, "", "AGC1", AGC_MESSAGE_MAX);
    put_number(digits, 0, sizeof digits, ticket);
    at = put_field(at, "t=", digits, AGC_MESSAGE_MAX);
    if (hint)
        at = put_field(at, "h=", hint, at + HINT_MAX);
    if (!fits(argv, AGC_MESSAGE_MAX - at - sizeof "x=1"))
        at = put_field(at, "x=", "1", AGC_MESSAGE_MAX);
    for (; *argv; argv++)
        at = put_field(at, "a=", *argv, AGC_MESSAGE_MAX);
    return at;
}

/* "run 7", "move 7" or "exec". Anything else is no verdict, and the call goes to fallback. */
static int obey(struct call *call, const char *answer)
{
    if (!strcmp(answer, "exec"))
        return call->verdict = RUN_IN_PLACE, 1;
    if (!strncmp(answer, "run ", 4) && (call->number = read_number(answer + 4)))
        return call->verdict = RUN_IN_CALL, 1;
    if (!strncmp(answer, "move ", 5) && (call->number = read_number(answer + 5)))
        return call->verdict = RUN_MOVED, 1;
    return 0;
}

static int await_verdict(struct call *call)
{
    char answer[32];
    if (hear(call->sock, answer, sizeof answer, (int)ack_ms()) < 0)
        return 0;
    if (!strcmp(answer, "wait") && hear(call->sock, answer, sizeof answer, FOREVER) < 0)
        return 0;
    return obey(call, answer);
}

/* The daemon takes back what it granted or may still grant. */
void hang_up(struct call *call)
{
    if (call->sock >= 0)
        close(call->sock);
    call->sock = -1;
}

/* Sends the start message on a new connection; 0 if it is gone. */
static int start(struct call *call)
{
    call->announced = 1;
    call->sock = dial();
    if (call->sock >= 0 && !tell(call->sock, start_message(call->number, getenv(HINT), call->argv)))
        return 0;
    hang_up(call);
    return -1;
}

/*
 * Claims a directory, or asks for one. The daemon holds the FIFO's other end and nothing stays in a FIFO that nobody
 * holds, so a ticket is a promise of a living daemon; it is told once the shell is on its way.
 */
void decide(struct call *call)
{
    int from_outside = !getppid(); /* podman exec, or a health check: which of them, the daemon must say before it runs */
    call->hinted = getenv(HINT) || text_may_hint(call->argv);
    if (!from_outside && !call->hinted)
        call->number = take_ticket();
    if (call->number) {
        call->verdict = RUN_IN_CALL;
        return;
    }
    call->verdict = RUN_FALLBACK;
    if (start(call) || await_verdict(call))
        return;
    hang_up(call);
}

/* Tells the daemon which ticket was taken and for what; no answer. */
void announce(struct call *call)
{
    if (call->number && !call->announced)
        start(call);
}

/* That the shell has got a signal; no answer. */
void tell_signal(const struct call *call, int sig)
{
    char digits[12];
    if (call->sock < 0)
        return;
    put_number(digits, 0, sizeof digits, (uint32_t)sig);
    size_t at = put_field(0, "", "AGC1", AGC_MESSAGE_MAX);
    tell(call->sock, put_field(at, "s=", digits, AGC_MESSAGE_MAX));
}

/* The forked child's own question, on its own connection: that is how the daemon knows whom to move. */
int ask_to_be_moved(uint32_t number)
{
    char digits[12];
    char answer[32] = "";
    int sock = dial();
    if (sock < 0)
        return 1;
    put_number(digits, 0, sizeof digits, number);
    size_t at = put_field(0, "", "AGC1", AGC_MESSAGE_MAX);
    at = put_field(at, "m=", digits, AGC_MESSAGE_MAX);
    if (!tell(sock, at))
        hear(sock, answer, sizeof answer, (int)ack_ms());
    close(sock);
    return strcmp(answer, "exec") != 0;
}
