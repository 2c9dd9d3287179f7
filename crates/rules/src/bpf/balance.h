/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* When a CPU that has threads of its own takes one from another LLC. */
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
	NONE_TOO_MANY,
	/* Whoever is one too many for equal numbers goes round. */
	ONE_TOO_MANY,
	/* With one thread less as many wait there for each CPU as with one more here. */
	MANY_TOO_MANY,
};

/*
 * How many more wait in another LLC than here, where a CPU asks that has threads of its own.
 * One too many counts within a node alone, where memory is as near. Where the last thread
 * sleeps, one that waits here would run: others are compared with who waits then.
 */
static inline enum surplus surplus_of(struct load there, struct load here,
				      _Bool last_sleeps, _Bool in_node)
{
	if (last_sleeps && here.waiting)
		here.waiting--;
	if (there.waiting && (there.waiting - 1) * (__u64)here.cpus >=
				     (here.waiting + 1) * (__u64)there.cpus)
		return MANY_TOO_MANY;
	if (in_node &&
	    there.waiting * (__u64)here.cpus > here.waiting * (__u64)there.cpus)
		return ONE_TOO_MANY;
	return NONE_TOO_MANY;
}

/* An LLC looks at one of the others so often: time for two turns, after which it is
 * another thread's to wait. */
#define LOOK_EVERY_NS 50000000ULL

/* One of the other LLCs, each as likely as any; this one if there is no other. */
static inline __u32 other_llc(__u32 here, __u32 llcs, __u32 drawn)
{
	if (llcs < 2)
		return here;
	return (here + 1 + drawn % (llcs - 1)) % llcs;
}

#endif
