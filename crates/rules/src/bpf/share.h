/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Shares of the CPU, as virtual time
 *
 * Virtual time (vtime) is CPU time over weight, in nanoseconds that may overflow: only differences
 * count. The thread with the lowest vtime is due. A clock is the minimum vtime of the waiting
 * threads; a thread behind it has credit, a thread ahead of it has lag. This file has:
 *
 * - the weight: that of the thread times those of its cgroups;
 * - the limits: credit of one slice after a sleep (clamp_sleeper()), lag of a new waiter
 *   (max_lag(), clamp_waiter()), no lag from CPU time that delayed no thread (clamp_to_clock());
 * - the starvation rule, which bounds waits in real time (`struct aging`);
 * - fork storms: young threads of one family share a vtime (family_charge());
 * - urgent threads: short bursts of CPU time between sleeps (is_urgent(), burst_after()).
 *
 * Each function takes constant time. turns.h selects by vtime, and states the bounds on waits.
 */
#ifndef USHER_RULES_SHARE_H
#define USHER_RULES_SHARE_H

#include "numbers.h"

/* scx.weight of nice 0. */
#define WEIGHT_NORMAL 100
/*
 * A thread with shorter bursts probably serves a thread or user that waits for it. A third of a
 * slice leaves room for a thread that mostly sleeps and is slowed down by its neighbours.
 */
#define SHORT_BURST_NS 1000000ULL

/* Upper limit for the product of the weights of nested cgroups, in per cent. */
#define GROUP_WEIGHT_MAX 1000000U

/* Applies the weight of one cgroup. `weight` 0: the cgroup has none. */
static inline __u32 within_group(__u32 percent, __u32 weight)
{
	__u64 product = (__u64)percent * (weight ? weight : WEIGHT_NORMAL) /
			WEIGHT_NORMAL;

	if (product > GROUP_WEIGHT_MAX)
		return GROUP_WEIGHT_MAX;
	return product ? product : 1;
}

/* Applies the weight of the cgroups, in per cent, to that of the thread. */
static inline __u64 weight_in(__u64 weight, __u32 percent)
{
	/* Fast path: most cgroups have the default weight, and a division is slow. */
	if (percent && percent != 100)
		weight = weight * percent / 100;
	return weight ? weight : 1;
}

/* Converts CPU time to virtual time. */
static inline __u64 virtual_ns(__u64 ran_ns, __u64 weight)
{
	if (weight == WEIGHT_NORMAL)
		return ran_ns;
	return ran_ns * WEIGHT_NORMAL / (weight ? weight : 1);
}

/* Limits the credit of a thread that slept to one slice. */
static inline __u64 clamp_sleeper(__u64 vtime, __u64 clock, __u64 slice_ns)
{
	__u64 least = clock - slice_ns;

	return is_before(vtime, least) ? least : vtime;
}

/*
 * Upper limit of the vtime by which a thread exceeds max_lag_ns, however low its weight. A thread
 * of nice -20 runs for seconds until it has advanced by this vtime.
 */
#define MAX_WEIGHTED_LAG_NS 100000000ULL

/*
 * Returns the largest lag of a thread of this weight. The slice that reaches max_lag_ns runs to its
 * end, and the next thread of the address space may have begun a slice by then as well.
 */
static inline __u64 max_lag(__u64 max_lag_ns, __u64 slice_ns, __u64 weight)
{
	__u64 beyond = virtual_ns(2 * slice_ns, weight);

	return max_lag_ns +
	       (beyond < MAX_WEIGHTED_LAG_NS ? beyond : MAX_WEIGHTED_LAG_NS);
}

/* Limits the vtime of a new waiter to `max_lag_ns` ahead of `least`, that of a waiting thread. */
static inline __u64 clamp_waiter(__u64 vtime, __u64 least, __u64 max_lag_ns)
{
	__u64 most = least + max_lag_ns;

	return is_before(most, vtime) ? most : vtime;
}

/*
 * Starvation rule
 *
 * Virtual time alone bounds no wait in real time: beside heavy threads the clock of a CPU almost
 * stands still, and it is slow beside many threads. Each CPU records the highest vtime of its
 * waiters, in periods of OVERDUE_NS. While a waiter of an earlier period may still wait, it is
 * overdue: threads that begin to wait and threads that could continue are placed behind it, and no
 * turn lasts.
 */
