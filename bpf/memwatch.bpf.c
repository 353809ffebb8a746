// SPDX-License-Identifier: GPL-2.0-only
/* Who charges memory while a budget is short: told at once, for a second later it is used up. The daemon decides what is
 * short (runtime/agentcgroup/budget.py) and leaves two numbers in the slot, so that a charge costs the same however many
 * containers there are.
 */
#include "lookup.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define DEEPEST 12 /* cgroups between a process and the shared budget */
/* A container is told of no more often: until the daemon has acted it crosses with each charge. */
#define TELL_EVERY_NS (20 * 1000 * 1000ULL)

static void tell(struct slot *slot, u32 type, u64 pages)
{
    u64 now = bpf_ktime_get_ns();
    struct event *e;
    __sync_fetch_and_add(&slot->crossed, 1);
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
