/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Release of throttled threads
 * ============================
 *
 * 1. Problem
 * ----------
 * The threads of a throttled cgroup wait in its park queue (limits.h). They must run when the
 * cgroup has a budget again, and there may be 10,000 of them. The kernel's watchdog ends the
 * scheduler if a runnable thread has not been on a CPU for `timeout_ms` (5 s), even if its quota
 * does not permit it to run.
 *
 * 2. Idea
 * -------
 * A park queue is ordered by the time since which its threads have been parked, in this queue or in
 * others before. Its timer takes the threads in this order and gives each a grant, until the budget
 * is exhausted. Other threads of the queue are not examined. A thread that has been parked
 * for PARK_MAX_NS (4 s) is sent to its CPU without a grant. The CPU dispatches again at once, before
 * the thread returns to user space, and the thread is parked anew. The kernel then regards the
 * thread as having run.
 *
 * 3. Steps
 * --------
 * 1. release_parked(), when the timer expires: up to RELEASE_MAX (32) threads move from the park
 *    queue to the queue of their address space. If a thread's other cgroup is exhausted, it moves to
 *    the park queue of that cgroup.
 * 2. The timer is armed for the next period with a budget; soon, if threads and budget are left; at
 *    the latest when the first thread has been parked for PARK_MAX_NS.
 *
 * 4. Races
 * --------
 * The timer holds no lock of a CPU. Meanwhile, another CPU may enqueue the same thread elsewhere,
 * because its affinity or its cgroup changed. Both sides change `thread->queue` from PARKED by
 * compare-and-swap: the winner counts the thread. The kernel rejects the move if the thread has left
 * the queue.
 *
 * 5. Bound
 * --------
 * Each expiry takes time for RELEASE_MAX threads. With n parked threads, n / PARK_MAX_NS threads per
 * nanosecond are sent to their CPUs without a grant: 2,500 per second for 10,000 threads, of some
 * 3 microseconds each.
 *
 * 6. Known limits
 * ---------------
 * At RELEASE_MAX threads per RELEASE_PAUSE_NS (32 per 0.2 ms), more than about 100,000 threads of
 * one throttled cgroup exceed the watchdog's timeout.
 */
#ifndef USHER_SCX_RELEASE_H
#define USHER_SCX_RELEASE_H

#include "enqueue.h"

/* Upper limit of threads that a timer releases at once, and the pause until it continues. */
#define RELEASE_MAX 32
#define RELEASE_PAUSE_NS 200000ULL
/* Number of park queues that are created at the start, and with each cgroup if fewer are free. */
#define PARKS_AT_START 512
#define PARKS_AT_ONCE 64

/* What happened to a parked thread. */
enum release {
	/* The thread stays, because the owner of the park queue is exhausted. */
	STAYS,
	MOVED,
};

/*
 * Counts a parked thread in the queue of its address space. Returns the number of the queue; 0: the
 * thread is not parked any more.
 */
static inline __u32 leave_for_llc(struct task_struct *p, struct thread *thread,
				  __u32 cpu, const struct settings *settings)
{
	__u32 llc = place_of(cpu)->llc;
	struct llc_rq *llc_rq = llc_rq_of(llc);
	__u64 clock;
	__u32 at;

	follow_clock(thread, llc);
	clock = clock_for(p, thread, cpu, llc, llc_rq);
	thread->vtime = clamp_sleeper(thread->vtime, clock, settings->slice_ns);
	thread->pinned_cpu = is_movable(p) ? 0 : cpu + 1;
	thread->why = WHY_TURN;
	at = count_in(p, thread, cpu, clock, settings);
	if (__sync_bool_compare_and_swap(&thread->queue, PARKED,
					 queue_at(llc, at)))
		return queue_at(llc, at);
	uncount(llc_rq, at);
	return 0;
}

/* Moves a parked thread to the queue of its address space. */
static inline void release(struct bpf_iter_scx_dsq *it, struct task_struct *p,
			   struct thread *thread)
{
	const struct settings *settings = &g_settings;
	__u32 cpu = cpu_of(p);
	__u32 queue = thread->queue;

	/* If an earlier move failed, the thread has already been counted. */
	if (queue == PARKED)
		queue = leave_for_llc(p, thread, cpu, settings);
	if (queue < QUEUES)
		return;
	move_at(it, p, queue, thread->vtime);
	kick_idle(p, thread, cpu);
}

/* Moves a parked thread to the park queue of another exhausted cgroup. */
static inline void park_elsewhere(struct bpf_iter_scx_dsq *it,
				  struct task_struct *p, struct thread *thread)
{
	__u64 dsq = park_queue_of(thread);

	if (dsq)
		move_at(it, p, dsq, thread->parked_at_ns);
}

