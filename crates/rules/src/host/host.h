/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Structures that sched.rs passes to the functions of host.c, and structures that these functions
 * fill
 *
 * sched.rs declares the same fields in the same order. Times are in nanoseconds. Fields that begin
 * with is_ are 0 or 1.
 *
 * The values are not checked: sched.rs checks the numbers of CPUs and tasks.
 */
#ifndef USHER_RULES_HOST_H
#define USHER_RULES_HOST_H

/* Initial state of a task. */
struct host_task {
	/* Address space; 0: none, as for a kernel thread. */
	__u64 mm;
	/* Number of the task's cgroup, which may have a seat; 0: the task has no cgroup. */
	__u64 cgroup;
	/* CPU time that the task has used before; 0: a new task. */
	__u64 ran_ns;
	/* Weight by the nice value of the task: 100 for nice 0. */
	__u32 weight;
	/* CPU on which the task is created. */
	__u32 cpu;
	/* Number of the task that forked this task, if `is_forked` is 1. */
	__u32 parent;
	__u32 is_forked;
	__u32 is_kernel;
	/*
	 * Nesting depth of migrate_disable() for the task, including the level that BPF callbacks
	 * add.
	 */
	__u32 migration_disabled;
	/* Allowed CPUs. */
	struct cpu_set cpus;
};

/* Current state of a task: fields of `struct thread` (shared.h) and of the kernel. */
struct host_task_state {
	__u64 vtime;
	__u64 burst_average_ns;
	__u64 ran_ns;
	__u64 uncharged_ns;
	__u64 slice_ns;
	__s64 lag_ns;
	__u32 cpu;
	__u32 llc;
	__u32 is_urgent;
	__u32 why;
	__u32 is_queued;
	/* Factor of the task's weight by the shares of its cgroups; 65536: 1. */
	__u32 factor;
	/* Reason for the LLC when the task last woke or started: `enum placement`; and that LLC. */
	__u32 placed;
	__u32 placed_llc;
	__u32 capacity;
	__u32 unused;
};

/* The run queues of an LLC. */
struct host_llc_state {
	__u64 clock;
	__u32 waiting;
	__u32 urgent;
	/* Number of runnable tasks, by which new tasks are placed. */
	__u32 threads;
	__u32 unused;
};

#endif
