#define _GNU_SOURCE
#include "daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "deadline.h"
#include "paths.h"

#define SOCKET RUNDIR "/hook.sock"
#define ACK_MS 200 /* the shim's wait for the daemon, unless the daemon says otherwise */
#define ACK_MS_MAX 60000
#define SEND_MS 1000

/* bash and sh are what agents run; a merged /usr makes each pair one file. */
static const char *const default_shells[] = {
    "/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh", "/bin/zsh", "/usr/bin/zsh",
};

static int set_timeout(int fd, int option, int ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    return setsockopt(fd, SOL_SOCKET, option, &tv, sizeof tv);
}

int daemon_connect(struct error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail(err, errno, "socket");
    /* connect waits while the backlog is full, for as long as a send may (unix_stream_connect) */
    if (!set_timeout(fd, SO_SNDTIMEO, SEND_MS) && !connect(fd, (struct sockaddr *)&to, sizeof to))
        return fd;
    if (errno == ENOENT || errno == ECONNREFUSED)
        fail(err, 0, "agentcgroupd is not running: nobody listens on " SOCKET ": systemctl start agentcgroupd.socket");
    else
        fail(err, errno, "connect to " SOCKET);
    close(fd);
    return -1;
}

int daemon_tell(int fd, const struct json_out *message, struct error *err)
{
    if (message->failed || message->len > MESSAGE_MAX)
        return fail(err, EMSGSIZE, "message to the daemon");
    return send(fd, message->buf, message->len, MSG_NOSIGNAL) < 0 ? fail(err, errno, "send to " SOCKET) : 0;
}

static long receive(int fd, char *buf, int until_ms, struct error *err)
{
    int left = ms_until(until_ms);
    if (!left || set_timeout(fd, SO_RCVTIMEO, left))
        return fail(err, ETIMEDOUT, "wait for the daemon's answer");
    ssize_t n = recv(fd, buf, MESSAGE_MAX, 0);
    if (n < 0)
        return fail(err, errno == EAGAIN ? ETIMEDOUT : errno, "wait for the daemon's answer");
    return n ? n : fail(err, 0, "the daemon hung up without an answer");
}

static void take_shells(struct answer *answer, const struct json *list)
{
    size_t n = 0;
    if (list && list->type == JSON_ARRAY) {
        for (const struct json *item = list->child; item && n < SHELLS_MAX; item = item->next)
            if (json_str(item))
                answer->shells[n++] = json_str(item);
    } else {
        n = sizeof default_shells / sizeof *default_shells;
        memcpy(answer->shells, default_shells, sizeof default_shells);
    }
    answer->shells[n] = NULL;
}

static void interpret(struct answer *answer, const struct json *top)
{
    long long ack = json_int(json_member(top, "ack_ms"), ACK_MS);
    const struct json *inject = json_member(top, "inject");
    answer->refusal = json_str(json_member(top, "refuse"));
    answer->required = json_true(json_member(top, "required"));
    answer->quiet = json_true(json_member(top, "quiet"));
    answer->inject = !inject || json_true(inject);
    answer->policy = json_str(json_member(top, "policy"));
    answer->ack_ms = ack > 0 && ack <= ACK_MS_MAX ? (uint32_t)ack : ACK_MS;
    take_shells(answer, json_member(top, "shells"));
}

static int exchange(int fd, const struct json_out *message, int until_ms, struct answer *answer, struct error *err)
{
    struct error why;
    if (daemon_tell(fd, message, err))
        return -1;
    if (!(answer->text = malloc(MESSAGE_MAX)))
        return fail(err, ENOMEM, "the daemon's answer");
    long n = receive(fd, answer->text, until_ms, err);
    if (n < 0)
        return -1;
    if (json_parse(&answer->doc, answer->text, (size_t)n, &why))
        return fail(err, 0, "the daemon's answer is not valid JSON: %s", why.text);
    return answer->doc.root.type == JSON_OBJECT ? 0 : fail(err, 0, "the daemon's answer is no JSON object");
}

void daemon_ask(int fd, const struct json_out *message, int until_ms, struct answer *answer, struct error *err)
{
    struct json nothing = {.type = JSON_OBJECT};
    memset(answer, 0, sizeof *answer);
    bool answered = fd >= 0 && !exchange(fd, message, until_ms, answer, err);
    interpret(answer, answered ? &answer->doc.root : &nothing);
    answer->verdict = !answered ? VERDICT_NONE : answer->refusal ? VERDICT_REFUSED : VERDICT_YES;
}
