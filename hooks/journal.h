/* The hook's one line: to the journal by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL), else to stderr. */
#ifndef AGC_JOURNAL_H
#define AGC_JOURNAL_H

#include <stddef.h>

enum priority { PRIORITY_ERROR = 3, PRIORITY_WARNING = 4, PRIORITY_INFO = 6 }; /* syslog(3) */

struct log_line {
    enum priority priority;
    const char *container;
    const char *result; /* one word */
    const char *message;
    long long us; /* the hook's run time */
};

void journal_send(const struct log_line *line);

/* Copies text so that it stays one field, one line: a path or a daemon's words may hold anything. */
void one_line(char *to, const char *from, size_t size);

#endif
