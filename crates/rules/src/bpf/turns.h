/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Selection of the next thread of a CPU (paper 4, aggregation)
 * ============================================================
 *
 * 1. Problem
 * ----------
 * A switch between threads of different address spaces costs more than a switch within an address
 * space. Strict rotation by virtual time (vtime: CPU time over weight) switches the address space
 * after almost every slice.
 *
 * 2. Idea
 * -------
 * Threads of one address space run one after another. Their turn ends after `turn_ns`, or when
 * their vtime is more than `max_lag_ns` ahead of the lowest vtime in the other queues.
 *
 * 3. Data structures
 * ------------------
 * - `struct mm_queue`: one per address space and LLC, ordered by vtime. With more address spaces
 *   than `MM_QUEUES_PER_LLC`, some address spaces share a queue.
 * - `struct head_skip`: one per CPU. It records the queues with a head that may not run on this
 *   CPU, and for each of these queues the vtime of the first thread that may.
 * - `struct pick_ctx`: arguments and results of one selection.
 *
 * 4. Steps
 * --------
 * 1. Find the queue with the minimum vtime among all queues that are not excluded.
 * 2. If the turn of the current address space still lasts, run its next thread.
 * 3. Otherwise run the thread with the minimum vtime: the head of that queue, or the previous
 *    thread if its vtime is lower.
 *
 * 5. Bound
 * --------
 * In virtual time: while thread A waits, any other thread B runs at most until its vtime is
 * `max_lag_ns` ahead of the vtime of A, and then to the end of its slice. With n threads of equal
 * weight on a CPU, the wait is at most (n - 1)(max_lag_ns + 2 slices). That is max_lag_ns / slice +
 * 2 times the (n - 1) slices of strict rotation. In real time, for equal weights, the wait is up to
 * twice that bound, because the other threads may at first be behind by the same vtime by which
 * they later get ahead.
 *
 * In real time, for any weights: at most two periods of OVERDUE_NS (share.h) and one slice of each
 * other thread that may run on the CPU. A waiter is overdue after two periods at the latest. From
 * then on, each other thread is placed behind the overdue waiter when its slice ends, and no
 * address space keeps its turn. With the default slice, 1,000 threads on a CPU wait for up to 2 s +
 * 3 s. Five seconds is the limit of the kernel's watchdog (timeout_ms in sched.bpf.c). Urgent
 * threads run before all others. While a thread is overdue, urgent threads run for one slice only,
 * and then a thread that is not urgent runs. Urgent threads thus at most double the time that the
 * other threads take.
 *
 * Cost: a selection compares the MM_QUEUES_PER_LLC = 32 queues of an LLC once; the number of
 * threads does not matter. The search for the queue of a key examines eight queues.
 *
 * Defaults: a slice of 3 ms, `turn_ns` and `max_lag_ns` of 24 ms. While cgroups compete for CPU
 * time, both limits are lower if many threads wait (shorten_turn()).
 *
 * 6. Known limits
 * ---------------
 * - The head of a queue may be pinned to another CPU. The CPU then uses the vtime of the first
 *   thread that it can run, as recorded in its `head_skip`, which may be stale. Without this
 *   record, a queue with a head that waits for a crowded CPU would remain the next queue on all
 *   other CPUs for ever.
 * - Threads of address spaces that share a queue also share a turn.
 */
#ifndef USHER_RULES_TURNS_H
#define USHER_RULES_TURNS_H

#include "balance.h"
#include "share.h"

/* Start of the current turn, and its limits in time and in vtime. */
struct turn {
	__u64 began_ns;
	__u64 turn_ns;
	__u64 max_lag_ns;
};

/*
 * Shortens a turn while cgroups compete, so that all waiting threads together have at most
 * ROUND_NS of turns. With longer turns, threads of cgroups with a low share would become overdue
 * (share.h), and would get more than their share.
 */
#define ROUND_NS (OVERDUE_NS / 4)

static inline void shorten_turn(struct turn *turn, struct load load)
{
	__u64 most = ROUND_NS * load.cpus / (load.waiting + 1);

	turn->turn_ns = turn->turn_ns < most ? turn->turn_ns : most;
	turn->max_lag_ns = turn->max_lag_ns < most ? turn->max_lag_ns : most;
}

