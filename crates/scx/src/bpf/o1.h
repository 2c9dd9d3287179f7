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

static inline __u64 arrive(struct hall *hall)
{
	return __sync_fetch_and_add(&hall->arrays.arrivals, 1);
}

/* Its slice is used up: the key of its next one. */
static inline __u64 key_after_slice(struct hall *hall, struct thread *thread,
				    __s32 nice_level, __u64 now)
{
	struct arrays *arrays = &hall->arrays;
	__u64 average = thread->stands.sleep_average_ns;
	__u32 level = level_of(nice_level, average);
	__u64 key =
		key_expired(thread->vtime, hall->clock, level, arrive(hall));

	if (is_earlier_array(arrays->expired, key)) {
		arrays->expired = key;
		arrays->expired_since_ns = now;
	}
	if (is_interactive(nice_level, average) &&
	    !is_starving(arrays->expired_since_ns, now, hall->waiting + 1))
		key = key_at(hall->clock, level, key);
	return key;
}

/*
 * The key of a thread that is to wait or to run, and a slice to go with it; both
 * stay as they are until it sleeps or has run so long. Verified once.
 */
__noinline int give_key(struct thread *thread, __s32 nice_level, __u64 now)
{
	struct standing *stands;
	struct hall *hall;

	if (!thread)
		return 0;
	stands = &thread->stands;
	hall = hall_of(thread->llc);
	if (stands->slept_at_ns && now > stands->slept_at_ns)
		stands->sleep_average_ns = average_after_sleep(
			stands->sleep_average_ns, now - stands->slept_at_ns,
			nice_level);
	if (stands->slept_at_ns || !stands->has_key) {
		thread->vtime =
			key_at(hall->clock,
			       level_of(nice_level, stands->sleep_average_ns),
			       arrive(hall));
		if (!stands->has_key)
			stands->slice_left_ns = slice_of_level(nice_level);
		else if (stands->slice_left_ns < SLICE_OVER_NS)
			stands->slice_left_ns = SLICE_OVER_NS;
	} else if (stands->slice_left_ns < SLICE_OVER_NS) {
		thread->vtime = key_after_slice(hall, thread, nice_level, now);
		stands->slice_left_ns = slice_of_level(nice_level);
	} else {
		thread->vtime = key_preempted(thread->vtime, hall->clock);
	}
	stands->has_key = 1;
	stands->slept_at_ns = 0;
	return 0;
}

static inline __u64 left_of_slice(const struct thread *thread, __u64 now)
{
	__u64 ends = thread->stands.slice_ends_ns;

	return ends > now ? ends - now : 0;
}

/* The thread has the CPU until its slice ends. */
static inline void run_slice(struct thread *thread, __u32 cpu, __u64 now)
{
	struct hall *hall = hall_of(thread->llc);

	thread->stands.slice_ends_ns = now + thread->stands.slice_left_ns;
	state_of(cpu)->key = thread->vtime;
	if (!hall->waiting)
		advance_clock(hall, thread->vtime);
}

/* Of threads that were there before us it is not known how they sleep. */
static inline void inherit(struct thread *thread, const struct thread *parent)
{
	thread->stands.sleep_average_ns =
		parent ? average_of_child(parent->stands.sleep_average_ns)
		       : SLEEP_MOST_NS / 2;
}

/* A key is by the arrays of an LLC, from now on of this one. */
static inline void follow_arrays(struct thread *thread, __u32 llc)
{
	struct hall *here = hall_of(llc);
	struct hall *there = hall_of(thread->llc);

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
	struct standing *stands = &thread->stands;

	stands->slice_left_ns = left_of_slice(thread, now);
	stands->sleep_average_ns =
		average_after_run(stands->sleep_average_ns, ran);
	if (runnable)
		return;
	stands->slept_at_ns = now;
	end_burst(thread);
}

/* The thread that runs, as one of those that may be next. */
static inline void look_by_level(struct moment *is, struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	thread->stands.slice_left_ns = left_of_slice(thread, is->now_ns);
	give_key(thread, prev->static_prio, is->now_ns);
	thread->stands.slice_ends_ns =
		is->now_ns + thread->stands.slice_left_ns;
	is->has_prev = 1;
	is->prev_vtime = thread->vtime;
}

/*
 * It runs on, with what is left of its slice, or with a new one: of an array that
 * is the active one now, for it is before all that wait.
 */
static inline void keep_by_level(struct task_struct *prev, __u32 cpu, __u64 now)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	advance_clock(hall_of(thread->llc), thread->vtime);
	thread->stands.slice_left_ns = left_of_slice(thread, now);
	run_slice(thread, cpu, now);
	set_slice(prev, thread->stands.slice_left_ns);
}

static inline void join_by_level(struct task_struct *p, struct thread *thread,
				 __u32 llc, const struct settings *wants,
				 __u64 flags)
{
	struct hall *hall = hall_of(llc);
	__u32 cpu = cpu_of(p);
	__u64 of = sharers_of(thread, space_number(p, thread), wants);
	__u32 at;

	thread->why = WHY_LEVEL;
	follow_arrays(thread, llc);
	at = space_of(hall->spaces, of) % SPACES;
	join_space(&hall->spaces[at], of, thread->seat, thread->seat_version,
		   thread->vtime);
	if (place_of(cpu)->llc == llc)
		meet(&state_of(cpu)->passed, at, thread->vtime);
	__sync_fetch_and_add(&hall->waiting, 1);
	thread->queue = queue_at(llc, at);
	COUNT(queued);
	insert_at(p, queue_at(llc, at), thread->stands.slice_left_ns,
		  thread->vtime, flags);
}

/* Whoever runs on the CPU of a thread that wakes makes room for a better level. */
static inline void preempt_by_level(struct task_struct *p,
				    struct thread *thread, __u32 cpu,
				    const struct settings *wants)
{
	struct cpu_state *state = state_of(cpu);

	if (!is_at_work(cpu))
		return;
	if (!has_better_level(thread->vtime, state->key,
			      state->turn_mm == space_number(p, thread),
			      wants->aggregate))
		return;
	COUNT(preempted);
	scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
}

#endif