#define OVERDUE_NS 1000000000ULL

struct aging {
	/* Highest vtime of the waiters since the first one. */
	__u64 highest;
	/*
	 * Same, at the start of the current period (`recent`) and of the last period (`overdue`).
	 */
	__u64 recent;
	__u64 overdue;
	/* Start of the current period; 0: no thread has waited since the reset. */
	__u64 began_ns;
};

/* Forgets all waiters, as no thread waits for the CPU. */
static inline void reset_aging(struct aging *aging)
{
	aging->began_ns = 0;
}

/* Begins a new period if it is time. A waiter is overdue after one to two periods. */
static inline void follow_periods(struct aging *aging, __u64 clock,
				  __u64 now_ns)
{
	__u64 passed_ns = since(aging->began_ns, now_ns);

	if (!aging->began_ns) {
		aging->highest = aging->recent = clock;
		aging->overdue = clock - 1;
	} else if (passed_ns >= OVERDUE_NS) {
		aging->overdue = passed_ns < 2 * OVERDUE_NS ? aging->recent
							    : aging->highest;
		aging->recent = aging->highest;
	} else {
		return;
	}
	aging->began_ns = now_ns;
}

/* Returns whether a thread may wait that is overdue. All waiters are at the clock or ahead. */
static inline _Bool has_overdue(const struct aging *aging, __u64 clock)
{
	return aging->began_ns && !is_before(aging->overdue, clock);
}

/* Places a vtime behind the overdue threads, if there may be any. */
static inline __u64 behind_overdue(const struct aging *aging, __u64 clock,
				   __u64 vtime)
{
	return has_overdue(aging, clock) ? later(vtime, aging->overdue) : vtime;
}

/*
 * Fork storms
 *
 * Each new thread is served early, and ends before its vtime counts. A program that forks without
 * end would thus take the CPUs from threads that compute. The young threads of one family therefore
 * share a vtime in each LLC, beside their own, as if they were one thread. The family of a thread
 * is that of its parent if the parent is young, and the parent's process otherwise. A program that
 * is started from a shell is not delayed by the young threads of a build. The CPU time of threads
 * that live for longer no longer counts in the shared vtime.
 */
#define YOUNG_NS 24000000ULL
/* Number of shared vtimes per LLC; families with equal remainders use the same one. */
#define FAMILIES 128
/*
 * Lag at which a family is not charged further. The last charge may exceed it, by
 * MAX_WEIGHTED_LAG_NS at most. The lag delays the next threads of the family.
 */
#define FAMILY_LAG_MAX_NS 200000000ULL

/* Returns whether a thread with this CPU time since its creation is young. */
static inline _Bool is_young(__u64 ran_ns)
{
	return ran_ns < YOUNG_NS;
}

/* Returns the vtime that is added to that of a family. */
static inline __u64 family_charge(__u64 family_vtime, __u64 clock, __u64 ran)
{
	if (!is_before(family_vtime, clock + FAMILY_LAG_MAX_NS))
		return 0;
	return ran < MAX_WEIGHTED_LAG_NS ? ran : MAX_WEIGHTED_LAG_NS;
}

/* CPU time that delays no other thread is not charged: caps the vtime at the clock. */
static inline __u64 clamp_to_clock(__u64 vtime, __u64 clock)
{
	return is_before(clock, vtime) ? clock : vtime;
}

/*
 * Returns whether a thread is urgent: its bursts are short and it has not exceeded its share. An
 * urgent thread does not wait for the end of a turn.
 */
static inline _Bool is_urgent(__u64 burst_ns, __u64 vtime, __u64 share)
{
	return burst_ns < SHORT_BURST_NS && is_before(vtime, share);
}

/*
 * Returns the average burst length after one more burst. The average falls fast, because the first
 * bursts of every program are long. It rises slowly, because one long burst on a shared CPU is weak
 * evidence.
 */
static inline __u64 burst_after(__u64 average_ns, __u64 burst_ns)
{
	if (burst_ns < average_ns)
		return (average_ns + 3 * burst_ns) / 4;
	return (7 * average_ns + burst_ns) / 8;
}

/* Returns whether a CPU has served only urgent threads for too long. */
static inline _Bool is_overdue(__u64 served_ns, __u64 now_ns, __u64 max_lag_ns)
{
	return since(served_ns, now_ns) > max_lag_ns;
}

#endif
