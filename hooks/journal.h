/* The hook's one line: to the journal by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL), else to stderr. */
#ifndef AGC_JOURNAL_H
#define AGC_JOURNAL_H

enum priority { PRIORITY_ERROR = 3, PRIORITY_WARNING = 4, PRIORITY_INFO = 6 }; /* syslog(3) */

struct log_line {
    enum priority priority;
    const char *container;
    const char *result; /* one word */
    const char *message;
    long long us; /* the hook's run time */
};

void journal_send(const struct log_line *line);

/* The cause of a failed start for whoever started the container. crun gives hooks /dev/null for stderr, so the text goes
 * to crun's own stderr instead, which the engine shows. */
void tell_engine(const char *container, const char *message);

#endif
