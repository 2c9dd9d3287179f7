/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Isolated CPUs: the CPUs of `isolcpus`, of `nohz_full` and of isolated cpuset partitions
 * ======================================================================================
 *
 * 1. Problem
 * ----------
 * The administrator reserves these CPUs for threads that are bound to them. The kernel's own
 * scheduler neither places other threads there nor balances load between them.
 *
 * 2. Terms
 * --------
 * - Isolated CPU: a CPU with the mark PLACE_ISOLATED in the table `g_places`. User space sets the
 *   mark at the start, and leaves the CPU out of the cores, LLCs and nodes of all other CPUs.
 * - Bound thread: a thread that may run on isolated CPUs only. A thread that may run on other CPUs,
 *   too, is not bound, and uses only these other CPUs.
 *
 * 3. Steps
 * --------
 * 1. exclude_isolated() removes the isolated CPUs from the allowed CPUs of a thread that is not
 *    bound. The selection of CPUs, LLCs and waiting queues therefore never sees them.
 * 2. A bound thread stays on its CPU and waits in the kernel's queue of that CPU, in FIFO order with
 *    the usual slice (enqueue_isolated()).
 * 3. An isolated CPU takes no thread from the scheduler's queues, pulls no thread, and is not
 *    counted as idle. A bound thread without competition gets an unlimited slice, so that the kernel
 *    can stop the tick (dispatch_isolated()).
 *
 * 4. Known limits
 * ---------------
 * - Bound threads are not limited by cpu.max, and have equal shares whatever their weights are.
 * - A change of the isolated CPUs takes effect when the scheduler starts again.
 *
 * All functions take constant time. Without isolated CPUs, `g_variant.isolates` is 0, and the kernel
 * removes this code.
 */
#ifndef USHER_SCX_ISOLATION_H
#define USHER_SCX_ISOLATION_H

#include "idle.h"

/* Slice without an end: SCX_SLICE_INF. */
#define SLICE_UNLIMITED ((__u64)-1)

static inline _Bool is_isolated(__u32 cpu)
{
	return g_variant.isolates && place_of(cpu)->known == PLACE_ISOLATED;
}

/* Returns whether the `words` of the set `allowed` contain a CPU that is not isolated. */
ALWAYS _Bool has_others(struct cpu_set *allowed, __u32 words)
{
	struct word_scan left = {words, 0};
	__u64 others = 0;
	__u32 word;

	for_words(left, word) others |=
		allowed->words[word] & g_cpus.words[word];
	return others != 0;
}

/*
 * Removes the isolated CPUs from the set `allowed` of the scratch sets, in its words `scan->words`,
 * unless the set has no other CPU in any word. Returns whether it has no other CPU.
 */
__noinline int exclude_isolated(void)
{
	struct place *here = place_of(bpf_get_smp_processor_id());
	struct idle_scan_ctx *scan = scan_ctx();
	struct cpu_set *allowed = &scan->allowed;
	struct word_scan left = {scan->words, 0};
	__u32 word;

	if (!has_others(allowed, here->all_words))
		return 1;
	for_words(left, word) allowed->words[word] &= g_cpus.words[word];
	return 0;
}

/*
 * Reads the `words` of the allowed CPUs of a thread into the scratch sets. Returns whether the
 * thread is bound, which depends on all words.
 */
static inline _Bool read_allowed(struct task_struct *p, __u32 words)
{
	struct idle_scan_ctx *scan = scan_ctx();

	scan->words = words;
	if (!g_variant.isolates) {
		read_words(&scan->allowed, p->cpus_ptr, words);
		return 0;
	}
	read_set(&scan->allowed, p->cpus_ptr);
	return exclude_isolated();
}

static inline _Bool is_bound(struct task_struct *p)
{
	return g_variant.isolates &&
	       (__u32)p->nr_cpus_allowed < scx_bpf_nr_cpu_ids() &&
	       read_allowed(p, 0);
}

/* Inserts a bound thread into the kernel's queue of its CPU. */
static inline void enqueue_isolated(struct task_struct *p,
				    struct thread *thread, __u32 cpu,
				    __u64 flags)
{
	struct cpu_state *state = state_of(cpu);

	thread->why = WHY_ISOLATED;
	insert(p, DSQ_LOCAL, g_settings.slice_ns, flags);
	if (!state->unlimited)
		return;
	state->unlimited = 0;
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

/*
 * Lets the previous thread of an isolated CPU continue if it is bound. The kernel calls `dispatch`
 * only if the queue of the CPU is empty.
 */
static inline void dispatch_isolated(struct task_struct *prev, __u32 cpu)
{
	if (!prev || !is_bound(prev))
		return;
	state_of(cpu)->unlimited = 1;
	set_slice(prev, SLICE_UNLIMITED);
}

/*
 * Ends an unlimited slice if the running thread is not bound any more. The kernel calls `running`
 * again after it has changed the affinity of a running thread.
 */
static inline void limit_unbound(struct task_struct *p, struct cpu_state *state)
{
	if (!state->unlimited || is_bound(p))
		return;
	state->unlimited = 0;
	set_slice(p, g_settings.slice_ns);
}

#endif
