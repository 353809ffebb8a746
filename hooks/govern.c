#define _GNU_SOURCE
#include "govern.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cgroup.h"
#include "cleanup.h"
#include "cooperative.h"
#include "daemon.h"
#include "deadline.h"
#include "engine.h"
#include "files.h"
#include "inject.h"
#include "messages.h"
#include "mountinfo.h"
#include "paths.h"
#include "rundir.h"
#include "subtree.h"

/* ms after the start, so that what follows has time left until DEADLINE_MS */
#define PLAN_BY 1500
#define TREE_BY 2300
#define REGISTER_BY 2700

struct run {
    struct container *c;
    struct outcome *outcome;
    struct places at;
    struct notes reasons, notes;
    char base[PATH_MAX];
    char *table;
    int daemon;
    struct answer plan;
    struct error unheard; /* why the daemon did not answer */
    bool required; /* as far as is known by now */
    const char *policy;
    struct subtree tree;
    bool tree_unfinished; /* the thread that makes it has not come back */
    struct injection in;
    int prepared; /* as injection_prepare returns */
    struct error not_injected;
};

static struct run run; /* 70 KiB, and the threads' too */

/* The container stays as the engine made it. */
static void leave_alone(struct run *r, const char *result, bool required, const struct error *cause)
{
    r->outcome->priority = required ? PRIORITY_ERROR : PRIORITY_WARNING;
    r->outcome->result = result;
    r->outcome->stop_container = required;
    if (required)
        fail(&r->outcome->cause, 0, "its policy is required and cannot be kept: %.440s", cause->text);
    else
        fail(&r->outcome->cause, 0, "not governed: %.490s", cause->text);
}

static bool says_true(const struct container *c, const char *key)
{
    const char *value = annotation(c, key);
    return value && !strcmp(value, "true");
}

/* Without the daemon's word: an annotation, or the marker that the daemon keeps for each required policy. */
static bool required_here(const struct run *r)
{
    char marker[sizeof STATEDIR + POLICY_NAME_MAX + 16];
    const char *name;
    struct error ignored;
    if (!is_meant(r->c))
        return false;
    if (says_true(r->c, "agentcgroup.required") || says_true(r->c, "agentcgroup.io/required"))
        return true;
    if (policy_name(r->c, &name, &ignored))
        return false;
    snprintf(marker, sizeof marker, STATEDIR "/required/%s", name);
    return !access(marker, F_OK);
}

static int look(struct run *r, struct error *err)
{
    char rootfs[PATH_MAX];
    if (container_read_config(r->c, err) || find_base(r->c, r->base, sizeof r->base, err))
        return -1;
    if (!(r->table = mountinfo_read(r->c->pid, err)))
        return -1;
    r->at.table = r->table;
    if ((r->at.rootfs = open_rootfs(r->c, rootfs, sizeof rootfs, err)) < 0)
        return -1;
    cooperative_reasons(r->c, r->table, rootfs, &r->reasons);
    return 0;
}

/* Nothing worked; if that is because of a user's own engine, say so instead. */
static void give_up(struct run *r, const struct error *cause)
{
    struct error rootless;
    r->outcome->silent = !is_meant(r->c);
    if (!engine_is_rootless())
        return leave_alone(r, "failed", r->required, cause);
    fail(&rootless, 0, "the engine runs without root");
    leave_alone(r, "rootless", r->required, &rootless);
}

/* False if that is all for this container. */
static bool plan(struct run *r)
{
    struct json_out message;
    struct error why;
    r->daemon = daemon_connect(&r->unheard);
    if (r->daemon < 0 && engine_is_rootless())
        return give_up(r, &r->unheard), false;
    plan_message(&message, r->c, r->base, &r->reasons);
    daemon_ask(r->daemon, &message, PLAN_BY, &r->plan, &r->unheard);
    free(message.buf);
    r->required |= r->plan.required;
    if (r->plan.verdict == VERDICT_REFUSED) {
        fail(&why, 0, "%s", r->plan.refusal);
        r->outcome->silent = r->plan.quiet && !r->required;
        return leave_alone(r, "refused", r->required, &why), false;
    }
    if (r->plan.verdict == VERDICT_YES)
        return r->policy = r->plan.policy, true;
    if (r->required)
        return leave_alone(r, "failed", true, &r->unheard), false;
    r->outcome->silent = !is_meant(r->c);
    if (policy_name(r->c, &r->policy, &why))
        return leave_alone(r, "refused", false, &why), false;
    return r->policy != NULL;
}

