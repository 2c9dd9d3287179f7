/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One scheduler on one simulated machine: the scheduler's variables (globals.h), and the kernel's
 * state of CPUs, tasks and dispatch queues
 *
 * A process may have any number of instances. Each function of host.c first enters an instance
 * (enter() in kfuncs.h): from then on, the macros below refer to the variables of that instance in
 * the calling thread. An instance has tables of fixed size for CPUS_MAX CPUs, LLCS_MAX LLCs and
 * SEATS_MAX seats, and allocates memory for each task.
 */
#ifndef USHER_RULES_INSTANCE_H
#define USHER_RULES_INSTANCE_H

/* A CPU with its local dispatch queue. */
struct rq {
	struct dsq local;
	struct task_struct *curr;
	/* Start of the current run of `curr`. Earlier runs are in its sum_exec_runtime. */
	__u64 since_ns;
	_Bool is_online;
	/* 1: the CPU runs the idle task. */
	_Bool is_idle;
	/* 1: the CPU runs a real-time thread, which is not a task of the instance. */
	_Bool is_taken;
	/* Remaining steps of a transition to idle (transitions.h). */
	__u32 idle_steps;
};

/* Soft seat of a program. */
struct host_seat {
	__u64 cgroup;
	struct seat seat;
	struct seat_tally tally;
};

/* Number of dispatch queues: QUEUES_PER_LLC for each LLC, the park queues, and the queue FIFO. */
#define HOST_DSQS (LLCS_MAX * 64 + LIMITS_MAX + 1)

/* A cgroup that host_new_cgroup() has created. */
struct host_cgroup {
	struct cgroup cgroup;
	struct kernfs_node node;
	struct task_group group;
};
/* Number of the first of these cgroups. Tests may give lower numbers to cgroups without state. */
#define HOST_CGROUPS (1ULL << 20)

/* Quota of a cgroup, in a hash table with linear probing; `is_used` stays set after a deletion. */
struct host_limit {
	__u64 cgroup;
	struct limit limit;
	_Bool is_used;
};
#define HOST_LIMITS (2 * LIMITS_MAX)

struct instance {
#include "globals.h"
	struct place places[CPUS_MAX];
	/* The kernel's state of each CPU, and the dispatch queues. */
	struct rq rqs[CPUS_MAX];
	struct dsq dsqs[HOST_DSQS];
	struct host_seat seats_by_cgroup[SEATS_MAX];
	__u32 seats_used;
	/* Number of CPUs. */
	__u32 cpus;
	__u64 now_ns;
	/* State of the generator of random numbers. */
	__u64 random;
	/*
	 * CPU on which the current callback runs, and the task that the kernel regards as running
	 * there.
	 */
	__u32 cpu;
	struct task_struct *current;
	/* The kernel's idle CPUs, and the CPUs of idle cores. */
	struct cpumask idle, idle_cores;
	struct cpumask scratch;
	/* CPUs that have to schedule. */
	struct cpu_set resched;
	/* 1: the kernel is older than Linux 7.1 and has no ENQ_IMMED. */
	_Bool lacks_immediate;
	/* CPUs with tasks in their local queues that have to be enqueued again. */
	struct cpu_set reenqueue;
	/* Number of loop iterations in callbacks since the last reset. */
	__u64 iterations;
	/*
	 * Simulated races: before each of the next `races` compare-and-swaps of the clock of LLC 0,
	 * another CPU advances the clock by `race_ns`.
	 */
	__u64 race_ns;
	__u32 races;
	/* Number of the next claims of an idle CPU that fail, because another CPU is first. */
	__u32 claims_lost;
	/* 1: CPUs become idle without a call of update_idle. */
	_Bool is_bypassed;
	/* 1: CPUs become idle in steps; the kernel updates its masks after update_idle. */
	_Bool splits_idle, marks_late;
	/* 1: kicks of idle CPUs have no effect. */
	_Bool loses_idle_kicks;
	/* Tasks by number. Ended tasks form a list, which `free_tasks` begins. */
	struct task_struct **tasks;
	__u32 tasks_made;
	struct task_struct *free_tasks;
	/* 1: a timer has been started. */
	_Bool has_timers;
	/* 1: the kernel does not report quotas, like Linux before 6.17. */
	_Bool hides_quotas;
	struct task_group root_group;
	/* Cgroups in the order of their numbers. */
	struct host_cgroup **cgroups;
	__u32 cgroups_made;
	struct host_limit limits_by_cgroup[HOST_LIMITS];
	struct park parks_by_number[LIMITS_MAX];
	struct slice_timer slice_timers_by_cpu[CPUS_MAX];
	/* Cgroup and number of each entry; 0: there is no such entry. */
	__u64 group_cgroups[GROUPS_MAX];
	__u32 group_numbers_by_slot[GROUPS_MAX];
	struct group_timer group_timer;
};

/* The instance that the calling thread has entered. */
static __thread struct instance *instance;

#define g_settings (instance->g_settings)
#define g_variant (instance->g_variant)
#define g_tallies (instance->g_tallies)
#define g_seating (instance->g_seating)
#define g_limits (instance->g_limits)
#define g_groups (instance->g_groups)
#define g_runnable (instance->g_runnable)
#define g_groups_used (instance->g_groups_used)
#define g_group_timer_runs (instance->g_group_timer_runs)
#define g_groups_compete (instance->g_groups_compete)
#define g_cpu_states (instance->g_cpu_states)
#define g_llc_rqs (instance->g_llc_rqs)
#define g_llc_loads (instance->g_llc_loads)
#define g_scan_ctxs (instance->g_scan_ctxs)
#define g_class_cpus (instance->g_class_cpus)
#define g_cpus (instance->g_cpus)
#define g_idle_cpus (instance->g_idle_cpus)
#define g_idle_words (instance->g_idle_words)
#define g_node_words (instance->g_node_words)
#define g_waiting_llcs (instance->g_waiting_llcs)
#define g_borrowers (instance->g_borrowers)
#define g_added_by_bpf (instance->g_added_by_bpf)

#endif
