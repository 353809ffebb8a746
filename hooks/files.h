/* Small whole files. Every path is relative to the directory `at`; AT_FDCWD for absolute ones. */
#ifndef AGC_FILES_H
#define AGC_FILES_H

#include <stddef.h>

#include "error.h"

/* All that fd gives, NUL-terminated, to be freed; `what` names it in errors. More than max bytes is an error. */
char *read_fd(int fd, size_t max, size_t *len, const char *what, struct error *err);
char *read_file(int at, const char *path, size_t max, size_t *len, struct error *err);

/* The beginning of a file of /proc or /sys in one read: its length or -1; buf is NUL-terminated. */
long read_small(int at, const char *path, char *buf, size_t size, struct error *err);

/* All of it in one write, or -1 with errno: ENOSPC where less fits. */
int write_all(int fd, const void *buf, size_t len);

/* A path that leads to what fd is open on; in every mount namespace (proc_pid_fd(5)). */
#define FD_PATH_MAX 32
const char *fd_path(int fd, char path[FD_PATH_MAX]);

/* One write to a file that exists. */
int write_file(int at, const char *path, const char *value, struct error *err);

/* A directory that may be there already. */
int make_dir(int at, const char *path, unsigned mode, struct error *err);

#endif
