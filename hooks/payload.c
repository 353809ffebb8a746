#define _GNU_SOURCE
#include "payload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "../runtime/shim/payload.h"
#include "cleanup.h"
#include "files.h"
#include "paths.h"

#define SHIM LIBEXECDIR "/agentcgroup-shim"
#define SHIM_MAX (4u << 20)
#define SHELL_MAX (64 << 20)

static unsigned long long ns(const struct timespec *t)
{
    return (unsigned long long)t->tv_sec * 1000000000ull + (unsigned long long)t->tv_nsec;
}

/* An overlay has a device number of its own for each mount and the numbers are used again, so there it says nothing: the
 * inode number and times are the lower file's. The change time cannot be forged by an image, which chooses size and
 * modification time. */
static int make_key(char *key, const struct stat *shim, const struct target *shell, uint32_t ack_ms)
{
    unsigned long long dev = shell->overlay ? 0 : (unsigned long long)shell->st.st_dev;
    return text(key, PAYLOAD_KEY_MAX, "%s-%llx-%llx-%llx-%llx-%llx.%llx-%llx-%llx-%llx-%x", shell->name, dev,
                (unsigned long long)shell->st.st_ino, (unsigned long long)shell->st.st_size, ns(&shell->st.st_mtim),
                ns(&shell->st.st_ctim), (unsigned long long)shim->st_dev, (unsigned long long)shim->st_ino,
                (unsigned long long)shim->st_size, ns(&shim->st_mtim), ack_ms);
}

/* The one place in the shim that is a struct agc_payload with nothing appended yet. */
static struct agc_payload *find_payload(char *shim, size_t len)
{
    struct agc_payload *found = NULL;
    for (size_t at = 0; at + sizeof *found <= len; at += 8) {
        struct agc_payload *p = (struct agc_payload *)(shim + at);
        if (memcmp(p->magic, AGC_PAYLOAD_MAGIC, sizeof p->magic) || p->shim_len || p->shell_len)
            continue;
        if (found)
            return NULL;
        found = p;
    }
    return found;
}

static int append_shell(int out, const struct target *shell, struct error *err)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", shell->fd);
    cleanup_close int in = open(path, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return fail(err, errno, "open %s of the image", shell->path);
    for (off_t left = shell->st.st_size; left > 0;) {
        ssize_t n = sendfile(out, in, NULL, (size_t)left);
        if (n <= 0)
            return fail(err, n ? errno : EIO, "copy %s of the image", shell->path);
        left -= n;
    }
    return 0;
}

static int write_payload(int out, const struct target *shell, uint32_t ack_ms, struct error *err)
{
    size_t len;
    cleanup_free char *shim = read_file(AT_FDCWD, SHIM, SHIM_MAX, &len, err);
    if (!shim)
        return -1;
    struct agc_payload *p = find_payload(shim, len);
    if (!p)
        return fail(err, 0, SHIM " has no payload struct without a shell, or several");
    p->shim_len = len;
    p->shell_len = (uint64_t)shell->st.st_size;
    p->ack_ms = ack_ms;
    memset(p->name, 0, sizeof p->name);
    strcpy(p->name, shell->name);
    if (write(out, shim, len) != (ssize_t)len)
        return fail(err, errno, "write a payload");
    return append_shell(out, shell, err);
}

/* Several hooks may make the same payload at once: each writes a file of its own, the last rename wins. */
int payload_make(int run, const struct target *shell, uint32_t ack_ms, char key[PAYLOAD_KEY_MAX], struct error *err)
{
    char path[PAYLOAD_KEY_MAX + 16], temporary[64];
    struct stat shim;
    if (stat(SHIM, &shim))
        return fail(err, errno, "stat " SHIM);
    if (shell->st.st_size > SHELL_MAX)
        return fail(err, EFBIG, "%s of the image", shell->path);
    if (make_key(key, &shim, shell, ack_ms) || text(path, sizeof path, "shims/%s", key))
        return fail(err, errno, "name of a payload");
    if (!faccessat(run, path, F_OK, 0))
        return 0;
    snprintf(temporary, sizeof temporary, "shims/.%d-%s", getpid(), shell->name);
    cleanup_close int out = openat(run, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (out < 0)
        return fail(err, errno, "create " RUNDIR "/%s", temporary);
    /* fchmod, as the engine's umask may forbid the container's users to run it */
    int failed = write_payload(out, shell, ack_ms, err);
    if (!failed && (fchmod(out, 0755) || renameat(run, temporary, run, path)))
        failed = fail(err, errno, "make " RUNDIR "/%s", path);
    if (failed)
        unlinkat(run, temporary, 0);
    return failed;
}
