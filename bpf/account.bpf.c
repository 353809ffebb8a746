/* SPDX-License-Identifier: GPL-2.0-only */
/* What each call used, from the kernel and without polling: one event when its cgroup becomes empty. And who leaves his
 * container's subtree, by being moved or by CLONE_INTO_CGROUP.
 */
#include "lookup.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* The call that a cgroup of a container is, if it is one; made where it is not known yet. */
static struct call *call_of(struct cgroup *group, const struct home *home)
{
    struct call fresh = {.home = *home};
    struct slot *slot = slot_of(home);
    u64 id = cgid(group);
    struct call *call = bpf_map_lookup_elem(&calls, &id);
    if (call || !slot || cgid(parent_of(group)) != slot->calls)
        return call;
    bpf_map_update_elem(&calls, &id, &fresh, BPF_NOEXIST);
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
    if (kept)
        *kept = now;
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
    struct home *had = home_of(parent), *has;
    struct cgroup *to = cgroup_of(child);
    if (to != cgroup_of(parent))
        arrived(child, to, had);
    else if (had && (has = bpf_task_storage_get(&home, child, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE)))
        *has = *had;
    return 0;
}

/* From Linux 7 on tracepoints can be preempted, and whoever comes to a program on the same CPU while another task is in it
 * goes uncounted (__bpf_trace_run in kernel/trace/bpf_trace.c, `recursion_misses` in bpftool's list).
 */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(exited, struct task_struct *task)
{
    struct home *had = home_of(task);
    struct call *call = had ? call_of(cgroup_of(task), had) : NULL;
    struct usage *usage;
    if (!call)
        return 0;
    usage = &call->usage;
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

static void begin(struct cgroup *group)
{
    struct home at;
    if (find_home(group, &at))
        call_of(group, &at);
}

static void end(struct cgroup *group)
{
    u64 id = cgid(group);
    struct call *call = bpf_map_lookup_elem(&calls, &id);
    struct slot *slot = call ? slot_of(&call->home) : NULL;
    struct event *e;
    if (!slot)
        return;
    __sync_fetch_and_add(&slot->ended, 1);
    e = event(slot, CALL_ENDED, id);
    if (e) {
        e->memory_bytes = peak_bytes(group);
        e->usage = call->usage;
        bpf_ringbuf_submit(e, 0);
    }
    bpf_map_delete_elem(&calls, &id);
}

/* Under css_set_lock, which cannot be preempted. */
SEC("tp_btf/cgroup_notify_populated")
int BPF_PROG(populated, struct cgroup *group, const char *path, int now)
{
    if (now)
        begin(group);
    else
        end(group);
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
    struct call *call = bpf_map_lookup_elem(&calls, &id);
    if (call)
        __sync_fetch_and_add(out ? &call->usage.egress_bytes : &call->usage.ingress_bytes, skb->len);
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
