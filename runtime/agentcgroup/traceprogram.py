"""The programs of `agentcgroup trace`, as bcc compiles them. They include nothing but what bcc itself does: the headers
of new kernels that use more of C than its clang knows stay out.

ROOT is the id of the cgroup that is traced with all below it, LEVEL its depth.
"""

PROGRAM = """
#define CALLS 4096
#define SYSCALLS 16384
#define THREADS 16384
#define VM_FAULT_RETRY 0x400 /* include/linux/mm_types.h */
#define BLOCKED 0xff         /* TASK_REPORT and TASK_REPORT_IDLE, include/linux/sched.h */
#define DEAD 0x30            /* EXIT_DEAD and EXIT_ZOMBIE */

struct sum { u64 faults, fault_ns, blocked_ns, runnable_ns; };
struct syscall { u64 call, number; };
struct spent { u64 count, ns; };
struct wait { u64 since, call, blocked; };
struct entry { u64 since, call, number; };

BPF_HASH(calls, u64, struct sum, CALLS);
BPF_HASH(syscalls, struct syscall, struct spent, SYSCALLS);
BPF_HASH(waiting, u32, struct wait, THREADS);
BPF_HASH(inside, u32, struct entry, THREADS);
BPF_HASH(faulting, u32, struct entry, THREADS);
BPF_ARRAY(lost, u64, 1);

static inline u64 traced(void)
{
    return bpf_get_current_ancestor_cgroup_id(LEVEL) == ROOT ? bpf_get_current_cgroup_id() : 0;
}

static inline struct sum *sum_of(u64 call)
{
    struct sum none = {}, *sum = calls.lookup_or_try_init(&call, &none);
    if (!sum)
        lost.atomic_increment(0);
    return sum;
}

static inline void waited(struct wait *wait, u64 now)
{
    struct sum *sum = sum_of(wait->call);
    if (sum && wait->blocked)
        __sync_fetch_and_add(&sum->blocked_ns, now - wait->since);
    else if (sum)
        __sync_fetch_and_add(&sum->runnable_ns, now - wait->since);
}

TRACEPOINT_PROBE(sched, sched_switch)
{
    u64 now = bpf_ktime_get_ns(), call = traced();
    u32 prev = args->prev_pid, next = args->next_pid;
    struct wait *over = waiting.lookup(&next);
    struct wait begun = {.since = now, .call = call, .blocked = !!(args->prev_state & BLOCKED)};
    if (over) {
        waited(over, now);
        waiting.delete(&next);
    }
    if (call && args->prev_state & DEAD)
        inside.delete(&prev); /* exit does not return */
    else if (call && waiting.update(&prev, &begun))
        lost.atomic_increment(0);
    return 0;
}

TRACEPOINT_PROBE(sched, sched_wakeup)
{
    u64 now = bpf_ktime_get_ns();
    u32 thread = args->pid;
    struct wait *wait = waiting.lookup(&thread);
    if (wait && wait->blocked) {
        waited(wait, now);
        wait->since = now;
        wait->blocked = 0;
    }
    return 0;
}

RAW_TRACEPOINT_PROBE(sys_enter)
{
    u32 thread = bpf_get_current_pid_tgid();
    struct entry begun = {.since = bpf_ktime_get_ns(), .call = traced(), .number = ctx->args[1]};
    if (begun.call && inside.update(&thread, &begun))
        lost.atomic_increment(0);
    return 0;
}

RAW_TRACEPOINT_PROBE(sys_exit)
{
    u32 thread = bpf_get_current_pid_tgid();
    struct spent none = {}, *spent;
    struct syscall key = {};
    struct entry *entry = inside.lookup(&thread);
    if (!entry)
        return 0;
    key.call = entry->call;
    key.number = entry->number;
    spent = syscalls.lookup_or_try_init(&key, &none);
    if (spent) {
        __sync_fetch_and_add(&spent->count, 1);
        __sync_fetch_and_add(&spent->ns, bpf_ktime_get_ns() - entry->since);
    } else {
        lost.atomic_increment(0);
    }
    inside.delete(&thread);
    return 0;
}

KFUNC_PROBE(handle_mm_fault)
{
    u32 thread = bpf_get_current_pid_tgid();
    struct entry begun = {.since = bpf_ktime_get_ns(), .call = traced()};
    if (begun.call && faulting.update(&thread, &begun))
        lost.atomic_increment(0);
    return 0;
}

KRETFUNC_PROBE(handle_mm_fault, void *area, u64 address, u32 flags, void *registers, u32 result)
{
    u32 thread = bpf_get_current_pid_tgid();
    struct entry *entry = faulting.lookup(&thread);
    struct sum *sum = entry ? sum_of(entry->call) : NULL;
    if (sum) {
        __sync_fetch_and_add(&sum->fault_ns, bpf_ktime_get_ns() - entry->since);
        __sync_fetch_and_add(&sum->faults, !(result & VM_FAULT_RETRY)); /* it comes again */
    }
    faulting.delete(&thread);
    return 0;
}
"""