struct maker {
    pthread_t thread;
    struct subtree *tree;
    int failed;
    struct error err;
};

static void *make_tree(void *arg)
{
    struct maker *maker = arg;
    maker->failed = subtree_make(maker->tree, &maker->err);
    return NULL;
}

static int join_maker(struct maker *maker, struct error *err)
{
    struct timespec until;
    int left = ms_until(TREE_BY);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += left / 1000;
    until.tv_nsec += left % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    int why = pthread_timedjoin_np(maker->thread, NULL, &until);
    return why ? fail(err, why, "wait for the cgroups to be made") : 0;
}

static void prepare_injection(struct run *r)
{
    r->prepared = 1;
    if (r->plan.inject)
        r->prepared = injection_prepare(&r->in, &r->at, r->plan.shells, r->plan.ack_ms, &r->notes, &r->not_injected);
}

/* The write that moves init waits some 5 to 30 ms for RCU; the payloads are made meanwhile. */
static int build(struct run *r, struct error *err)
{
    static struct maker maker; /* not on the stack: a thread that hangs in the kernel outlives this function */
    r->at.run = rundir_open(err);
    if (r->at.run < 0 || (r->at.dir = container_dir_make(r->at.run, r->c->id, err)) < 0)
        return -1;
    r->tree.base = r->base;
    r->tree.init = r->c->pid;
    maker.tree = &r->tree;
    int why = pthread_create(&maker.thread, NULL, make_tree, &maker);
    if (why)
        return fail(err, why, "start a thread");
    prepare_injection(r);
    if (join_maker(&maker, err))
        return r->tree_unfinished = true, -1;
    if (maker.failed)
        return *err = maker.err, -1;
    for (unsigned i = 0; i < r->tree.notes.count; i++)
        note(&r->notes, "%s", r->tree.notes.text[i]);
    if (!r->prepared && !r->reasons.count)
        r->prepared = injection_add_view(&r->in, r->base, &r->not_injected);
    return 0;
}

static int write_record(struct run *r, bool complete, struct error *err)
{
    struct json_out json;
    struct record record = {r->c, r->base, r->policy, &r->reasons, complete ? &r->in : NULL, &r->notes};
    record_json(&json, &record);
    int failed = record_write(r->at.run, r->c->id, &json, err);
    free(json.buf);
    return failed;
}

/* The daemon learns that the tree is there. VERDICT_NONE when it does not answer: it adopts the record later. */
static enum verdict enroll(struct run *r, struct answer *answer)
{
    struct json_out message;
    if (r->plan.verdict != VERDICT_YES)
        return VERDICT_NONE;
    short_message(&message, "register", r->c->id);
    daemon_ask(r->daemon, &message, REGISTER_BY, answer, &r->unheard);
    free(message.buf);
    return answer->verdict;
}

/* Not after a second run for the same start: the first one's work stays. */
static void take_back(struct run *r)
{
    if (!r->tree.created || r->tree_unfinished)
        return;
    subtree_undo(&r->tree);
    container_forget(r->at.run, r->c->id);
}

static void mount_all(struct run *r)
{
    if (!r->prepared)
        r->prepared = injection_apply(&r->in, &r->not_injected);
    if (r->prepared < 0)
        note(&r->notes, "%s", r->not_injected.text);
}

