/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The order of Linux 2.6's O(1) scheduler, and paper 4's cure of it, as keys for
 * the queues of turns.h: who has the least is next.
 *
 * 140 levels, of which 0 is the best; a nice value gives one of the last forty,
 * and sleep moves it by five at most. Two arrays have a list for each level. A
 * slice belongs to the nice value; who has used it up goes to the end of a list
 * of the expired array, but for the interactive ones, which stay in the active
 * one unless somebody has waited for long. When the active array is empty, the
 * two swap.
 *
 * A key is the number of an array, a level and the number of an arrival, from
 * the highest bits to the lowest. The expired array has the next number, so that
 * its keys are the least by themselves when the active one is empty. Whoever is
 * preempted keeps its key, as it kept its place in the list.
 *
 * The cure has a list for each address space, and those of the one that runs are
 * one level better: LEVEL is the lead that who_is_next gives them, and their turn
 * has no end.
 */
#ifndef USHER_RULES_LEVELS_H
#define USHER_RULES_LEVELS_H

#include "turns.h"

#define LEVELS 140
/* Levels of nice -20, 0 and 19; those before are of real-time threads. */
#define LEVEL_FIRST 100
#define LEVEL_NORMAL 120
#define LEVEL_LAST 139

/* What a level weighs in a key, and what an array does. */
#define LEVEL (1ULL << 40)
#define ARRAY (1ULL << 48)

/* In ns. */
#define MSEC 1000000ULL
#define SLICE_LEAST_NS (5 * MSEC)
#define SLICE_NORMAL_NS (100 * MSEC)
/* Less than this is no slice any more: Linux 2.6 counted ticks. */
#define SLICE_OVER_NS MSEC

#define BONUS_MOST 10
/* So much sleep is remembered, and so long may the expired wait for each other. */
#define SLEEP_MOST_NS (SLICE_NORMAL_NS * BONUS_MOST)

/* In the array of that key. */
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
 * After a slice. The array behind that in which the thread had it, for others
 * may have swapped them while it ran.
 */
static inline __u64 key_expired(__u64 key, __u64 active, __u32 level,
				__u64 arrival)
{
	__u64 next = key + ARRAY;

	return key_at(is_earlier_array(next, active) ? active : next, level,
		      arrival);
}

/* Before the end of its slice: its place, if that array is there still. */
static inline __u64 key_preempted(__u64 key, __u64 active)
{
	return is_earlier_array(key, active)
		       ? key_at(active, level_in(key), key)
		       : key;
}

/* Between two pairs of arrays: as the last that came, in the same of both. */
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

/* By nice value: 800 ms, 100 ms, 5 ms for -20, 0, 19. */
static inline __u64 slice_of_level(__s32 nice_level)
{
	__u32 level = in_levels(nice_level);
	__u64 whole =
		level < LEVEL_NORMAL ? 4 * SLICE_NORMAL_NS : SLICE_NORMAL_NS;
	__u64 slice = whole * (LEVELS - level) / ((LEVELS - LEVEL_FIRST) / 2);

	return slice < SLICE_LEAST_NS ? SLICE_LEAST_NS : slice;
}

/* 0 to 10, of which 5 moves nobody. */
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

/* How much better than its nice value an interactive thread has to be. */
static inline __s32 levels_due(__s32 nice_level)
{
	__u32 nth = in_levels(nice_level) - LEVEL_FIRST;

	return (__s32)(nth * BONUS_MOST / (LEVELS - LEVEL_FIRST)) -
	       BONUS_MOST / 2 + 2;
}

static inline _Bool is_interactive(__s32 nice_level, __u64 sleep_average_ns)
{
	return (__s32)level_of(nice_level, sleep_average_ns) <=
	       (__s32)in_levels(nice_level) - levels_due(nice_level);
}

/* One long sleep makes nobody more than just interactive. */
static inline __u64 average_after_sleep(__u64 average_ns, __u64 slept_ns,
					__s32 nice_level)
{
	__u64 ceiling = SLEEP_MOST_NS / BONUS_MOST *
				(BONUS_MOST / 2 + levels_due(nice_level) + 1) -
			SLICE_OVER_NS;

	if (slept_ns > ceiling && average_ns < ceiling)
		return ceiling;
	if (slept_ns > SLEEP_MOST_NS)
		slept_ns = SLEEP_MOST_NS;
	average_ns += slept_ns;
	return average_ns > SLEEP_MOST_NS ? SLEEP_MOST_NS : average_ns;
}

/* A child begins with nearly as much. */
static inline __u64 average_of_child(__u64 average_ns)
{
	return average_ns * 95 / 100;
}

/* What was gained by much sleep goes slowly. */
static inline __u64 average_after_run(__u64 average_ns, __u64 ran_ns)
{
	__u32 bonus = bonus_of(average_ns);

	if (ran_ns > SLEEP_MOST_NS)
		ran_ns = SLEEP_MOST_NS;
	ran_ns /= bonus ? bonus : 1;
	return ran_ns < average_ns ? average_ns - ran_ns : 0;
}

/* Linux 2.6 had no such end; the kernel of today ends whoever starves a thread. */
#define STARVING_MOST 10

/* The first of the expired has waited for too long: nobody stays before them. */
static inline _Bool is_starving(__u64 since_ns, __u64 now_ns, __u32 waiting)
{
	if (waiting > STARVING_MOST)
		waiting = STARVING_MOST;
	return since(since_ns, now_ns) > SLEEP_MOST_NS * waiting;
}

/* Whether a thread that wakes has the CPU of one that runs. */
static inline _Bool has_better_level(__u64 key, __u64 running, _Bool same_space,
				     _Bool aggregate)
{
	__u32 lead = aggregate && !same_space ? 1 : 0;

	return level_in(key) + lead < level_in(running);
}

#endif
