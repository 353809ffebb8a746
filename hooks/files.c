#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

/* Files of /proc have no size to ask for; a regular file is read in one piece. */
static size_t first_guess(int fd)
{
    struct stat st;
    return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size + 1 : 16384;
}

static char *grow(char *buf, size_t *cap, size_t wanted, size_t max)
{
    *cap = wanted > max ? max : wanted;
    return realloc(buf, *cap + 1);
}

char *read_fd(int fd, size_t max, size_t *len, const char *what, struct error *err)
{
    size_t cap;
    cleanup_free char *buf = grow(NULL, &cap, first_guess(fd), max + 1);
    for (*len = 0; buf;) {
        ssize_t n = read(fd, buf + *len, cap - *len);
        if (n < 0)
            return fail(err, errno, "read %s", what), NULL;
        *len += (size_t)n;
        if (*len > max)
            return fail(err, EFBIG, "read %s: more than %zu KiB", what, max >> 10), NULL;
        if (!n) {
            char *whole = buf;
            whole[*len] = 0;
            buf = NULL;
            return whole;
        }
        if (*len == cap)
            buf = grow(buf, &cap, cap * 2, max + 1);
    }
    return fail(err, ENOMEM, "read %s", what), NULL;
}

char *read_file(int at, const char *path, size_t max, size_t *len, struct error *err)
{
    cleanup_close int fd = openat(at, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(err, errno, "open %s", path), NULL;
    return read_fd(fd, max, len, path, err);
}

long read_small(int at, const char *path, char *buf, size_t size, struct error *err)
{
    cleanup_close int fd = openat(at, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(err, errno, "open %s", path);
    ssize_t n = read(fd, buf, size - 1);
    if (n < 0)
        return fail(err, errno, "read %s", path);
    buf[n] = 0;
    return n;
}

int write_all(int fd, const void *buf, size_t len)
{
    ssize_t n = write(fd, buf, len);
    if (n >= 0 && (size_t)n < len)
        errno = ENOSPC;
    return n == (ssize_t)len ? 0 : -1;
}

const char *fd_path(int fd, char path[FD_PATH_MAX])
{
    snprintf(path, FD_PATH_MAX, "/proc/self/fd/%d", fd);
    return path;
}

int write_file(int at, const char *path, const char *value, struct error *err)
{
    cleanup_close int fd = openat(at, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(err, errno, "open %s", path);
    if (write(fd, value, strlen(value)) < 0)
        return fail(err, errno, "write \"%s\" to %s", value, path);
    return 0;
}

int make_dir(int at, const char *path, unsigned mode, struct error *err)
{
    if (!mkdirat(at, path, mode))
        return 0;
    return errno == EEXIST ? 0 : fail(err, errno, "mkdir %s", path);
}
