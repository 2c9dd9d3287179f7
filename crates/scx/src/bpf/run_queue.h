/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Run queues of address spaces (paper 4)
 * ======================================
 *
 * 1. Problem
 * ----------
 * pick_next() (turns.h) needs the number of waiting threads and the minimum vtime of each queue.
 * Reading these values from the kernel's dispatch queues (DSQ) would take function calls for each
 * queue. Several CPUs use the queues of an LLC at the same time.
 *
 * 2. Idea
 * -------
 * The scheduler counts the threads of each queue itself. It adds a thread to the count before the
 * thread is inserted, and subtracts the thread after it is removed, so that a queue with count 0 is
 * empty. The minimum vtime of a queue may be stale after a race of two CPUs, until the next thread
 * leaves that queue.
 *
 * 3. Data structures
 * ------------------
 * - DSQ `QUEUES + llc * QUEUES_PER_LLC + at`: queue `at` of an LLC, ordered by vtime (CPU time over
 *   weight). `at` = URGENT is the LLC's queue of urgent threads, in FIFO order (enqueue.h).
 * - `struct llc_rq`: counts, minimum vtimes and the clock of these queues.
 * - `struct head_skip`, per CPU: the queues with a head (first thread) that may not run on this
 *   CPU.
 *
 * 4. Steps
 * --------
 * 1. join_queue(): convert the vtime to the clock of the LLC (the minimum vtime of its waiting
 *    threads), clamp it, count the thread, and insert it into its DSQ.
 * 2. take_next(): select a queue and move its first thread that may run on this CPU to this CPU. If
 *    a queue has no such thread, the queue is excluded, and the selection repeats.
 * 3. dequeue_account(), when the thread runs: subtract the thread from the count of its queue, and
 *    record whether it was the head.
 * 4. steal(): take a thread from another LLC if no thread waits in this LLC.
 *
 * 5. Bound
 * --------
 * A selection tries each queue at most once: MM_QUEUES_PER_LLC = 32 attempts, each of which
 * compares all queues. A search in a queue examines STEPS_MAX = 64 entries. clock_of_preferred()
 * visits the CPUs of an LLC. steal() makes one selection in each other LLC with waiting threads, of
 * which there are at most 63.
 * turns.h states the bound on waits.
 *
 * 6. Known limits
 * ---------------
 * - If none of the first STEPS_MAX threads of a queue may run on a CPU, the CPU uses, as the
 *   minimum vtime of the queue, the vtime of the thread that it last took from the queue.
 * - Address spaces that share a queue also share its turn.
 */
#ifndef USHER_SCX_RUN_QUEUE_H
#define USHER_SCX_RUN_QUEUE_H

#include "charge.h"
#include "limits.h"
#include "select_cpu.h"

/* Returns the number of the DSQ for queue `at` of an LLC. */
static inline __u64 queue_at(__u32 llc, __u32 at)
{
	return QUEUES + llc * QUEUES_PER_LLC + at;
}

/* Upper limit of the entries that a search in a queue examines. */
#define STEPS_MAX 64

/*
 * Returns the vtime of the first thread in a DSQ that may run on the CPU; `none` if none of the
 * first STEPS_MAX threads may. The function is not inlined, because the iterator needs space on the
 * stack.
 */
__noinline __u64 first_vtime_on(__u32 cpu, __u64 dsq, __u64 none)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	int step;

	if (!bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_for(step, 0, STEPS_MAX)
		{
			p = bpf_iter_scx_dsq_next(&it);
			if (!p)
				break;
			if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
				none = p->scx.dsq_vtime;
				break;
			}
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return none;
}

/*
 * Subtracts a thread from the counts of its queue. Returns the vtime of the new head, or the
 * thread's own vtime if the queue is empty or the thread was urgent.
 */
