#define _GNU_SOURCE
#include "subtree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cleanup.h"
#include "files.h"

#define OURS "agentcgroup"
#define PROCS "cgroup.procs"
#define SUBTREE_CONTROL "cgroup.subtree_control"
#define MOVE_ROUNDS 16 /* a process may fork while its cgroup is emptied */

static const char *const wanted[] = {"cpu", "memory", "pids", "io"};
#define WANTED (sizeof wanted / sizeof *wanted)

static int open_base(const struct subtree *t, struct error *err)
{
    int base = open(t->base, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return base >= 0 ? base : fail(err, errno, "open %s", t->base);
}

static int make_dirs(struct subtree *t, int base, struct error *err)
{
    static const char *const below[] = {OURS "/agent", OURS "/helpers", OURS "/calls", OURS "/calls/fallback"};
    t->created = !mkdirat(base, OURS, 0755);
    if (!t->created && errno != EEXIST)
        return fail(err, errno, "mkdir %s/%s", t->base, OURS);
    for (size_t i = 0; i < sizeof below / sizeof *below; i++)
        if (make_dir(base, below[i], 0755, err))
            return -1;
    return 0;
}

/* clone3(CLONE_INTO_CGROUP) asks for write permission on the cgroup.procs of the target and of the common ancestor of
 * both cgroups (cgroups(7), "Delegation Containment"); the path to them exists only in the container's read-only view. */
static int open_doors(int base, struct error *err)
{
    static const char *const doors[] = {OURS "/" PROCS, OURS "/calls/fallback/" PROCS};
    for (size_t i = 0; i < sizeof doors / sizeof *doors; i++)
        if (fchmodat(base, doors[i], 0666, 0))
            return fail(err, errno, "chmod %s", doors[i]);
    /* No directories below a call: root in the container can mount its own leaf in a new user and cgroup namespace. */
    return write_file(base, OURS "/calls/cgroup.max.depth", "1", err);
}

/* How many processes were moved in this round, or -1. */
static int move_listed(int base, const char *from, const char *to, struct error *err)
{
    char pids[16384];
    int moved = 0;
    if (read_small(base, from, pids, sizeof pids, err) < 0)
        return -1;
    char *save, *pid = strtok_r(pids, "\n", &save);
    for (; pid; pid = strtok_r(NULL, "\n", &save), moved++) {
        if (!strcmp(pid, "0")) /* writing it would move the hook */
            return fail(err, 0, "%s holds processes of a foreign pid namespace", from);
        if (write_file(base, to, pid, err) && errno != ESRCH)
            return -1;
    }
    return moved;
}

/* The first write waits for an RCU grace period; those right after it, and the controllers', share it: the write side
 * of cgroup_threadgroup_rwsem stays in its fast state for one more period (kernel/rcu/sync.c). */
static int move_in(struct subtree *t, int base, struct error *err)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%d", t->init);
    if (write_file(base, OURS "/agent/" PROCS, pid, err))
        return -1;
    for (int i = 0; i < MOVE_ROUNDS; i++) {
        int moved = move_listed(base, PROCS, OURS "/agent/" PROCS, err);
        if (moved <= 0)
            return moved;
    }
    return fail(err, EBUSY, "%s does not become empty", t->base);
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ' ' || at[n] == '\n'))
            return true;
    return false;
}

/* One write for all; where the kernel refuses (cpu with real-time tasks below it, io without delegation) one by one. */
static void switch_on(struct notes *notes, int base, const char *dir, const char *missing)
{
    char file[64], all[80] = "", one[16];
    struct error why;
    snprintf(file, sizeof file, "%s" SUBTREE_CONTROL, dir);
    for (size_t i = 0; i < WANTED; i++)
        if (has_word(missing, wanted[i]))
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s+%s", *all ? " " : "", wanted[i]);
    if (!*all || !write_file(base, file, all, &why))
        return;
    for (size_t i = 0; i < WANTED; i++) {
        snprintf(one, sizeof one, "+%s", wanted[i]);
        if (has_word(missing, wanted[i]) && write_file(base, file, one, &why))
            note(notes, "%s", why.text);
    }
}

/* Fills `list` with the controllers that `from` has and `without` lacks. */
static void select_words(char *list, size_t size, const char *from, const char *without)
{
    *list = 0;
    for (size_t i = 0; i < WANTED; i++)
        if (has_word(from, wanted[i]) && !has_word(without, wanted[i]))
            snprintf(list + strlen(list), size - strlen(list), " %s", wanted[i]);
}

static int enable_controllers(struct subtree *t, int base, struct error *err)
{
    static const char *const dirs[] = {"", OURS "/", OURS "/calls/"};
    char available[256], before[256], after[256], missing[64];
    if (read_small(base, "cgroup.controllers", available, sizeof available, err) < 0
        || read_small(base, SUBTREE_CONTROL, before, sizeof before, err) < 0)
        return -1;
    for (size_t i = 0; i < WANTED; i++)
        if (!has_word(available, wanted[i]))
            note(&t->notes, "no %s controller in %s", wanted[i], t->base);
    select_words(missing, sizeof missing, available, before);
    switch_on(&t->notes, base, dirs[0], missing);
    if (read_small(base, SUBTREE_CONTROL, after, sizeof after, err) < 0)
        return -1;
    select_words(t->enabled, sizeof t->enabled, after, before);
    for (size_t i = 1; i < sizeof dirs / sizeof *dirs; i++)
        switch_on(&t->notes, base, dirs[i], after);
    /* An OOM in a call ends the call whole; without the memory controller there is no such file. */
    if (has_word(after, "memory"))
        return write_file(base, OURS "/calls/fallback/memory.oom.group", "1", err);
    return 0;
}

int subtree_make(struct subtree *t, struct error *err)
{
    cleanup_close int base = open_base(t, err);
    if (base < 0)
        return -1;
    if (make_dirs(t, base, err) || open_doors(base, err) || move_in(t, base, err))
        return -1;
    return enable_controllers(t, base, err);
}

/* From the leaves up: a cgroup with a controller in a child's subtree_control cannot switch it off, and one with
 * controllers for its children takes no processes back. */
static void switch_off(int base, const char *dir, const char *list)
{
    char file[64], one[16];
    struct error ignored;
    snprintf(file, sizeof file, "%s" SUBTREE_CONTROL, dir);
    for (size_t i = 0; i < WANTED; i++)
        if (has_word(list, wanted[i])) {
            snprintf(one, sizeof one, "-%s", wanted[i]);
            write_file(base, file, one, &ignored);
        }
}

void subtree_undo(const struct subtree *t)
{
    static const char *const dirs[] = {OURS "/calls/fallback", OURS "/calls", OURS "/helpers", OURS "/agent", OURS};
    struct error ignored;
    cleanup_close int base = t->created ? open_base(t, &ignored) : -1;
    if (base < 0)
        return;
    switch_off(base, OURS "/calls/", "cpu memory pids io");
    switch_off(base, OURS "/", "cpu memory pids io");
    switch_off(base, "", t->enabled);
    for (int i = 0; i < MOVE_ROUNDS && move_listed(base, OURS "/agent/" PROCS, PROCS, &ignored) > 0; i++)
        ;
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        unlinkat(base, dirs[i], AT_REMOVEDIR);
}
