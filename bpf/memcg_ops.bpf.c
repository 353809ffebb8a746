// SPDX-License-Identifier: GPL-2.0-only
/* Experimental: what a kernel asks that has memcg_bpf_ops, which is not in Linux yet. Two versions of the patches are known,
 * of February (v6) and of May 2026 (v7); which one a kernel has is seen by the members of its struct. Attached to each
 * container, and asked for all cgroups below it.
 */
#include "lookup.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define MOST_MS 2000 /* the kernel's own, MEMCG_MAX_HIGH_DELAY_JIFFIES in mm/memcontrol.c */
#define MARGIN 16    /* of what is in use at the stop */

static struct slot *slot_of_memcg(struct mem_cgroup *memcg)
{
    struct home at;
    return find_home(BPF_CORE_READ(memcg, css.cgroup), &at) ? slot_of(&at) : NULL;
}

/* Pages in use in the cgroup of that level, at or above one. */
static u64 used_at(struct mem_cgroup *memcg, u32 wanted)
{
    struct page_counter *counter = &memcg->memory;
    u32 level = BPF_CORE_READ(memcg, css.cgroup, level);
    for (int i = 0; i < HIGHEST && counter && level > wanted; i++, level--)
        counter = BPF_CORE_READ(counter, parent);
    return counter && level == wanted ? BPF_CORE_READ(counter, usage.counter) : 0;
}

static bool within_reserve(struct mem_cgroup *memcg, const struct slot *slot)
{
    return slot->reserve && used_at(memcg, slot->level) <= slot->reserve;
}

/* Whether reclaim passes it by while there is anybody else. */
static bool is_low(struct mem_cgroup *memcg)
{
    struct slot *slot = slot_of_memcg(memcg);
    return slot && slot->priority != BATCH && (slot->priority == INTERACTIVE || within_reserve(memcg, slot));
}

/* Whether reclaim passes it by whatever happens. */
static bool is_min(struct mem_cgroup *memcg)
{
    struct slot *slot = slot_of_memcg(memcg);
    return slot && slot->priority == INTERACTIVE && within_reserve(memcg, slot);
}

/* How long one that has charged waits: the longer the further its budget is beyond the stop. */
static u32 delay_ms(struct mem_cgroup *memcg)
{
    struct slot *slot = slot_of_memcg(memcg);
    u64 used, stop, delay;
    if (!slot || !slot->shared_stop_at || slot->priority == INTERACTIVE)
        return 0;
    stop = slot->shared_stop_at;
    used = used_at(memcg, slot->shared_level);
    if (used <= stop)
        return 0;
    delay = (used - stop) * MOST_MS / (stop / MARGIN + 1);
    return delay > MOST_MS ? MOST_MS : delay;
}

struct memcg_bpf_ops___v6 {
    bool (*below_low)(struct mem_cgroup *memcg);
    bool (*below_min)(struct mem_cgroup *memcg);
    u32 (*get_high_delay_ms)(struct mem_cgroup *memcg);
};

struct memcg_bpf_ops___v7 {
    u32 (*memcg_charged)(struct mem_cgroup *memcg, u32 batch);
    bool (*below_low)(struct mem_cgroup *memcg, u64 low, u64 usage);
    bool (*below_min)(struct mem_cgroup *memcg, u64 min, u64 usage);
};

SEC("struct_ops/below_low")
bool BPF_PROG(low_v6, struct mem_cgroup *memcg)
{
    return is_low(memcg);
}

SEC("struct_ops/below_min")
bool BPF_PROG(min_v6, struct mem_cgroup *memcg)
{
    return is_min(memcg);
}

SEC("struct_ops/get_high_delay_ms")
u32 BPF_PROG(delay_v6, struct mem_cgroup *memcg)
{
    return delay_ms(memcg);
}

SEC("struct_ops/below_low")
bool BPF_PROG(low_v7, struct mem_cgroup *memcg, u64 low, u64 usage)
{
    return usage <= low || is_low(memcg);
}

SEC("struct_ops/below_min")
bool BPF_PROG(min_v7, struct mem_cgroup *memcg, u64 min, u64 usage)
{
    return usage <= min || is_min(memcg);
}

SEC("struct_ops/memcg_charged")
u32 BPF_PROG(charged_v7, struct mem_cgroup *memcg, u32 batch)
{
    return delay_ms(memcg);
}

SEC(".struct_ops.link")
struct memcg_bpf_ops___v6 memcg_v6 = {
    .below_low = (void *)low_v6,
    .below_min = (void *)min_v6,
    .get_high_delay_ms = (void *)delay_v6,
};

SEC(".struct_ops.link")
struct memcg_bpf_ops___v7 memcg_v7 = {
    .below_low = (void *)low_v7,
    .below_min = (void *)min_v7,
    .memcg_charged = (void *)charged_v7,
};