static inline __u64 leave_queue(struct thread *thread)
{
	__u32 queue = thread->queue;
	__u32 at = queue % QUEUES_PER_LLC;
	__u64 first = thread->vtime;
	struct llc_rq *llc_rq;

	if (queue == NO_QUEUE)
		return first;
	if (queue == PARKED) {
		/* The timer of the park queue may count the thread in another queue (release.h). */
		if (__sync_bool_compare_and_swap(&thread->queue, PARKED,
						 NO_QUEUE))
			return first;
		queue = thread->queue;
		at = queue % QUEUES_PER_LLC;
	}
	thread->queue = NO_QUEUE;
	llc_rq = llc_rq_of((queue - QUEUES) / QUEUES_PER_LLC);
	if (at < MM_QUEUES_PER_LLC) {
		if (llc_rq->mm_queues[at].waiting > 1)
			first = first_vtime(queue, first);
		leave_mm_queue(&llc_rq->mm_queues[at], first);
		__sync_fetch_and_sub(&llc_rq->waiting, 1);
	} else {
		__sync_fetch_and_sub(&llc_rq->urgent, 1);
	}
	return first;
}

/*
 * Accounts for a thread that leaves its queue and runs on a CPU of this LLC. If the thread was not
 * the head of its queue, the head may not run on this CPU, and the CPU's `head_skip` records that.
 */
static inline void dequeue_account(__u32 queue, struct thread *thread,
				   __u32 cpu, struct cpu_state *state,
				   __u32 llc)
{
	__u64 first = leave_queue(thread);
	__u32 at = queue - queue_at(llc, 0);

	if (at >= MM_QUEUES_PER_LLC)
		return;
	if (has_unrunnable_head(thread->vtime, first))
		mark_head_unrunnable(&state->head_skip, at,
				     first_vtime_on(cpu, queue, thread->vtime));
	else
		clear_head_unrunnable(&state->head_skip, at);
}

/*
 * Returns the key of the thread's queue. All kernel threads have the same address-space number, 0.
 * Without aggregation, all threads have the number 0, so that only seats and pinned CPUs separate
 * queues.
 */
static inline __u64 queue_key_of(const struct thread *thread, __u64 mm,
				 const struct settings *settings)
{
	return queue_key(settings->aggregate ? mm : 0, thread->seat,
			 thread->seat_version, thread->pinned_cpu);
}

/*
 * Returns the preferred CPU that is nearest to `cpu`; `cpu` itself if the set of preferred CPUs is
 * empty.
 */
__noinline int preferred_cpu(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	__s32 at;

	at = nearest_of(&scan->preferred_cpus, &scan->preferred_cpus, cpu,
			place_of(cpu), scan->words);
	return at < 0 ? (__s32)cpu : at;
}

/*
 * Returns the CPU for which a thread is about to wait, in the queues of that CPU's LLC. A thread
 * with migration disabled waits for the CPU that it is on, as a thread without a seat.
 */
ALWAYS __u32 cpu_to_wait_for(struct task_struct *p, struct thread *thread,
			     __u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();

	if (p->nr_cpus_allowed > 1 && !is_movable(p)) {
		thread->seat = 0;
		return cpu;
	}
	if (!seats_version() || !fill_scan_ctx(scan, p, thread, cpu))
		return cpu;
	return preferred_cpu(cpu);
}

/*
 * Applies the starvation rule of share.h: returns `vtime`, raised to the vtime of the threads that
 * are overdue on the CPU.
 */
static inline __u64 aged(struct cpu_state *state, const struct llc_rq *llc_rq,
			 __u64 vtime, __u64 now)
{
	__u64 clock = clock_of(state, llc_rq);

	follow_periods(&state->aging, clock, now);
	return behind_overdue(&state->aging, clock, vtime);
}

/* Returns the clock of the most advanced preferred CPU in the LLC of `cpu`. */
__noinline __u64 clock_of_preferred(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	struct llc_rq *llc_rq = llc_rq_of(here->llc);
	__u64 clock = 0;
	_Bool any = 0;
	struct word_scan left = {here->near_words, 0};
	__u32 word;

	for_words(left, word)
	{
		__u64 bits = here->near.words[word] &
			     scan->preferred_cpus.words[word];
		int at;

		bpf_for(at, 0, 64)
		{
			struct cpu_state *state =
				state_of(word * 64 + lowest_bit(bits));

			if (!bits)
				break;
			bits &= bits - 1;
			clock = any ? later(clock, clock_of(state, llc_rq))
				    : clock_of(state, llc_rq);
			any = 1;
		}
	}
	return any ? clock : llc_rq->clock;
}