/*
 * Returns whether the address space that runs keeps its turn. `own` is the vtime of the next thread
 * of the address space that runs, `other` the minimum vtime of the other queues.
 */
static inline _Bool turn_lasts(const struct turn *turn, __u64 now_ns, __u64 own,
			       __u64 other)
{
	return since(turn->began_ns, now_ns) < turn->turn_ns &&
	       !is_before(other + turn->max_lag_ns, own);
}

/*
 * Returns whether a new turn begins when address space `mm` starts to run from `queue` (0: from no
 * queue). Address spaces that share a queue share the turn. If each of them began a turn of its
 * own, new turns of that queue would follow one another without end.
 */
static inline _Bool begins_turn(__u64 turn_mm, __u32 turn_queue, __u64 mm,
				__u32 queue)
{
	return mm != turn_mm && (!queue || queue != turn_queue);
}

/* Run queue of one address space in one LLC. */
struct mm_queue {
	/* queue_key() of the threads in the queue; an empty queue keeps its last key. */
	__u64 key;
	/* Virtual time of the head, which is the first thread of the queue. */
	__u64 min_vtime;
	/*
	 * Seat that all waiting threads of the queue have, as of `version`. 0: the threads have no
	 * seat, different seats, or seats of different versions.
	 */
	__u64 seat;
	__u32 waiting;
	__u32 version;
};

/*
 * Returns the key of a thread; threads with the same key share a queue. The key consists of the
 * address space, the seat and its version, and the CPU to which the thread is pinned (counted from
 * 1, 0: not pinned). After a change of the seats, new waiters get another queue, and the old queue
 * drains. Pinned threads get a queue of their own, so that the head of a queue is runnable on the
 * CPUs that serve it.
 */
static inline __u64 queue_key(__u64 mm, __u64 seat, __u32 version,
			      __u32 pinned_cpu)
{
	if (seat)
		mm ^= (seat << 32 | version) * 0x9e3779b97f4a7c15ULL;
	return pinned_cpu ? mm ^ pinned_cpu * 0xc2b2ae3d27d4eb4fULL : mm;
}

/* Adds a thread to the counters of its queue, before the kernel inserts the thread. */
static inline void join_mm_queue(struct mm_queue *mm_queue, __u64 key,
				 __u64 seat, __u32 version, __u64 vtime)
{
	if (!mm_queue->waiting) {
		mm_queue->key = key;
		mm_queue->seat = seat;
		mm_queue->version = version;
	} else if (mm_queue->seat != seat || mm_queue->version != version) {
		mm_queue->seat = 0;
	}
	if (!mm_queue->waiting || is_before(vtime, mm_queue->min_vtime))
		mm_queue->min_vtime = vtime;
	__sync_fetch_and_add(&mm_queue->waiting, 1);
}

/*
 * Returns whether all threads of a queue have the same seat, as of the current `version` of the
 * seats. The threads of a queue with an older version may prefer other CPUs now, so that no CPU may
 * exclude that queue.
 */
static inline _Bool is_seated(const struct mm_queue *mm_queue, __u32 version)
{
	return mm_queue->waiting && mm_queue->seat &&
	       mm_queue->version == version;
}

/* Removes a thread from the counters of its queue. `first` is the vtime of the new head. */
static inline void leave_mm_queue(struct mm_queue *mm_queue, __u64 first)
{
	mm_queue->min_vtime = first;
	__sync_fetch_and_sub(&mm_queue->waiting, 1);
}

/*
 * Returns the number of the queue for a key: the queue that has this key, else an empty queue, else
 * a queue of another key. The search covers eight queues.
 */
static inline __u32 mm_queue_of(const struct mm_queue *mm_queues, __u64 key)
{
	__u32 first = (key >> 6 ^ key >> 13 ^ key >> 21) % MM_QUEUES_PER_LLC;
	__u32 vacant = MM_QUEUES_PER_LLC;
	__u32 step;

	for (step = 0; step < 8; step++) {
		__u32 at = (first + step) % MM_QUEUES_PER_LLC;

		if (mm_queues[at].key == key)
			return at;
		if (vacant == MM_QUEUES_PER_LLC && !mm_queues[at].waiting)
			vacant = at;
	}
	return vacant < MM_QUEUES_PER_LLC ? vacant : first;
}