/* Releases a parked thread of the cgroup `id`, if its cgroups with a quota permit. */
static inline enum release try_release(struct bpf_iter_scx_dsq *it,
				       struct task_struct *p, __u64 id,
				       __u64 now)
{
	struct thread *thread = thread_of(p);

	if (!thread)
		return MOVED;
	if (!KERNEL_REPORTS_QUOTAS)
		thread->limits_version = g_limits.version - 1;
	if (admit_limited(p, thread)) {
		release(it, p, thread);
		return MOVED;
	}
	if (since(thread->parked_at_ns, now) >= PARK_MAX_NS) {
		thread->parked_at_ns = now;
		move(it, p, DSQ_LOCAL_ON | cpu_of(p));
		return MOVED;
	}
	if (thread->throttled_by == id)
		return STAYS;
	park_elsewhere(it, p, thread);
	return MOVED;
}

/* Returns whether threads are in the park queue, or about to be inserted. */
static inline _Bool has_parked(struct limit *limit, __u64 now)
{
	limit->has_parked = scx_bpf_dsq_nr_queued(PARKS + limit->park) > 0 ||
			    since(limit->joined_ns, now) < JOIN_MAX_NS;
	return limit->has_parked;
}

/*
 * Arms the timer of a park queue again, if threads wait in it. `first_ns` is the time since which
 * the first thread has been parked that could not be released; 0: all could.
 */
static inline void rearm(__u64 id, struct limit *limit, __u64 first_ns,
			 __u64 now)
{
	__u64 at_ns = now + RELEASE_PAUSE_NS;
	__u64 ready;

	if (!has_parked(limit, now)) {
		if (!limit->quota.quota_ns)
			remove_limit(id, limit);
		return;
	}
	if (first_ns) {
		bpf_spin_lock(&limit->lock);
		ready = ready_at(&limit->quota, at_ns);
		bpf_spin_unlock(&limit->lock);
		at_ns = earlier(ready, first_ns + PARK_MAX_NS);
	}
	arm_release(limit, at_ns, now);
}

/*
 * Releases the threads of a park queue, up to RELEASE_MAX. Returns the time since which the first
 * thread has been parked that could not be released; 0: all could.
 */
static inline __u64 release_first(__u32 number, __u64 id, __u64 now)
{
	struct bpf_iter_scx_dsq it;
	__u64 first_ns = 0;
	int step;

	if (!bpf_iter_scx_dsq_new(&it, PARKS + number, 0)) {
		bpf_for(step, 0, RELEASE_MAX)
		{
			struct task_struct *p = bpf_iter_scx_dsq_next(&it);
			struct thread *thread;

			if (!p)
				break;
			if (try_release(&it, p, id, now) == MOVED)
				continue;
			thread = thread_of(p);
			first_ns = thread ? thread->parked_at_ns : now;
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return first_ns;
}

/*
 * The timer of a park queue. If the quota has been removed, threads that were about to be inserted
 * may still be in the queue.
 */
static int release_parked(void *map, __u32 *key, struct park *park)
{
	__u64 now = now_ns();
	__u32 number = *key;
	__u64 id = park->cgroup;
	struct limit *limit = limit_of(id);
	__u64 first_ns;

	(void)map;
	if (limit) {
		bpf_spin_lock(&limit->lock);
		limit->fires_at_ns = 0;
		bpf_spin_unlock(&limit->lock);
	}
	bpf_rcu_read_lock();
	first_ns = release_first(number, id, now);
	bpf_rcu_read_unlock();
	limit = limit_of(id);
	if (limit)
		rearm(id, limit, first_ns, now);
	else if (scx_bpf_dsq_nr_queued(PARKS + number))
		bpf_timer_start(&park->timer, RELEASE_PAUSE_NS, 0);
	return 0;
}

/* Creates further park queues if fewer than `count` are free. */
static inline __s32 create_parks(__u32 count)
{
	__u32 from = g_limits.created;
	int step;

	if (g_limits.used + count <= from)
		return 0;
	bpf_for(step, 0, (int)count)
	{
		__u32 number = from + step;
		struct park *park = bpf_map_lookup_elem(&parks, &number);
		__s32 failed;

		if (!park)
			return 0;
		failed = scx_bpf_create_dsq(PARKS + number, -1);
		if (failed)
			return failed;
		bpf_timer_init(&park->timer, &parks, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&park->timer, release_parked);
		g_limits.created = number + 1;
	}
	return 0;
}

/* Prepares the timers that end slices. */
static inline void create_slice_timers(void)
{
	__u32 number;
	int cpu;

	bpf_for(cpu, 0, CPUS_MAX)
	{
		struct slice_timer *slice_timer;

		number = cpu;
		if (number >= scx_bpf_nr_cpu_ids())
			break;
		slice_timer = bpf_map_lookup_elem(&slice_timers, &number);
		if (!slice_timer || !place_of(cpu)->known)
			continue;
		bpf_timer_init(&slice_timer->timer, &slice_timers,
			       CLOCK_MONOTONIC);
		bpf_timer_set_callback(&slice_timer->timer, slice_ends);
	}
}

#endif
