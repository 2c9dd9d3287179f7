/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Soft seats: preferred CPUs of programs (paper 1)
 *
 * User space gives a program, identified by its cgroup, a set of CPUs, called its seat. The CPUs of
 * the seat are the preferred CPUs of the program's threads, which run there before all other
 * threads. On other CPUs, the program's threads are borrowers: they run on idle cores, and a thread
 * that prefers such a CPU preempts them as soon as it wakes. A thread without a seat prefers all
 * CPUs. A thread that may run on no CPU of its program's seat prefers all CPUs, too.
 *
 * 1. User space writes the map `seats` (cgroup to CPUs, at most SEATS_MAX entries), and then a new
 *    version number of the seats. Version 0 means that there are no seats.
 * 2. read_preferred(): if the version has changed, or SEAT_REFRESH_NS after the last search, find
 *    the seat of the thread's cgroup or of the nearest of CGROUP_DEPTH_MAX - 1 ancestors, and store
 *    the cgroup with the seat in `struct thread`.
 * 3. note_start(), when a thread starts to run: record in g_borrowers whether the thread is a
 *    borrower on its CPU.
 * 4. preempt_borrower(): a thread that wakes claims the CPU of a borrower (select_cpu.h).
 * 5. remote_queues(): when a CPU selects its next thread, it excludes the queues of threads that
 *    would be borrowers on this CPU.
 *
 * Step 2 examines 16 cgroups at most, and copies the words of the machine's CPU sets; step 5
 * examines the 32 queues of an LLC. Each other step takes constant time. A process that moves to another cgroup keeps its seat for about SEAT_REFRESH_NS.
 * SEATS_MAX is 256, SEAT_REFRESH_NS is 1 s. A seat that is missing in the map counts as no seat.
 */
#ifndef USHER_SCX_SEATS_H
#define USHER_SCX_SEATS_H

#include "groups.h"
#include "isolation.h"

/* Number of cgroups that are examined for a seat: the thread's cgroup and its ancestors. */
#define CGROUP_DEPTH_MAX 16
/*
 * Time after which a thread reads its seat again. The process that gave the seat may have died, and
 * the program may have been released without a new version.
 */
#define SEAT_REFRESH_NS 1000000000ULL

/* Returns the version of the seats; 0: there are no seats. */
static inline __u64 seats_version(void)
{
	return g_seating.version;
}

/*
 * Returns the number of the nearest cgroup with a seat, among the thread's cgroup and its
 * ancestors; 0: none of these cgroups has a seat.
 */
static inline __u64 find_seat(struct task_struct *p)
{
	struct cgroup *cgroup = BPF_CORE_READ(p, cgroups, dfl_cgrp);
	int level;

	bpf_for(level, 0, CGROUP_DEPTH_MAX)
	{
		struct cgroup_subsys_state *parent;
		__u64 id;

		if (!cgroup)
			break;
		id = BPF_CORE_READ(cgroup, kn, id);
		if (bpf_map_lookup_elem(&seats, &id))
			return id;
		parent = BPF_CORE_READ(cgroup, self.parent);
		if (!parent)
			break;
		cgroup = (void *)parent -
			 bpf_core_field_offset(struct cgroup, self);
	}
	return 0;
}

/* Returns whether the thread has to read its seat again. */
static inline _Bool is_stale(const struct thread *thread, __u64 version)
{
	return thread->seat_version != version ||
	       (version &&
		since(thread->seat_found_ns, now_ns()) > SEAT_REFRESH_NS);
}

/* Clears the thread's seat, because there are no seats any more. */
static inline void leave_seat(struct thread *thread)
{
	thread->seat = thread->cgroup = 0;
	thread->seat_version = 0;
}

/*
 * Determines the thread's seat, and its preferred CPUs: a subset of `scan->allowed`. With seats,
 * `scan->words` contains all words of the machine.
 */
static inline void read_preferred(struct idle_scan_ctx *scan,
				  struct task_struct *p, struct thread *thread)
{
	__u64 version = seats_version();
	__u64 has = 0;
	struct seat *seat;