/* The queues of an LLC with a head that may not run on this CPU. */
struct head_skip {
	/* Bitmask of the queues with such a head. */
	__u32 queues;
	__u32 unused;
	/* For each of these queues, the vtime of the first thread that may run on this CPU. */
	__u64 min_vtime[MM_QUEUES_PER_LLC];
};

/*
 * Returns whether the CPU skipped the head when it took a thread with vtime `taken`. `first` is the
 * vtime of the head afterwards.
 */
static inline _Bool has_unrunnable_head(__u64 taken, __u64 first)
{
	return is_before(first, taken);
}

/*
 * Records that the head of queue `at` may not run on this CPU. `min_vtime` is the vtime of the
 * queue's first thread that may.
 */
static inline void mark_head_unrunnable(struct head_skip *head_skip, __u32 at,
					__u64 min_vtime)
{
	head_skip->queues |= 1U << at % MM_QUEUES_PER_LLC;
	head_skip->min_vtime[at % MM_QUEUES_PER_LLC] = min_vtime;
}

/* Records that the head of queue `at` may run on this CPU. */
static inline void clear_head_unrunnable(struct head_skip *head_skip, __u32 at)
{
	head_skip->queues &= ~(1U << at % MM_QUEUES_PER_LLC);
}

/* Records a new waiter in queue `at` that may run on this CPU. */
static inline void lower_min(struct head_skip *head_skip, __u32 at, __u64 vtime)
{
	at %= MM_QUEUES_PER_LLC;
	if (head_skip->queues >> at & 1)
		head_skip->min_vtime[at] =
			earlier(head_skip->min_vtime[at], vtime);
}

/*
 * Returns the vtime of the first thread of queue `at` that may run on the CPU, as recorded in the
 * CPU's `head_skip`. `skipped` is the bitmask of queues with a head that may not run on the CPU.
 */
static inline __u64 min_vtime_of(const struct mm_queue *mm_queues,
				 const struct head_skip *head_skip,
				 __u32 skipped, __u32 at)
{
	__u64 least;

	at %= MM_QUEUES_PER_LLC;
	least = mm_queues[at].min_vtime;
	if (skipped >> at & 1)
		least = later(least, head_skip->min_vtime[at]);
	return least;
}

/*
 * Returns the queue with the minimum vtime for this CPU, among all queues that are not in
 * `excluded`. Returns MM_QUEUES_PER_LLC if all these queues are empty.
 */
static inline __u32 min_vtime_queue(const struct mm_queue *mm_queues,
				    const struct head_skip *head_skip,
				    __u32 skipped, __u32 excluded)
{
	__u32 found = MM_QUEUES_PER_LLC;
	__u64 least = 0;
	__u32 at;

	for (at = 0; at < MM_QUEUES_PER_LLC; at++) {
		__u64 here;

		if (!mm_queues[at].waiting || excluded >> at & 1)
			continue;
		here = min_vtime_of(mm_queues, head_skip, skipped, at);
		if (found == MM_QUEUES_PER_LLC || is_before(here, least)) {
			found = UNKNOWN(at);
			least = here;
		}
	}
	return found;
}

/*
 * Returns the average vtime of the waiting threads, but at least the clock. Each thread counts with
 * the vtime of the head of its queue. The minimum vtime does not measure progress, because it does
 * not change until the thread with that vtime runs.
 */
static inline __u64 average_of(const struct mm_queue *mm_queues, __u64 clock)
{
	__u64 ahead = 0;
	__u64 waiting = 0;
	__u32 at;

	/* The loop has no branch, because the verifier would follow every path. */
	for (at = 0; at < MM_QUEUES_PER_LLC; at++) {
		waiting += mm_queues[at].waiting;
		ahead += (mm_queues[at].min_vtime - clock) *
			 mm_queues[at].waiting;
	}
	if (!waiting || (__s64)ahead < 0)
		return clock;
	return clock + ahead / waiting;
}

/*
 * Stores the minimum vtime of the waiting threads with this seat in `least`. Returns whether there
 * is such a thread.
 */
