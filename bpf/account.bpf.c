/* SPDX-License-Identifier: GPL-2.0-only */
/* What each call used, from the kernel and without polling: one event when its cgroup becomes empty. And who leaves his
 * container's subtree, by being moved or by CLONE_INTO_CGROUP.
 */
#include "lookup.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define DEEPEST 16 /* cgroups between a process and its container's subtree, or the hierarchy's root */

/* The governed subtree that a cgroup is in. */
static bool find_home(struct cgroup *group, struct home *home)
{
    for (int i = 0; i < DEEPEST && group; i++) {
        u64 id = cgid(group);
        u32 *index = bpf_map_lookup_elem(&roots, &id);
        if (index) {
            home->root = id;
            home->slot = *index;
            return true;
        }
        group = parent_of(group);
    }
    return false;
}

static struct usage *usage_of(struct cgroup *group, const struct slot *slot, bool make)
{
    static const struct usage nothing;
    struct usage *usage;
    u64 id = cgid(group);
    if (cgid(parent_of(group)) != slot->calls)
        return NULL;
    usage = bpf_map_lookup_elem(&calls, &id);
    if (usage || !make)
        return usage;
    bpf_map_update_elem(&calls, &id, &nothing, BPF_NOEXIST);
    return bpf_map_lookup_elem(&calls, &id);
}

static void escaped(struct slot *slot, struct task_struct *task, struct cgroup *to)
{
    struct event *e = event(slot, ESCAPED, cgid(to));
    __sync_fetch_and_add(&slot->escaped, 1);
    if (!e)
        return;
    e->pid = BPF_CORE_READ(task, tgid);
    bpf_core_read_str(e->comm, sizeof e->comm, &task->comm);
    bpf_ringbuf_submit(e, 0);
}

/* `task` is in `group` now, and was at home in `was`, if anywhere. */
static void arrived(struct task_struct *task, struct cgroup *group, struct home *was)
{
    struct home now = {}, *kept;
    bool governed = find_home(group, &now);
    struct slot *slot = was ? slot_of(was) : NULL;
    if (slot && was->root != now.root)
        escaped(slot, task, group);
    if (!governed) {
        if (was)
            bpf_task_storage_delete(&home, task);
        return;
    }
    kept = bpf_task_storage_get(&home, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
    if (!kept)
        return;
    *kept = now;
    slot = slot_of(kept);
    if (slot)
        usage_of(group, slot, true);
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(attached, struct cgroup *to, const char *path, struct task_struct *task)
{
    arrived(task, to, bpf_task_storage_get(&home, task, NULL, 0));
    return 0;
}

/* After copy_process, so the child is where CLONE_INTO_CGROUP has put it. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(forked, struct task_struct *parent, struct task_struct *child)
{
    struct home *had = bpf_task_storage_get(&home, parent, NULL, 0), *has;
    struct cgroup *to = cgroup_of(child);
    if (to != cgroup_of(parent))
        arrived(child, to, had);
    else if (had && (has = bpf_task_storage_get(&home, child, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE)))
        *has = *had;
    return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(exited, struct task_struct *task)
{
    struct home *had = bpf_task_storage_get(&home, task, NULL, 0);
    struct slot *slot = had ? slot_of(had) : NULL;
    struct usage *usage = slot ? usage_of(cgroup_of(task), slot, true) : NULL;
    if (!usage)
        return 0;
    __sync_fetch_and_add(&usage->cpu_ns, BPF_CORE_READ(task, se.sum_exec_runtime));
    __sync_fetch_and_add(&usage->read_bytes, BPF_CORE_READ(task, ioac.read_bytes));
    __sync_fetch_and_add(&usage->write_bytes, BPF_CORE_READ(task, ioac.write_bytes));
    if (BPF_CORE_READ(task, signal, live.counter) == 0) /* do_exit has counted this thread out already */
        __sync_fetch_and_add(&usage->processes, 1);
    return 0;
}

static u64 peak_bytes(struct cgroup *group)
{
    int id = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
    struct cgroup_subsys_state *css = NULL;
    bpf_core_read(&css, sizeof css, &group->subsys[id]);
    if (!css || BPF_CORE_READ(css, cgroup) != group)
        return 0;
    return BPF_CORE_READ(memcg_of(css), memory.watermark) * PAGE_BYTES;
}

SEC("tp_btf/cgroup_notify_populated")
int BPF_PROG(emptied, struct cgroup *group, const char *path, int populated)
{
    u64 id = cgid(group);
    struct usage *usage = populated ? NULL : bpf_map_lookup_elem(&calls, &id);
    struct home at;
    struct slot *slot;
    struct event *e;
    if (!usage || !find_home(group, &at) || !(slot = slot_of(&at)))
        return 0;
    __sync_fetch_and_add(&slot->ended, 1);
    e = event(slot, CALL_ENDED, id);
    if (e) {
        e->memory_bytes = peak_bytes(group);
        e->usage = *usage;
        bpf_ringbuf_submit(e, 0);
    }
    bpf_map_delete_elem(&calls, &id);
    return 0;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(removed, struct cgroup *group)
{
    u64 id = cgid(group);
    bpf_map_delete_elem(&calls, &id);
    bpf_map_delete_elem(&refusals, &id);
    return 0;
}

static int packet(struct __sk_buff *skb, bool out)
{
    u64 id = bpf_skb_cgroup_id(skb);
    struct usage *usage = bpf_map_lookup_elem(&calls, &id);
    if (usage)
        __sync_fetch_and_add(out ? &usage->egress_bytes : &usage->ingress_bytes, skb->len);
    return 1;
}

SEC("cgroup_skb/egress")
int egress(struct __sk_buff *skb)
{
    return packet(skb, true);
}

SEC("cgroup_skb/ingress")
int ingress(struct __sk_buff *skb)
{
    return packet(skb, false);
}
