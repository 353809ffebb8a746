#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fail(struct error *err, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (code && len >= 0 && (size_t)len < sizeof err->text)
        snprintf(err->text + len, sizeof err->text - (size_t)len, ": %s", strerror(code));
    errno = code;
    return -1;
}

int text(char *buf, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(buf, size, fmt, args);
    va_end(args);
    if (len >= 0 && (size_t)len < size)
        return 0;
    errno = ENAMETOOLONG;
    return -1;
}

void note(struct notes *notes, const char *fmt, ...)
{
    if (notes->count == NOTES_MAX)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(notes->text[notes->count++], sizeof notes->text[0], fmt, args);
    va_end(args);
}
