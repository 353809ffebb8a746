/* SPDX-License-Identifier: GPL-2.0-only */
/* What we use of sched_ext (kernel/sched/ext.c, Linux 7.1) and of the kernel's constants. */
#pragma once

#include "kernel.bpf.h"
#include <bpf/bpf_helpers.h>

#define BPF_MAP_TYPE_CGRP_STORAGE 32 /* Linux 6.2, later than some headers */
#define CLOCK_MONOTONIC 1
#define ENOMEM 12
#define PF_EXITING 0x00000004
#define PF_KTHREAD 0x00200000
#define SIGNAL_GROUP_EXIT 4
/* JOBCTL_STOP_PENDING, TRAP_STOP, TRAP_NOTIFY and TRAP_FREEZE (include/linux/sched/jobctl.h). */
#define JOBCTL_PENDING_MASK (1 << 17 | 1 << 19 | 1 << 20 | 1 << 23)

/* ABI by name in BTF, but with these values since 6.12 (enum scx_ops_flags and others in kernel/sched/ext_internal.h). */
#define SCX_OPS_ENQ_LAST (1ULL << 1)
#define SCX_OPS_SWITCH_PARTIAL (1ULL << 3)
#define SCX_OPS_ENQ_MIGRATION_DISABLED (1ULL << 4)
#define SCX_DSQ_LOCAL (1ULL << 63 | 2)
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_LAST (1ULL << 41)
#define SCX_TASK_QUEUED 1
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum scx_exit_kind {
    SCX_EXIT_NONE,
};

struct scx_exit_info {
    enum scx_exit_kind kind;
    s64 exit_code;
    const char *reason;
    char *msg;
};

#pragma clang attribute pop

/* Of struct sched_ext_ops only what we set: libbpf finds each member by its name (bpf_map__init_kern_struct_ops). */
struct sched_ext_ops {
    s32 (*select_cpu)(struct task_struct *task, s32 before, u64 flags);
    void (*enqueue)(struct task_struct *task, u64 flags);
    void (*dispatch)(s32 cpu, struct task_struct *before);
    void (*running)(struct task_struct *task);
    void (*stopping)(struct task_struct *task, bool runnable);
    s32 (*init_task)(struct task_struct *task, void *arguments);
    void (*cgroup_set_bandwidth)(struct cgroup *group, u64 period_us, u64 quota_us, u64 burst_us);
    s32 (*init)(void);
    void (*exit)(struct scx_exit_info *info);
    u64 flags;
    u32 timeout_ms;
    char name[128];
};

struct bpf_iter_scx_dsq {
    u64 opaque[6];
};

/* Linux 6.18; sched_ext has it later than that. */
struct bpf_task_work {
    u64 opaque;
} __attribute__((aligned(8)));

struct bpf_map {
    u32 id;
};

extern int bpf_task_work_schedule_resume(struct task_struct *task, struct bpf_task_work *work, void *map,
                                         int (*callback)(struct bpf_map *map, void *key, void *value)) __ksym __weak;

#ifndef bpf_ksym_exists /* libbpf 1.2 */
#define bpf_ksym_exists(symbol) (!!symbol)
#endif

extern s32 scx_bpf_select_cpu_dfl(struct task_struct *task, s32 before, u64 flags, bool *idle) __ksym;
extern s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed, u64 flags) __ksym;
extern s32 scx_bpf_create_dsq(u64 queue, s32 node) __ksym;
extern s32 scx_bpf_dsq_nr_queued(u64 queue) __ksym;
extern void scx_bpf_dsq_insert(struct task_struct *task, u64 queue, u64 slice, u64 flags) __ksym;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *task, u64 queue, u64 slice, u64 vtime, u64 flags) __ksym;
extern bool scx_bpf_dsq_move_to_local(u64 queue) __ksym;
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *from, u64 vtime) __ksym;
extern bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *from, struct task_struct *task, u64 queue, u64 flags) __ksym;
extern void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym __weak;
extern struct task_struct *scx_bpf_dsq_peek(u64 queue) __ksym;
extern bool scx_bpf_task_set_slice(struct task_struct *task, u64 slice) __ksym;
extern u32 scx_bpf_nr_cpu_ids(void) __ksym;
extern s32 scx_bpf_task_cpu(const struct task_struct *task) __ksym;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *from, u64 queue, u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *from) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *from) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
