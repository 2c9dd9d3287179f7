/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Shares of cgroups (cpu.weight, cpu.idle)
 * ========================================
 *
 * 1. Problem
 * ----------
 * On each level, the runnable children of a cgroup divide its CPU time by their weights. The share of
 * a cgroup depends neither on its depth nor on its number of threads. The run queues of the
 * scheduler are flat: a thread has one weight. This weight has to change whenever a cgroup on the
 * path, or one of its siblings, begins or ceases to have runnable threads.
 *
 * 2. Idea
 * -------
 * Computing the weights at each wake-up would make every wake-up write to the counters of all
 * ancestors. Instead, the threads are counted only in their own cgroup, and a timer samples these
 * counts every GROUP_PERIOD_NS. From the averages, the timer computes for each cgroup a factor
 * (FACTOR_ONE: 1) by which the weights of its threads are multiplied.
 *
 * 3. Steps
 * --------
 * All values are those of one cgroup `g`; fractions are in units of SHARE_ONE.
 *
 * 1. sample_group(): `own` is the average weight of the runnable threads while there are any,
 *    `own_active` the fraction of samples with runnable threads.
 * 2. add_to_parent(), children first: `active` is the fraction of the time in which the cgroup or a
 *    descendant has runnable threads, as if these were independent. `demand` of the parent is the
 *    sum of the weights of its children, each times `active`, and of its own threads.
 * 3. divide_group(), parents first: while `g` is active, its share of its parent is its weight
 *    divided by the weights of its siblings, each times `active`, and its own.
 * 4. group_factor(): the weights of the threads of `g` divide the share of `g`. The factor is scaled
 *    such that the threads of a machine without cgroups have the factor 1.
 *
 * 4. Bound
 * --------
 * Each step takes constant time. A change of a weight takes effect at the next sample, within 10 ms;
 * averages follow the number of threads with a time constant of 80 ms.
 */
#ifndef USHER_RULES_GROUP_SHARE_H
#define USHER_RULES_GROUP_SHARE_H

#include "share.h"

#define GROUP_PERIOD_NS 10000000ULL
#define SHARE_ONE (1ULL << 28)
/* Weights of cgroups, and averages of thread weights, have this many fractional bits. */
#define OWN_SHIFT 8
/* Weight of cgroups with cpu.idle, which is 3 / 1024 of the normal weight as in the kernel. */
#define GROUP_WEIGHT_IDLE (WEIGHT_NORMAL * 3 / 4)
/* A sample counts for one part in 2^SAMPLE_SHIFT of an average. */
#define SAMPLE_SHIFT 3
/* Upper limit of the weight of the runnable threads, so that products do not overflow. */
#define OWN_MAX (1ULL << 27)
/* A factor that differs from 1 by this much, about 1 %, becomes 1. */
#define ROUNDING (FACTOR_ONE / 100)
/* Upper limit of the factor. */
#define FACTOR_MAX (10000 * FACTOR_ONE)

struct group_share {
	/* cpu.weight of the cgroup, with OWN_SHIFT fractional bits; GROUP_WEIGHT_IDLE with cpu.idle. */
	__u64 weight;
	__u64 own;
	__u64 own_active;
	__u64 active;
	/* Product of (1 - active) over the children, during a computation. */
	__u64 idle;
	__u64 demand;
	/* Share of the machine while the cgroup is active. */
	__u64 share;
};

/* Returns an average after one more sample. */
static inline __u64 average_with(__u64 average, __u64 sample)
{
	return average - (average >> SAMPLE_SHIFT) + (sample >> SAMPLE_SHIFT);
}

/* Adds a sample: the weight of the runnable threads of the cgroup itself. */
static inline void sample_group(struct group_share *group, __u64 own)
{
	__u64 sample = (own < OWN_MAX ? own : OWN_MAX) << OWN_SHIFT;

	if (!group->own_active)
		group->own = sample;
	else if (own)
		group->own = average_with(group->own, sample);
	/* The first sample counts fully, so that a new program gets its share at once. */
	if (own && !group->own_active)
		group->own_active = SHARE_ONE;
	else
		group->own_active =
			average_with(group->own_active, own ? SHARE_ONE : 0);
	/* An average that falls below one part in 1,024 stands for 0. */
	if (group->own_active < SHARE_ONE >> 10)
		group->own_active = 0;
	group->idle = SHARE_ONE;
	group->demand = group->own * group->own_active / SHARE_ONE;
}

/* Completes the sums of a cgroup, after its children have been added. */
static inline void complete_group(struct group_share *group)
{
	group->active = SHARE_ONE - group->idle *
					    (SHARE_ONE - group->own_active) /
					    SHARE_ONE;
}

/* Completes the sums of a cgroup, and adds the cgroup to its parent. */
static inline void add_to_parent(struct group_share *group,
				 struct group_share *parent)
{
	complete_group(group);
	parent->demand += group->weight * group->active / SHARE_ONE;
	parent->idle = parent->idle * (SHARE_ONE - group->active) / SHARE_ONE;
}

/* Computes the share of a cgroup while it is active, after that of its parent. */
static inline void divide_group(struct group_share *group,
				const struct group_share *parent)
{
	__u64 others = parent->demand;
	__u64 mine = group->weight * group->active / SHARE_ONE;

	others = others > mine ? others - mine : 0;
	group->share = parent->share * group->weight / (others + group->weight);
}

/*
 * Returns the average weight of the runnable threads of a machine while there are any, with
 * OWN_SHIFT fractional bits. `sum` is the sum of the average weights of all cgroups; `root` is the
 * root cgroup.
 */
static inline __u64 weight_while_active(__u64 sum,
					const struct group_share *root)
{
	__u64 all = sum * 256 / (root->active / (SHARE_ONE / 256) + 1);

	return all < OWN_MAX << OWN_SHIFT ? all : OWN_MAX << OWN_SHIFT;
}

/*
 * Returns the factor for the threads of a cgroup. `all` is the result of weight_while_active().
 */
static inline __u64 group_factor(const struct group_share *group, __u64 all)
{
	__u64 mine = group->own * group->own_active / SHARE_ONE;
	__u64 demand = group->demand + group->own - mine;
	__u64 factor;

	if (!demand)
		return FACTOR_ONE;
	factor = all * group->share / (SHARE_ONE / FACTOR_ONE) / demand;
	/* Rounding must not make threads pay for a division on a machine without cgroups. */
	if (factor - (FACTOR_ONE - ROUNDING) <= 2 * ROUNDING)
		return FACTOR_ONE;
	if (factor > FACTOR_MAX)
		return FACTOR_MAX;
	return factor ? factor : 1;
}

#endif
