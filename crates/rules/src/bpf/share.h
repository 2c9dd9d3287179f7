/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * How much of a CPU a thread has had, as virtual time, which passes the faster the less it
 * weighs; what sleep, a long wait and heavy neighbours make of that; and who is in a hurry.
 */
#ifndef USHER_RULES_SHARE_H
#define USHER_RULES_SHARE_H

#include "numbers.h"

/* scx.weight of nice 0. */
#define WEIGHT_NORMAL 100
/* Threads that sleep after less than this are waited for by somebody: a third of a
 * slice, so that who mostly sleeps stays among them where others slow it down. */
#define SHORT_BURST_NS 1000000ULL

/* The largest product of the weights of cgroups in one another, in per cent. */
#define GROUP_WEIGHT_MAX 1000000U

/* What a cgroup makes of the weight of those in it; 0: it says nothing. */
static inline __u32 within_group(__u32 percent, __u32 weight)
{
	__u64 product = (__u64)percent * (weight ? weight : WEIGHT_NORMAL) /
			WEIGHT_NORMAL;

	if (product > GROUP_WEIGHT_MAX)
		return GROUP_WEIGHT_MAX;
	return product ? product : 1;
}

/* A thread's weight with that of its cgroups. */
static inline __u64 weight_in(__u64 weight, __u32 percent)
{
	/* Most are in groups that change nothing, and a division takes long. */
	if (percent && percent != 100)
		weight = weight * percent / 100;
	return weight ? weight : 1;
}

/* Virtual time that running so long takes. */
static inline __u64 virtual_ns(__u64 ran_ns, __u64 weight)
{
	if (weight == WEIGHT_NORMAL)
		return ran_ns;
	return ran_ns * WEIGHT_NORMAL / (weight ? weight : 1);
}

/* Whoever slept is not owed more than a slice. */
static inline __u64 clamp_sleeper(__u64 vtime, __u64 clock, __u64 slice_ns)
{
	__u64 least = clock - slice_ns;

	return is_before(vtime, least) ? least : vtime;
}

/* However light a thread is, it owes no more virtual time than this for what it ran
 * beyond the lead: one of nice -20 takes seconds to make up for it. */
#define MAX_WEIGHTED_LAG_NS 100000000ULL

/* How far a thread of this weight gets ahead of whoever waits: a slice runs on as the
 * lead is reached, and the next thread of the address space has begun one by then, too. */
static inline __u64 max_lag(__u64 max_lag_ns, __u64 slice_ns, __u64 weight)
{
	__u64 beyond = virtual_ns(2 * slice_ns, weight);

	return max_lag_ns +
	       (beyond < MAX_WEIGHTED_LAG_NS ? beyond : MAX_WEIGHTED_LAG_NS);
}

/* Nor does anybody owe those that wait already more than that. */
static inline __u64 clamp_waiter(__u64 vtime, __u64 least, __u64 max_lag_ns)
{
	__u64 most = least + max_lag_ns;

	return is_before(most, vtime) ? most : vtime;
}

/*
 * On each CPU virtual time passes, while somebody waits, at most so many times slower than
 * real time: beside heavy threads it would stand still nearly, and whoever is ahead of them
 * wait until the kernel finds that it starves.
 */
#define SLOWDOWN_MAX 32

struct pace {
	/* Where the CPU's clock would be by now, had it never been slower. */
	__u64 least;
	/* When that was worked out; 0: nobody has waited since. */
	__u64 at_ns;
};

/* Nobody waits for the CPU. */
static inline void reset_pace(struct pace *pace)
{
	pace->at_ns = 0;
}

/* Asked whenever somebody comes to wait, and wherever the thread that runs may go on. */
static inline void keep_pace(struct pace *pace, __u64 clock, __u64 now_ns)
{
	__u64 then_ns = pace->at_ns;
	__u64 passed_ns = since(then_ns, now_ns);
	__u64 least = pace->least + passed_ns / SLOWDOWN_MAX;

	pace->least = then_ns && is_before(clock, least) ? least : clock;
	pace->at_ns = then_ns + passed_ns;
}

/* Whoever is further behind than the lightest ever get ahead counts as there. */
static inline __u64 at_pace(const struct pace *pace, __u64 clock, __u64 vtime)
{
	__u64 least = pace->least - MAX_WEIGHTED_LAG_NS;

	return is_before(clock, pace->least) && is_before(vtime, least) ? least
									: vtime;
}

/* Time in which nobody waits costs nobody anything, and is not owed to anybody. */
static inline __u64 clamp_to_clock(__u64 vtime, __u64 clock)
{
	return is_before(clock, vtime) ? clock : vtime;
}

/*
 * Wakes for a moment, and is not ahead of its share: it is not made to wait for
 * anybody's turn to end.
 */
static inline _Bool is_urgent(__u64 burst_ns, __u64 vtime, __u64 share)
{
	return burst_ns < SHORT_BURST_NS && is_before(vtime, share);
}

/*
 * The average length of a burst after one more. Who has begun to wake for moments
 * is soon believed, as the first bursts of every program are long; one long burst,
 * in which others had the CPU, does not undo it.
 */
static inline __u64 burst_after(__u64 average_ns, __u64 burst_ns)
{
	if (burst_ns < average_ns)
		return (average_ns + 3 * burst_ns) / 4;
	return (7 * average_ns + burst_ns) / 8;
}

/* A CPU has served nobody but urgent threads for so long: others are next. */
static inline _Bool is_late(__u64 served_ns, __u64 now_ns, __u64 max_lag_ns)
{
	return since(served_ns, now_ns) > max_lag_ns;
}

#endif