/* Determines the preferred CPUs of the thread, and returns clock_of_preferred(). */
static inline __u64 find_clock(struct task_struct *p, struct thread *thread,
			       __u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();

	read_allowed(p, seats_version() ? place_of(cpu)->all_words
					: place_of(cpu)->near_words);
	read_preferred(scan, p, thread);
	return clock_of_preferred(cpu);
}

/*
 * Returns the clock by which a new waiter is placed. Pinned threads and threads with seats may
 * crowd on some CPUs of an LLC. The clocks of these CPUs are then far behind the clock of the LLC,
 * and a thread placed by the LLC's clock would wait until they have caught up. A thread that may
 * run on several CPUs is placed by the clock of the most advanced of them.
 */
ALWAYS __u64 clock_for(struct task_struct *p, struct thread *thread, __u32 cpu,
		       __u32 llc, const struct llc_rq *llc_rq)
{
	if (place_of(cpu)->llc != llc)
		return llc_rq->clock;
	if (!is_movable(p))
		return clock_of(state_of(cpu), llc_rq);
	if (!seats_version() &&
	    (__u32)p->nr_cpus_allowed >= scx_bpf_nr_cpu_ids())
		return llc_rq->clock;
	return find_clock(p, thread, cpu);
}

/*
 * Clamps the vtime of a new waiter (place_at()). The function is not inlined, so that the verifier
 * checks it once.
 */
__noinline int place_in_llc(__u32 llc, struct thread *thread, __u64 clock,
			    __u64 max_lag_ns)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);

	if (thread)
		thread->vtime = place_at(llc_rq->mm_queues, clock, thread->seat,
					 thread->vtime, max_lag_ns);
	return 0;
}

/*
 * Determines the vtime at which a thread waits, and counts the thread in the queue of its address
 * space. Returns the index of the queue in the LLC.
 */
ALWAYS __u32 count_in(struct task_struct *p, struct thread *thread, __u32 cpu,
		      __u64 clock, const struct settings *settings)
{
	__u32 llc = place_of(cpu)->llc;
	struct llc_rq *llc_rq = llc_rq_of(llc);
	struct cpu_state *state = state_of(cpu);
	__u64 key = queue_key_of(thread, mm_id(p, thread), settings);
	__u64 now = now_ns();
	__u32 at;

	place_in_llc(llc, thread, clock,
		     max_lag(settings->max_lag_ns, settings->slice_ns,
			     weight_of(p, thread)));
	if (waits_for_family(thread))
		wait_for_family(thread, clock);
	thread->vtime = aged(state, llc_rq, thread->vtime, now);
	advance(&state->aging.highest, thread->vtime);
	COUNT(queued);
	at = mm_queue_of(llc_rq->mm_queues, key) % MM_QUEUES_PER_LLC;
	join_mm_queue(&llc_rq->mm_queues[at], key, thread->seat,
		      thread->seat_version, thread->vtime);
	lower_min(&state->head_skip, at, thread->vtime);
	__sync_fetch_and_add(&llc_rq->waiting, 1);
	mark_waiting(llc);
	return at;
}

/* Undoes count_in() for a thread that has not been inserted into the queue. */
static inline void uncount(struct llc_rq *llc_rq, __u32 at)
{
	__sync_fetch_and_sub(&llc_rq->mm_queues[at % MM_QUEUES_PER_LLC].waiting,
			     1);
	__sync_fetch_and_sub(&llc_rq->waiting, 1);
}

