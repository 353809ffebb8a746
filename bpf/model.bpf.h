/* SPDX-License-Identifier: GPL-2.0-only */
/* The data that BPF programs, the daemon and the commands share. runtime/agentcgroup/bpf/model.py has the same layouts. A "cgid" is a cgroup's inode number, what stat(2) and bpf_get_current_cgroup_id() give.
 *
 *  map      key                  value         written by
 *  roots    cgid of agentcgroup/ slot's index  the daemon, before the container's first instruction; removed with it
 *  slots    index                struct slot   its first half the daemon, its second half BPF; mmap-ed
 *  home     task                 struct home   BPF at fork and attach; the daemon for tasks that were there before
 *  calls    cgid of calls/N      struct call   BPF: made when the cgroup is populated, gone once it is empty
 *  refusals cgid of calls/N      struct refusal  the daemon, for calls that get ENOMEM; BPF counts; gone with the call
 *  tasks    task                 struct task   memwatch marks who is to be parked; sched: when it ran, what it was charged
 *  parks    thread's id          struct park   memwatch, with sched, where the kernel has work for tasks (6.18)
 *  ejected  0                    struct ejection  sched, when the kernel takes it out
 *  events   ring buffer          struct event  BPF, on the end of a call, an escape, a crossing; the daemon reads
 *
 * A newer layout only adds fields at the end of a value, where zero is "none": then what is pinned can be carried over.
 */
#pragma once

#include "kernel.bpf.h"
#include <bpf/bpf_helpers.h>

#define MAX_ROOTS 1024
#define MAX_CALLS 16384
#define RING_BYTES (1 << 20)
/* Events of one container a second; the rest is counted as dropped, for others need the ring too. */
#define EVENT_RATE 500

/* Two budgets, each a cgroup whose limit others share: calls/ between its calls, and the lowest limited cgroup above the
 * container between its containers. Who charges while more than `stop_at` is in use there is to be looked at.
 */
/* CPU time that a container has had, or under `full` a cgroup of the host; sched.bpf.c. */
struct share {
    u64 vtime;      /* ns, by weight, on the clock of `queue` */
    u64 spent_ns;   /* by weight, in `window` */
    u64 window;     /* between two boosts */
    u64 weighed_ns; /* when `weight` was looked up */
    u32 weight;     /* 100 is the default */
    u32 queue;
};

struct slot {
    u64 root;            /* cgid of agentcgroup/; 0: free */
    u64 calls;           /* cgid of agentcgroup/calls */
    u64 calls_stop_at;   /* pages in calls/; 0: no such */
    u64 shared_stop_at;  /* pages in the shared budget; 0: no such */
    u32 level;           /* of agentcgroup/ in the hierarchy */
    u32 shared_level;    /* of the shared budget; 0: none */
    u32 priority;        /* enum priority */
    u32 park;            /* whether who comes to shared_stop_at is parked until the daemon has decided */
    u64 decision;        /* how often that was, from 1 on; who was parked before goes on */
    u64 calls_first;     /* cgid of the call that goes on while others who come to calls_stop_at are parked; 0: none is */
    u64 reserve;         /* pages that it was promised */
    u64 window; /* the second in which `events` were sent */
    u64 events;
    u64 dropped;
    u64 ended;   /* calls */
    u64 escaped; /* processes */
    u64 charges; /* of memory, in batches of some 64 pages a CPU */
    u64 crossed; /* how many found more than stop_at in use */
    u64 told_ns; /* when that was last told */
    struct share share;
    u64 cpu_ns;      /* under sched */
    u64 parks;       /* tasks parked */
    u64 park_lag_ns; /* from its charge to that, the latest */
    u64 early;       /* how many of them went on before their time: by a decision, or to do what they were told */
};

enum priority {
    INTERACTIVE,
    NORMAL,
    BATCH,
    PRIORITIES,
};

struct home {
    u64 root;
    u64 slot;
};

struct usage {
    u64 cpu_ns;
    u64 read_bytes;
    u64 write_bytes;
    u64 processes;
    u64 egress_bytes;
    u64 ingress_bytes;
};

struct call {
    struct usage usage;
    struct home home;
};

struct refusal {
    u64 limit_bytes; /* how far the call may come */
    u64 times;       /* how often it was told ENOMEM */
};

/* Of a task; times are of CLOCK_MONOTONIC, in ns. */
struct task {
    u64 ran_at;     /* it was given its CPU */
    u64 charged;    /* weighted ns, ahead of the run */
    u64 crossed_at; /* the charge for which it is to be parked; 0: none */
    u64 decision;   /* of the slot, at that time */
    u64 safe_at;    /* it was about to return to user space, with no lock, and had its CPU kicked */
    u64 until;      /* it is parked for no longer */
};

enum event_type {
    CALL_ENDED = 1,
    ESCAPED = 2,
    CALLS_CROSSED = 3,
    SHARED_CROSSED = 4,
    EJECTED = 5,   /* of no container: sched is out */
    BANDWIDTH = 6, /* of no container: a cgroup has a cpu.max, which sched ignores */
};

struct ejection {
    u64 time_ns;
    s64 code;
    u32 kind; /* enum scx_exit_kind */
    u32 partial;
    char reason[64];
    char message[192];
};

struct event {
    u64 time_ns; /* CLOCK_MONOTONIC */
    u64 root;
    u64 cgid; /* the call's, or where an escape went */
    u32 type;
    u32 pid;          /* of an escape or a crossing */
    u64 memory_bytes; /* the call's peak; or what was in use in the budget */
    struct usage usage;
    char comm[16];
};

_Static_assert(sizeof(struct slot) == 208, "slot");
_Static_assert(sizeof(struct event) == 104, "event");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_ROOTS);
    __type(key, u64);
    __type(value, u32);
} roots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_ROOTS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, u32);
    __type(value, struct slot);
} slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct home);
} home SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_CALLS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u64);
    __type(value, struct call);
} calls SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_CALLS);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, u64);
    __type(value, struct refusal);
} refusals SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_TASK_STORAGE);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, int);
    __type(value, struct task);
} tasks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, RING_BYTES);
} events SEC(".maps");
