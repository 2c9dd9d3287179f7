/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Shares of the CPU, as virtual time
 *
 * Virtual time (vtime) is CPU time over weight, in nanoseconds that may overflow: only differences
 * count. The thread with the lowest vtime runs next. A vtime clock is the minimum vtime of the
 * waiting threads. A thread with a vtime below the clock has credit, and a thread with a vtime
 * above the clock has lag. This file contains:
 *
 * - the weight: that of the thread times the factor of its cgroup (group_share.h);
 * - the limits: at most one slice of credit after a sleep (clamp_sleeper()), a maximum lag of a
 *   thread that begins to wait (max_lag(), clamp_waiter()), and no lag from CPU time that delayed
 *   no other thread (clamp_to_clock());
 * - the starvation rule, which bounds waits in real time (`struct aging`);
 * - fork storms: young threads of one family share a vtime (family_charge());
 * - urgent threads: short bursts of CPU time between sleeps (is_urgent(), burst_after()).
 *
 * Each function takes constant time. turns.h selects the next thread by vtime, and states the
 * bounds on waits.
 *
 * Limits: the credit is one slice. The lag is max_lag_ns and the vtime of two slices, of which at
 * most 100 ms. An LLC has 128 shared vtimes of families, with a lag of at most 200 ms and a last
 * charge of at most 100 ms. A waiting thread is overdue after 1 to 2 s. No function fails.
 */
#ifndef USHER_RULES_SHARE_H
#define USHER_RULES_SHARE_H

#include "numbers.h"

/* Weight of a thread of nice 0 (field scx.weight of the kernel). */
#define WEIGHT_NORMAL 100
/*
 * Limit of a short burst: a third of the default slice. A thread with shorter bursts probably
 * serves another thread or a user that waits for the result. The limit leaves room for a thread
 * that mostly sleeps, but has longer bursts because other threads slow it down.
 */
#define SHORT_BURST_NS 1000000ULL

/*
 * Factor of a thread's weight by the shares of its cgroups (group_share.h) that changes nothing.
 * Products of weight and factor keep the digits that a thread of low share needs.
 */
#define FACTOR_ONE (1ULL << 16)

/* Longest CPU time, 18 minutes, that counts at once for a thread with another weight. */
#define RAN_MAX_NS (1ULL << 40)

/* Returns the product of the weight of a thread and the factor of its cgroup. */
static inline __u64 weight_in(__u64 weight, __u64 factor)
{
	weight *= factor;
	return weight ? weight : 1;
}

/* Converts CPU time of a thread to virtual time. `product` is the result of weight_in(). */
static inline __u64 virtual_in(__u64 ran_ns, __u64 product)
{
	/* Fast path: a division is slow. */
	if (product == WEIGHT_NORMAL * FACTOR_ONE)
		return ran_ns;
	/* The product below must not overflow. */
	if (ran_ns > RAN_MAX_NS)
		ran_ns = RAN_MAX_NS;
	return ran_ns * (WEIGHT_NORMAL * FACTOR_ONE) / product;
}

/* Limits the credit of a thread to one slice, after the thread has slept. */
static inline __u64 clamp_sleeper(__u64 vtime, __u64 clock, __u64 slice_ns)
{
	__u64 least = clock - slice_ns;

	return is_before(vtime, least) ? least : vtime;
}

/*
 * Upper limit of the vtime by which a thread may exceed max_lag_ns, for any weight. Two slices of a
 * thread of low weight would be more vtime than this limit. A thread of nice -20 runs for seconds
 * until it has advanced by this vtime.
 */
#define MAX_WEIGHTED_LAG_NS 100000000ULL

/*
 * Returns the largest lag of a thread of this weight (weight_in()): max_lag_ns and the vtime of two
 * slices. The thread may reach max_lag_ns early in a slice, and the slice still runs to its end. By then, the
 * next thread of the address space may have begun a slice as well.
 */
static inline __u64 max_lag(__u64 max_lag_ns, __u64 slice_ns, __u64 product)
{
	__u64 beyond = virtual_in(2 * slice_ns, product);

	return max_lag_ns +
	       (beyond < MAX_WEIGHTED_LAG_NS ? beyond : MAX_WEIGHTED_LAG_NS);
}

/*
 * Limits the vtime of a new waiter to `max_lag_ns` ahead of `least`, the vtime of a waiting thread.
 */
