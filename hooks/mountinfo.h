/* proc_pid_mountinfo(5): "ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER" */
#ifndef AGC_MOUNTINFO_H
#define AGC_MOUNTINFO_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"

struct mount_entry {
    unsigned long long id;
    bool shared;    /* in a peer group: what is mounted below it shows up elsewhere too */
    bool writable;
    bool cgroup2;
    char root[PATH_MAX], point[PATH_MAX];
};

/* The whole table of a process, to be freed. */
char *mountinfo_read(pid_t pid, struct error *err);

/* Steps through a table: 1 with entry filled in, 0 at the end. Start with *at = the table. Lines that make no sense are
 * skipped. */
int mountinfo_next(const char **at, struct mount_entry *entry);

/* 1 with the entry of the mount that fd lives on, 0 if the table lacks it. */
int mountinfo_of(const char *table, int fd, struct mount_entry *entry, struct error *err);

#endif
