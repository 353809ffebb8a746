/* Small text. No stdio: its buffers and locks would be a third of the program's pages. */
#include "shim.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Appends as much of text as fits, with its NUL; returns the new end. The NUL is always written. */
size_t put_text(char *out, size_t at, size_t size, const char *text)
{
    while (*text && at + 1 < size)
        out[at++] = *text++;
    out[at] = 0;
    return at;
}

size_t put_number(char *out, size_t at, size_t size, uint32_t number)
{
    char digits[11];
    char *p = digits + sizeof digits - 1;
    *p = 0;
    do
        *--p = '0' + number % 10;
    while (number /= 10);
    return put_text(out, at, size, p);
}

/* A decimal number with nothing after it, or 0. */
uint32_t read_number(const char *text)
{
    uint64_t value = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && p - text < 10; p++)
        value = value * 10 + (uint32_t)(*p - '0');
    return *p || value > UINT32_MAX ? 0 : (uint32_t)value;
}

/* A small file of /proc or cgroupfs in one read, NUL-terminated; its length or -1. */
ssize_t read_whole(int at, const char *path, char *buf, size_t size)
{
    int fd = openat(at, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buf, size - 1);
    close(fd);
    if (n >= 0)
        buf[n] = 0;
    return n;
}

/* Where 0, 1 or 2 is closed our descriptor takes its place: the caller's hole must stay one. */
int lift(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return high;
}

void say(const char *text)
{
    if (write(2, text, strlen(text)) < 0)
        return; /* there is nobody to tell */
}
