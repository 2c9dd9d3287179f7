/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Structures of the kernel that the BPF build and the host build declare alike, with only the
 * fields that the scheduler reads
 *
 * The BPF build (kernel.h) includes this file where CO-RE relocates fields: libbpf replaces their
 * offsets by those of the running kernel. The host build (kernel.h in crates/rules) uses the layout
 * below.
 */
#ifndef USHER_SCX_KERNEL_TYPES_H
#define USHER_SCX_KERNEL_TYPES_H

struct kernfs_node {
	__u64 id;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

/*
 * Since Linux 6.18, the weight of a cgroup is in a structure of its own. The structure exists only
 * if the kernel was built with cpu.weight for sched_ext.
 */
struct scx_task_group {
	__u32 weight;
};

/* Values of cpu.max and cpu.max.burst, in nanoseconds. */
struct cfs_bandwidth {
	__u64 period;
	__u64 quota;
	__u64 burst;
};

struct task_group {
	struct cgroup_subsys_state css;
	struct task_group *parent;
	struct cfs_bandwidth cfs_bandwidth;
	/* Value of the cgroup file cpu.idle. */
	__s32 idle;
	struct scx_task_group scx;
};

struct task_group___flat {
	__u32 scx_weight;
};

struct sched_ext_entity {
	__u32 flags;
	__u64 slice;
	__u64 dsq_vtime;
	__u32 weight;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct thread_info {
	__u32 cpu;
};

struct scx_init_task_args {
	_Bool fork;
};

/* The kernel has the fields bw_ from 6.17 on. */
struct scx_cgroup_init_args {
	__u64 bw_period_us;
	__u64 bw_quota_us;
	__u64 bw_burst_us;
};

#endif