	copy_words(&scan->preferred_cpus, &scan->allowed, scan->words);
	if (is_stale(thread, version)) {
		thread->cgroup = version ? find_seat(p) : 0;
		thread->seat_version = version;
		thread->seat_found_ns = now_ns();
	}
	seat = thread->cgroup ? bpf_map_lookup_elem(&seats, &thread->cgroup)
			      : 0;
	if (seat && find_preferred(&scan->preferred_cpus, &scan->allowed,
				   &seat->cpus, scan->words))
		has = thread->cgroup;
	else if (seat)
		copy_words(&scan->preferred_cpus, &scan->allowed, scan->words);
	/* A waiting thread keeps the seat with which it was enqueued. */
	if (thread->queue == NO_QUEUE)
		thread->seat = has;
}

/*
 * Returns whether the CPU is in the seat of this cgroup. Without a seat, the result is true for
 * every CPU.
 */
static inline _Bool is_preferred(__u64 cgroup, __u32 cpu)
{
	struct seat *seat;

	if (!cgroup)
		return 1;
	seat = bpf_map_lookup_elem(&seats, &cgroup);
	return !seat || has_cpu(&seat->cpus, cpu);
}

static inline _Bool has_borrower(__u32 cpu)
{
	return has_cpu(&g_borrowers, cpu);
}

/* Records whether the CPU runs a borrower. */
static inline void note_borrower(__u32 cpu, _Bool is_borrower)
{
	note_in(&g_borrowers, cpu, is_borrower);
}

/*
 * Claims the CPU of a borrower. Returns whether the claim succeeded: of several simultaneous
 * claims, one succeeds.
 */
static inline _Bool preempt_borrower(__u32 cpu)
{
	__u64 bit = 1ULL << cpu % 64;

	return __sync_fetch_and_and(&g_borrowers.words[cpu / 64 % CPU_WORDS],
				    ~bit) &
	       bit;
}

/* Implements remote_queues(). The function is not inlined, so that the verifier checks it once. */
__noinline __u32 find_remote_queues(__u32 llc, __u32 cpu)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);
	__u64 version = seats_version();
	__u32 found = 0;
	int at;

	bpf_for(at, 0, MM_QUEUES_PER_LLC)
	{
		struct mm_queue *mm_queue =
			&llc_rq->mm_queues[at % MM_QUEUES_PER_LLC];

		if (is_seated(mm_queue, version) &&
		    !is_preferred(mm_queue->seat, cpu))
			found |= 1U << at % MM_QUEUES_PER_LLC;
	}
	return found;
}

/* Returns a bitmask of the queues of an LLC with threads that would be borrowers on this CPU. */
static inline __u32 remote_queues(__u32 llc, __u32 cpu)
{
	return seats_version() ? find_remote_queues(llc, cpu) : 0;
}

/* Returns the counters of the thread's seat for the current CPU; 0: the thread has no seat. */
static inline struct seat_tally *tally_of(struct thread *thread)
{
	if (!thread->seat)
		return 0;
	return bpf_map_lookup_elem(&seat_tallies, &thread->seat);
}

/*
 * Records that a thread starts to run. If the thread has preempted a borrower, also records the
 * latency of the preemption.
 */
static inline void note_start(struct thread *thread, __u32 cpu)
{
	struct seat_tally *tally;

	note_borrower(cpu, !is_preferred(thread->seat, cpu));
	if (!thread->returning_ns)
		return;
	tally = tally_of(thread);
	if (tally) {
		tally->returns++;
		tally->return_latency[latency_slot(
			since(thread->returning_ns, now_ns()))]++;
	}
	thread->returning_ns = 0;
}

/* Adds CPU time that a thread has used on `cpu` to the counters of its seat. */
static inline void note_use(struct thread *thread, __u32 cpu, __u64 ran)
{
	struct seat_tally *tally = tally_of(thread);

	if (!tally)
		return;
	if (is_preferred(thread->seat, cpu))
		tally->home_ns += ran;
	else
		tally->guest_ns += ran;
}

#endif
