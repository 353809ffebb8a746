// SPDX-License-Identifier: GPL-2.0-only
/* A call that has asked for it is told ENOMEM at its limit instead of being ended there. What is counted is address space
 * that may be written, not pages: who reserves more than it uses (Go, Java, Node) is refused too early.
 */
#include "lookup.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define ENOMEM 12

/* Before brk, mmap, mprotect, fork and execve take address space (mm/util.c, __vm_enough_memory). */
SEC("fmod_ret/security_vm_enough_memory_mm")
int BPF_PROG(enomem, struct mm_struct *mm, u64 pages, int verdict)
{
    struct task_struct *task = bpf_get_current_task_btf();
    struct refusal *refusal;
    struct mem_cgroup *memcg;
    u64 id;
    if (verdict)
        return verdict;
    id = bpf_get_current_cgroup_id();
    refusal = bpf_map_lookup_elem(&refusals, &id);
    memcg = refusal ? memcg_of_task(task) : NULL;
    if (!memcg || (BPF_CORE_READ(memcg, memory.usage.counter) + pages) * PAGE_BYTES <= refusal->limit_bytes)
        return 0;
    __sync_fetch_and_add(&refusal->times, 1);
    return -ENOMEM;
}
