/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Order of the O(1) scheduler of Linux 2.6, and its improvement by paper 4
 * =======================================================================
 *
 * 1. The O(1) scheduler
 * ---------------------
 * Each CPU has two arrays, active and expired. Each array has a queue for each priority level; a
 * lower level number is better. A bitmap of the queues that are not empty makes the time of the
 * search for the best level independent of the number of threads. A thread that has used up its
 * slice goes to the end of a queue of the expired array; an interactive thread goes to the end of a
 * queue of the active array instead, except while an expired thread has waited for too long. When
 * the active array is empty, the arrays are swapped. A preempted thread returns to its former
 * position in its queue.
 *
 * 2. Improvement of paper 4
 * -------------------------
 * Threads of the address space that runs on the CPU compete with a level that is better by one.
 *
 * 3. Order
 * --------
 * The thread with the best level runs next. Of several threads with the best level, the thread with
 * the lowest `arrival` runs next. `arrival` is the value of a counter of the CPU, which grows with
 * each thread that arrives. Queues are ordered by `arrival`, so that a preempted thread keeps its
 * position.
 *
 * This file contains the decisions as functions that call no kernel function, so that unit tests
 * can run them. o1.bpf.c contains the queues. Each decision takes constant time, but the callers
 * search for threads of an address space (o1.bpf.c, section 3).
 */
#ifndef USHER_BENCH_ARRAYS_H
#define USHER_BENCH_ARRAYS_H

#include "levels.h"

/* Number of levels for threads that are not real-time threads. */
#define NICE_LEVELS (LEVELS - LEVEL_FIRST)
#define NO_ARRIVAL (~0ULL)

/* Scheduling state of a thread. */
struct o1_thread {
	/* Rest of the slice; valid while the thread does not run. */
	__u64 slice_left_ns;
	/* End of the slice; valid while the thread runs. */
	__u64 slice_ends_ns;
	/* Start of the CPU time that the sleep average does not contain yet. */
	__u64 ran_since_ns;
	/*
	 * Start of the last sleep; 0: the thread has not slept since `place` was last called for
	 * it.
	 */
	__u64 slept_at_ns;
	__u64 sleep_average_ns;
	/* Number of the thread in the order of arrivals at the CPU `cpu`. */
	__u64 arrival;
	/* Address space of the thread. */
	__u64 mm;
	__u32 level;
	/* Index of the thread's array (0 or 1) on the CPU `cpu`. */
	__u32 array;
	/* CPU to which `array` and `arrival` refer. */
	__u32 cpu;
	/* 0: the thread is new and has not had a slice. */
	__u32 has_slice;
	/*
	 * `place` has selected array, level and arrival of the thread, but the thread is not
	 * queued yet.
	 */
	__u32 is_placed;
	/* The thread waits in the arrays of this CPU, counted from 1; 0: none. */
	__u32 waits_on;
};

/* Scheduling state of a CPU. */
struct o1_cpu {
	/* For each array, a bitmap of the levels with waiting threads; bit 0 is LEVEL_FIRST. */
	__u64 levels[2];
	__u64 arrivals;
	/*
	 * Time at which the first thread expired since the arrays were swapped; 0: no thread has
	 * expired.
	 */
	__u64 expired_since_ns;
	__u64 balanced_at_ns;
	/* Address space of the user thread that runs on the CPU or ran last. */
	__u64 mm;
	/* Index of the active array. */
	__u32 active;
	/* Level of the running thread; 0: no thread runs. */
	__u32 level;
	__u32 waiting;
	__u32 unused;
} __attribute__((aligned(CACHE_LINE)));

/*
 * The threads of which one runs next, each given by its arrival; NO_ARRIVAL: there is no such
 * thread.
 */
struct candidates {
	/* Best level with a thread in the active array; LEVELS: the array is empty. */
	__u32 level;
	/*
	 * Whether the running thread is a candidate. Its level, whether its address space is the
	 * running one, and its arrival (`prev`) follow.
	 */
	__u32 has_prev;
	__u32 prev_level;
	__u32 prev_shares;
	__u64 prev;
	/* First thread in the queue of the best level. */
	__u64 first;
	/*
	 * First thread of the running address space in the queue of the best level (`sharing`),
	 * and in the queue of the next worse level (`below`).
	 */
	__u64 sharing;
	__u64 below;
};

enum next {
	NEXT_NONE,
	NEXT_PREV,
	NEXT_FIRST,
	NEXT_SHARING,
	NEXT_BELOW,
};

static inline __u64 left_of_slice(const struct o1_thread *thread, __u64 now)
{
	return since(now, thread->slice_ends_ns);
}

/* Lowers the sleep average by the CPU time that the thread has used since the last call. */
static inline void account_run(struct o1_thread *thread, __u64 now)
{
	thread->sleep_average_ns = average_after_run(
		thread->sleep_average_ns, since(thread->ran_since_ns, now));
	thread->ran_since_ns = now;
}