static inline __u64 clamp_waiter(__u64 vtime, __u64 least, __u64 max_lag_ns)
{
	__u64 most = least + max_lag_ns;

	return is_before(most, vtime) ? most : vtime;
}

/*
 * Starvation rule
 *
 * Virtual time alone does not bound a wait in real time: the vtime clock almost stops while heavy
 * threads run, and is slow while many threads run. Each CPU therefore records the highest vtime of
 * its waiters, in periods of OVERDUE_NS. A thread that has waited since an earlier period is
 * overdue. While a thread may be overdue, threads that begin to wait and threads that could
 * continue are placed behind it, and no address space keeps its turn.
 */
#define OVERDUE_NS 1000000000ULL

struct aging {
	/* Highest vtime of all threads that have waited since the last reset. */
	__u64 highest;
	/*
	 * Value of `highest` at the start of the current period (`recent`) and at the start of the
	 * previous period (`overdue`).
	 */
	__u64 recent;
	__u64 overdue;
	/* Start of the current period; 0: no thread has waited since the reset. */
	__u64 began_ns;
};

/* Discards the record of waiters; called when no thread waits for the CPU. */
static inline void reset_aging(struct aging *aging)
{
	aging->began_ns = 0;
}

/*
 * Begins a new period if the current period has lasted OVERDUE_NS. A waiter is overdue after one to
 * two periods.
 */
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

/*
 * Returns whether a waiting thread may be overdue. No waiter has a vtime below the clock. When the
 * clock has passed `overdue`, no overdue thread is left.
 */
static inline _Bool has_overdue(const struct aging *aging, __u64 clock)
{
	return aging->began_ns && !is_before(aging->overdue, clock);
}

/* Returns a vtime behind those of all overdue threads; `vtime` itself if no thread is overdue. */
static inline __u64 behind_overdue(const struct aging *aging, __u64 clock,
				   __u64 vtime)
{
	return has_overdue(aging, clock) ? later(vtime, aging->overdue) : vtime;
}

/*
 * Fork storms
 *
 * A new thread runs soon after its creation, and a short thread ends before its own vtime delays
 * it. A program that forks without end would thus take the CPUs from threads that compute. The
 * young threads of one family therefore share a vtime in each LLC, in addition to their own vtimes,
 * as if they were one thread. The family of a thread is that of its parent if the parent is young,
 * and the parent's process otherwise. By this definition, the young threads of a build do not delay
 * a program that is started from a shell. The CPU time that a thread uses after its youth does not
 * count in the shared vtime. A thread that has slept still adds to the shared vtime, but competes
 * with its own.
 */
#define YOUNG_NS 24000000ULL
/*
 * Number of shared vtimes per LLC. Families with numbers that are equal modulo FAMILIES share a
 * vtime.
 */
#define FAMILIES 128
/*
 * A family with this lag is not charged further, because the lag delays the next threads of the
 * family. The last charge may exceed this limit by at most MAX_WEIGHTED_LAG_NS.
 */
#define FAMILY_LAG_MAX_NS 200000000ULL

/* Returns whether a thread with this CPU time since its creation is young. */
static inline _Bool is_young(__u64 ran_ns)
{
	return ran_ns < YOUNG_NS;
}

/* Returns the vtime that a run of length `ran` adds to the shared vtime of a family. */
static inline __u64 family_charge(__u64 family_vtime, __u64 clock, __u64 ran)
{
	if (!is_before(family_vtime, clock + FAMILY_LAG_MAX_NS))
		return 0;
	return ran < MAX_WEIGHTED_LAG_NS ? ran : MAX_WEIGHTED_LAG_NS;
}

/* Caps a vtime at the clock, because CPU time that delayed no other thread is not charged. */
static inline __u64 clamp_to_clock(__u64 vtime, __u64 clock)
{
	return is_before(clock, vtime) ? clock : vtime;
}

/*
 * Returns whether a thread is urgent: its average burst is short, and its vtime is below `share`,
 * the vtime up to which it is within its share. An urgent thread does not wait for the end of a
 * turn.
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

/*
 * Returns whether a CPU has run only urgent threads for more than `max_lag_ns`. `served_ns` is the
 * time at which a thread that is not urgent last ran.
 */
static inline _Bool is_overdue(__u64 served_ns, __u64 now_ns, __u64 max_lag_ns)
{
	return since(served_ns, now_ns) > max_lag_ns;
}

#endif
