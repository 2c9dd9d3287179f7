/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Linux 2.6's O(1) order (levels.h) in our queues, to compare with: one pair of
 * arrays for each LLC, where it had one for each CPU and balanced these.
 *
 * A thread has its key from when it wakes, is born or has used up its slice. It
 * runs for what is left of that slice, unless somebody of a better level wakes.
 */
#ifndef USHER_SCX_O1_H
#define USHER_SCX_O1_H

#include "charge.h"
#include "when.h"

static inline __u64 arrive(struct llc_rq *llc_rq)
{
	return __sync_fetch_and_add(&llc_rq->arrays.arrivals, 1);
}

/* Its slice is used up: the key of its next one. */
static inline __u64 key_after_slice(struct llc_rq *llc_rq,
				    struct thread *thread, __s32 nice_level,
				    __u64 now)
{
	struct arrays *arrays = &llc_rq->arrays;
	__u64 average = thread->o1.sleep_average_ns;
	__u32 level = level_of(nice_level, average);
	__u64 key = key_expired(thread->vtime, llc_rq->clock, level,
				arrive(llc_rq));

	if (is_earlier_array(arrays->expired, key)) {
		arrays->expired = key;
		arrays->expired_since_ns = now;
	}
	if (is_interactive(nice_level, average) &&
	    !is_starving(arrays->expired_since_ns, now, llc_rq->waiting + 1))
		key = key_at(llc_rq->clock, level, key);
	return key;
}

/*
 * The key of a thread that is to wait or to run, and a slice to go with it; both
 * stay as they are until it sleeps or has run so long. Verified once.
 */
__noinline int give_key(struct thread *thread, __s32 nice_level, __u64 now)
{
	struct o1_entity *o1;
	struct llc_rq *llc_rq;

	if (!thread)
		return 0;
	o1 = &thread->o1;
	llc_rq = llc_rq_of(thread->llc);
	if (o1->slept_at_ns && now > o1->slept_at_ns)
		o1->sleep_average_ns =
			average_after_sleep(o1->sleep_average_ns,
					    now - o1->slept_at_ns, nice_level);
	if (o1->slept_at_ns || !o1->has_key) {
		thread->vtime =
			key_at(llc_rq->clock,
			       level_of(nice_level, o1->sleep_average_ns),
			       arrive(llc_rq));
		if (!o1->has_key)
			o1->slice_left_ns = slice_of_level(nice_level);
		else if (o1->slice_left_ns < SLICE_OVER_NS)
			o1->slice_left_ns = SLICE_OVER_NS;
	} else if (o1->slice_left_ns < SLICE_OVER_NS) {
		thread->vtime =
			key_after_slice(llc_rq, thread, nice_level, now);
		o1->slice_left_ns = slice_of_level(nice_level);
	} else {
		thread->vtime = key_preempted(thread->vtime, llc_rq->clock);
	}
	o1->has_key = 1;
	o1->slept_at_ns = 0;
	return 0;
}

static inline __u64 left_of_slice(const struct thread *thread, __u64 now)
{
	__u64 ends = thread->o1.slice_ends_ns;

	return ends > now ? ends - now : 0;
}

/* The thread has the CPU until its slice ends. */
static inline void run_slice(struct thread *thread, __u32 cpu, __u64 now)
{
	struct llc_rq *llc_rq = llc_rq_of(thread->llc);

	thread->o1.slice_ends_ns = now + thread->o1.slice_left_ns;
	state_of(cpu)->key = thread->vtime;
	if (!llc_rq->waiting)
		advance_clock(llc_rq, thread->vtime);
}

/* Of threads that were there before us it is not known how they sleep. */
static inline void inherit(struct thread *thread, const struct thread *parent)
{
	thread->o1.sleep_average_ns =
		parent ? average_of_child(parent->o1.sleep_average_ns)
		       : SLEEP_MOST_NS / 2;
}

/* A key is by the arrays of an LLC, from now on of this one. */
static inline void follow_arrays(struct thread *thread, __u32 llc)
{
	struct llc_rq *here = llc_rq_of(llc);
	struct llc_rq *there = llc_rq_of(thread->llc);

	if (here != there)
		thread->vtime = key_elsewhere(thread->vtime, there->clock,
					      here->clock, arrive(here));
	thread->llc = llc;
}

static inline void begin_by_level(struct thread *thread, __u32 cpu, __u64 now)
{
	follow_arrays(thread, place_of(cpu)->llc);
	run_slice(thread, cpu, now);
}

static inline void end_by_level(struct thread *thread, __u64 now, __u64 ran,
				_Bool runnable)
{
	struct o1_entity *o1 = &thread->o1;

	o1->slice_left_ns = left_of_slice(thread, now);
	o1->sleep_average_ns = average_after_run(o1->sleep_average_ns, ran);
	if (runnable)
		return;
	o1->slept_at_ns = now;
	end_burst(thread);
}

/* The thread that runs, as one of those that may be next. */
static inline void add_prev_by_level(struct pick_ctx *ctx,
				     struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	thread->o1.slice_left_ns = left_of_slice(thread, ctx->now_ns);
	give_key(thread, prev->static_prio, ctx->now_ns);
	thread->o1.slice_ends_ns = ctx->now_ns + thread->o1.slice_left_ns;
	ctx->has_prev = 1;
	ctx->prev_vtime = thread->vtime;
}

/*
 * It runs on, with what is left of its slice, or with a new one: of an array that
 * is the active one now, for it is before all that wait.
 */
static inline void refill_by_level(struct task_struct *prev, __u32 cpu,
				   __u64 now)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	advance_clock(llc_rq_of(thread->llc), thread->vtime);
	thread->o1.slice_left_ns = left_of_slice(thread, now);
	run_slice(thread, cpu, now);
	set_slice(prev, thread->o1.slice_left_ns);
}

static inline void join_by_level(struct task_struct *p, struct thread *thread,
				 __u32 llc, const struct settings *settings,
				 __u64 flags)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);
	__u32 cpu = cpu_of(p);
	__u64 key = queue_key_of(thread, mm_id(p, thread), settings);
	__u32 at;

	thread->why = WHY_LEVEL;
	follow_arrays(thread, llc);
	at = mm_queue_of(llc_rq->mm_queues, key) % MM_QUEUES_PER_LLC;
	join_mm_queue(&llc_rq->mm_queues[at], key, thread->seat,
		      thread->seat_version, thread->vtime);
	if (place_of(cpu)->llc == llc)
		lower_min(&state_of(cpu)->head_skip, at, thread->vtime);
	__sync_fetch_and_add(&llc_rq->waiting, 1);
	thread->queue = queue_at(llc, at);
	COUNT(queued);
	insert_at(p, queue_at(llc, at), thread->o1.slice_left_ns, thread->vtime,
		  flags);
}

/* Whoever runs on the CPU of a thread that wakes makes room for a better level. */
static inline void preempt_by_level(struct task_struct *p,
				    struct thread *thread, __u32 cpu,
				    const struct settings *settings)
{
	struct cpu_state *state = state_of(cpu);

	if (!is_busy(cpu))
		return;
	if (!has_better_level(thread->vtime, state->key,
			      state->turn_mm == mm_id(p, thread),
			      settings->aggregate))
		return;
	COUNT(preempted);
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

#endif