static inline _Bool first_of_seat(const struct mm_queue *mm_queues, __u64 seat,
				  __u64 *least)
{
	_Bool found = 0;
	__u32 at;

	for (at = 0; at < MM_QUEUES_PER_LLC; at++) {
		if (!mm_queues[at].waiting || mm_queues[at].seat != seat)
			continue;
		if (!found || is_before(mm_queues[at].min_vtime, *least))
			*least = mm_queues[at].min_vtime;
		found = 1;
	}
	return found;
}

/*
 * Returns the vtime of a new waiter, limited to `max_lag_ns` ahead of the first waiting thread with
 * the same seat. If that thread is behind the clock, the limit counts from the clock, because
 * threads that wait for a crowded CPU may be far behind the clock.
 */
static inline __u64 place_at(const struct mm_queue *mm_queues, __u64 clock,
			     __u64 seat, __u64 vtime, __u64 max_lag_ns)
{
	__u64 least = clock;

	if (first_of_seat(mm_queues, seat, &least) && is_before(least, clock))
		least = clock;
	return clamp_waiter(vtime, least, max_lag_ns);
}

/* Result of a selection. */
enum next {
	/* The previous thread continues. */
	NEXT_SAME,
	/* The head of a queue runs. */
	NEXT_QUEUE,
};

/* Arguments and results of one selection. */
struct pick_ctx {
	struct turn turn;
	__u64 now_ns;
	/* 1: the previous thread is runnable and has used up its slice. 0: it sleeps. */
	__u32 has_prev;
	__u32 aggregate;
	__u64 prev_vtime;
	/* Queue of the address space that has the turn; MM_QUEUES_PER_LLC: no queue has it. */
	__u32 own;
	/* Bitmask of queues without a thread that may run on this CPU. */
	__u32 excluded;
	/*
	 * Bitmask of queues with a head that may not run on this CPU; 0 for the queues of another
	 * LLC.
	 */
	__u32 skipped;
	/* Result: the queue with the minimum vtime; MM_QUEUES_PER_LLC: all are empty. */
	__u32 min_vtime_queue;
	/* Result: the minimum vtime of that queue. */
	__u64 min_vtime;
	/* Result: the minimum vtime including the previous thread; valid if a thread waits. */
	__u64 min_vtime_with_prev;
	/*
	 * CPU to which `head_skip` belongs. Only the scheduler uses this field; pick_next() does
	 * not.
	 */
	__u32 cpu;
	__u32 unused;
};

/*
 * Selects the next thread. If the result is NEXT_QUEUE, `queue` is the number of the queue to take
 * the thread from, or MM_QUEUES_PER_LLC if no thread waits.
 */
static inline enum next pick_next(struct pick_ctx *ctx,
				  const struct mm_queue *mm_queues,
				  const struct head_skip *head_skip,
				  __u32 *queue)
{
	__u32 other = min_vtime_queue(mm_queues, head_skip, ctx->skipped,
				      ctx->excluded);
	_Bool own_waits = ctx->own < MM_QUEUES_PER_LLC &&
			  !(ctx->excluded >> ctx->own & 1) &&
			  mm_queues[ctx->own % MM_QUEUES_PER_LLC].waiting;
	__u64 own = ctx->prev_vtime;
	_Bool prev_first = ctx->has_prev;
	__u64 least;

	*queue = ctx->min_vtime_queue = other;
	if (other == MM_QUEUES_PER_LLC)
		return ctx->has_prev ? NEXT_SAME : NEXT_QUEUE;
	ctx->min_vtime_with_prev = ctx->min_vtime =
		min_vtime_of(mm_queues, head_skip, ctx->skipped, other);
	if (ctx->has_prev)
		ctx->min_vtime_with_prev =
			earlier(ctx->min_vtime_with_prev, ctx->prev_vtime);
	least = min_vtime_of(mm_queues, head_skip, ctx->skipped, ctx->own);
	if (own_waits && (!ctx->has_prev || is_before(least, own))) {
		own = least;
		prev_first = 0;
	}
	if (ctx->aggregate && (own_waits || ctx->has_prev) &&
	    turn_lasts(&ctx->turn, ctx->now_ns, own, ctx->min_vtime)) {
		if (prev_first)
			return NEXT_SAME;
		*queue = ctx->own;
		return NEXT_QUEUE;
	}
	if (ctx->has_prev && is_before(ctx->prev_vtime, ctx->min_vtime))
		return NEXT_SAME;
	return NEXT_QUEUE;
}

#endif
