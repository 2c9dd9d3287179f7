/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Table of the cgroups with a quota
 *
 * set_limit() adds, changes or removes the quota of a cgroup; limit_of() finds it. A cgroup with a
 * quota owns one of the park queues that create_parks() (release.h) has created in advance, because
 * the kernel reports a new quota in a context in which no queue can be created. A change of the set
 * of cgroups with a quota gets a new version number, after which each thread finds its cgroups with
 * a quota anew (limits.h).
 *
 * Finding a quota takes a map lookup. A new quota takes a search among the park queues. If no park
 * queue is free, the quota is rejected and counted in `g_limits`.
 */
#ifndef USHER_SCX_LIMIT_TABLE_H
#define USHER_SCX_LIMIT_TABLE_H

#include "seats.h"

/* Returns the quota of a cgroup; 0: the cgroup has none. */
static inline struct limit *limit_of(__u64 cgroup)
{
	return bpf_map_lookup_elem(&limits, &cgroup);
}

/*
 * Lets the timer of a park queue expire at `at_ns`, unless it expires earlier.
 */
static inline void arm_release(struct limit *limit, __u64 at_ns, __u64 now)
{
	struct park *park;
	_Bool is_earlier;
	__u32 number;

	bpf_spin_lock(&limit->lock);
	is_earlier =
		!limit->fires_at_ns || is_before(at_ns, limit->fires_at_ns);
	if (is_earlier)
		limit->fires_at_ns = at_ns;
	number = limit->park;
	bpf_spin_unlock(&limit->lock);
	if (!is_earlier)
		return;
	park = bpf_map_lookup_elem(&parks, &number);
	if (park)
		bpf_timer_start(&park->timer, since(now, at_ns), 0);
}

/* Frees the park queue of a cgroup. */
static inline void free_park(__u32 number, __u64 id)
{
	struct park *park = bpf_map_lookup_elem(&parks, &number);

	if (park && __sync_bool_compare_and_swap(&park->cgroup, id, 0))
		__sync_fetch_and_sub(&g_limits.used, 1);
}

/* Removes the quota of a cgroup without parked threads, unless another CPU has removed it. */
static inline void remove_limit(__u64 id, const struct limit *limit)
{
	__u32 number = limit->park;

	if (bpf_map_delete_elem(&limits, &id))
		return;
	__sync_fetch_and_add(&g_limits.version, 1);
	free_park(number, id);
}

/* Claims a free park queue for a cgroup. Returns its number; -1: all are in use. */
static inline __s32 claim_park(__u64 id)
{
	int number;

	bpf_for(number, 0, LIMITS_MAX)
	{
		__u32 key = number;
		struct park *park;

		if (key >= g_limits.created)
			break;
		park = bpf_map_lookup_elem(&parks, &key);
		if (park &&
		    __sync_bool_compare_and_swap(&park->cgroup, 0, id)) {
			__sync_fetch_and_add(&g_limits.used, 1);
			return number;
		}
	}
	return -1;
}

/* Adds an entry for the first quota of a cgroup. Returns 0 if there is no room. */
static inline struct limit *add_limit(__u64 id)
{
	struct limit new = {};
	__s32 number = claim_park(id);

	if (number < 0) {
		__sync_fetch_and_add(&g_limits.rejected, 1);
		g_limits.rejected_cgroup = id;
		return 0;
	}
	new.park = number;
	if (bpf_map_update_elem(&limits, &id, &new, BPF_NOEXIST)) {
		/* Another CPU has added an entry of the same cgroup, or there is no memory. */
		free_park(number, id);
		return limit_of(id);
	}
	__sync_fetch_and_add(&g_limits.version, 1);
	return limit_of(id);
}

/* Returns whether `id` is the cgroup `of` or one of its ancestors with a quota. */
__noinline int is_limited_by(__u64 of, __u64 id)
{
	int level;

	bpf_for(level, 0, LIMITS_NESTED_MAX)
	{
		struct limit *limit;

		if (of == id)
			return 1;
		limit = limit_of(of);
		if (!limit)
			break;
		of = limit->parent;
	}
	return 0;
}

/* Lets the CPUs dispatch again that run threads under the quota of a cgroup. */
__noinline int preempt_limited(__u64 id)
{
	int cpu;

	bpf_for(cpu, 0, CPUS_MAX)
	{
		__u64 limit = state_of(cpu)->run.limit;

		if ((__u32)cpu >= scx_bpf_nr_cpu_ids())
			break;
		if (limit && is_limited_by(limit, id))
			scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	}
	return 0;
}

/* Quotas and bursts above this limit, in microseconds, stand for `max`. */
#define QUOTA_MAX_US (1ULL << 44)

/*
 * Sets the quota of a cgroup, in microseconds. A quota that CPUS_MAX CPUs cannot use up removes it, so
 * that products of times do not overflow. The loop over the CPUs is acceptable, because quotas
 * seldom change. The function is not inlined, so that the verifier checks it once.
 */
__noinline int set_limit(__u64 id, __u64 period_us, __u64 quota_us,
			 __u64 burst_us)
{
	struct limit *limit = limit_of(id);
	_Bool is_max = quota_us > QUOTA_MAX_US || !quota_us || !period_us ||
		       quota_us >= period_us * CPUS_MAX;
	__u64 now = now_ns();

	if (!limit && is_max)
		return 0;
	if (!limit)
		limit = add_limit(id);
	if (!limit)
		return -1;
	bpf_spin_lock(&limit->lock);
	change_quota(&limit->quota, now, period_us * 1000,
		     is_max ? 0 : quota_us * 1000,
		     burst_us > QUOTA_MAX_US ? 0 : burst_us * 1000);
	bpf_spin_unlock(&limit->lock);
	/* Grants under the old quota end. */
	__sync_fetch_and_add(&g_limits.epoch, 1);
	preempt_limited(id);
	/* The timer releases the parked threads, and removes the entry if there is no quota. */
	arm_release(limit, now + RELEASE_DELAY_NS, now);
	return 0;
}

/* Removes the quota of a cgroup that has been removed. */
__noinline int forget_limit(__u64 id)
{
	struct limit *limit = limit_of(id);

	if (limit)
		remove_limit(id, limit);
	return 0;
}

#endif
