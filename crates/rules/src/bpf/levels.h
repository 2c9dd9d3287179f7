/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Order of the O(1) scheduler of Linux 2.6, and its correction from paper 4
 *
 * For comparison only. The order is expressed as keys for the queues of turns.h: the lowest key is
 * next.
 *
 * 1. The O(1) scheduler
 * ---------------------
 * There are 140 levels; 0 is the best. A nice value maps to one of the last forty, and sleep shifts
 * it by five levels at most. Two arrays, active and expired, hold a list for each level. The length
 * of a slice depends on the nice value. A thread that has used up its slice goes to the end of a
 * list of the expired array. An interactive thread stays in the active array, unless an expired
 * thread has waited for too long. When the active array is empty, the arrays swap.
 *
 * 2. Keys
 * -------
 * A key consists of the number of an array, a level and an arrival number, from the highest bits to
 * the lowest. The expired array has the next number. Its keys therefore become the lowest when the
 * active array is empty. A preempted thread keeps its key, as it kept its place in the list.
 *
 * 3. Correction of paper 4
 * ------------------------
 * Each address space has lists of its own, and the levels of the running address space are better
 * by one: LEVEL is the max_lag_ns given to pick_next(). Turns have no time limit.
 */
#ifndef USHER_RULES_LEVELS_H
#define USHER_RULES_LEVELS_H

#include "turns.h"

#define LEVELS 140
/* Levels of nice -20, 0 and 19. Lower levels are those of real-time threads. */
#define LEVEL_FIRST 100
#define LEVEL_NORMAL 120
#define LEVEL_LAST 139

/* Unit of a level in a key, and of an array. */
#define LEVEL (1ULL << 40)
#define ARRAY (1ULL << 48)

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

/* Composes a key in the array of the key `array`. */
static inline __u64 key_at(__u64 array, __u32 level, __u64 arrival)
{
	return (array & ~(ARRAY - 1)) + level * LEVEL + (arrival & (LEVEL - 1));
}

static inline __u32 level_in(__u64 key)
{
	return (key & (ARRAY - 1)) / LEVEL;
}

static inline _Bool is_earlier_array(__u64 key, __u64 than)
{
	return is_before(key & ~(ARRAY - 1), than & ~(ARRAY - 1));
}

/*
 * Returns the key after a slice: in the array behind that of the begin of the slice, because the
 * arrays may have been swapped since.
 */
static inline __u64 key_expired(__u64 key, __u64 active, __u32 level,
				__u64 arrival)
{
	__u64 next = key + ARRAY;

	return key_at(is_earlier_array(next, active) ? active : next, level,
		      arrival);
}

/*
 * Returns the key of a thread preempted before the end of its slice: unchanged, or the same place
 * in the active array if its own array is gone.
 */
static inline __u64 key_preempted(__u64 key, __u64 active)
{
	return is_earlier_array(key, active)
		       ? key_at(active, level_in(key), key)
		       : key;
}

/* Converts a key between the arrays of two LLCs: same kind of array, last arrival. */
static inline __u64 key_elsewhere(__u64 key, __u64 active_there,
				  __u64 active_here, __u64 arrival)
{
	__u64 array = active_here;

	if (is_earlier_array(active_there, key))
		array += ARRAY;
	return key_at(array, level_in(key), arrival);
}

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

/* Returns whether a thread that wakes preempts the running one. */
static inline _Bool has_better_level(__u64 key, __u64 running, _Bool same_space,
				     _Bool aggregate)
{
	__u32 lead = aggregate && !same_space ? 1 : 0;

	return level_in(key) + lead < level_in(running);
}

#endif
