/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Load balancing between LLCs: when a CPU takes a thread from another LLC although its own LLC has
 * threads
 *
 * 1. begins_balance(): once per BALANCE_PERIOD_NS and LLC, one of its CPUs makes a check.
 * 2. other_llc(): select another LLC at random.
 * 3. surplus_of(): compare the waiting threads per CPU of both LLCs.
 * 4. After a migration, end_balance() sets the time of the next check of both.
 *
 * Each function takes constant time. The load is a number of threads, without their weights. An
 * idle CPU without waiting threads does not use this rule: it takes any thread (steal() in
 * run_queue.h).
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
	 * The other LLC has one thread too many for equal load. That thread rotates between the
	 * LLCs.
	 */
	SURPLUS_ONE,
	/*
	 * After the migration of one thread, the other LLC still has no fewer waiting threads per
	 * CPU.
	 */
	SURPLUS_MANY,
};

/*
 * Compares the load of another LLC (`there`) with the own load (`here`). SURPLUS_ONE applies only
 * within a node, where memory is equally near. If the last thread of this CPU sleeps, one waiting
 * thread is about to run, and the comparison leaves it out.
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
 * Time between two checks of another LLC: two turns of the default length. After that, the wait
 * should pass to another thread.
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
 * Sets the next checks after a migration. After SURPLUS_ONE, the other LLC pauses for one period:
 * it would otherwise take the thread back at once, and the thread would spend less time here than
 * there. After SURPLUS_MANY, the next CPU checks again immediately.
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
 * Returns one of the other LLCs, uniformly by the random number `drawn`; `here` if there is none.
 */
static inline __u32 other_llc(__u32 here, __u32 llcs, __u32 drawn)
{
	if (llcs < 2)
		return here;
	return (here + 1 + drawn % (llcs - 1)) % llcs;
}

#endif
