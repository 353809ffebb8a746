#define _GNU_SOURCE
#include "mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "kernel.h"

#define TABLE_MAX (16u << 20)

char *mountinfo_read(pid_t pid, struct error *err)
{
    char path[64];
    size_t len;
    snprintf(path, sizeof path, "/proc/%d/mountinfo", pid);
    return read_file(AT_FDCWD, path, TABLE_MAX, &len, err);
}

/* One field ends at a space. Blanks and backslashes in paths are written as three octal digits. */
static const char *path_field(const char *at, char *out, size_t size)
{
    size_t n = 0;
    while (*at && *at != ' ' && *at != '\n' && n + 1 < size) {
        bool octal = at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' && at[3] >= '0' && at[3] <= '7';
        out[n++] = octal ? (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0')) : *at;
        at += octal ? 4 : 1;
    }
    out[n] = 0;
    return *at == ' ' ? at + 1 : NULL;
}

static const char *skip_field(const char *at)
{
    at += strcspn(at, " \n");
    return *at == ' ' ? at + 1 : NULL;
}

static bool parse(const char *at, struct mount_entry *entry)
{
    char *end;
    entry->id = strtoull(at, &end, 10);
    at = end > at && *end == ' ' ? end + 1 : NULL;
    for (int i = 0; at && i < 2; i++)
        at = skip_field(at);
    if (!at || !(at = path_field(at, entry->root, sizeof entry->root)) || !(at = path_field(at, entry->point, sizeof entry->point)))
        return false;
    entry->writable = !strncmp(at, "rw", 2) && (at[2] == ',' || at[2] == ' ');
    entry->shared = false;
    while ((at = skip_field(at)) && strncmp(at, "- ", 2))
        entry->shared |= !strncmp(at, "shared:", 7);
    if (!at)
        return false;
    entry->cgroup2 = !strncmp(at, "- cgroup2 ", 10);
    return true;
}

int mountinfo_next(const char **at, struct mount_entry *entry)
{
    while (**at) {
        const char *line = *at, *newline = strchr(line, '\n');
        *at = newline ? newline + 1 : line + strlen(line);
        if (parse(line, entry))
            return 1;
    }
    return 0;
}

int mountinfo_of(const char *table, int fd, struct mount_entry *entry, struct error *err)
{
    unsigned long long id;
    char start[32];
    if (mount_id(fd, &id))
        return fail(err, errno, "statx for a mount id");
    size_t len = (size_t)snprintf(start, sizeof start, "%llu ", id);
    for (const char *line = table; *line; line = strchr(line, '\n') + 1) {
        if (!strncmp(line, start, len))
            return parse(line, entry);
        if (!strchr(line, '\n'))
            break;
    }
    return 0;
}