/* Inserts a thread into a queue of the CPU's LLC, where it waits. */
ALWAYS void join_queue(struct task_struct *p, struct thread *thread, __u32 cpu,
		       const struct settings *settings, __u64 flags)
{
	__u32 llc = place_of(cpu)->llc;
	struct llc_rq *llc_rq = llc_rq_of(llc);
	__u32 pinned_cpu = is_movable(p) ? 0 : cpu + 1;
	__u32 at = URGENT;
	__u64 clock = 0;

	thread->why = thread->urgent ? WHY_URGENT : WHY_TURN;
	follow_clock(thread, llc);
	if (!thread->urgent || pinned_cpu != thread->pinned_cpu)
		clock = clock_for(p, thread, cpu, llc, llc_rq);
	/*
	 * If the thread's pinning has changed, its credit is limited to one slice, because the
	 * clocks of different CPUs may be far apart.
	 */
	if (pinned_cpu != thread->pinned_cpu)
		thread->vtime =
			clamp_sleeper(thread->vtime, clock, settings->slice_ns);
	thread->pinned_cpu = pinned_cpu;
	if (thread->urgent) {
		__sync_fetch_and_add(&llc_rq->urgent, 1);
		mark_waiting(llc);
		COUNT(soon);
	} else {
		at = count_in(p, thread, cpu, clock, settings);
	}
	thread->queue = queue_at(llc, at);
	/*
	 * Urgent threads are dispatched in FIFO order. If they were ordered by vtime, children that
	 * are forked in succession and have used no CPU time would always precede other threads.
	 */
	if (at == URGENT)
		insert(p, queue_at(llc, at), settings->slice_ns, flags);
	else
		insert_at(p, queue_at(llc, at), settings->slice_ns,
			  thread->vtime, flags);
}

/* Result of pick_next_in_llc(): the previous thread continues. */
#define SAME_THREAD (MM_QUEUES_PER_LLC + 1)

/*
 * Selects the next queue of an LLC. The function is not inlined, so that the verifier checks it
 * once.
 */
__noinline int pick_next_in_llc(__u32 llc, struct pick_ctx *ctx)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);
	__u32 queue = MM_QUEUES_PER_LLC;

	if (!ctx)
		return -1;
	if (pick_next(ctx, llc_rq->mm_queues, &state_of(ctx->cpu)->head_skip,
		      &queue) == NEXT_SAME)
		return SAME_THREAD;
	if (ctx->min_vtime_queue < MM_QUEUES_PER_LLC)
		advance_clock(llc_rq, ctx->min_vtime);
	return queue;
}

/* Result of a selection. */
enum outcome {
	NONE_WAITING,
	TAKEN,
	/* The previous thread continues, because it has the lower vtime or the turn. */
	PREV_FIRST,
	/* The previous thread continues, because no waiting thread may run on this CPU. */
	PREV_ALONE,
};

/*
 * Moves the next thread of an LLC to this CPU. The function is not inlined, so that the verifier
 * checks it once.
 */
__noinline int take_next(__u32 llc, struct pick_ctx *ctx)
{
	int try;

	if (!ctx)
		return NONE_WAITING;
	bpf_for(try, 0, MM_QUEUES_PER_LLC)
	{
		__s32 at = pick_next_in_llc(llc, ctx);

		if (at == SAME_THREAD)
			return ctx->min_vtime_queue == MM_QUEUES_PER_LLC
				       ? PREV_ALONE
				       : PREV_FIRST;
		if (at < 0 || at >= MM_QUEUES_PER_LLC)
			break;
		if (take(queue_at(llc, at)))
			return TAKEN;
		ctx->excluded |= 1U << at;
	}
	return NONE_WAITING;
}

/* Takes an urgent thread, in the case that no other threads wait. */
static inline _Bool take_urgent_alone(struct llc_rq *llc_rq, __u32 llc,
				      struct cpu_state *state)
{
	state->served_ns = 0;
	catch_up(state, llc_rq);
	return take(queue_at(llc, URGENT));
}

/* Returns the longest time in which only urgent threads run although other threads wait. */
static inline __u64 urgent_time(const struct llc_rq *llc_rq,
				const struct cpu_state *state,
				const struct settings *settings)
{
	return has_overdue(&state->aging, clock_of(state, llc_rq))
		       ? settings->slice_ns
		       : settings->max_lag_ns;
}

