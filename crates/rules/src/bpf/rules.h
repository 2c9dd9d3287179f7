/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What decides, in integers alone: the scheduler's programs include it (crates/scx),
 * and src/rules.c compiles it for tests and for the simulator.
 *
 * Where (3b, the paper on SMT). A CPU whose core is wholly idle is better than
 * any that shares its core, and better than the CPU that the thread last ran on;
 * among equals the nearest: the last one itself, the same LLC, the same node.
 *
 * Whose CPU (1, the paper on seats). Where programs have seats, a thread's own CPUs
 * come first; there it takes the place of a guest at once. It is a guest itself
 * on cores that are idle, or that only guests work on.
 *
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
 * CPU cannot run: whoever waits there for another CPU is passed by for its sake.
 */
#ifndef USHER_SCX_RULES_H
#define USHER_SCX_RULES_H

#include "sets.h"

#define NOWHERE (-1)
/* scx.weight of nice 0. */
#define WEIGHT_NORMAL 100
/* Threads that sleep after less than this are waited for by somebody: a third of a
 * slice, so that who mostly sleeps stays among them where others slow it down. */
#define SHORT_BURST_NS 1000000ULL

/*
 * The one line in which the programs differ from what tests and the simulator run. The
 * verifier follows each number that it knows apart from all others. This is always 0,
 * which it cannot know, as the word is not constant: a sum with it may be any number, and
 * paths that differ in that number alone are one.
 */
#ifdef __bpf__
static volatile __u32 zero;
#define UNKNOWN(number) ((number) + zero)
#else
#define UNKNOWN(number) (number)
#endif

/* In an order that survives overflow. */
static inline _Bool is_before(__u64 a, __u64 b)
{
	return (__s64)(a - b) < 0;
}

/* The time that has passed: none, where another CPU's clock was ahead of this one's. */
static inline __u64 since(__u64 then_ns, __u64 now_ns)
{
	return is_before(then_ns, now_ns) ? now_ns - then_ns : 0;
}

/* Without a branch: the verifier would follow each of them. */
static inline __u32 bits_in(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) +
	       (word >> 2 & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return word * 0x0101010101010101ULL >> 56;
}

static inline __s32 lowest_bit(__u64 bits)
{
	return bits_in((bits & -bits) - 1);
}

/* The binary logarithm, rounded down; 0 of 0. */
static inline __u32 log2_of(__u64 value)
{
	value |= 1;
	value |= value >> 1;
	value |= value >> 2;
	value |= value >> 4;
	value |= value >> 8;
	value |= value >> 16;
	value |= value >> 32;
	return bits_in(value) - 1;
}

/* Four to a power of two: the logarithm, and the two bits below the first. */
static inline __u32 slot_of(__u64 value)
{
	__u32 power = log2_of(value);
	__u64 below = power < 2 ? value << (2 - power) : value >> (power - 2);

	return 4 * power + (below & 3);
}

/* The first CPU that is in all three sets; the third may be all there is. */
static inline __s32 first_of(const struct cpu_set *some,
			     const struct cpu_set *allowed,
			     const struct cpu_set *within)
{
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++) {
		__u64 bits = some->words[word] & allowed->words[word];

		if (within)
			bits &= within->words[word];
		if (bits)
			return word * 64 + lowest_bit(bits);
	}
	return NOWHERE;
}

static inline _Bool has_any(const struct cpu_set *set)
{
	__u64 any = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++)
		any |= set->words[word];
	return any != 0;
}

static inline _Bool has_cpu(const struct cpu_set *set, __u32 cpu)
{
	return set->words[cpu / 64 % CPU_WORDS] >> cpu % 64 & 1;
}

/* The nearest CPU to `last`, which lies at `here`, that is in both sets. */
static inline __s32 nearest_of(const struct cpu_set *some,
			       const struct cpu_set *allowed, __u32 last,
			       const struct place *here)
{
	__s32 cpu;

	if (has_cpu(some, last) && has_cpu(allowed, last))
		return last;
	cpu = first_of(some, allowed, &here->near);
	if (cpu < 0)
		cpu = first_of(some, allowed, &here->node);
	if (cpu < 0)
		cpu = first_of(some, allowed, 0);
	return cpu;
}

/* The sets that a choice is made from. */
struct outlook {
	struct cpu_set idle;
	/* CPUs of cores that are idle with all their threads. */
	struct cpu_set cores;
	struct cpu_set allowed;
	/* Those of them where the thread is at home; all, if it has no seat. */
	struct cpu_set home;
	/* CPUs that run threads which are not at home there. */
	struct cpu_set guests;
	/* Idle ones that have not been looked at yet. */
	struct cpu_set left;
	/* Nodes, by number, whose CPUs are not in `idle` and `cores` yet. */
	__u64 unseen;
};

