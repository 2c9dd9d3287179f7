/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Comparison of LLCs and of NUMA nodes by load, for the placement of new threads
 *
 * The load of a domain (an LLC or a node) is its number of runnable threads per CPU. The comparisons
 * follow sched_balance_find_dst_group() of the kernel:
 *
 * - is_less_loaded(): which of two domains has the lower load after it gets one more thread. On
 *   domains with the same number of CPUs, this domain has more idle CPUs.
 * - should_leave(): whether a new thread starts in another domain than its parent. The load of the
 *   other domain must be lower before and after. The margin is a number of threads of the parent's
 *   domain that do not count.
 * - node_margin(): while few threads run on a node, its parent's node keeps a new thread unless the
 *   other node has more than NODE_MARGIN threads less. Threads of one program that share data then
 *   stay on one node.
 *
 * Each function takes constant time. Weights of threads do not count. A domain without CPUs
 * (`cpus` is 0) never has the lower load.
 */
#ifndef USHER_RULES_SPREAD_H
#define USHER_RULES_SPREAD_H

#include "numbers.h"

/* Runnable threads and CPUs of an LLC or of a node. */
struct domain_load {
	__u32 threads;
	__u32 cpus;
};

/* Difference in threads that a node with few threads tolerates (NUMA_IMBALANCE_MIN). */
#define NODE_MARGIN 2

/* Returns whether `a` has the lower load after one more thread has been added to either. */
static inline _Bool is_less_loaded(struct domain_load a, struct domain_load b)
{
	return (a.threads + 1) * (__u64)b.cpus <
	       (b.threads + 1) * (__u64)a.cpus;
}

/* Returns whether a new thread leaves the domain `here` for `there`. */
static inline _Bool should_leave(struct domain_load here,
				 struct domain_load there, __u32 margin)
{
	here.threads -= margin < here.threads ? margin : here.threads;
	return there.threads * (__u64)here.cpus <
		       here.threads * (__u64)there.cpus &&
	       is_less_loaded(there, here);
}

/* Returns the margin of the node on which the parent of a new thread runs. */
static inline __u32 node_margin(struct domain_load node)
{
	return node.threads + 1 <= node.cpus / 8 ? NODE_MARGIN : 0;
}

#endif
