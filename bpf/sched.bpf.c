// SPDX-License-Identifier: GPL-2.0-only
/* The CPU, shared by container: who is of a higher priority goes first, and among those who is behind. An agent that has
 * used its credit of CPU time falls behind the others of its priority until the next boost, however many small calls it is
 * made of. Who waits is never starved, and a CPU is never idle while anybody waits (but for who is parked, see below).
 *
 * There is a queue for each priority and level. In a queue, tasks are in the order of their container's virtual time: CPU time
 * divided by cpu.weight, charged ahead for a slice when a task comes in and put right when it stops. Credit is the idea of
 * a multi-level feedback queue (Corbato, Daggett, Daley 1962), kept for the agent and not for a process.
 */
#include "lookup.bpf.h"
#include "scx.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define NSEC_PER_MSEC 1000000ULL
#define SLICE_NS (5 * NSEC_PER_MSEC)
#define LAG_NS (4 * SLICE_NS) /* of virtual time: who has slept has saved no more */
#define LEVELS 3
#define QUEUES (PRIORITIES * LEVELS)
#define NO_QUEUE QUEUES
/* An agent's credit of CPU time at the first and the second level, and when all of it is given anew. */
#define CREDIT_NS_0 (2 * NSEC_PER_SEC)
#define CREDIT_NS_1 (10 * NSEC_PER_SEC)
#define BOOST_NS (60 * NSEC_PER_SEC)
/* Each queue gets a slice of each CPU in such a time, whatever is in the others. */
#define STARVED_NS (100 * NSEC_PER_MSEC)
#define WEIGHED_NS NSEC_PER_SEC /* a weight is looked up anew after such a time */
#define WEIGHT 100
#define DEEPEST 12 /* cgroups whose weights count, from a container upwards */
#define CPUS 1024

#define PARKED 100 /* a queue of its own */
#define PARK_NS NSEC_PER_SEC
#define SAFE_NS (5 * NSEC_PER_MSEC) /* the kick of a CPU takes microseconds, on an emulated one half a millisecond */
#define LOOK_NS (2 * NSEC_PER_MSEC) /* between looks at who is parked */

struct queue {
    u64 clock; /* the greatest virtual time of who has been served from it */
    u64 since; /* somebody has waited in it, or was last served */
};

struct cpu {
    u32 queue; /* of the task that runs there, or NO_QUEUE */
};

struct timer {
    struct bpf_timer timer;
    u64 until; /* it goes on until then at least */
};

struct {
    __uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct share);
} shares SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, CPUS);
    __type(key, u32);
    __type(value, struct cpu);
} cpus SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct timer);
} timers SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct ejection);
} ejected SEC(".maps");

static struct queue queues[QUEUES];

/* --- shares ------------------------------------------------------------------------------------------------------- */

/* The weights of a cgroup and of those above it, multiplied; those deeper than `deepest` are not counted. Global functions
 * are verified once, not at each call; they take numbers.
 */
__noinline u32 weight_of(u64 address, u32 deepest)
{
    struct cgroup_subsys_state *css = (void *)address;
    u64 weight = WEIGHT;
    for (int i = 0; i < DEEPEST && css; i++) {
        u32 level = BPF_CORE_READ(css, cgroup, level);
        if (level == 0)
            break;
        if (level <= deepest)
            weight = weight * BPF_CORE_READ((struct task_group *)css, scx.weight) / WEIGHT;
        css = BPF_CORE_READ(css, parent);
    }
    return weight < 1 ? 1 : weight > 10000 * WEIGHT ? 10000 * WEIGHT : weight;
}

static void weigh(struct share *share, struct task_struct *task, u32 deepest, u64 now)
{
    struct css_set *set = BPF_CORE_READ(task, cgroups);
    u64 css = 0;
    if (share->weight && now - share->weighed_ns < WEIGHED_NS)
        return;
    bpf_core_read(&css, sizeof css, &set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)]);
    share->weight = weight_of(css, deepest);
    share->weighed_ns = now;
}

static struct slot *slot_of_task(struct task_struct *task)
{
    struct home *at = home_of(task);
    return at ? slot_of(at) : NULL;
}

