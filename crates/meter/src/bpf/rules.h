/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The arithmetic that the programs decide by. No helpers and nothing of the
 * kernel's: src/rules.c is compiled for this machine, and src/rules.rs
 * tests it there.
 */
#ifndef USHER_METER_RULES_H
#define USHER_METER_RULES_H

#include "shared.h"

/* What has been counted of a thread. */
struct counted {
	__u64 run_ns;
	__u64 wait_ns;
	__u64 known;
};

/*
 * Of a thread that was there before metering began, what it has used already is
 * where counting starts. Two may visit it for the first time at once: the base
 * is the first one's, and it stands before the thread is called known, which
 * the exchange makes sure of on every CPU. Whether this was a first visit to
 * such a thread, so that there is nothing to add.
 */
static _Bool is_new_here(struct counted *counted, _Bool is_older, __u64 run_ns,
			 __u64 wait_ns)
{
	if (counted->known)
		return 0;
	if (is_older) {
		__sync_val_compare_and_swap(&counted->run_ns, 0, run_ns);
		__sync_val_compare_and_swap(&counted->wait_ns, 0, wait_ns);
	}
	__sync_lock_test_and_set(&counted->known, 1);
	return is_older;
}

/* What has come since; 0 where another visitor is counting it just now. */
static __u64 advance(__u64 *counted, __u64 total)
{
	__u64 before = *counted;

	if (total <= before)
		return 0;
	return __sync_val_compare_and_swap(counted, before, total) == before
		       ? total - before
		       : 0;
}

/* Begins a new epoch of a process's use, if it is not this one already. */
static void turn_page(struct user_use *use, __u64 epoch)
{
	if (use->epoch == epoch)
		return;
	use->before = use->epoch + 1 == epoch ? use->now : 0;
	use->now = 0;
	use->epoch = epoch;
}

/* A CPU that is idle at so many looks in a row is worth telling of. */
#define VACANT_LOOKS 3

/* A look that found so many CPUs idle. */
static void note_vacancy(struct crowds *seen, __u32 idle, __u64 now)
{
	if (!idle) {
		seen->vacant_since_ns = 0;
		seen->vacant_looks = 0;
		return;
	}
	if (!seen->vacant_looks) {
		seen->vacant_since_ns = now;
		seen->vacant_cpus = idle;
	} else if (idle < seen->vacant_cpus) {
		seen->vacant_cpus = idle;
	}
	seen->vacant_looks += 1;
}

/* Of two counts that were read one after the other, the second may be more. */
static __u32 less(__u32 all, __u32 some)
{
	return all > some ? all - some : 0;
}

/* Another CPU's clock may have been read a little later. */
static _Bool is_recent(__u64 before, __u64 now, __u64 recent_ns)
{
	return (__s64)(now - before) < (__s64)recent_ns;
}

#endif
