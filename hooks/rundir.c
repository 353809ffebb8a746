#define _GNU_SOURCE
#include "rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "files.h"
#include "paths.h"

int rundir_open(struct error *err)
{
    static const struct {
        const char *name;
        unsigned mode;
    } parts[] = {{"c", 0711}, {"shims", 0711}, {"containers", 0700}}; /* containers see only their own c/ID */
    if (mkdir(RUNDIR, 0755) && errno != EEXIST)
        return fail(err, errno, "mkdir " RUNDIR);
    int run = open(RUNDIR, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (run < 0)
        return fail(err, errno, "open " RUNDIR);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (make_dir(run, parts[i].name, parts[i].mode, err)) {
            close(run);
            return -1;
        }
    return run;
}

static int make_mountpoint(int dir, const char *path, struct error *err)
{
    cleanup_close int fd = openat(dir, path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0755);
    return fd >= 0 ? 0 : fail(err, errno, "create %s", path);
}

int container_dir_make(int run, const char *id, struct error *err)
{
    char path[ID_MAX + 2];
    snprintf(path, sizeof path, "c/%s", id);
    if (make_dir(run, path, 0755, err))
        return -1;
    int dir = openat(run, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return fail(err, errno, "open " RUNDIR "/%s", path);
    if (!make_dir(dir, "calls", 0755, err) && !make_dir(dir, "real", 0755, err) && !make_mountpoint(dir, "agentcgroup-hint", err))
        return dir;
    close(dir);
    return -1;
}

int container_dir_add_shells(int dir, const struct targets *shells, struct error *err)
{
    char path[SHELL_NAME_MAX + 8];
    for (unsigned i = 0; i < shells->count; i++) {
        snprintf(path, sizeof path, "real/%s", shells->list[i].name);
        if (make_mountpoint(dir, path, err))
            return -1;
    }
    return 0;
}

int record_write(int run, const char *id, const struct json_out *json, struct error *err)
{
    char path[ID_MAX + 32], temporary[ID_MAX + 32];
    snprintf(path, sizeof path, "containers/%s.json", id);
    snprintf(temporary, sizeof temporary, "containers/.%s.%d", id, getpid());
    if (json->failed)
        return fail(err, ENOMEM, "record of the container");
    cleanup_close int fd = openat(run, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(err, errno, "create " RUNDIR "/%s", temporary);
    if (!write_all(fd, json->buf, json->len) && !renameat(run, temporary, run, path))
        return 0;
    fail(err, errno, "write " RUNDIR "/%s", path);
    unlinkat(run, temporary, 0);
    return -1;
}

static void remove_files_in(int run, const char *path)
{
    int fd = openat(run, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        unlinkat(fd, entry->d_name, 0);
    if (dir)
        closedir(dir);
}

void container_forget(int run, const char *id)
{
    static const char *const parts[] = {"real", "calls", ""};
    char path[ID_MAX + 32];
    snprintf(path, sizeof path, "containers/%s.json", id);
    unlinkat(run, path, 0);
    snprintf(path, sizeof path, "c/%s/real", id);
    remove_files_in(run, path);
    snprintf(path, sizeof path, "c/%s/agentcgroup-hint", id);
    unlinkat(run, path, 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(path, sizeof path, "c/%s/%s", id, parts[i]);
        unlinkat(run, path, AT_REMOVEDIR);
    }
}
