// SPDX-License-Identifier: GPL-2.0-only
/* Who charges memory while a budget is short: told at once, for a second later it is used up. The daemon decides what is
 * short (runtime/agentcgroup/budget.py) and leaves two numbers in the slot, so that a charge costs the same however many
 * containers there are.
 */
#include "lookup.bpf.h"
#include "scx.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define DEEPEST 12 /* cgroups between a process and the shared budget */
/* A container is told of no more often: until the daemon has acted it crosses with each charge. */
#define TELL_EVERY_NS (20 * 1000 * 1000ULL)

/* A task has no lock where it is about to return to user space, and nowhere else can it be parked. */
struct park {
    struct bpf_task_work work;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u32);
    __type(value, struct park);
} parks SEC(".maps");

static int returns(struct bpf_map *map, void *key, void *value)
{
    struct task_struct *task = bpf_get_current_task_btf();
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    u32 id = BPF_CORE_READ(task, pid);
    if (seen)
        seen->safe_at = bpf_ktime_get_ns();
    bpf_map_delete_elem(&parks, &id);
    scx_bpf_kick_cpu(bpf_get_smp_processor_id(), SCX_KICK_PREEMPT);
    return 0;
}

/* Mark a task of a call for the scheduler, which parks it when it has left the kernel, once for each decision. */
static void mark(struct slot *slot, struct task_struct *task, u64 now)
{
    struct task *seen = bpf_task_storage_get(&tasks, task, NULL, 0);
    struct park fresh = {}, *park;
    u32 id = BPF_CORE_READ(task, pid);
    if (!seen || seen->decision == slot->decision || cgid(parent_of(cgroup_of(task))) != slot->calls)
        return;
    seen->crossed_at = now;
    seen->decision = slot->decision;
    bpf_map_update_elem(&parks, &id, &fresh, BPF_NOEXIST);
    park = bpf_map_lookup_elem(&parks, &id);
    if (park)
        bpf_task_work_schedule_resume(task, &park->work, &parks, returns);
}

static bool waits(struct slot *slot, struct task_struct *task, u32 type)
{
    return type == SHARED_CROSSED ? slot->park : slot->calls_first && slot->calls_first != cgid(cgroup_of(task));
}

static void tell(struct slot *slot, u32 type, u64 pages)
{
    struct task_struct *task = bpf_get_current_task_btf();
    u64 now = bpf_ktime_get_ns();
    struct event *e;
    __sync_fetch_and_add(&slot->crossed, 1);
    if (waits(slot, task, type) && bpf_ksym_exists(bpf_task_work_schedule_resume))
        mark(slot, task, now);
    if (now - slot->told_ns < TELL_EVERY_NS)
        return;
    slot->told_ns = now;
    e = event(slot, type, bpf_get_current_cgroup_id());
    if (!e)
        return;
    e->pid = bpf_get_current_pid_tgid() >> 32;
    e->memory_bytes = pages * PAGE_BYTES;
    bpf_ringbuf_submit(e, 0);
}

/* Once for each batch of pages that a CPU takes ahead (MEMCG_CHARGE_BATCH in include/linux/memcontrol.h). */
SEC("fexit/page_counter_try_charge")
int BPF_PROG(charged, struct page_counter *counter)
{
    struct task_struct *task = bpf_get_current_task_btf();
    struct home *at = home_of(task);
    struct slot *slot = at ? slot_of(at) : NULL;
    struct mem_cgroup *memcg = slot ? memcg_of_task(task) : NULL;
    u32 level;
    u64 pages;
    if (!memcg || &memcg->memory != counter) /* of swap, or for another cgroup than the task's own */
        return 0;
    __sync_fetch_and_add(&slot->charges, 1);
    level = BPF_CORE_READ(memcg, css.cgroup, level);
    for (int i = 0; i < DEEPEST && counter; i++, level--) {
        if (level <= slot->shared_level) {
            if (level != slot->shared_level || !slot->shared_stop_at)
                break;
            pages = BPF_CORE_READ(counter, usage.counter);
            if (pages > slot->shared_stop_at)
                tell(slot, SHARED_CROSSED, pages);
            break;
        }
        if (level == slot->level + 1 && slot->calls_stop_at) {
            pages = BPF_CORE_READ(counter, usage.counter);
            if (pages > slot->calls_stop_at && cgid_of_counter(counter) == slot->calls)
                tell(slot, CALLS_CROSSED, pages);
        }
        counter = BPF_CORE_READ(counter, parent);
    }
    return 0;
}
