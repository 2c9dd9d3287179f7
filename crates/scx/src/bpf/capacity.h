/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * CPUs of different capacity: performance and efficiency cores
 * ============================================================
 *
 * 1. Problem
 * ----------
 * On hybrid machines, a slow core takes up to twice as long for a burst as a fast core. A thread
 * with long bursts should run on a fast core while one is idle. A thread with short bursts loses
 * less on a slow core than it would lose by a migration at each wake-up.
 *
 * 2. Terms
 * --------
 * - Class: CPUs of about the same capacity. Class 0 has the fastest CPUs. User space determines the
 *   classes (src/capacity.rs).
 * - Demanding: a thread with an average burst of at least SHORT_BURST_NS (1 ms), a thread whose
 *   present burst is that long, and a thread that has not slept yet.
 *
 * 3. Steps
 * --------
 * 1. choose_by_class(), for a thread that wakes, is new or was preempted: select an idle core of
 *    the fastest class that has an allowed idle core; among its cores, the core nearest to the
 *    thread's home. A thread that is not demanding stays on its last CPU, if the core is idle.
 *    Without an idle core, the selection continues as on other machines (choose()).
 * 2. A thread that runs moves to an idle core only if that core is faster and the thread is
 *    demanding, or if the thread shares its core and the idle core is not slower.
 * 3. When a core becomes idle, gains_on() limits smt_pull() (select_cpu.h) to the threads of step
 *    2: an idle fast core pulls a demanding thread from a slow core, and an idle slow core pulls no
 *    thread from a fast core. A CPU without a thread takes any waiting thread.
 *
 * 4. Bound
 * --------
 * Step 1 passes over the words of a CPU set once per class, of which there are CLASSES_MAX = 4 at
 * most. On machines with one class, `g_variant.classes` is 1, and the kernel removes this code.
 *
 * 5. Known limits
 * ---------------
 * - If all fast cores are busy with threads that are not demanding, a demanding thread stays on a
 *   slow core. Threads are not exchanged.
 * - A thread with many short bursts is not demanding, even if it uses a whole CPU.
 */
#ifndef USHER_SCX_CAPACITY_H
#define USHER_SCX_CAPACITY_H

#include "seats.h"

/* Returns whether the CPUs of the machine have different capacities. */
static inline _Bool is_hybrid(void)
{
	return g_variant.classes > 1;
}

static inline __u32 class_of(__u32 cpu)
{
	return place_of(cpu)->capacity_class;
}

/* Returns whether the thread should run on a fast core. */
static inline _Bool is_demanding(const struct thread *thread)
{
	return !thread->burst_average_ns ||
	       thread->burst_average_ns >= SHORT_BURST_NS ||
	       thread->burst_ns >= SHORT_BURST_NS;
}

/*
 * Returns the nearest CPU to `last` among the preferred CPUs of the fastest class with an idle core;
 * without `smt`, with an idle CPU. `slowest` is the last class that is considered.
 */
ALWAYS __s32 nearest_of_fastest(_Bool smt, __u32 last, __u32 slowest)
{
	struct idle_scan_ctx *scan = scan_ctx();
	__s32 found = NOWHERE;
	int class;

	bpf_for(class, 0, CLASSES_MAX)
	{
		struct cpu_set *of_class =
			&g_class_cpus[(__u32) class % CLASSES_MAX];
		struct word_scan left = {scan->words, 0};
		__u32 word;

		if ((__u32) class > slowest)
			break;
		for_words(left, word) scan->remaining.words[word] =
			scan->preferred_cpus.words[word] &
			of_class->words[word];
		found = nearest_of(smt ? &scan->cores : &scan->idle,
				   &scan->remaining, last, place_of(last),
				   scan->words);
		if (found >= 0)
			break;
	}
	return found;
}

/* Returns whether a running thread gains by a migration from a busy CPU to an idle core. */
static inline _Bool gains_on(__u32 idle, __u32 cpu, _Bool demanding,
			     _Bool shares_core)
{
	if (!is_hybrid())
		return shares_core;
	return class_of(idle) < class_of(cpu)
		       ? demanding || shares_core
		       : shares_core && class_of(idle) == class_of(cpu);
}

/* Records the capacity of the CPU on which a thread starts to run, and whether it is demanding. */
static inline void note_capacity(struct thread *thread, struct cpu_state *state,
				 const struct place *here)
{
	if (!is_hybrid())
		return;
	thread->capacity = here->capacity;
	state->demanding = is_demanding(thread);
}

#endif
