/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Levels, slices and sleep averages of the O(1) scheduler of Linux 2.6
 *
 * There are 140 priority levels; 0 is the best. A nice value maps to one of the last 40 levels.
 *
 * 1. The sleep average of a thread, from 0 to 1 s, grows by the time that the thread sleeps and
 *    falls by the CPU time that the thread uses.
 * 2. The sleep average maps to a bonus from 0 to 10, which shifts the level by at most 5 levels in
 *    each direction.
 * 3. A thread is interactive if its bonus shifts its level by at least the number of levels that
 *    its nice value requires (`levels_required`).
 * 4. The nice value determines the length of the slice: 5 to 800 ms.
 *
 * arrays.h describes how levels, slices and interactivity select the next thread.
 */
#ifndef USHER_BENCH_LEVELS_H
#define USHER_BENCH_LEVELS_H

#include "numbers.h"

#define LEVELS 140
/* Levels of the nice values -20, 0 and 19. Levels below LEVEL_FIRST belong to real-time threads. */
#define LEVEL_FIRST 100
#define LEVEL_NORMAL 120
#define LEVEL_LAST 139

#define MSEC 1000000ULL
#define SLICE_LEAST_NS (5 * MSEC)
#define SLICE_NORMAL_NS (100 * MSEC)
/*
 * If less than this time of a slice is left, the slice counts as used up. Linux 2.6 counted
 * slices in timer ticks.
 */
#define SLICE_OVER_NS MSEC

#define BONUS_MOST 10
/*
 * Upper limit of the sleep average. An expired thread has waited for too long after this time
 * multiplied by the number of waiting threads (`is_starving`).
 */
#define SLEEP_MOST_NS (SLICE_NORMAL_NS * BONUS_MOST)

static inline __u32 in_levels(__s32 level)
{
	return level < LEVEL_FIRST  ? LEVEL_FIRST
	       : level > LEVEL_LAST ? LEVEL_LAST
				    : level;
}

/* Returns the slice of a nice value: 800 ms for -20, 100 ms for 0, 5 ms for 19. */
static inline __u64 slice_of_level(__s32 nice_level)
{
	__u32 level = in_levels(nice_level);
	__u64 whole =
		level < LEVEL_NORMAL ? 4 * SLICE_NORMAL_NS : SLICE_NORMAL_NS;
	__u64 slice = whole * (LEVELS - level) / ((LEVELS - LEVEL_FIRST) / 2);

	return slice < SLICE_LEAST_NS ? SLICE_LEAST_NS : slice;
}

/*
 * Returns the bonus of a sleep average, 0 to 10. A bonus of 5 does not change the level of the
 * nice value.
 */
static inline __u32 bonus_of(__u64 sleep_average_ns)
{
	__u64 bonus = sleep_average_ns * BONUS_MOST / SLEEP_MOST_NS;

	return bonus > BONUS_MOST ? BONUS_MOST : bonus;
}

static inline __u32 level_of(__s32 nice_level, __u64 sleep_average_ns)
{
	return in_levels((__s32)in_levels(nice_level) + BONUS_MOST / 2 -
			 (__s32)bonus_of(sleep_average_ns));
}

/*
 * Returns the number of levels by which a thread's level must be better than the level of its nice
 * value, so that the thread is interactive.
 */
static inline __s32 levels_required(__s32 nice_level)
{
	__u32 nth = in_levels(nice_level) - LEVEL_FIRST;

	return (__s32)(nth * BONUS_MOST / (LEVELS - LEVEL_FIRST)) -
	       BONUS_MOST / 2 + 2;
}

static inline _Bool is_interactive(__s32 nice_level, __u64 sleep_average_ns)
{
	return (__s32)level_of(nice_level, sleep_average_ns) <=
	       (__s32)in_levels(nice_level) - levels_required(nice_level);
}

/*
 * Returns the sleep average after a sleep of `slept_ns`. One long sleep raises the average only
 * to the value that makes the thread barely interactive.
 */
static inline __u64 average_after_sleep(__u64 average_ns, __u64 slept_ns,
					__s32 nice_level)
{
	__u64 ceiling =
		SLEEP_MOST_NS / BONUS_MOST *
			(BONUS_MOST / 2 + levels_required(nice_level) + 1) -
		SLICE_OVER_NS;

	if (slept_ns > ceiling && average_ns < ceiling)
		return ceiling;
	if (slept_ns > SLEEP_MOST_NS)
		slept_ns = SLEEP_MOST_NS;
	average_ns += slept_ns;
	return average_ns > SLEEP_MOST_NS ? SLEEP_MOST_NS : average_ns;
}

/* Returns the sleep average that a child inherits: 95 % of the average of its parent. */
static inline __u64 average_of_child(__u64 average_ns)
{
	return average_ns * 95 / 100;
}

/*
 * Returns the sleep average after `ran_ns` of CPU time. The average falls the more slowly, the
 * higher it is.
 */
static inline __u64 average_after_run(__u64 average_ns, __u64 ran_ns)
{
	__u32 bonus = bonus_of(average_ns);

	if (ran_ns > SLEEP_MOST_NS)
		ran_ns = SLEEP_MOST_NS;
	ran_ns /= bonus ? bonus : 1;
	return ran_ns < average_ns ? average_ns - ran_ns : 0;
}

/*
 * Largest number of waiting threads that `is_starving` multiplies by. Linux 2.6 had no limit; here,
 * the kernel ends a sched_ext scheduler under which a thread waits for too long.
 */
#define STARVING_MOST 10

/*
 * Returns whether the first expired thread has waited for too long. While this is true, interactive
 * threads expire as other threads do.
 */
static inline _Bool is_starving(__u64 since_ns, __u64 now_ns, __u32 waiting)
{
	if (waiting > STARVING_MOST)
		waiting = STARVING_MOST;
	return since(since_ns, now_ns) > SLEEP_MOST_NS * waiting;
}

#endif
