#define _GNU_SOURCE
#include "payload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../runtime/shim/payload.h"
#include "cleanup.h"
#include "deadline.h"
#include "files.h"
#include "paths.h"

#define SHIM LIBEXECDIR "/agentcgroup-shim"
#define SHIM_MAX (4u << 20)
#define SHELL_MAX (64 << 20)
#define CHUNK (1 << 20) /* sendfile(2) looks at no signal before it is done */
#define PAYLOAD_KEY_MAX 192

static unsigned long long ns(const struct timespec *t)
{
    return (unsigned long long)t->tv_sec * 1000000000ull + (unsigned long long)t->tv_nsec;
}

/* It names the shim's file and the shell's, so that neither upgrade meets an old copy, and what is written into the copy.
 * No device number: an overlay has one of its own for each mount, while inode number and times are the lower file's. */
static int make_key(char *key, const struct stat *shim, const struct target *shell, uint32_t ack_ms)
{
    return text(key, PAYLOAD_KEY_MAX, "%s-%llx-%llx-%llx-%llx.%llx-%llx-%llx-%llx-%x", shell->name,
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

static int append_shell(int out, int in, const struct target *shell, struct error *err)
{
    for (off_t left = shell->st.st_size; left > 0;) {
        if (!ms_until(DEADLINE_MS))
            return fail(err, ETIMEDOUT, "copy %s of the image", shell->path);
        ssize_t n = sendfile(out, in, NULL, left < CHUNK ? (size_t)left : CHUNK);
        if (n <= 0)
            return fail(err, n ? errno : EIO, "copy %s of the image", shell->path);
        left -= n;
    }
    return 0;
}

static int write_payload(int out, int in, const struct target *shell, uint32_t ack_ms, struct error *err)
{
    size_t len;
    cleanup_free char *shim = read_file(AT_FDCWD, SHIM, SHIM_MAX, &len, err);
    if (!shim)
        return -1;
    struct agc_payload *p = find_payload(shim, len);
    if (!p)
        return fail(err, 0, SHIM " is not the hook's own shim: install agentcgroup again");
    p->shim_len = len;
    p->shell_len = (uint64_t)shell->st.st_size;
    p->ack_ms = ack_ms;
    memset(p->name, 0, sizeof p->name);
    strcpy(p->name, shell->name);
    if (write_all(out, shim, len))
        return fail(err, errno, "write a payload");
    return append_shell(out, in, shell, err);
}

/* Several hooks may make the same payload at once: each writes a file of its own, the last rename wins. */
static int make_payload(int run, const char *path, int in, const struct target *shell, uint32_t ack_ms, struct error *err)
{
    char temporary[64], link[FD_PATH_MAX];
    int made = -1;
    snprintf(temporary, sizeof temporary, "shims/.%d-%s", getpid(), shell->name);
    cleanup_close int out = openat(run, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    if (out < 0)
        return fail(err, errno, "create " RUNDIR "/%s", temporary);
    if (!write_payload(out, in, shell, ack_ms, err)) {
        /* fchmod, as the engine's umask may forbid the container's users to run it */
        if (!fchmod(out, 0755) && !renameat(run, temporary, run, path))
            made = open(fd_path(out, link), O_RDONLY | O_CLOEXEC);
        if (made < 0)
            fail(err, errno, "make " RUNDIR "/%s", path);
    }
    if (made < 0)
        unlinkat(run, temporary, 0);
    return made;
}

/* Byte for byte: the key is no proof. An image on EROFS or FUSE chooses all that it is made of, the change time too, and
 * could leave a shell of its own to the containers of others. */
static bool carries(int payload, off_t start, int shell, off_t size)
{
    static char ours[64 << 10], theirs[sizeof ours];
    for (off_t at = 0; at < size;) {
        ssize_t n = ms_until(DEADLINE_MS) ? pread(shell, theirs, sizeof theirs, at) : -1;
        if (n <= 0 || pread(payload, ours, (size_t)n, start + at) != n || memcmp(ours, theirs, (size_t)n))
            return false;
        at += n;
    }
    return true;
}

/* The daemon sweeps the oldest, and a file without a name can be mounted no more (ENOENT): so it gets a new time, and then
 * must still be there. */
static int reuse_payload(int run, const char *path, off_t shim_size, int in, off_t shell_size)
{
    struct stat st;
    int payload = openat(run, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (payload < 0 || (!futimens(payload, NULL) && carries(payload, shim_size, in, shell_size) && !fstat(payload, &st)
                        && st.st_nlink && st.st_size == shim_size + shell_size))
        return payload;
    close(payload);
    return -1;
}

/* Where SELinux is at work, the shim can be run under the label that the policy module agentcgroup gives its directory. */
static bool may_be_run(int payload)
{
    char label[256] = "";
    if (access("/sys/fs/selinux/enforce", F_OK))
        return true;
    return fgetxattr(payload, "security.selinux", label, sizeof label - 1) > 0 && strstr(label, ":agentcgroup_run_t:");
}

int payload_open(int run, const struct target *shell, uint32_t ack_ms, struct error *err)
{
    char key[PAYLOAD_KEY_MAX], path[PAYLOAD_KEY_MAX + 16], link[FD_PATH_MAX];
    struct stat shim;
    if (stat(SHIM, &shim))
        return fail(err, 0, "stat " SHIM ": %s: install agentcgroup again", strerror(errno));
    if (shell->st.st_size > SHELL_MAX)
        return fail(err, 0, "%s of the image is larger than %d MiB", shell->path, SHELL_MAX >> 20);
    if (make_key(key, &shim, shell, ack_ms) || text(path, sizeof path, "shims/%s", key))
        return fail(err, errno, "name of the payload for %s", shell->path);
    cleanup_close int in = open(fd_path(shell->fd, link), O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return fail(err, errno, "open %s of the image", shell->path);
    int payload = reuse_payload(run, path, shim.st_size, in, shell->st.st_size);
    if (payload < 0)
        payload = make_payload(run, path, in, shell, ack_ms, err);
    if (payload < 0 || may_be_run(payload))
        return payload;
    close(payload);
    return fail(err, 0, "SELinux lets no container run the shim: install agentcgroup-selinux, or restorecon -R " RUNDIR);
}
