/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * When (4, the paper on aggregation). Threads of one address space wait in a
 * queue of their own, ordered by virtual time. The address space that has the
 * CPU goes on while its turn lasts *and* while it is not further ahead in
 * virtual time than `lead` of whoever waits elsewhere; then the queue whose
 * first thread is furthest behind has its turn. Hence the bound: a thread that
 * waits is passed by any other until that one is `lead` ahead and its last slice
 * is over, and no further. With n threads of equal weight on a CPU, the wait is
 * at most (n - 1) (lead + 2 slices), which is lead / slice + 2 times the
 * (n - 1) slices of strict rotation. Where threads may run on some CPUs of several, or more
 * address spaces than there are queues share some, a queue's first may be one that the
 * CPU cannot run. It is passed by, and the CPU goes by the first that it can run: else
 * those of a queue whose first waits for a crowded CPU would be next for ever on all others.
 */
#ifndef USHER_RULES_TURNS_H
#define USHER_RULES_TURNS_H

#include "share.h"

struct turn {
	__u64 began_ns;
	__u64 turn_ns;
	__u64 max_lag_ns;
};

/*
 * The address space whose next thread is at `own` goes on, though another's is
 * at `other`.
 */
static inline _Bool goes_on(const struct turn *turn, __u64 now_ns, __u64 own,
			    __u64 other)
{
	return since(turn->began_ns, now_ns) < turn->turn_ns &&
	       !is_before(other + turn->max_lag_ns, own);
}

/*
 * Whether a turn ends as this address space runs, come from that queue (0: from none).
 * Those that share a queue share the turn: each would begin another one after the other,
 * and none would end.
 */
static inline _Bool ends_turn(__u64 turn_mm, __u32 turn_queue, __u64 mm,
			      __u32 queue)
{
	return mm != turn_mm && (!queue || queue != turn_queue);
}

/* A queue: the threads of an address space that wait in an LLC. */
struct mm_queue {
	/* Whose it is, by sharers(); whose it was last, if it is empty. */
	__u64 key;
	/* Virtual time of the first that waits. */
	__u64 min_vtime;
	/* The seat of those that wait, as of that version of all seats; 0: none, or
	 * several, or of several versions. */
	__u64 seat;
	__u32 waiting;
	__u32 version;
};

/*
 * Who shares a queue: the threads of an address space that have a seat as of one version
 * of all seats, and may run on the same CPU alone, which is counted from 1, or on others.
 * So those who waited before seats changed have a queue of their own, which empties; and
 * no CPU judges a queue by a first thread that it cannot have.
 */
static inline __u64 queue_key(__u64 mm, __u64 seat, __u32 version,
			      __u32 pinned_cpu)
{
	if (seat)
		mm ^= (seat << 32 | version) * 0x9e3779b97f4a7c15ULL;
	return pinned_cpu ? mm ^ pinned_cpu * 0xc2b2ae3d27d4eb4fULL : mm;
}

/* A thread is about to wait here. */
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
 * Whether those that wait in a queue have that seat, as of now: where another was given
 * since, some are at home elsewhere, and nobody may pass them by.
 */
static inline _Bool is_seated(const struct mm_queue *mm_queue, __u32 version)
{
	return mm_queue->waiting && mm_queue->seat &&
	       mm_queue->version == version;
}

/* One has left; `first` is now the virtual time of the first. */
static inline void leave_mm_queue(struct mm_queue *mm_queue, __u64 first)
{
	mm_queue->min_vtime = first;
	__sync_fetch_and_sub(&mm_queue->waiting, 1);
}

/* Which of the queues is these sharers' from now on. */
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

/* What a CPU knows of queues whose first it cannot run, and passes by. */
struct head_skip {
	/* Which, by bit. */
	__u32 queues;
	__u32 unused;
	/* Virtual time of the first of each that it can run. */
	__u64 min_vtime[MM_QUEUES_PER_LLC];
};

/* Whether a CPU that took a thread at `taken` has passed somebody by, as `first` is now the
 * first of that queue. */
