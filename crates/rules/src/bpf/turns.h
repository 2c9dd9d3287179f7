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
	__u64 lead_ns;
};

/*
 * The address space whose next thread is at `own` goes on, though another's is
 * at `other`.
 */
static inline _Bool goes_on(const struct turn *turn, __u64 now_ns, __u64 own,
			    __u64 other)
{
	return since(turn->began_ns, now_ns) < turn->turn_ns &&
	       !is_before(other + turn->lead_ns, own);
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
struct space {
	/* Whose it is, by sharers(); whose it was last, if it is empty. */
	__u64 of;
	/* Virtual time of the first that waits. */
	__u64 least;
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
static inline __u64 sharers(__u64 mm, __u64 seat, __u32 version, __u32 only)
{
	if (seat)
		mm ^= (seat << 32 | version) * 0x9e3779b97f4a7c15ULL;
	return only ? mm ^ only * 0xc2b2ae3d27d4eb4fULL : mm;
}

/* A thread is about to wait here. */
static inline void join_space(struct space *space, __u64 of, __u64 seat,
			      __u32 version, __u64 vtime)
{
	if (!space->waiting) {
		space->of = of;
		space->seat = seat;
		space->version = version;
	} else if (space->seat != seat || space->version != version) {
		space->seat = 0;
	}
	if (!space->waiting || is_before(vtime, space->least))
		space->least = vtime;
	__sync_fetch_and_add(&space->waiting, 1);
}

/*
 * Whether those that wait in a queue have that seat, as of now: where another was given
 * since, some are at home elsewhere, and nobody may pass them by.
 */
static inline _Bool is_seated(const struct space *space, __u32 version)
{
	return space->waiting && space->seat && space->version == version;
}

/* One has left; `first` is now the virtual time of the first. */
static inline void leave_space(struct space *space, __u64 first)
{
	space->least = first;
	__sync_fetch_and_sub(&space->waiting, 1);
}

/* Which of the queues is these sharers' from now on. */
static inline __u32 space_of(const struct space *spaces, __u64 of)
{
	__u32 home = (of >> 6 ^ of >> 13 ^ of >> 21) % SPACES;
	__u32 vacant = SPACES;
	__u32 step;

	for (step = 0; step < 8; step++) {
		__u32 at = (home + step) % SPACES;

		if (spaces[at].of == of)
			return at;
		if (vacant == SPACES && !spaces[at].waiting)
			vacant = at;
	}
	return vacant < SPACES ? vacant : home;
}

/* What a CPU knows of queues whose first it cannot run, and passes by. */
struct passed {
	/* Which, by bit. */
	__u32 queues;
	__u32 unused;
	/* Virtual time of the first of each that it can run. */
	__u64 least[SPACES];
};

/* Whether a CPU that took a thread at `taken` has passed somebody by, as `first` is now the
 * first of that queue. */
static inline _Bool has_passed(__u64 taken, __u64 first)
{
	return is_before(first, taken);
}

/* It has, and this is where the next is that it can run. */
static inline void pass_by(struct passed *passed, __u32 at, __u64 least)
{
	passed->queues |= 1U << at % SPACES;
	passed->least[at % SPACES] = least;
}

/* It has not: the first of that queue is one that it can run. */
static inline void face(struct passed *passed, __u32 at)
{
	passed->queues &= ~(1U << at % SPACES);
}

/* A thread that it can run comes to wait there. */
static inline void meet(struct passed *passed, __u32 at, __u64 vtime)
{
	at %= SPACES;
	if (passed->queues >> at & 1)
		passed->least[at] = earlier(passed->least[at], vtime);
}

/* Virtual time of the first thread in a queue that the CPU can run, as far as it knows.
 * `passes`: queues whose very first it cannot. */
static inline __u64 least_of(const struct space *spaces,
			     const struct passed *passed, __u32 passes,
			     __u32 at)
{
	__u64 least;

	at %= SPACES;
	least = spaces[at].least;
	if (passes >> at & 1)
		least = later(least, passed->least[at]);
	return least;
}

/* The queue that is furthest behind for such a CPU, but for those in `not`; SPACES if none. */
static inline __u32 hindmost(const struct space *spaces,
			     const struct passed *passed, __u32 passes,
			     __u32 not )
{
	__u32 found = SPACES;
	__u64 least = 0;
	__u32 at;

	for (at = 0; at < SPACES; at++) {
		__u64 here;

		if (!spaces[at].waiting || not >> at & 1)
			continue;
		here = least_of(spaces, passed, passes, at);
		if (found == SPACES || is_before(here, least)) {
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
static inline __u64 average_of(const struct space *spaces, __u64 clock)
{
	__u64 ahead = 0;
	__u64 waiting = 0;
	__u32 at;

	/* Without a branch: the verifier would follow each of them. */
	for (at = 0; at < SPACES; at++) {
		waiting += spaces[at].waiting;
		ahead += (spaces[at].least - clock) * spaces[at].waiting;
	}
	if (!waiting || (__s64)ahead < 0)
		return clock;
	return clock + ahead / waiting;
}

/* The first of those that wait with this seat. */
static inline _Bool first_of_seat(const struct space *spaces, __u64 seat,
				  __u64 *least)
{
	_Bool found = 0;
	__u32 at;

	for (at = 0; at < SPACES; at++) {
		if (!spaces[at].waiting || spaces[at].seat != seat)
			continue;
		if (!found || is_before(spaces[at].least, *least))
			*least = spaces[at].least;
		found = 1;
	}
	return found;
}

/*
 * Where a thread is put that comes to wait: no further ahead of the first of its seat than
 * anybody gets; nor of the clock, which those may be behind that wait for a crowded CPU.
 */
static inline __u64 place_at(const struct space *spaces, __u64 clock,
			     __u64 seat, __u64 vtime, __u64 ahead_ns)
{
	__u64 least = clock;

	if (first_of_seat(spaces, seat, &least) && is_before(least, clock))
		least = clock;
	return join_at(vtime, least, ahead_ns);
}

enum next {
	/* Let the thread that runs run on. */
	NEXT_SAME,
	/* Take the first of the queue. */
	NEXT_QUEUE,
};

/* What a CPU knows when it asks who is next. */
struct moment {
	struct turn turn;
	__u64 now_ns;
	/* The thread that has just used up its slice; none if it sleeps. */
	__u32 has_prev;
	__u32 aggregate;
	__u64 prev_vtime;
	/* The queue of the address space whose turn it is; SPACES if none. */
	__u32 own;
	/* Queues that held nobody who may run here. */
	__u32 not ;
	/* Queues whose first it passes by, by bit; none, where it asks another LLC. */
	__u32 passes;
	/* Answered: the queue that is furthest behind; SPACES if none. */
	__u32 hindmost;
	/* Answered: where the first of that queue is. */
	__u64 hindmost_at;
	/* Answered: where whoever is furthest behind of all is, if anybody waits. */
	__u64 least;
	/* Whose `passed` is meant, in the scheduler. */
	__u32 cpu;
	__u32 unused;
};

/*
 * Who is next. `queue` is the queue to take from, where that is the answer;
 * SPACES with NEXT_QUEUE: nobody waits.
 */
static inline enum next who_is_next(struct moment *is,
				    const struct space *spaces,
				    const struct passed *passed, __u32 *queue)
{
	__u32 other = hindmost(spaces, passed, is->passes, is->not );
	_Bool own_waits = is->own < SPACES && !(is->not >> is->own & 1) &&
			  spaces[is->own % SPACES].waiting;
	__u64 own = is->prev_vtime;
	_Bool prev_first = is->has_prev;
	__u64 least;

	*queue = is->hindmost = other;
	if (other == SPACES)
		return is->has_prev ? NEXT_SAME : NEXT_QUEUE;
	is->least = is->hindmost_at =
		least_of(spaces, passed, is->passes, other);
	if (is->has_prev)
		is->least = earlier(is->least, is->prev_vtime);
	least = least_of(spaces, passed, is->passes, is->own);
	if (own_waits && (!is->has_prev || is_before(least, own))) {
		own = least;
		prev_first = 0;
	}
	if (is->aggregate && (own_waits || is->has_prev) &&
	    goes_on(&is->turn, is->now_ns, own, is->hindmost_at)) {
		if (prev_first)
			return NEXT_SAME;
		*queue = is->own;
		return NEXT_QUEUE;
	}
	if (is->has_prev && is_before(is->prev_vtime, is->hindmost_at))
		return NEXT_SAME;
	return NEXT_QUEUE;
}

#endif
