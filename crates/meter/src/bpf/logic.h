/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The arithmetic of the BPF programs, without BPF helpers and kernel types.
 * This file is also compiled for the host (src/logic.c), where src/logic.rs
 * tests the functions. The functions count the use of threads, keep the epochs
 * of process use, and evaluate the run-queue scan: vacant CPUs, imbalances, and
 * when to notify user space. Each function takes constant time.
 */
#ifndef USHER_METER_LOGIC_H
#define USHER_METER_LOGIC_H

#include "shared.h"

/* The run time and wait time of a thread that have been counted already. */
struct counted {
	__u64 run_ns;
	__u64 wait_ns;
	/* Nonzero if run_ns and wait_ns are initialised. */
	__u64 known;
};

/*
 * Initialises `counted` on the first visit to a thread. For a thread that is
 * older than metering, counting starts at its present totals. Returns whether
 * this was the first visit to such an older thread, for which the caller must
 * add no use.
 *
 * Two CPUs may visit a thread for the first time at the same moment. The faster
 * CPU sets run_ns and wait_ns. The atomic exchange guarantees that every CPU
 * sees these values before it sees `known` set.
 */
static _Bool start_counting(struct counted *counted, _Bool is_older,
			    __u64 run_ns, __u64 wait_ns)
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

/*
 * Returns the increase of a total since the last visit; 0 if another CPU counts
 * this increase.
 */
static __u64 advance(__u64 *counted, __u64 total)
{
	__u64 before = *counted;

	if (total <= before)
		return 0;
	return __sync_val_compare_and_swap(counted, before, total) == before
		       ? total - before
		       : 0;
}

/*
 * Starts a new epoch of a process's use if `epoch` differs from the current
 * epoch.
 */
static void advance_epoch(struct process_use *use, __u64 epoch)
{
	if (use->epoch == epoch)
		return;
	use->previous = use->epoch + 1 == epoch ? use->current : 0;
	use->current = 0;
	use->epoch = epoch;
}

/* Minimum duration of a vacancy before user space is notified. */
#define VACANT_NS 14000000

/*
 * Records the number of vacant CPUs of a scan. Returns whether to notify user
 * space of a vacancy. A vacancy must last for VACANT_NS, is notified only if
 * `is_wanted` is set, and is notified only once.
 */
static _Bool note_vacancy(struct rq_scan *scan, __u32 vacant, __u64 now,
			  _Bool is_wanted)
{
	if (!vacant) {
		scan->vacant_since_ns = 0;
		scan->vacancy_notified = 0;
		return 0;
	}
	if (!scan->vacant_since_ns) {
		scan->vacant_since_ns = now;
		scan->vacant_cpus = vacant;
	} else if (vacant < scan->vacant_cpus) {
		scan->vacant_cpus = vacant;
	}
	if (!is_wanted)
		scan->vacancy_notified = 0;
	if (!is_wanted || scan->vacancy_notified ||
	    now - scan->vacant_since_ns < VACANT_NS)
		return 0;
	scan->vacancy_notified = 1;
	return 1;
}

/* Numbers of threads on a CPU's run queue. */
struct load {
	/* Threads of all classes. */
	__u32 all;
	/* Runnable threads of the fair class except SCHED_IDLE. */
	__u32 ordinary;
	/* Runnable SCHED_IDLE threads. */
	__u32 background;
};

/*
 * Returns whether to report an imbalance that has lasted for `scans` scans. A
 * lasting imbalance is reported with decreasing frequency: at scan 2, at scans
 * 32, 64, 128, 256 and 512, and then at every 1024th scan.
 */
static _Bool is_report_due(__u32 scans)
{
	if (scans == 2 || scans % 1024 == 0)
		return scans != 0;
	return scans >= 32 && scans < 1024 && (scans & (scans - 1)) == 0;
}

/*
 * Adds a CPU to a scan. The CPU is imbalanced if two consecutive scans find at
 * least two ordinary threads on it, while another CPU runs only background work
 * and no CPU is idle. `scans` counts the consecutive scans in which this CPU
 * was imbalanced.
 */
static void add_cpu(struct rq_scan *scan, __u32 *scans, const struct load *load)
{
	if (!load->all)
		scan->idle += 1;
	else if (load->all == load->background)
		scan->background += 1;
	else
		scan->others += 1;
	if (load->ordinary < 2)
		*scans = 0;
	else if (scan->was_full)
		*scans += 1;
	else
		*scans = 1;
	if (is_report_due(*scans))
		scan->reports += 1;
}

static void begin_scan(struct rq_scan *scan)
{
	scan->idle = 0;
	scan->background = 0;
	scan->others = 0;
	scan->reports = 0;
}

/*
 * Records the time since which only background work has run. A single scan that
 * found other work is ignored, because services and kernel threads run for
 * microseconds.
 */
static void note_background_only(struct rq_scan *scan, __u64 now)
{
	if (!scan->others) {
		scan->others_scans = 0;
		if (!scan->background_only_since_ns)
			scan->background_only_since_ns = now;
		return;
	}
	scan->others_scans += 1;
	if (scan->others_scans >= 2)
		scan->background_only_since_ns = 0;
}

/* Ends a scan. Returns whether the scan found an imbalance to report. */
static _Bool end_scan(struct rq_scan *scan)
{
	_Bool is_full = scan->background && !scan->idle;

	scan->was_full = is_full;
	if (!is_full || !scan->reports)
		return 0;
	scan->imbalances += 1;
	return 1;
}

/* Returns `all - some`, or 0 if `some` is greater. The number of some threads
 * may exceed the number of all threads, because the two numbers are not read
 * atomically. */
static __u32 saturating_sub(__u32 all, __u32 some)
{
	return all > some ? all - some : 0;
}

/* Returns whether `before` is at most `recent_ns` earlier than `now`. `before`
 * may be later than `now`, because the times may come from the clocks of
 * different CPUs. */
static _Bool is_recent(__u64 before, __u64 now, __u64 recent_ns)
{
	return (__s64)(now - before) < (__s64)recent_ns;
}

#endif