/*
 * Takes an urgent thread. Exception: when only urgent threads have run for urgent_time(), a thread
 * that is not urgent is taken.
 */
static inline _Bool take_urgent(struct llc_rq *llc_rq, __u32 llc,
				struct cpu_state *state, struct pick_ctx *ctx,
				const struct settings *settings)
{
	if (!llc_rq->waiting)
		return take_urgent_alone(llc_rq, llc, state);
	if (!state->served_ns)
		state->served_ns = ctx->now_ns;
	if (is_overdue(state->served_ns, ctx->now_ns,
		       urgent_time(llc_rq, state, settings))) {
		__u32 excluded = ctx->excluded;

		ctx->own = MM_QUEUES_PER_LLC;
		if (take_next(llc, ctx) == TAKEN) {
			state->clock =
				later(state->clock, ctx->min_vtime_with_prev);
			return 1;
		}
		catch_up(state, llc_rq);
		ctx->excluded = excluded;
	}
	return take(queue_at(llc, URGENT));
}

/*
 * Takes a thread of an LLC: an urgent thread if there is any and `others` is 0, else the thread
 * with the minimum vtime. Returns whether a thread was taken.
 */
__noinline int take_min_vtime(__u32 llc, __u32 excluded, __u32 others)
{
	struct pick_ctx ctx = {.own = MM_QUEUES_PER_LLC, .excluded = excluded};
	struct llc_rq *llc_rq = llc_rq_of(llc);

	if (!others && llc_rq->urgent && take(queue_at(llc, URGENT)))
		return 1;
	return llc_rq->waiting && take_next(llc, &ctx) == TAKEN;
}

/*
 * Returns the load of an LLC, without the queues in `excluded`. With seats in use, urgent threads
 * do not count. Some of them may be borrowers on this CPU. They would return to their preferred
 * CPUs at the next wake-up and be taken again, while threads that prefer this CPU wait.
 */
static inline struct load load_without(const struct llc_rq *llc_rq,
				       __u32 excluded)
{
	struct load load = load_of(llc_rq);
	int at;

	if (!seats_version())
		return load;
	load.waiting = 0;
	bpf_for(at, 0, MM_QUEUES_PER_LLC)
	{
		if (!(excluded >> at & 1))
			load.waiting +=
				llc_rq->mm_queues[at % MM_QUEUES_PER_LLC]
					.waiting;
	}
	return load;
}

/* Records that the CPU's next thread comes from another LLC. */
static inline void note_steal(__u32 cpu)
{
	COUNT(stolen);
	state_of(cpu)->why = WHY_STOLEN;
}

/*
 * Returns the LLCs other than `here` in which threads wait: bit n stands for the LLC `here + 1 + n`,
 * modulo LLCS_MAX.
 */
static inline __u64 waiting_after(__u32 here)
{
	__u64 all = *(volatile __u64 *)&g_waiting_llcs;
	__u32 shift = (here + 1) % LLCS_MAX;

	all = all >> shift | all << (LLCS_MAX - shift) % LLCS_MAX;
	return all & ~(1ULL << (LLCS_MAX - 1));
}

/*
 * Takes a thread from another LLC in which threads wait: with `borrowers` any thread, without it
 * only a thread that prefers this CPU. Returns whether a thread was taken.
 */
__noinline int steal(__u32 cpu, __u32 here, __u32 borrowers)
{
	__u64 others = waiting_after(here);
	int step;

	bpf_for(step, 1, LLCS_MAX)
	{
		__u32 llc = (here + 1 + lowest_bit(others)) % LLCS_MAX;

		if (!others)
			break;
		others &= others - 1;
		if (!all_waiting(llc_rq_of(llc))) {
			unmark_waiting(llc);
			continue;
		}
		if (take_min_vtime(llc, borrowers ? 0 : remote_queues(llc, cpu),
				   0)) {
			note_steal(cpu);
			return 1;
		}
	}
	return 0;
}

#endif
