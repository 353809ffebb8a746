/* SPDX-License-Identifier: GPL-2.0-only */
/* The few kernel types that we read, by name: CO-RE finds where each field is on the running kernel (libbpf, "relo"). */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

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

struct sched_entity {
    u64 sum_exec_runtime;
};

struct task_io_accounting {
    u64 read_bytes;
    u64 write_bytes;
};

struct signal_struct {
    atomic_t live;
};

struct mm_struct;

struct task_struct {
    unsigned int flags;
    int pid;
    int tgid;
    int exit_code;
    struct sched_entity se;
    struct signal_struct *signal;
    struct css_set *cgroups;
    struct task_io_accounting ioac;
    char comm[16];
};

#pragma clang attribute pop
