/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * O(1) order of Linux 2.6 (levels.h) on this scheduler's queues, for comparison
 *
 * Each LLC has one pair of arrays. Linux 2.6 had one per CPU and balanced them. A thread gets its
 * key when it wakes, when it is forked and when it has used up its slice. It runs for the rest of
 * its slice, unless a thread of a better level wakes.
 */
#ifndef USHER_SCX_O1_H
#define USHER_SCX_O1_H

#include "charge.h"
#include "run_queue.h"

static inline __u64 arrive(struct llc_rq *llc_rq)
{
	return __sync_fetch_and_add(&llc_rq->arrays.arrivals, 1);
}

/* Returns the key of the next slice. */
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
 * Assigns a key, and a slice, to a thread that is about to wait or to run. Both remain until the
 * thread sleeps or has used up the slice. Not inlined, so that the verifier checks it once.
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

/* Lets the thread run until its slice ends. */
static inline void run_slice(struct thread *thread, __u32 cpu, __u64 now)
{
	struct llc_rq *llc_rq = llc_rq_of(thread->llc);

	thread->o1.slice_ends_ns = now + thread->o1.slice_left_ns;
	state_of(cpu)->key = thread->vtime;
	if (!llc_rq->waiting)
		advance_clock(llc_rq, thread->vtime);
}

/* The sleep average of threads that existed before the scheduler is unknown. */
static inline void inherit(struct thread *thread, const struct thread *parent)
{
	thread->o1.sleep_average_ns =
		parent ? average_of_child(parent->o1.sleep_average_ns)
		       : SLEEP_MOST_NS / 2;
}

/* Converts the key of a thread to the arrays of another LLC. */
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

/* Adds the running thread as a candidate. */
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
 * Lets the thread continue with the rest of its slice, or with a new one. Its array becomes the
 * active one, as its key is lower than those of all waiting threads.
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

/* Preempts the running thread if the woken one has a better level. */
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