static inline _Bool has_unrunnable_head(__u64 taken, __u64 first)
{
	return is_before(first, taken);
}

/* It has, and this is where the next is that it can run. */
static inline void mark_head_unrunnable(struct head_skip *head_skip, __u32 at,
					__u64 min_vtime)
{
	head_skip->queues |= 1U << at % MM_QUEUES_PER_LLC;
	head_skip->min_vtime[at % MM_QUEUES_PER_LLC] = min_vtime;
}

/* It has not: the first of that queue is one that it can run. */
static inline void clear_head_unrunnable(struct head_skip *head_skip, __u32 at)
{
	head_skip->queues &= ~(1U << at % MM_QUEUES_PER_LLC);
}

/* A thread that it can run comes to wait there. */
static inline void lower_min(struct head_skip *head_skip, __u32 at, __u64 vtime)
{
	at %= MM_QUEUES_PER_LLC;
	if (head_skip->queues >> at & 1)
		head_skip->min_vtime[at] =
			earlier(head_skip->min_vtime[at], vtime);
}

/* Virtual time of the first thread in a queue that the CPU can run, as far as it knows.
 * `passes`: queues whose very first it cannot. */
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

/* The queue that is furthest behind for such a CPU, but for those in `not`; SPACES if none. */
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
 * Where those that wait are on average, by the first of each queue; not behind the clock.
 * Whoever was furthest behind is no measure while one turn follows another: its time
 * stands still until its own comes.
 */
static inline __u64 average_of(const struct mm_queue *mm_queues, __u64 clock)
{
	__u64 ahead = 0;
	__u64 waiting = 0;
	__u32 at;

	/* Without a branch: the verifier would follow each of them. */
	for (at = 0; at < MM_QUEUES_PER_LLC; at++) {
		waiting += mm_queues[at].waiting;
		ahead += (mm_queues[at].min_vtime - clock) *
			 mm_queues[at].waiting;
	}
	if (!waiting || (__s64)ahead < 0)
		return clock;
	return clock + ahead / waiting;
}

/* The first of those that wait with this seat. */
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
 * Where a thread is put that comes to wait: no further ahead of the first of its seat than
 * anybody gets; nor of the clock, which those may be behind that wait for a crowded CPU.
 */
static inline __u64 place_at(const struct mm_queue *mm_queues, __u64 clock,
			     __u64 seat, __u64 vtime, __u64 max_lag_ns)
{
	__u64 least = clock;

	if (first_of_seat(mm_queues, seat, &least) && is_before(least, clock))
		least = clock;
	return clamp_waiter(vtime, least, max_lag_ns);
}

enum next {
	/* Let the thread that runs run on. */
	NEXT_SAME,
	/* Take the first of the queue. */
	NEXT_QUEUE,
};

/* What a CPU knows when it asks who is next. */
struct pick_ctx {
	struct turn turn;
	__u64 now_ns;
	/* The thread that has just used up its slice; none if it sleeps. */
	__u32 has_prev;
	__u32 aggregate;
	__u64 prev_vtime;
	/* The queue of the address space whose turn it is; SPACES if none. */
	__u32 own;
	/* Queues that held nobody who may run here. */
	__u32 excluded;
	/* Queues whose first it passes by, by bit; none, where it asks another LLC. */
	__u32 skipped;
	/* Answered: the queue that is furthest behind; SPACES if none. */
	__u32 min_vtime_queue;
	/* Answered: where the first of that queue is. */
	__u64 min_vtime;
	/* Answered: where whoever is furthest behind of all is, if anybody waits. */
	__u64 min_vtime_with_prev;
	/* Whose `passed` is meant, in the scheduler. */
	__u32 cpu;
	__u32 unused;
};

/*
 * Who is next. `queue` is the queue to take from, where that is the answer;
 * SPACES with NEXT_QUEUE: nobody waits.
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
	    goes_on(&ctx->turn, ctx->now_ns, own, ctx->min_vtime)) {
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
