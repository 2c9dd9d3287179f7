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

/*
 * Whether a CPU that has threads of its own takes one from another LLC. Not if as many would
 * wait here for a CPU then as did there; but within a node, where memory is as near,
 * whoever is one too many for equal numbers goes round.
 */
static inline _Bool is_fuller(struct load there, struct load here,
			      _Bool in_node)
{
	if (in_node)
		return there.waiting * (__u64)here.cpus >
		       here.waiting * (__u64)there.cpus;
	return there.waiting && (there.waiting - 1) * (__u64)here.cpus >=
					(here.waiting + 1) * (__u64)there.cpus;
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
