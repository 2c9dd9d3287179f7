/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Budget of CPU time of a cgroup with a quota (cpu.max)
 * =====================================================
 *
 * 1. Problem
 * ----------
 * The threads of a cgroup may use `quota_ns` of CPU time in each period, on all CPUs together. CPUs
 * that subtract CPU time after it was used notice too late that the budget is exhausted: each CPU
 * can exceed the budget by a slice.
 *
 * 2. Idea
 * -------
 * A thread takes CPU time from the budget before it runs (a grant), and its slice is not longer
 * than the grant. After the run, the unused part of the grant is returned. A run that was longer
 * than its grant leaves a debt, which is subtracted from the next periods. Therefore the use over
 * many periods never exceeds the quota by more than the last debt.
 *
 * 3. Steps
 * --------
 * 1. refill_quota(): add the quota of each period that has begun. Nothing happens at the start of a
 *    period; the first operation in the period does the work.
 * 2. grantable(): size of the next grant. Grants become smaller when little is left, so that
 *    several CPUs can share the rest. A grant ends with the period.
 * 3. take_quota(), return_quota(): subtract a grant; return its unused part, or subtract the
 *    overrun. The unused part of a grant from an earlier period is lost, because CPU time that was
 *    saved in one period must not be used in the next (see burst_ns for the exception).
 *
 * 4. Bound
 * --------
 * All operations take constant time. The caller holds a lock.
 *
 * 5. Known limits
 * ---------------
 * Up to RUN_MIN_NS is carried over to the next period, because a run of less is not worth a switch.
 */
#ifndef USHER_RULES_QUOTA_H
#define USHER_RULES_QUOTA_H

#include "numbers.h"

/* Shortest grant. A cgroup with less is throttled, and keeps the rest for the next period. */
#define RUN_MIN_NS 50000ULL
/* Grants are at least this long, if so much is left. */
#define GRANT_MIN_NS 1000000ULL
/* Upper limit of the periods that count at once, so that products of times do not overflow. */
#define PERIODS_MAX 1024ULL

struct quota {
	__u64 period_ns;
	/* CPU time per period; 0: no quota. */
	__u64 quota_ns;
	/* CPU time that may be saved for later periods (cpu.max.burst). */
	__u64 burst_ns;
	__u64 period_ends_ns;
	/* The unused part of a grant that was taken before this time is lost. */
	__u64 valid_from_ns;
	/* Budget left in this period; negative: debt. */
	__s64 left_ns;
};

/* Adds the quotas of the periods that have begun since the last call. */
static inline void refill_quota(struct quota *quota, __u64 now_ns)
{
	__s64 most = quota->quota_ns + quota->burst_ns + RUN_MIN_NS;
	__u64 periods;

	if (is_before(now_ns, quota->period_ends_ns) || !quota->period_ns)
		return;
	periods = (now_ns - quota->period_ends_ns) / quota->period_ns + 1;
	quota->period_ends_ns += periods * quota->period_ns;
	quota->valid_from_ns = quota->period_ends_ns - quota->period_ns;
	if (!quota->burst_ns && quota->left_ns > (__s64)RUN_MIN_NS)
		quota->left_ns = RUN_MIN_NS;
	quota->left_ns += quota->quota_ns *
			  (periods < PERIODS_MAX ? periods : PERIODS_MAX);
	if (quota->left_ns > most)
		quota->left_ns = most;
}

/*
 * Returns the size of the next grant, at most `want_ns`; 0 if the budget is exhausted. `sharers` is
 * the number of CPUs, which together get a quarter of the rest at most, or GRANT_MIN_NS each.
 */
static inline __u64 grantable(const struct quota *quota, __u64 now_ns,
			      __u64 want_ns, __u64 sharers)
{
	__u64 left, until_end, grant;

	if (!quota->quota_ns)
		return want_ns;
	if (quota->left_ns < (__s64)RUN_MIN_NS)
		return 0;
	left = quota->left_ns;
	grant = left / (4 * sharers);
	if (grant < GRANT_MIN_NS)
		grant = GRANT_MIN_NS;
	until_end = since(now_ns, quota->period_ends_ns);
	if (grant > until_end)
		grant = until_end;
	if (grant < RUN_MIN_NS)
		grant = RUN_MIN_NS;
	if (grant > left)
		grant = left;
	return grant < want_ns ? grant : want_ns;
}

/* Subtracts a grant that grantable() has returned. Returns 0 if less is left by now. */
static inline _Bool take_quota(struct quota *quota, __u64 grant_ns)
{
	if (!quota->quota_ns)
		return 1;
	if (quota->left_ns < (__s64)grant_ns)
		return 0;
	quota->left_ns -= grant_ns;
	return 1;
}

/*
 * Ends a grant that was taken at `taken_at_ns`, of which `used_ns` was used, which may be more than
 * the grant. The quota has been refilled.
 */
static inline void return_quota(struct quota *quota, __u64 grant_ns,
				__u64 taken_at_ns, __u64 used_ns)
{
	if (!quota->quota_ns)
		return;
	if (used_ns < grant_ns && !quota->burst_ns &&
	    is_before(taken_at_ns, quota->valid_from_ns))
		return;
	quota->left_ns += (__s64)(grant_ns - used_ns);
}

/* Returns the time at which the budget suffices for a grant. */
static inline __u64 ready_at(const struct quota *quota, __u64 now_ns)
{
	__s64 lacks = (__s64)RUN_MIN_NS - quota->left_ns;

	if (!quota->quota_ns || lacks <= 0)
		return now_ns;
	return quota->period_ends_ns +
	       ((__u64)lacks - 1) / quota->quota_ns * quota->period_ns;
}

/*
 * Replaces the quota, and begins a new period. What the cgroup has used of the old period beyond
 * its time remains a debt. Without that debt, a cgroup could use a whole quota after each change.
 */
static inline void change_quota(struct quota *quota, __u64 now_ns,
				__u64 period_ns, __u64 quota_ns, __u64 burst_ns)
{
	__s64 left = 0;

	refill_quota(quota, now_ns);
	if (quota->quota_ns && quota->period_ns) {
		__u64 rest_ns = since(now_ns, quota->period_ends_ns);
		__u64 rest_us = rest_ns / 1000, period_us;

		period_us = quota->period_ns / 1000;
		/* The part of the old quota that belongs to the rest of the old period. */
		left = quota->left_ns - (__s64)(quota->quota_ns * rest_us /
						(period_us ? period_us : 1));
		if (left > (__s64)burst_ns)
			left = burst_ns;
	}
	quota->valid_from_ns =
		quota->period_ns ? quota->period_ends_ns - quota->period_ns
				 : now_ns;
	quota->period_ns = period_ns;
	quota->quota_ns = quota_ns;
	quota->burst_ns = burst_ns;
	quota->period_ends_ns = now_ns + period_ns;
	quota->left_ns = left + (__s64)quota_ns;
}

#endif