/* What a task's CPU time is counted for: its container, or its cgroup. */
static struct share *share_of(struct task_struct *task, struct slot *slot, u64 now)
{
    struct share *share = NULL;
    struct css_set *set;
    if (slot) {
        weigh(&slot->share, task, slot->level, now);
        return &slot->share;
    }
    bpf_rcu_read_lock();
    set = task->cgroups;
    if (set && set->dfl_cgrp)
        share = bpf_cgrp_storage_get(&shares, set->dfl_cgrp, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
    bpf_rcu_read_unlock();
    if (share)
        weigh(share, task, ~0U, now);
    return share;
}

static u64 weighted(u64 ns, const struct share *share)
{
    return ns * WEIGHT / (share->weight ?: WEIGHT);
}

/* The queue where a share is now; one that comes into another begins at its clock. */
static u32 queue_of(struct share *share, const struct slot *slot, u64 now)
{
    u32 priority = slot ? slot->priority : INTERACTIVE, level, queue;
    if (share->window != now / BOOST_NS) {
        share->window = now / BOOST_NS;
        share->spent_ns = 0;
    }
    level = share->spent_ns < CREDIT_NS_0 ? 0 : share->spent_ns < CREDIT_NS_1 ? 1 : 2;
    queue = (priority < PRIORITIES ? priority : BATCH) * LEVELS + level;
    if (share->queue != queue && queue < QUEUES) {
        share->queue = queue;
        share->vtime = queues[queue].clock;
    }
    return queue;
}

/* What a task has run since the last time, or since it was given its CPU. */
static void account(struct task *seen, struct share *share, struct slot *slot, u64 now)
{
    u64 used = now - seen->ran_at;
    __sync_fetch_and_add(&share->vtime, weighted(used, share) - seen->charged);
    __sync_fetch_and_add(&share->spent_ns, weighted(used, share));
    if (slot)
        __sync_fetch_and_add(&slot->cpu_ns, used);
    seen->charged = 0;
}

static void advance(u32 queue, u64 vtime)
{
    if (queue < QUEUES && (s64)(vtime - queues[queue].clock) > 0)
        queues[queue].clock = vtime;
}

/* --- who is parked ------------------------------------------------------------------------------------------------ */

/* It has something else to do than to wait: to end, to stop, to freeze, to be traced, to handle a signal. */
static bool is_wanted(struct task_struct *task)
{
    u64 pending = BPF_CORE_READ(task, pending.signal.sig[0]) | BPF_CORE_READ(task, signal, shared_pending.signal.sig[0]);
    return task->flags & PF_EXITING || BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT ||
           task->jobctl & JOBCTL_PENDING_MASK || pending & ~BPF_CORE_READ(task, blocked.sig[0]);
}

/* More than by this program, if it runs for that task, and by the one that had its CPU kicked, which may not have come to
 * its end (memwatch.bpf.c). That one holds RCU Tasks Trace, so that no program can be detached until the task goes on.
 */
static bool is_migration_disabled(struct task_struct *task)
{
    return task->migration_disabled > 1 + (bpf_get_current_task_btf() == task);
}

static void look_again(struct timer *timer)
{
    bpf_timer_start(&timer->timer, LOOK_NS, 0);
}

/* Whether it has come to a budget's stop, and is where it can wait: about to return to user space. */
static bool park(struct task_struct *task, struct task *seen, struct slot *slot, u64 flags, u64 now)
{
    struct timer *timer;
    u64 until;
    u32 key = 0;
    if (!seen->crossed_at)
        return false;
    if (seen->decision != slot->decision || now - seen->crossed_at > PARK_NS || is_wanted(task)) {
        seen->crossed_at = 0;
        return false;
    }
    if (now - seen->safe_at > SAFE_NS || is_migration_disabled(task))
        return false;
    timer = bpf_map_lookup_elem(&timers, &key);
    if (!timer)
        return false;
    seen->until = now + PARK_NS;
    slot->park_lag_ns = now - seen->crossed_at;
    __sync_fetch_and_add(&slot->parks, 1);
    seen->crossed_at = 0;
    scx_bpf_dsq_insert_vtime(task, PARKED, SLICE_NS, seen->until, flags);
    until = timer->until;
    timer->until = seen->until;
    if (now + PARK_NS / 10 >= until) /* it has come to its end, or is about to */
        look_again(timer);
    return true;
}

static bool goes_on(struct task_struct *task, struct slot *slot, u64 now)
{
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    if (!seen || now >= seen->until)
        return true;
    if (seen->decision == slot->decision && !is_wanted(task))
        return false;
    __sync_fetch_and_add(&slot->early, 1);
    return true;
}

static void wake_idle(struct task_struct *task)
{
    s32 cpu = scx_bpf_pick_idle_cpu(task->cpus_ptr, 0);
    if (cpu >= 0)
        scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

static int look(void *map, u32 *key, struct timer *timer)
{
    struct bpf_iter_scx_dsq parked;
    struct task_struct *task;
    u64 now = bpf_ktime_get_ns();
    bpf_rcu_read_lock();
    if (!bpf_iter_scx_dsq_new(&parked, PARKED, 0)) {
        while ((task = bpf_iter_scx_dsq_next(&parked))) {
            struct slot *slot = slot_of_task(task);
            u32 queue = slot ? slot->share.queue : 0;
            if (queue >= QUEUES || (slot && !goes_on(task, slot, now)))
                continue;
            scx_bpf_dsq_move_set_vtime(&parked, queues[queue].clock);
            if (scx_bpf_dsq_move_vtime(&parked, task, queue, 0))
                wake_idle(task);
        }
    }
    bpf_iter_scx_dsq_destroy(&parked);
    bpf_rcu_read_unlock();
    if (scx_bpf_dsq_nr_queued(PARKED) > 0 || now < timer->until)
        look_again(timer);
    return 0;
}

/* --- the queues --------------------------------------------------------------------------------------------------- */

SEC("struct_ops/select_cpu")
s32 BPF_PROG(select_cpu, struct task_struct *task, s32 before, u64 flags)
{
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    bool idle = false;
    s32 cpu = scx_bpf_select_cpu_dfl(task, before, flags, &idle);
    if (idle && !(seen && seen->crossed_at))
        scx_bpf_dsq_insert(task, SCX_DSQ_LOCAL, SLICE_NS, 0);
    return cpu;
}

struct search {
    u64 mask;
    u32 first, count, queue;
    s32 found;
};

/* One CPU: whether somebody less urgent runs there who may be put off. 1 ends the search. */
static long compare(u64 step, struct search *search)
{
    u32 number = search->first + (u32)step, count = search->count;
    struct cpu *cpu;
    u64 bits = 0;
    if (number >= count)
        number -= count;
    cpu = bpf_map_lookup_elem(&cpus, &number);
    if (!cpu || cpu->queue >= NO_QUEUE || cpu->queue <= search->queue)
        return 0;
    bpf_probe_read_kernel(&bits, sizeof bits, (void *)(search->mask + number / 64 * 8));
    if (!(bits >> number % 64 & 1))
        return 0;
    search->found = number;
    return 1;
}

static void preempt(struct task_struct *task, u32 queue)
{
    struct search search = {
        .first = scx_bpf_task_cpu(task), .count = scx_bpf_nr_cpu_ids(), .queue = queue, .found = -1
    };
    bpf_core_read(&search.mask, sizeof search.mask, &task->cpus_ptr);
    search.mask += bpf_core_field_offset(struct cpumask, bits);
    bpf_loop(search.count, compare, &search, 0);
    if (search.found >= 0)
        scx_bpf_kick_cpu(search.found, SCX_KICK_PREEMPT);
}

SEC("struct_ops/enqueue")
void BPF_PROG(enqueue, struct task_struct *task, u64 flags)
{
    u64 now = bpf_ktime_get_ns(), at, charge;
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    struct slot *slot = slot_of_task(task);
    struct share *share;
    s32 cpu;
    u32 queue;
    if (seen && slot && park(task, seen, slot, flags, now))
        return;
    share = share_of(task, slot, now);
    queue = share ? queue_of(share, slot, now) : NO_QUEUE;
    if (!seen || queue >= QUEUES || flags & SCX_ENQ_LAST || (task->flags & PF_KTHREAD && task->nr_cpus_allowed == 1)) {
        scx_bpf_dsq_insert(task, SCX_DSQ_LOCAL, SLICE_NS, flags);
        return;
    }
    if (!scx_bpf_dsq_nr_queued(queue))
        queues[queue].since = now;
    if ((s64)(share->vtime - (queues[queue].clock - LAG_NS)) < 0)
        share->vtime = queues[queue].clock - LAG_NS;
    charge = weighted(SLICE_NS, share);
    at = __sync_fetch_and_add(&share->vtime, charge - seen->charged);
    seen->charged = charge;
    if (task->scx.weight < WEIGHT) /* nice: later than others of its cgroup */
        at += charge * WEIGHT / (task->scx.weight ?: 1);
    scx_bpf_dsq_insert_vtime(task, queue, SLICE_NS, at, flags);
    cpu = scx_bpf_pick_idle_cpu(task->cpus_ptr, 0);
    if (cpu >= 0)
        scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
    else if (flags & SCX_ENQ_WAKEUP)
        preempt(task, queue);
}

static bool serve(u32 queue, u64 now)
{
    if (!scx_bpf_dsq_move_to_local(queue))
        return false;
    queues[queue].since = now;
    return true;
}

/* Whether who has the CPU goes on: nobody who waits comes before him. He is in no queue yet. */
static bool stays(struct task_struct *task, u64 now)
{
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    struct slot *slot = slot_of_task(task);
    struct share *share = share_of(task, slot, now);
    struct task_struct *first;
    u32 own;
    if (!seen || !share || seen->crossed_at || !seen->ran_at)
        return false;
    account(seen, share, slot, now);
    seen->ran_at = now;
    own = queue_of(share, slot, now);
    for (u32 queue = 0; queue < QUEUES && queue <= own; queue++) {
        first = scx_bpf_dsq_peek(queue);
        if (first && (queue < own || (s64)(first->scx.dsq_vtime - share->vtime) < 0))
            return false;
    }
    advance(own, share->vtime);
    return scx_bpf_task_set_slice(task, SLICE_NS);
}

SEC("struct_ops/dispatch")
void BPF_PROG(dispatch, s32 cpu, struct task_struct *before)
{
    u64 now = bpf_ktime_get_ns(), patience = STARVED_NS / scx_bpf_nr_cpu_ids();
    for (u32 queue = QUEUES - 1; queue > 0; queue--)
        if (now - queues[queue].since > patience && scx_bpf_dsq_nr_queued(queue) && serve(queue, now))
            return;
    if (before && before->scx.flags & SCX_TASK_QUEUED && stays(before, now))
        return;
    for (u32 queue = 0; queue < QUEUES; queue++)
        if (serve(queue, now))
            return;
}

static struct cpu *cpu_here(void)
{
    u32 number = bpf_get_smp_processor_id();
    return bpf_map_lookup_elem(&cpus, &number);
}

SEC("struct_ops/running")
void BPF_PROG(running, struct task_struct *task)
{
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    u64 now = bpf_ktime_get_ns();
    struct slot *slot = slot_of_task(task);
    struct share *share = share_of(task, slot, now);
    struct cpu *cpu = cpu_here();
    if (!seen || !share || !cpu)
        return;
    seen->ran_at = now;
    cpu->queue = share->queue;
    if (seen->charged)
        advance(share->queue, task->scx.dsq_vtime);
}

SEC("struct_ops/stopping")
void BPF_PROG(stopping, struct task_struct *task, bool runnable)
{
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    u64 now = bpf_ktime_get_ns();
    struct slot *slot = slot_of_task(task);
    struct share *share = share_of(task, slot, now);
    struct cpu *cpu = cpu_here();
    if (cpu)
        cpu->queue = NO_QUEUE;
    if (seen && share && seen->ran_at)
        account(seen, share, slot, now);
}

SEC("struct_ops/init_task")
s32 BPF_PROG(init_task, struct task_struct *task, void *arguments)
{
    return bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE) ? 0 : -ENOMEM;
}

SEC("struct_ops.s/init")
s32 BPF_PROG(init)
{
    u32 key = 0;
    struct timer *timer = bpf_map_lookup_elem(&timers, &key);
    s32 error;
    if (!timer)
        return -ENOMEM;
    bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
    bpf_timer_set_callback(&timer->timer, look);
    for (u32 queue = 0; queue < QUEUES; queue++)
        if ((error = scx_bpf_create_dsq(queue, -1)))
            return error;
    return scx_bpf_create_dsq(PARKED, -1);
}

static void tell(u32 type, u64 id)
{
    struct event *e = bpf_ringbuf_reserve(&events, sizeof *e, 0);
    if (!e)
        return;
    __builtin_memset(e, 0, sizeof *e);
    e->time_ns = bpf_ktime_get_ns();
    e->type = type;
    e->cgid = id;
    bpf_ringbuf_submit(e, 0);
}

/* A cgroup has been given a cpu.max, which is not kept here. */
SEC("struct_ops/cgroup_set_bandwidth")
void BPF_PROG(bandwidth, struct cgroup *group, u64 period_us, u64 quota_us, u64 burst_us)
{
    if (quota_us != ~0ULL)
        tell(BANDWIDTH, cgid(group));
}

SEC("struct_ops/exit")
void BPF_PROG(ended, struct scx_exit_info *info)
{
    u32 key = 0;
    struct ejection *ejection = bpf_map_lookup_elem(&ejected, &key);
    if (ejection) {
        ejection->time_ns = bpf_ktime_get_ns();
        ejection->kind = info->kind;
        ejection->code = info->exit_code;
        bpf_core_read_str(ejection->reason, sizeof ejection->reason, info->reason);
        bpf_core_read_str(ejection->message, sizeof ejection->message, info->msg);
    }
    tell(EJECTED, 0);
}

#define OPERATIONS                                                                                                        \
    .select_cpu = (void *)select_cpu, .enqueue = (void *)enqueue, .dispatch = (void *)dispatch,                           \
    .running = (void *)running, .stopping = (void *)stopping, .init_task = (void *)init_task, .init = (void *)init,       \
    .exit = (void *)ended, .timeout_ms = 30000, .name = "agentcgroup"

/* One of them is attached. `partial`: only tasks of SCHED_EXT, below all of the fair class. */
SEC(".struct_ops.link")
struct sched_ext_ops full = {
    OPERATIONS,
    .cgroup_set_bandwidth = (void *)bandwidth,
    .flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_MIGRATION_DISABLED,
};

SEC(".struct_ops.link")
struct sched_ext_ops partial = {
    OPERATIONS,
    .flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_MIGRATION_DISABLED | SCX_OPS_SWITCH_PARTIAL,
};
