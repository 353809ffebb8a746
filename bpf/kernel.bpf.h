/* SPDX-License-Identifier: GPL-2.0-only */
/* The few kernel types that we read, by name: CO-RE finds where each field is on the running kernel (libbpf, "relo"). */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
    int counter;
} atomic_t;

typedef struct {
    long counter;
} atomic_long_t;

struct kernfs_node {
    u64 id;
};

struct cgroup_subsys_state {
    struct cgroup *cgroup;
    struct cgroup_subsys_state *parent;
};

enum cgroup_subsys_id {
    cpu_cgrp_id,
    memory_cgrp_id,
};

struct cgroup {
    struct cgroup_subsys_state self;
    int level;
    struct kernfs_node *kn;
    struct cgroup_subsys_state *subsys[1];
};

struct css_set {
    struct cgroup_subsys_state *subsys[1];
    struct cgroup *dfl_cgrp;
};

struct page_counter {
    atomic_long_t usage;
    unsigned long watermark;
    struct page_counter *parent;
};

struct mem_cgroup {
    struct cgroup_subsys_state css;
    struct page_counter memory;
};

/* In a task_group, a cgroup's part of the cpu controller. */
struct scx_task_group {
    u32 weight; /* as cpu.weight */
};

struct task_group {
    struct cgroup_subsys_state css;
    struct scx_task_group scx;
};

struct sched_entity {
    u64 sum_exec_runtime;
};

struct sched_ext_entity {
    u32 flags;
    u32 weight; /* of the task's nice value; 100 is nice 0 */
    u64 dsq_vtime;
};

struct task_io_accounting {
    u64 read_bytes;
    u64 write_bytes;
};

typedef struct {
    unsigned long sig[1];
} sigset_t;

struct sigpending {
    sigset_t signal;
};

struct signal_struct {
    atomic_t live;
    struct sigpending shared_pending;
    unsigned int flags;
};

struct mm_struct;

struct cpumask {
    unsigned long bits[1];
};

struct task_struct {
    unsigned int flags;
    int pid;
    int tgid;
    int exit_code;
    int nr_cpus_allowed;
    const struct cpumask *cpus_ptr;
    unsigned short migration_disabled;
    unsigned long jobctl;
    struct sched_entity se;
    struct sched_ext_entity scx;
    struct signal_struct *signal;
    sigset_t blocked;
    struct sigpending pending;
    struct css_set *cgroups;
    struct task_io_accounting ioac;
    char comm[16];
};

#pragma clang attribute pop
