/* Errors. A function that can fail takes `struct error *err` last and returns 0 (or something positive), or -1 with
 * err filled in; on success err is not touched. The text stands alone: what, which, why. */
#ifndef AGC_ERROR_H
#define AGC_ERROR_H

#include <stddef.h>

struct error {
    char text[512];
};

/* Fills err from the format, followed by the name of errno value `code` unless it is 0. Sets errno to code, returns -1. */
int fail(struct error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* snprintf that treats a text that does not fit as an error: 0 or -1, errno ENAMETOOLONG. */
int text(char *buf, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Things that did not go as wished but did not stop the container either; told to the daemon, kept in the record. */
#define NOTES_MAX 16

struct notes {
    char text[NOTES_MAX][192];
    unsigned count;
};

void note(struct notes *notes, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
