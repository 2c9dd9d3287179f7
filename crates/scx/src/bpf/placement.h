/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Placement: the LLC in which a thread that is new or wakes begins to search for a CPU
 * ====================================================================================
 *
 * 1. Problem
 * ----------
 * A thread runs best in the LLC that holds its data, but threads that share an LLC also share its
 * capacity and its memory bandwidth. A new thread has no data in any cache, so that it may start in
 * any LLC at no cost. Afterwards it should stay.
 *
 * 2. Terms
 * --------
 * - Home: the CPU near which choose() (select_cpu.h) searches for an idle CPU, and in whose LLC the
 *   thread waits if no CPU is idle.
 * - Load of an LLC or node: runnable threads per CPU (spread.h).
 *
 * 3. Steps
 * --------
 * 1. A new thread: compare the node of the parent with the node of the least load, then, in the
 *    selected node, the LLCs. Among equal loads, the parent's LLC comes first, then the LLC with
 *    the next number. The home is a CPU of that LLC.
 *    - A new process is likely to execute another program soon, while its parent waits for it or
 *      for its output. One thread of the parent's LLC therefore does not count.
 *    - If no CPU is idle, a new process stays in the parent's LLC. Otherwise, a fork storm would
 *      compete with the interactive threads of all LLCs. Busy CPUs balance the LLCs later
 *      (dispatch.h).
 * 2. A thread that wakes: the home is its last CPU. Exception: two threads that wake each other in
 *    turn by a synchronous wake-up, as at the two ends of a pipe, exchange data. If they are in
 *    different LLCs and half of the CPUs of the waker's LLC have no thread, the home is the waker's
 *    CPU.
 * 3. A thread with a soft seat: the home is its last CPU. The seat determines its CPUs.
 *
 * 4. Data structures
 * ------------------
 * `g_llc_loads`: the number of runnable threads and the CPUs of each LLC, one cache line per LLC.
 * groups.h counts a thread when it begins to wait or to run, and until it sleeps. A new thread is
 * counted when its CPU is claimed, so that the next new thread sees it.
 *
 * 5. Bound
 * --------
 * Step 1 visits each LLC once, at most LLCS_MAX = 64. The other steps take constant time.
 *
 * 6. Known limits
 * ---------------
 * - A thread that executes another program is not placed again: the kernel does not call select_cpu
 *   for exec.
 * - The load of an LLC includes threads and CPUs outside the affinity mask of the new thread.
 * - With more than LLCS_MAX LLCs, LLCs that share queues count as one.
 */
#ifndef USHER_SCX_PLACEMENT_H
#define USHER_SCX_PLACEMENT_H

#include "select_cpu.h"

static inline struct domain_load load_in(__u32 llc)
{
	struct llc_load *llc_load = &g_llc_loads[llc % LLCS_MAX];
	struct domain_load load = {llc_load->threads, llc_load->cpus};

	return load;
}

/* The LLCs of a node: the sum of their loads, and the LLC with the least load. */
struct node_scan {
	struct domain_load sum;
	struct domain_load least;
	__u32 llc;
	/* 1: the thread may run on all CPUs. */
	__u32 is_free;
};

/* Rotates a bitmask of LLCs, so that bit 0 stands for the LLC `first`. */
static inline __u64 rotate_llcs(__u64 llcs, __u32 first)
{
	first %= LLCS_MAX;
	return llcs >> first | llcs << (LLCS_MAX - first) % LLCS_MAX;
}

/* Returns the first CPU of an LLC that the thread of the scratch sets may run on; NOWHERE: none. */
__noinline int first_in_llc(__u32 llc)
{
	struct place *place = place_of(g_llc_loads[llc % LLCS_MAX].first_cpu);
	struct idle_scan_ctx *scan = scan_ctx();

	return first_of(&scan->preferred_cpus, &scan->preferred_cpus,
			&place->near, place->near_words);
}

/*
 * Adds up the LLCs of the bitmask `llcs` in which the thread may run, and finds the LLC with the
 * least load, with a preference for the LLC `here` and then for those after it.
 */
__noinline int scan_node(__u64 llcs, __u32 here, struct node_scan *node)
{
	int step;

	if (!node)
		return 0;
	llcs = rotate_llcs(llcs, here);
	bpf_for(step, 0, LLCS_MAX)
	{
		__u32 llc = (here + lowest_bit(llcs)) % LLCS_MAX;
		struct domain_load load = load_in(llc);

		if (!llcs)
			break;
		llcs &= llcs - 1;
		if (!load.cpus || (!node->is_free && first_in_llc(llc) < 0))
			continue;
		node->sum.threads += load.threads;
		node->sum.cpus += load.cpus;
		if (!node->least.cpus || is_less_loaded(load, node->least)) {
			node->least = load;
			node->llc = llc;
		}
	}
	return 0;
}