/*
 * An idle CPU at home, than which none is better: where it lies in the node of `last`,
 * what other nodes have does not matter.
 */
static inline __s32 choose_best(_Bool smt, const struct outlook *sees,
				__u32 last, const struct place *here)
{
	return nearest_of(smt ? &sees->cores : &sees->idle, &sees->home, last,
			  here);
}

/*
 * At home first, and there before a guest; then as a guest of cores that are
 * idle, so that nobody's core is shared with one; at last beside a thread at home.
 */
static inline __s32 choose_cpu(_Bool smt, const struct outlook *sees,
			       __u32 last, const struct place *here)
{
	const struct cpu_set *best = smt ? &sees->cores : &sees->idle;
	__s32 cpu = choose_best(smt, sees, last, here);

	if (cpu < 0)
		cpu = nearest_of(&sees->guests, &sees->home, last, here);
	if (cpu < 0)
		cpu = nearest_of(best, &sees->allowed, last, here);
	if (cpu < 0)
		cpu = nearest_of(&sees->idle, &sees->home, last, here);
	return cpu;
}

/* Nobody works on this core but guests. */
static inline _Bool is_left_to_guests(const struct cpu_set *core,
				      const struct outlook *sees)
{
	__u64 others = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++)
		others |= core->words[word] &
			  ~(sees->idle.words[word] | sees->guests.words[word]);
	return !others;
}

/* As choose_cpu, of idle cores alone. */
static inline __s32 choose_core_of(const struct outlook *sees, __u32 last,
				   const struct place *here)
{
	__s32 cpu = choose_best(1, sees, last, here);

	return cpu >= 0 ? cpu
			: nearest_of(&sees->cores, &sees->allowed, last, here);
}

/* Where a thread with this seat is at home; false: it may run nowhere there. */
static inline _Bool find_home(struct cpu_set *home,
			      const struct cpu_set *allowed,
			      const struct cpu_set *seat)
{
	__u64 any = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++) {
		home->words[word] = allowed->words[word] & seat->words[word];
		any |= home->words[word];
	}
	return any != 0;
}

/* The largest product of the weights of cgroups in one another, in per cent. */
#define GROUP_WEIGHT_MAX 1000000U

/* What a cgroup makes of the weight of those in it; 0: it says nothing. */
static inline __u32 within_group(__u32 percent, __u32 weight)
{
	__u64 product = (__u64)percent * (weight ? weight : WEIGHT_NORMAL) /
			WEIGHT_NORMAL;

	if (product > GROUP_WEIGHT_MAX)
		return GROUP_WEIGHT_MAX;
	return product ? product : 1;
}

/* A thread's weight with that of its cgroups. */
static inline __u64 weight_in(__u64 weight, __u32 percent)
{
	weight = weight * (percent ? percent : 100) / 100;
	return weight ? weight : 1;
}

/* Virtual time that running so long takes. */
static inline __u64 virtual_ns(__u64 ran_ns, __u64 weight)
{
	return ran_ns * WEIGHT_NORMAL / (weight ? weight : 1);
}

/* Whoever slept is not owed more than a slice. */
static inline __u64 wake_at(__u64 vtime, __u64 clock, __u64 slice_ns)
{
	__u64 least = clock - slice_ns;

	return is_before(vtime, least) ? least : vtime;
}

/* However light a thread is, it owes no more virtual time than this for what it ran
 * beyond the lead: one of nice -20 takes seconds to make up for it. */
#define OWED_MOST_NS 100000000ULL

/* How far a thread of this weight gets ahead of whoever waits: a slice runs on as the
 * lead is reached, and the next thread of the address space has begun one by then, too. */
static inline __u64 ahead_at_most(__u64 lead_ns, __u64 slice_ns, __u64 weight)
{
	__u64 beyond = virtual_ns(2 * slice_ns, weight);

	return lead_ns + (beyond < OWED_MOST_NS ? beyond : OWED_MOST_NS);
}

/* Nor does anybody owe those that wait already more than that. */
static inline __u64 join_at(__u64 vtime, __u64 least, __u64 ahead_ns)
{
	__u64 most = least + ahead_ns;

	return is_before(most, vtime) ? most : vtime;
}

/*
 * Virtual time passes, while somebody waits, at least so many times slower than real time:
 * beside heavy threads it would stand still nearly, and whoever is ahead of them wait until
 * the kernel finds that it starves.
 */
#define SLOWEST 32

struct pace {
	/* Where the clock would be by now, had it never been slower. */
	__u64 least;
	/* When that was worked out. */
	__u64 at_ns;
};

/* Asked whenever somebody comes to wait, so that all of that time somebody waited. */
static inline void keep_pace(struct pace *pace, __u64 clock, __u64 now_ns,
			     _Bool anybody_waits)
{
	__u64 then_ns = pace->at_ns;
	__u64 passed_ns = since(then_ns, now_ns);
	__u64 least = pace->least + passed_ns / SLOWEST;

	pace->least = anybody_waits && is_before(clock, least) ? least : clock;
	pace->at_ns = then_ns + passed_ns;
}

