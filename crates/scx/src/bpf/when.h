/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Who is next on a CPU: the queues of address spaces (paper 4).
 *
 * How many wait in each queue is counted here and not asked of the kernel: a
 * thread counts from before it is put into the queue until after it has left,
 * so that a queue that counts as empty is empty. The virtual time of its first
 * is known to within a race of two CPUs, until the next thread leaves.
 */
#ifndef USHER_SCX_WHEN_H
#define USHER_SCX_WHEN_H

#include "where.h"

static inline __u64 queue_at(__u32 llc, __u32 at)
{
	return QUEUES + llc * QUEUES_EACH + at;
}

/* A walk ends after so many. */
#define STEPS_MAX 64

/* Virtual time of the first in the queue that may run on that CPU; `none` if none of so many
 * may. A function of its own, as the walk needs room on the stack. */
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

/* A thread waits no more. Where the first of its queue is now; or itself, where nobody else
 * waited there, and where it was urgent. */
static inline __u64 leave_queue(struct thread *thread)
{
	__u32 queue = thread->queue;
	__u32 at = queue % QUEUES_EACH;
	__u64 first = thread->vtime;
	struct llc_rq *llc_rq;

	if (queue == NO_QUEUE)
		return first;
	thread->queue = NO_QUEUE;
	llc_rq = llc_rq_of((queue - QUEUES) / QUEUES_EACH);
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

/* A thread that waited in that queue runs on a CPU of this LLC. */
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
 * With whom a thread waits: threads of the kernel's have no address space, and share one.
 * Where address spaces do not count, seats do.
 */
static inline __u64 queue_key_of(const struct thread *thread, __u64 mm,
				 const struct settings *settings)
{
	return queue_key(settings->aggregate ? mm : 0, thread->seat,
			 thread->seat_version, thread->pinned_cpu);
}

/* In which LLC a thread waits: where it is at home, and this CPU if that is. */
__noinline int preferred_llc(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	__s32 at;

	at = nearest_of(&scan->preferred, &scan->preferred, cpu, here);
	return at < 0 ? here->llc : place_of(at)->llc;
}

/*
 * The same of a thread that is about to wait. One that must not migrate just now waits
 * where it is, as if it were at home there.
 */
ALWAYS __u32 llc_to_wait_in(struct task_struct *p, struct thread *thread,
			    __u32 cpu, __u32 llc)
{
	struct idle_scan_ctx *scan = scan_ctx();

	if (p->nr_cpus_allowed > 1 && !is_movable(p)) {
		thread->seat = 0;
		return llc;
	}
	if (!seats_version() || !fill_scan_ctx(scan, p, thread, cpu))
		return llc;
	return preferred_llc(cpu);
}

/* Where a thread at that virtual time counts as being, by the pace of a CPU of the LLC. */
static inline __u64 paced(struct cpu_state *state, const struct llc_rq *llc_rq,
			  __u64 vtime, __u64 now)
{
	__u64 clock = clock_of(state, llc_rq);

	keep_pace(&state->pace, clock, now);
	return at_pace(&state->pace, clock, vtime);
}

/* The clock of whichever CPU is furthest on in this CPU's LLC, of those in `home`. */
__noinline __u64 clock_of_preferred(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	struct llc_rq *llc_rq = llc_rq_of(here->llc);
	__u64 clock = 0;
	_Bool any = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++) {
		__u64 bits =
			here->near.words[word] & scan->preferred.words[word];
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

/* The same of where it may run and is at home. */
static inline __u64 find_clock(struct task_struct *p, struct thread *thread,
			       __u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();

	read_set(&scan->allowed, p->cpus_ptr);
	read_preferred(scan, p, thread);
	return clock_of_preferred(cpu);
}

/*
 * By which clock a thread is placed that comes to this CPU and to that LLC. Threads that are
 * kept to some CPUs, or at home there, may crowd on them: the LLC's clock would be far
 * ahead of theirs, and whoever went by it wait until they have come so far. Who may run
 * anywhere is served by the CPU that is furthest on.
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

/* Verified once: where in the queues of an LLC a thread is put. */
__noinline int place_in_llc(__u32 llc, struct thread *thread, __u64 clock,
			    __u64 max_lag_ns)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);

	if (thread)
		thread->vtime = place_at(llc_rq->mm_queues, clock, thread->seat,
					 thread->vtime, max_lag_ns);
	return 0;
}

