/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * When a CPU whose LLC has threads of its own takes one from another LLC: a busy one, too,
 * now and then.
 */
#ifndef USHER_RULES_BALANCE_H
#define USHER_RULES_BALANCE_H

#include "numbers.h"

/* How many wait in an LLC, and for how many CPUs. */
struct load {
	__u32 waiting;
	__u32 cpus;
};

enum surplus {
	/* Nobody is taken. */
	SURPLUS_NONE,
	/* Whoever is one too many for equal numbers goes round. */
	SURPLUS_ONE,
	/* With one thread less as many wait there for each CPU as with one more here. */
	SURPLUS_MANY,
};

/*
 * How many more wait in another LLC than here. One too many counts within a node alone,
 * where memory is as near. Where the last thread sleeps, one that waits here would run:
 * others are compared with who waits then.
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

/* An LLC looks at one of the others so often: time for two turns of the usual length,
 * after which it is another thread's to wait. */
#define BALANCE_PERIOD_NS 50000000ULL

/* Whether a CPU looks now, for all of its LLC. */
static inline _Bool begins_balance(__u64 now_ns, __u64 *balance_at_ns)
{
	if (is_before(now_ns, *balance_at_ns))
		return 0;
	*balance_at_ns = now_ns + BALANCE_PERIOD_NS;
	return 1;
}

/*
 * One was taken. Where there was one too many, the other LLC does not look for as long as
 * this: whoever it was would be taken back at once, and be here for a shorter time than
 * there, again and again. Where there were more, the next CPU that asks looks again.
 */
static inline void end_balance(enum surplus surplus, __u64 now_ns,
			       __u64 *here_at_ns, __u64 *there_at_ns)
{
	if (surplus == SURPLUS_MANY)
		*here_at_ns = now_ns;
	else
		*there_at_ns = now_ns + BALANCE_PERIOD_NS;
}

/* One of the other LLCs, each as likely as any; this one if there is no other. */
static inline __u32 other_llc(__u32 here, __u32 llcs, __u32 drawn)
{
	if (llcs < 2)
		return here;
	return (here + 1 + drawn % (llcs - 1)) % llcs;
}

#endif