static inline void arrive(struct o1_thread *thread, struct o1_cpu *state)
{
	thread->arrival = __sync_fetch_and_add(&state->arrivals, 1);
}

/* Gives a thread a new slice after the thread has used up its slice, and selects its array. */
static inline void expire(struct o1_thread *thread, struct o1_cpu *state,
			  __s32 nice_level, __u64 now)
{
	__u64 average = thread->sleep_average_ns;

	if (!state->expired_since_ns)
		state->expired_since_ns = now;
	if (!is_interactive(nice_level, average) ||
	    is_starving(state->expired_since_ns, now, state->waiting + 1))
		thread->array = !state->active;
	thread->level = level_of(nice_level, average);
	thread->slice_left_ns = slice_of_level(nice_level);
	arrive(thread, state);
}

/*
 * Selects the array, the level and the arrival of a thread that is about to wait or to run, and
 * gives the thread a slice if it has none.
 */
static inline void place(struct o1_thread *thread, struct o1_cpu *state,
			 __u32 cpu, __s32 nice_level, __u64 now)
{
	_Bool is_from_other_cpu = thread->cpu != cpu;

	thread->cpu = cpu;
	thread->array = state->active;
	if (thread->slept_at_ns || !thread->has_slice) {
		if (thread->slept_at_ns)
			thread->sleep_average_ns = average_after_sleep(
				thread->sleep_average_ns,
				since(thread->slept_at_ns, now), nice_level);
		thread->level = level_of(nice_level, thread->sleep_average_ns);
		if (!thread->has_slice)
			thread->slice_left_ns = slice_of_level(nice_level);
		else if (thread->slice_left_ns < SLICE_OVER_NS)
			thread->slice_left_ns = SLICE_OVER_NS;
		arrive(thread, state);
	} else if (thread->slice_left_ns < SLICE_OVER_NS) {
		expire(thread, state, nice_level, now);
	} else if (is_from_other_cpu) {
		arrive(thread, state);
	}
	thread->has_slice = 1;
	thread->slept_at_ns = 0;
}

static inline void swap_arrays(struct o1_cpu *state)
{
	state->active = !state->active;
	state->expired_since_ns = 0;
}

/*
 * Swaps the arrays if only the expired array has a thread. `prev` is the running thread, which
 * belongs to an array although it is not queued; null: no thread runs.
 */
static inline void swap_if_empty(struct o1_cpu *state,
				 const struct o1_thread *prev)
{
	__u32 active = state->active & 1;

	if (state->levels[active] || (prev && prev->array == active))
		return;
	if (state->levels[!active] || prev)
		swap_arrays(state);
}

/* Returns the best level with a thread in the active array; LEVELS if the array is empty. */
static inline __u32 best_level(const struct o1_cpu *state)
{
	__u64 levels = state->levels[state->active & 1];

	return levels ? LEVEL_FIRST + lowest_bit(levels) : LEVELS;
}

static inline __u64 bit_of(__u32 level)
{
	return 1ULL << (level - LEVEL_FIRST) % 64;
}

/*
 * Returns the level for comparisons. With `aggregate` (paper 4), the level of a thread of
 * another address space is worse by one than that of a thread that shares the running address
 * space.
 */
static inline __u32 with_bonus(__u32 level, _Bool shares, _Bool aggregate)
{
	return level + (aggregate && !shares);
}

static inline _Bool comes_first(__u32 level, __u64 arrival, __u32 than,
				__u64 its)
{
	return arrival != NO_ARRIVAL &&
	       (level < than || (level == than && is_before(arrival, its)));
}

/* Selects the candidate that runs next. */
static inline enum next choose(const struct candidates *of, _Bool aggregate)
{
	enum next next = NEXT_NONE;
	/* A level that is worse than all levels with or without the bonus. */
	__u32 best = LEVELS + 2;
	__u64 arrival = 0;

	if (of->has_prev) {
		next = NEXT_PREV;
		best = with_bonus(of->prev_level, of->prev_shares, aggregate);
		arrival = of->prev;
	}
	if (comes_first(with_bonus(of->level, 0, aggregate), of->first, best,
			arrival)) {
		next = NEXT_FIRST;
		best = with_bonus(of->level, 0, aggregate);
		arrival = of->first;
	}
	if (!aggregate)
		return next;
	if (comes_first(of->level, of->sharing, best, arrival)) {
		next = NEXT_SHARING;
		best = of->level;
		arrival = of->sharing;
	}
	if (comes_first(of->level + 1, of->below, best, arrival))
		next = NEXT_BELOW;
	return next;
}

/* Returns whether a thread that wakes preempts the running thread. */
static inline _Bool preempts(const struct o1_thread *woken,
			     const struct o1_cpu *state, _Bool aggregate)
{
	_Bool shares = woken->mm && woken->mm == state->mm;

	return with_bonus(woken->level, shares, aggregate) < state->level;
}

#endif
