/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Levels, slices and sleep averages of the O(1) scheduler of Linux 2.6
 *
 * There are 140 levels; 0 is the best. A nice value maps to one of the last forty, and sleep shifts
 * it by five levels at most. The length of a slice depends on the nice value. A thread that sleeps
 * often is interactive. arrays.h describes the effect of both.
 */
#ifndef USHER_BENCH_LEVELS_H
#define USHER_BENCH_LEVELS_H

#include "numbers.h"

#define LEVELS 140
/* Levels of nice -20, 0 and 19. Lower levels are those of real-time threads. */
#define LEVEL_FIRST 100
#define LEVEL_NORMAL 120
#define LEVEL_LAST 139

#define MSEC 1000000ULL
#define SLICE_LEAST_NS (5 * MSEC)
#define SLICE_NORMAL_NS (100 * MSEC)
/* A rest of a slice below this counts as 0. Linux 2.6 counted ticks. */
#define SLICE_OVER_NS MSEC

#define BONUS_MOST 10
/*
 * Upper limit of the sleep average. Also the time for which expired threads wait, per waiting
 * thread.
 */
#define SLEEP_MOST_NS (SLICE_NORMAL_NS * BONUS_MOST)

static inline __u32 in_levels(__s32 level)
{
	return level < LEVEL_FIRST  ? LEVEL_FIRST
	       : level > LEVEL_LAST ? LEVEL_LAST
				    : level;
}

/* Slice by nice value: 800 ms, 100 ms, 5 ms for -20, 0, 19. */
static inline __u64 slice_of_level(__s32 nice_level)
{
	__u32 level = in_levels(nice_level);
	__u64 whole =
		level < LEVEL_NORMAL ? 4 * SLICE_NORMAL_NS : SLICE_NORMAL_NS;
	__u64 slice = whole * (LEVELS - level) / ((LEVELS - LEVEL_FIRST) / 2);

	return slice < SLICE_LEAST_NS ? SLICE_LEAST_NS : slice;
}

/* Returns the bonus, 0 to 10. A bonus of 5 does not shift the level. */
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
 * Returns the number of levels by which a thread must be better than its nice value to be
 * interactive.
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

/* Returns the sleep average after a sleep. One long sleep makes a thread barely interactive. */
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

/* Returns the sleep average of a child. */
static inline __u64 average_of_child(__u64 average_ns)
{
	return average_ns * 95 / 100;
}

/* Returns the sleep average after running. The higher the average, the slower it falls. */
static inline __u64 average_after_run(__u64 average_ns, __u64 ran_ns)
{
	__u32 bonus = bonus_of(average_ns);

	if (ran_ns > SLEEP_MOST_NS)
		ran_ns = SLEEP_MOST_NS;
	ran_ns /= bonus ? bonus : 1;
	return ran_ns < average_ns ? average_ns - ran_ns : 0;
}

/*
 * Upper limit for the number of waiting threads that is counted. Linux 2.6 had none. The kernel
 * ends a sched_ext scheduler that starves a thread.
 */
#define STARVING_MOST 10

/*
 * Returns whether the first expired thread has waited for too long. Then interactive threads expire
 * as well.
 */
static inline _Bool is_starving(__u64 since_ns, __u64 now_ns, __u32 waiting)
{
	if (waiting > STARVING_MOST)
		waiting = STARVING_MOST;
	return since(since_ns, now_ns) > SLEEP_MOST_NS * waiting;
}

#endif
