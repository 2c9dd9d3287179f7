/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Interface between sched.rs and host.c. */
#ifndef USHER_RULES_HOST_H
#define USHER_RULES_HOST_H

/* Initial state of a task. */
struct host_task {
	__u64 mm;
	__u64 cgroup;
	/* CPU time before. */
	__u64 ran_ns;
	/* Weight of its only cgroup; 0: none. */
	__u32 group_weight;
	__u32 weight;
	/* CPU on which it is created. */
	__u32 cpu;
	/* The task that forked it, if `is_forked`. */
	__u32 parent;
	__u32 is_forked;
	__u32 is_kernel;
	/* Times that its migration is disabled, which includes those by BPF callbacks. */
	__u32 migration_disabled;
	__u32 unused;
	struct cpu_set cpus;
};

/* Current state of a task. */
struct host_task_state {
	__u64 vtime;
	__u64 burst_average_ns;
	__u64 ran_ns;
	__u64 uncharged_ns;
	__u64 slice_ns;
	__u32 cpu;
	__u32 llc;
	__u32 is_urgent;
	__u32 why;
	__u32 is_queued;
	__u32 unused;
};

/* The run queues of an LLC. */
struct host_llc_state {
	__u64 clock;
	__u32 waiting;
	__u32 urgent;
};

#endif