ALWAYS void join_queue(struct task_struct *p, struct thread *thread, __u32 cpu,
		       __u32 llc, const struct settings *settings, __u64 flags)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);
	struct cpu_state *state = state_of(cpu);
	_Bool is_near = place_of(cpu)->llc == llc;
	__u32 pinned_cpu = is_movable(p) ? 0 : cpu + 1;
	__u32 at = URGENT;
	__u64 clock = 0;

	thread->why = thread->urgent ? WHY_URGENT : WHY_TURN;
	follow_clock(thread, llc);
	if (!thread->urgent || pinned_cpu != thread->pinned_cpu)
		clock = clock_for(p, thread, cpu, llc, llc_rq);
	/* Nor is it owed more who was kept to another CPU until now. */
	if (pinned_cpu != thread->pinned_cpu)
		thread->vtime =
			clamp_sleeper(thread->vtime, clock, settings->slice_ns);
	thread->pinned_cpu = pinned_cpu;
	if (thread->urgent) {
		__sync_fetch_and_add(&llc_rq->urgent, 1);
		COUNT(soon);
	} else {
		__u64 key = queue_key_of(thread, mm_id(p, thread), settings);
		__u64 now = now_ns();

		/* Who goes home to another LLC comes by that one's clock, which its
		 * own CPU's pace is not of. */
		if (is_near)
			thread->vtime =
				paced(state, llc_rq, thread->vtime, now);
		place_in_llc(llc, thread, clock,
			     max_lag(settings->max_lag_ns, settings->slice_ns,
				     weight_of(p, thread)));
		COUNT(queued);
		at = mm_queue_of(llc_rq->mm_queues, key) % MM_QUEUES_PER_LLC;
		join_mm_queue(&llc_rq->mm_queues[at], key, thread->seat,
			      thread->seat_version, thread->vtime);
		if (is_near)
			lower_min(&state->head_skip, at, thread->vtime);
		__sync_fetch_and_add(&llc_rq->waiting, 1);
	}
	thread->queue = queue_at(llc, at);
	/* Urgent threads in the order in which they come: children that are born one after
	 * another, and owe nothing, would be before others for ever by virtual time. */
	if (at == URGENT)
		insert(p, queue_at(llc, at), settings->slice_ns, flags);
	else
		insert_at(p, queue_at(llc, at), settings->slice_ns,
			  thread->vtime, flags);
}

/* Answered where the thread that runs is next. */
#define SAME_THREAD (MM_QUEUES_PER_LLC + 1)

/* Verified once: who_is_next over the queues of an LLC. */
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

/* What a CPU's asking who is next has come to. */
enum outcome {
	NONE_WAITING,
	TAKEN,
	/* The thread that runs has the better claim. */
	PREV_FIRST,
	/* Whoever waits may not run here. */
	PREV_ALONE,
};

/* Takes the next thread of an LLC. A function of its own, as those that follow, so that
 * the verifier follows it once. */
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

/* Nobody else waits. */
static inline _Bool take_urgent_alone(struct llc_rq *llc_rq, __u32 llc,
				      struct cpu_state *state)
{
	state->served_ns = 0;
	catch_up(state, llc_rq);
	return take(queue_at(llc, URGENT));
}

/* Urgent threads come first, but for others after a lead in which only such ran. */
static inline _Bool take_urgent(struct llc_rq *llc_rq, __u32 llc,
				struct cpu_state *state, struct pick_ctx *ctx,
				const struct settings *settings)
{
	if (!llc_rq->waiting)
		return take_urgent_alone(llc_rq, llc, state);
	if (!state->served_ns)
		state->served_ns = ctx->now_ns;
	if (is_late(state->served_ns, ctx->now_ns, settings->max_lag_ns)) {
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

/* Takes an urgent thread of an LLC, but not if asked for others; else the one that is
 * furthest behind. */
__noinline int take_min_vtime(__u32 llc, __u32 excluded, __u32 others)
{
	struct pick_ctx ctx = {.own = MM_QUEUES_PER_LLC, .excluded = excluded};
	struct llc_rq *llc_rq = llc_rq_of(llc);

	if (!others && llc_rq->urgent && take(queue_at(llc, URGENT)))
		return 1;
	return llc_rq->waiting && take_next(llc, &ctx) == TAKEN;
}

/*
 * How many wait in an LLC whom a busy CPU may take, but for those in `not`. Where there are
 * seats, urgent ones are left alone: among them may be such as are guests here, who would go
 * home when they next wake, and be taken again, while those who are at home here wait.
 */
static inline struct load left_of(const struct llc_rq *llc_rq, __u32 excluded)
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

/* Says why the next thread runs on this CPU. */
static inline void note_steal(__u32 cpu)
{
	COUNT(stolen);
	state_of(cpu)->why = WHY_STOLEN;
}

/* Takes from other LLCs whoever is at home on this CPU; or guests, too. */
__noinline int steal(__u32 cpu, __u32 here, __u32 llcs, __u32 borrowers)
{
	int step;

	bpf_for(step, 1, LLCS_MAX)
	{
		__u32 llc = here + step;

		if ((__u32)step >= llcs)
			break;
		if (llc >= llcs)
			llc -= llcs;
		if (take_min_vtime(llc, borrowers ? 0 : remote_queues(llc, cpu),
				   0)) {
			note_steal(cpu);
			return 1;
		}
	}
	return 0;
}

#endif
