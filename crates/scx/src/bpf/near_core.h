/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Claim of an idle core in the LLC of a thread
 *
 * Most threads find an idle core where they ran last, or in the same LLC. This search reads only the
 * words of that LLC, so that its cost does not depend on the number of CPUs. The result is the CPU
 * that choose_cpu() (choose.h) would select first: the CPU on which the thread ran last, or else the
 * lowest CPU of the LLC. Without `smt`, each idle CPU counts as an idle core. If the LLC has no
 * suitable core, or another thread claims the core first, select_cpu.h searches the whole machine.
 *
 * The search is not used with seats, where the preferred CPUs of the thread decide, and on hybrid
 * machines, where the fastest idle core of the machine is selected (capacity.h). The set `near` has
 * no isolated CPU other than the CPU itself, so that the search does not begin at an isolated CPU.
 */
#ifndef USHER_SCX_NEAR_CORE_H
#define USHER_SCX_NEAR_CORE_H

#include "capacity.h"

/* Returns whether threads look for an idle core in their LLC first. */
static inline _Bool has_near_search(void)
{
	return !seats_version() && !is_hybrid();
}

/* Returns the first CPU of the LLC of `here` that is in both masks; NOWHERE: there is none. */
static inline __s32 first_near(const struct cpumask *some,
			       const struct cpumask *allowed,
			       const struct place *here)
{
	struct word_scan left = {here->near_words, 0};
	__u32 word;

	for_words(left, word)
	{
		__u64 bits = here->near.words[word];

		bits &= read_word(some, word);
		if (bits)
			bits &= read_word(allowed, word);
		if (bits)
			return word * 64 + lowest_bit(bits);
	}
	return NOWHERE;
}

/* Returns the kernel's mask of idle cores or, without `smt`, of idle CPUs. */
static inline const struct cpumask *idle_mask(_Bool smt, __u32 node)
{
	if (smt)
		return has_nodes() ? scx_bpf_get_idle_smtmask_node(node)
				   : scx_bpf_get_idle_smtmask();
	return has_nodes() ? scx_bpf_get_idle_cpumask_node(node)
			   : scx_bpf_get_idle_cpumask();
}

/*
 * In the build for large machines, a function of its own: its stack is then not part of the deepest
 * chain of calls, for which the kernel permits 512 bytes.
 */
#if defined(__bpf__) && CPU_WORDS > 1
#define LARGE_CALL __attribute__((noinline))
#else
#define LARGE_CALL inline
#endif

/*
 * Returns a CPU of an idle core in the LLC of `last` on which the thread may run; NOWHERE: there is
 * none.
 */
static LARGE_CALL __s32 find_near_core(struct task_struct *p, __u32 last,
				       _Bool smt)
{
	const struct place *here = place_of(last);
	const struct cpumask *mask;
	__s32 cpu;

	if (is_isolated(last))
		return NOWHERE;
	mask = idle_mask(smt, here->node_number);
	if (bpf_cpumask_test_cpu(last, mask) &&
	    bpf_cpumask_test_cpu(last, p->cpus_ptr))
		cpu = last;
	else
		cpu = first_near(mask, p->cpus_ptr, here);
	scx_bpf_put_idle_cpumask(mask);
	return cpu;
}

/* Returns whether a mask contains no CPU, and releases the mask. */
static inline _Bool is_mask_empty(const struct cpumask *mask)
{
	_Bool is_empty = bpf_cpumask_empty(mask);

	scx_bpf_put_idle_cpumask(mask);
	return is_empty;
}

/* Returns whether the core of an idle CPU is idle. */
static inline _Bool is_core_idle(__u32 cpu)
{
	const struct cpumask *mask = idle_mask(1, place_of(cpu)->node_number);
	_Bool is_idle = bpf_cpumask_test_cpu(cpu, mask);

	scx_bpf_put_idle_cpumask(mask);
	return is_idle;
}

/*
 * Claims a CPU of an idle core in the LLC of `last`, in the case that there are no seats. Returns
 * NOWHERE if there is none, or if another thread has claimed the CPU first.
 */
static inline __s32 claim_near_core(struct task_struct *p,
				    struct thread *thread, __u32 last,
				    _Bool smt)
{
	__s32 cpu = find_near_core(p, last, smt);
	_Bool is_core;

	if (cpu < 0)
		return NOWHERE;
	is_core = smt || is_core_idle(cpu);
	if (!scx_bpf_test_and_clear_cpu_idle(cpu))
		return NOWHERE;
	leave_seat(thread);
	if (is_core) {
		COUNT(idle_cores);
		thread->why = WHY_IDLE_CORE;
	} else {
		COUNT(idle_threads);
		thread->why = WHY_IDLE_THREAD;
	}
	return cpu;
}

#endif
