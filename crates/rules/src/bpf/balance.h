/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Load balancing between LLCs: when a CPU takes a thread from another LLC although its own LLC has
 * threads
 *
 * 1. begins_balance(): once per BALANCE_PERIOD_NS, one CPU of each LLC checks another LLC.
 * 2. other_llc(): select another LLC at random.
 * 3. surplus_of(): compare the waiting threads per CPU of the two LLCs. With a surplus in the other
 *    LLC, the CPU takes a thread from it.
 * 4. After a migration, end_balance() sets the time of the next check of each of the two LLCs.
 *
 * Each function takes constant time. The load is a number of threads; their weights do not count.
 * An idle CPU in an LLC without waiting threads does not compare loads: it takes any thread of
 * another LLC (steal() in run_queue.h).
 *
 * Limits: one check per BALANCE_PERIOD_NS (50 ms) and LLC, of a single other LLC, and one thread
 * per check. After SURPLUS_MANY, the next check may follow at once.
 */
#ifndef USHER_RULES_BALANCE_H
#define USHER_RULES_BALANCE_H

#include "numbers.h"

/* Number of waiting threads in an LLC, and number of its CPUs. */
struct load {
	__u32 waiting;
	__u32 cpus;
};

/* Result of a comparison of two LLCs. */
enum surplus {
	/* No thread is taken. */
	SURPLUS_NONE,
	/*
	 * The other LLC has one waiting thread too many for equal load. That thread rotates between
	 * the LLCs.
	 */
	SURPLUS_ONE,
	/*
	 * Even after the migration of one thread, the other LLC has at least as many waiting
	 * threads per CPU as the own LLC.
	 */
	SURPLUS_MANY,
};

/*
 * Compares the load of another LLC (`there`) with the load of this CPU's LLC (`here`). SURPLUS_ONE
 * is returned only for LLCs of the same node, because memory is equally near to them. If the thread
 * that ran last on this CPU sleeps (`last_sleeps`), one waiting thread of the own LLC is about to
 * run, and does not count as waiting.
 */
static inline enum surplus surplus_of(struct load there, struct load here,
				      _Bool last_sleeps, _Bool in_node)
{
	if (last_sleeps && here.waiting)
		here.waiting--;
	if (there.waiting && (there.waiting - 1) * (__u64)here.cpus >=
				     (here.waiting + 1) * (__u64)there.cpus)
		return SURPLUS_MANY;
	if (in_node &&
	    there.waiting * (__u64)here.cpus > here.waiting * (__u64)there.cpus)
		return SURPLUS_ONE;
	return SURPLUS_NONE;
}

/*
 * Time between two checks of another LLC: about two turns of the default length. After that time,
 * another thread should wait instead of the thread that waits now.
 */
#define BALANCE_PERIOD_NS 50000000ULL

/* Returns whether this CPU checks another LLC now, on behalf of its own LLC. */
static inline _Bool begins_balance(__u64 now_ns, __u64 *balance_at_ns)
{
	if (is_before(now_ns, *balance_at_ns))
		return 0;
	*balance_at_ns = now_ns + BALANCE_PERIOD_NS;
	return 1;
}

/*
 * Sets the next checks after a migration. After SURPLUS_ONE, the other LLC pauses for one period.
 * Without the pause, the other LLC would take the thread back at once, and the thread would spend
 * less time in this LLC than in the other. After SURPLUS_MANY, the next CPU of this LLC that
 * schedules checks again immediately.
 */
static inline void end_balance(enum surplus surplus, __u64 now_ns,
			       __u64 *here_at_ns, __u64 *there_at_ns)
{
	if (surplus == SURPLUS_MANY)
		*here_at_ns = now_ns;
	else
		*there_at_ns = now_ns + BALANCE_PERIOD_NS;
}

/*
 * Returns one of the LLCs other than `here`, selected uniformly by the random number `drawn`.
 * Returns `here` if the machine has only one LLC.
 */
static inline __u32 other_llc(__u32 here, __u32 llcs, __u32 drawn)
{
	if (llcs < 2)
		return here;
	return (here + 1 + drawn % (llcs - 1)) % llcs;
}

#endif