/* A daemon adopts the records that it finds when it starts. One that has looked already is told of this one; the message
 * waits in the socket, also for one that has not started yet. On a connection of its own: an answer that nobody reads on
 * the old one would end it with ECONNRESET before the message is read (unix_release_sock). */
static void tell_late_daemon(struct run *r)
{
    struct json_out message;
    struct error ignored;
    cleanup_close int daemon = daemon_connect(&ignored);
    if (daemon < 0)
        return;
    short_message(&message, "register", r->c->id);
    daemon_tell(daemon, &message, &ignored);
    free(message.buf);
}

static void report(struct run *r, bool registered)
{
    struct json_out message;
    struct error ignored;
    if (registered) {
        ready_message(&message, r->c, &r->in, &r->notes, elapsed_us());
        int lost = daemon_tell(r->daemon, &message, &ignored);
        free(message.buf);
        if (!lost)
            return;
    }
    write_record(r, true, &ignored);
    tell_late_daemon(r);
}

static void say_shells(const struct run *r, char *out, size_t size)
{
    unsigned shells = r->in.attached_count ? r->in.targets.count : r->in.targets.wrapped_count;
    if (r->prepared < 0)
        snprintf(out, size, "no shell wrapped: %.220s", r->not_injected.text);
    else if (!r->plan.inject)
        snprintf(out, size, "shells left alone");
    else if (!shells)
        snprintf(out, size, "no shell to wrap");
    else
        snprintf(out, size, "%u shell%s wrapped", shells, shells == 1 ? "" : "s");
}

static void conclude(struct run *r, bool registered)
{
    struct outcome *o = r->outcome;
    char shells[256];
    say_shells(r, shells, sizeof shells);
    o->result = r->prepared < 0 ? "not-injected" : registered ? "governed" : "unregistered";
    o->priority = r->prepared < 0 || !registered ? PRIORITY_WARNING : PRIORITY_INFO;
    fail(&o->cause, 0, "policy %.64s, %s%s%.60s%s%.150s", r->policy ? r->policy : "?", shells,
         r->reasons.count ? ", cooperative: " : "", r->reasons.count ? r->reasons.text[0] : "",
         registered ? "" : ", limits follow later: ", registered ? "" : r->unheard.text);
}

/* With the cgroups made: true if the container shall start. */
static bool enter(struct run *r)
{
    struct answer answer;
    struct error err;
    if (r->prepared < 0 && r->required) {
        leave_alone(r, "failed", true, &r->not_injected);
        return false;
    }
    if (write_record(r, false, &err)) {
        leave_alone(r, "failed", r->required, &err);
        return false;
    }
    enum verdict verdict = enroll(r, &answer);
    if (verdict == VERDICT_REFUSED) {
        fail(&err, 0, "%s", answer.refusal);
        leave_alone(r, "refused", r->required || answer.required, &err);
        return false;
    }
    if (verdict == VERDICT_NONE && r->required) {
        leave_alone(r, "failed", true, &r->unheard);
        return false;
    }
    mount_all(r);
    report(r, verdict == VERDICT_YES);
    conclude(r, verdict == VERDICT_YES);
    if (r->prepared < 0 && r->required)
        leave_alone(r, "failed", true, &r->not_injected);
    return true;
}

void govern(struct container *c, struct outcome *outcome)
{
    struct error err;
    run.c = c;
    run.outcome = outcome;
    injection_init(&run.in, c);
    run.required = required_here(&run);
    bool seen = !look(&run, &err);
    run.required = required_here(&run); /* config.json may have more annotations than the state */
    if (!seen)
        return give_up(&run, &err);
    if (!plan(&run))
        return;
    if (build(&run, &err))
        leave_alone(&run, "failed", run.required, &err);
    else if (enter(&run))
        return;
    take_back(&run);
}

void govern_hangs(struct outcome *outcome)
{
    struct error cause;
    run.outcome = outcome;
    fail(&cause, 0, "a file system has not answered for %d s: see to the storage of images and containers",
         EXPIRE_MS / 1000);
    leave_alone(&run, "failed", run.required, &cause);
}
