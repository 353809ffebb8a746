/* SPDX-License-Identifier: GPL-2.0-only */
/* What all programs look up: cgroups, slots, and room for an event. */
#pragma once

#include "model.bpf.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define PAGE_BYTES 4096
#define NSEC_PER_SEC 1000000000ULL

static inline u64 cgid(struct cgroup *group)
{
    return BPF_CORE_READ(group, kn, id);
}

static inline struct cgroup *cgroup_of(struct task_struct *task)
{
    return BPF_CORE_READ(task, cgroups, dfl_cgrp);
}

static inline struct cgroup *parent_of(struct cgroup *group)
{
    return BPF_CORE_READ(group, self.parent, cgroup);
}

static inline struct slot *slot_of(const struct home *home)
{
    u32 index = home->slot;
    struct slot *slot = bpf_map_lookup_elem(&slots, &index);
    return slot && slot->root == home->root ? slot : NULL;
}

#define HIGHEST 16 /* cgroups between one and its container's subtree, or the hierarchy's root */

/* The governed subtree that a cgroup is in. */
static inline bool find_home(struct cgroup *group, struct home *home)
{
    for (int i = 0; i < HIGHEST && group; i++) {
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

/* Where a task belongs. A storage that another program is busy with on this CPU can neither be made nor, before Linux 7,
 * be read (kernel/bpf/bpf_task_storage.c), so that a task may be without: then its call is asked.
 */
static inline struct home *home_of(struct task_struct *task)
{
    struct home *at = bpf_task_storage_get(&home, task, NULL, 0);
    struct call *call;
    u64 id;
    if (at)
        return at;
    id = cgid(cgroup_of(task));
    call = bpf_map_lookup_elem(&calls, &id);
    return call ? &call->home : NULL;
}

static inline struct mem_cgroup *memcg_of(struct cgroup_subsys_state *css)
{
    return (void *)css - bpf_core_field_offset(struct mem_cgroup, css);
}

/* The cgroup that a counter counts for. */
static inline u64 cgid_of_counter(struct page_counter *counter)
{
    struct mem_cgroup *memcg = (void *)counter - bpf_core_field_offset(struct mem_cgroup, memory);
    return cgid(BPF_CORE_READ(memcg, css.cgroup));
}

/* The memory cgroup that a task's charges go to. */
static inline struct mem_cgroup *memcg_of_task(struct task_struct *task)
{
    int id = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
    struct css_set *set = BPF_CORE_READ(task, cgroups);
    struct cgroup_subsys_state *css = NULL;
    bpf_core_read(&css, sizeof css, &set->subsys[id]);
    return css ? memcg_of(css) : NULL;
}

/* NULL when the container has had its share of the ring for this second, or the ring is full. */
static inline struct event *event(struct slot *slot, u32 type, u64 id)
{
    u64 now = bpf_ktime_get_ns();
    struct event *e = NULL;
    if (slot->window != now / NSEC_PER_SEC) {
        slot->window = now / NSEC_PER_SEC;
        slot->events = 0;
    }
    if (__sync_fetch_and_add(&slot->events, 1) < EVENT_RATE)
        e = bpf_ringbuf_reserve(&events, sizeof *e, 0);
    if (!e) {
        __sync_fetch_and_add(&slot->dropped, 1);
        return NULL;
    }
    __builtin_memset(e, 0, sizeof *e);
    e->time_ns = now;
    e->root = slot->root;
    e->cgid = id;
    e->type = type;
    return e;
}