/* Whoever is further behind than the lightest ever get ahead counts as there. */
static inline __u64 at_pace(const struct pace *pace, __u64 clock, __u64 vtime)
{
	__u64 least = pace->least - OWED_MOST_NS;

	return is_before(clock, pace->least) && is_before(vtime, least) ? least
									: vtime;
}

/* Time in which nobody waits costs nobody anything, and is not owed to anybody. */
static inline __u64 alone_at(__u64 vtime, __u64 clock)
{
	return is_before(clock, vtime) ? clock : vtime;
}

/*
 * Wakes for a moment, and is not ahead of its share: it is not made to wait for
 * anybody's turn to end.
 */
static inline _Bool is_urgent(__u64 burst_ns, __u64 vtime, __u64 share)
{
	return burst_ns < SHORT_BURST_NS && is_before(vtime, share);
}

/*
 * The average length of a burst after one more. Who has begun to wake for moments
 * is soon believed, as the first bursts of every program are long; one long burst,
 * in which others had the CPU, does not undo it.
 */
static inline __u64 burst_after(__u64 average_ns, __u64 burst_ns)
{
	if (burst_ns < average_ns)
		return (average_ns + 3 * burst_ns) / 4;
	return (7 * average_ns + burst_ns) / 8;
}

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

/* The queue that is furthest behind, but for those in `not`; SPACES if none. */
static inline __u32 hindmost(const struct space *spaces, __u32 not )
{
	__u32 found = SPACES;
	__u64 least = 0;
	__u32 at;

	for (at = 0; at < SPACES; at++) {
		if (!spaces[at].waiting || not >> at & 1)
			continue;
		if (found == SPACES || is_before(spaces[at].least, least)) {
			found = UNKNOWN(at);
			least = spaces[at].least;
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

/* How many wait in an LLC, and for how many CPUs. */
struct load {
	__u32 waiting;
	__u32 cpus;
};

/*
 * Whether a CPU that has threads of its own takes one from another LLC. Not if as many would
 * wait here for a CPU then as did there; but within a node, where memory is as near,
 * whoever is one too many for equal numbers goes round.
 */
static inline _Bool is_fuller(struct load there, struct load here,
			      _Bool in_node)
{
	if (in_node)
		return there.waiting * (__u64)here.cpus >
		       here.waiting * (__u64)there.cpus;
	return there.waiting && (there.waiting - 1) * (__u64)here.cpus >=
					(here.waiting + 1) * (__u64)there.cpus;
}

/* An LLC looks at one of the others so often: time for two turns, after which it is
 * another thread's to wait. */
#define LOOK_EVERY_NS 50000000ULL

/* One of the other LLCs, each as likely as any; this one if there is no other. */
static inline __u32 other_llc(__u32 here, __u32 llcs, __u32 drawn)
{
	if (llcs < 2)
		return here;
	return (here + 1 + drawn % (llcs - 1)) % llcs;
}

/* A CPU has served nobody but urgent threads for so long: others are next. */
static inline _Bool is_late(__u64 served_ns, __u64 now_ns, __u64 lead_ns)
{
	return since(served_ns, now_ns) > lead_ns;
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
	/* Answered: the queue that is furthest behind; SPACES if none. */
	__u32 hindmost;
	__u32 unused;
};

/*
 * Who is next. `queue` is the queue to take from, where that is the answer;
 * SPACES with NEXT_QUEUE: nobody waits.
 */
static inline enum next who_is_next(struct moment *is,
				    const struct space *spaces, __u32 *queue)
{
	__u32 other = hindmost(spaces, is->not );
	_Bool own_waits = is->own < SPACES && !(is->not >> is->own & 1) &&
			  spaces[is->own % SPACES].waiting;
	__u64 own = is->prev_vtime;
	_Bool prev_first = is->has_prev;

	*queue = is->hindmost = other;
	if (other == SPACES)
		return is->has_prev ? NEXT_SAME : NEXT_QUEUE;
	if (own_waits &&
	    (!is->has_prev || is_before(spaces[is->own % SPACES].least, own))) {
		own = spaces[is->own % SPACES].least;
		prev_first = 0;
	}
	if (is->aggregate && (own_waits || is->has_prev) &&
	    goes_on(&is->turn, is->now_ns, own, spaces[other % SPACES].least)) {
		if (prev_first)
			return NEXT_SAME;
		*queue = is->own;
		return NEXT_QUEUE;
	}
	if (is->has_prev &&
	    is_before(is->prev_vtime, spaces[other % SPACES].least))
		return NEXT_SAME;
	return NEXT_QUEUE;
}

#endif