/* Scans the nodes other than that of the LLC `here`, and finds the node with the least load. */
__noinline int scan_other_nodes(__u32 here, struct node_scan *best)
{
	__u64 left;
	int step;

	if (!best)
		return 0;
	left = ~place_of(g_llc_loads[here % LLCS_MAX].first_cpu)->node_llcs;
	left = rotate_llcs(left, here);
	bpf_for(step, 0, LLCS_MAX)
	{
		__u32 llc = (here + lowest_bit(left)) % LLCS_MAX;
		struct node_scan node = {.is_free = best->is_free};
		__u64 llcs;

		if (!left)
			break;
		left &= left - 1;
		if (!g_llc_loads[llc].cpus)
			continue;
		llcs = place_of(g_llc_loads[llc].first_cpu)->node_llcs;
		left &= ~rotate_llcs(llcs, here);
		scan_node(llcs, llc, &node);
		if (node.sum.cpus &&
		    (!best->sum.cpus || is_less_loaded(node.sum, best->sum)))
			*best = node;
	}
	return 0;
}

/* Returns the LLC in which a new thread starts whose parent runs in the LLC `here`: step 1. */
__noinline int find_idlest_llc(__u32 here, __u32 margin, __u32 is_free)
{
	struct node_scan near = {.is_free = is_free};
	struct node_scan far = {.is_free = is_free};
	struct domain_load load = load_in(here);

	scan_node(place_of(g_llc_loads[here % LLCS_MAX].first_cpu)->node_llcs,
		  here, &near);
	scan_other_nodes(here, &far);
	if (!near.sum.cpus)
		return far.sum.cpus ? far.llc : here;
	if (far.sum.cpus &&
	    should_leave(near.sum, far.sum, margin + node_margin(near.sum)))
		return far.llc;
	if ((!is_free && first_in_llc(here) < 0) ||
	    should_leave(load, near.least, margin))
		return near.llc;
	return here;
}

/* Returns the home of a new thread: step 1 of the overview. */
static inline __u32 home_of_new(struct task_struct *p, struct thread *thread,
				__u32 cpu)
{
	_Bool is_free = (__u32)p->nr_cpus_allowed >= scx_bpf_nr_cpu_ids();
	struct idle_scan_ctx *scan = scan_ctx();
	__u32 here = place_of(cpu)->llc;
	__u32 llc;
	__s32 home;

	if (thread->is_process && !any_idle())
		return cpu;
	if (!is_free || seats_version()) {
		read_allowed(p, place_of(cpu)->all_words);
		read_preferred(scan, p, thread);
		if (thread->seat)
			return cpu;
	}
	llc = find_idlest_llc(here, thread->is_process, is_free);
	if (llc == here)
		return cpu;
	if (is_free)
		return g_llc_loads[llc % LLCS_MAX].first_cpu;
	home = first_in_llc(llc);
	return home < 0 ? cpu : (__u32)home;
}

/*
 * Returns whether the current thread and the woken thread wake each other in turn. Only synchronous
 * wake-ups are recorded, because a thread that wakes many others at a barrier exchanges no data
 * with a particular one.
 */
static inline _Bool wake_each_other(struct task_struct *p,
				    struct thread *thread)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct thread *waker_thread = thread_of(waker);
	__u32 before = thread->waker;

	thread->waker = waker->pid;
	return waker_thread && before == (__u32)waker->pid &&
	       waker_thread->waker == (__u32)p->pid;
}

/* Returns the home of a thread that wakes from a synchronous wake-up: step 2 of the overview. */
static inline __u32 home_of_woken(struct task_struct *p, struct thread *thread,
				  __u32 last)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct domain_load load = load_in(place_of(cpu)->llc);

	if (!wake_each_other(p, thread) || seats_version() ||
	    place_of(cpu)->llc == place_of(last)->llc ||
	    2 * load.threads > load.cpus ||
	    !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return last;
	return cpu;
}

/* Returns the home of a thread for which the kernel calls select_cpu. */
static inline __u32 home_of(struct task_struct *p, struct thread *thread,
			    __u32 last, __u64 flags)
{
	if (g_variant.fifo || g_settings.llcs < 2)
		return last;
	if (flags & WAKE_FORK)
		return home_of_new(p, thread, last);
	return flags & WAKE_SYNC ? home_of_woken(p, thread, last) : last;
}

/* Returns how far the selected CPU is from the last CPU of a thread that woke. */
static inline enum placement distance_of(__u32 cpu, __u32 last)
{
	struct place *there = place_of(cpu);
	struct place *here = place_of(last);

	if (there->llc == here->llc)
		return PLACED_SAME_LLC;
	return here->node_llcs >> there->llc % LLCS_MAX & 1 ? PLACED_SAME_NODE
							    : PLACED_OTHER_NODE;
}

/*
 * Records the placement for `usher sched explain`, and counts a new thread in the LLC of its CPU
 * before it runs. `cpu` is the claimed CPU; NOWHERE: the thread waits in the LLC of its home.
 */
static inline void note_placement(struct task_struct *p, struct thread *thread,
				  __u32 last, __u32 home, __s32 cpu,
				  __u64 flags)
{
	__u32 at = cpu < 0 ? home : (__u32)cpu;
	__u32 llc = place_of(at)->llc;

	thread->placed_llc = llc;
	if (flags & WAKE_FORK) {
		thread->placed = llc == place_of(last)->llc ? PLACED_NEW_NEAR
							    : PLACED_NEW_IDLEST;
		if (cpu >= 0 && g_settings.llcs > 1)
			count_thread(p, thread, llc);
	} else if (home != last) {
		thread->placed = PLACED_WAKER;
	} else {
		thread->placed = cpu < 0 ? PLACED_WAITS : distance_of(at, last);
	}
}

#endif
