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

/* A CPU that has been vacant for so long is worth telling of. */
#define VACANT_NS 14000000

/*
 * A look that found so many CPUs vacant; whether to tell of it. It is told once
 * a vacancy, as soon as somebody wants to know.
 */
static _Bool note_vacancy(struct crowds *seen, __u32 vacant, __u64 now,
			  _Bool is_wanted)
{
	if (!vacant) {
		seen->vacant_since_ns = 0;
		seen->vacancy_told = 0;
		return 0;
	}
	if (!seen->vacant_since_ns) {
		seen->vacant_since_ns = now;
		seen->vacant_cpus = vacant;
	} else if (vacant < seen->vacant_cpus) {
		seen->vacant_cpus = vacant;
	}
	if (!is_wanted)
		seen->vacancy_told = 0;
	if (!is_wanted || seen->vacancy_told ||
	    now - seen->vacant_since_ns < VACANT_NS)
		return 0;
	seen->vacancy_told = 1;
	return 1;
}

/* What a CPU's run queue holds. */
struct load {
	/* Threads of all classes. */
	__u32 all;
	/* Threads of the fair class that can run and are not SCHED_IDLE... */
	__u32 ordinary;
	/* ... and those that are. */
	__u32 background;
};

/*
 * A crowd that lasts is told of again ever more rarely: at the second look, and
 * from the 32nd on whenever the number of looks has doubled, or 1024 have passed.
 */
static _Bool is_to_be_told(__u32 looks)
{
	if (looks == 2 || looks % 1024 == 0)
		return looks != 0;
	return looks >= 32 && looks < 1024 && (looks & (looks - 1)) == 0;
}

/*
 * Adds a CPU to a look. A crowd is two ordinary threads on one CPU at two looks
 * in a row, at each of which others ran background work alone and none was idle.
 * `looks` says for how many looks this CPU has been crowded.
 */
static void add_cpu(struct crowds *seen, __u32 *looks, const struct load *load)
{
	if (!load->all)
		seen->idle += 1;
	else if (load->all == load->background)
		seen->background += 1;
	else
		seen->others += 1;
	if (load->ordinary < 2)
		*looks = 0;
	else if (seen->was_full)
		*looks += 1;
	else
		*looks = 1;
	if (is_to_be_told(*looks))
		seen->crowds += 1;
}

static void begin_look(struct crowds *seen)
{
	seen->idle = 0;
	seen->background = 0;
	seen->others = 0;
	seen->crowds = 0;
}

/*
 * Whether background work is alone on the CPUs. One look that finds somebody else
 * is no matter: services and the kernel's threads come and go in microseconds.
 */
static void note_alone(struct crowds *seen, __u64 now)
{
	if (!seen->others) {
		seen->others_looks = 0;
		if (!seen->alone_since_ns)
			seen->alone_since_ns = now;
		return;
	}
	seen->others_looks += 1;
	if (seen->others_looks >= 2)
		seen->alone_since_ns = 0;
}

/* Ends a look; whether it found a crowd to tell of. */
static _Bool end_look(struct crowds *seen)
{
	_Bool is_full = seen->background && !seen->idle;

	seen->was_full = is_full;
	if (!is_full || !seen->crowds)
		return 0;
	seen->found += 1;
	return 1;
}

/* Of two counts that were read one after the other, the second may be more. */
static __u32 minus_or_none(__u32 all, __u32 some)
{
	return all > some ? all - some : 0;
}

/* Another CPU's clock may have been read a little later. */
static _Bool is_recent(__u64 before, __u64 now, __u64 recent_ns)
{
	return (__s64)(now - before) < (__s64)recent_ns;
}

#endif
