/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Quotas of cgroups (cpu.max)
 * ===========================
 *
 * 1. Problem
 * ----------
 * The kernel does not enforce cpu.max under a sched_ext scheduler. A thread may have several
 * ancestors with a quota, and each of them may be exhausted. The threads of an exhausted
 * (throttled) cgroup must not run, and must cost nothing while they wait.
 *
 * 2. Idea
 * -------
 * A thread gets a grant of CPU time from all its cgroups with a quota before it waits for a CPU
 * (quota.h). A thread without a grant waits in the park queue of the exhausted cgroup, which no CPU
 * looks at. A timer per park queue releases the threads when the next period begins (release.h).
 *
 * 3. Data structures
 * ------------------
 * - `limits`: `struct limit` by cgroup, only for cgroups with a quota. `parent` leads to the next
 *   ancestor with a quota.
 * - `parks`: timers of the park queues. A cgroup with a quota owns one park queue, the DSQ
 *   PARKS + number.
 * - `struct thread`: the nearest cgroup with a quota, as of `limits_version`; and the grant for the
 *   next run.
 * - `struct limited_run` of a CPU: the grant of the running thread. There is no callback when a
 *   thread stops; the grant of a thread that slept ends when the next thread runs on the CPU, or
 *   when the CPU becomes idle.
 * - `slice_timers`: a timer per CPU, which ends a slice that is shorter than `slice_ns`. The kernel
 *   ends slices at ticks only, which are up to 10 ms apart.
 *
 * 4. Steps
 * --------
 * 1. admit(), when a thread is enqueued: find its cgroups with a quota if they may have changed,
 *    and take a grant from each of them. If one is exhausted, park() the thread.
 * 2. begin_run(), when a thread runs: the CPU gets the grant and shortens the slice. A grant that
 *    was taken in an earlier period is void, and the thread takes another one. If that fails, the
 *    CPU dispatches again at once, and the thread is parked.
 * 3. end_run(), when the thread stops or its grant ends: return the unused part.
 *
 * 5. Bound
 * --------
 * A thread without a quota costs a comparison per enqueue and per run. Other threads cost two map
 * lookups per level with a quota. At most LIMITS_NESTED_MAX (16) levels with a quota count, among
 * ANCESTORS_MAX (32) ancestors.
 *
 * 6. Known limits
 * ---------------
 * - At most LIMITS_MAX (4,096) cgroups may have a quota. A further quota is rejected and counted in
 *   `g_limits`, which user space reports.
 * - A thread that a real-time thread preempts in its last run before it sleeps is charged for up to
 *   one tick of the real-time thread's CPU time.
 * - Threads that exit, or that the kernel does not let migrate, are dispatched by the kernel
 *   itself. They run although their cgroup is exhausted, and their CPU time becomes a debt.
 */
#ifndef USHER_SCX_LIMITS_H
#define USHER_SCX_LIMITS_H

#include "limit_table.h"

/*
 * Applies the quota of a cgroup as stored by the kernel. Kernels that report quotas by a callback
 * do not need this function.
 */
static inline void read_quota(struct task_group *group, __u64 id)
{
	struct limit *limit = limit_of(id);
	__u64 quota_us, period_us, burst_us;

	if (!bpf_core_field_exists(group->cfs_bandwidth))
		return;
	quota_us = BPF_CORE_READ(group, cfs_bandwidth.quota) / 1000;
	if (!limit && quota_us > QUOTA_MAX_US)
		return;
	if (quota_us > QUOTA_MAX_US)
		quota_us = 0;
	period_us = BPF_CORE_READ(group, cfs_bandwidth.period) / 1000;
	burst_us = BPF_CORE_READ(group, cfs_bandwidth.burst) / 1000;
	if (!limit || limit->quota.quota_ns != quota_us * 1000 ||
	    limit->quota.period_ns != period_us * 1000 ||
	    limit->quota.burst_ns != burst_us * 1000)
		set_limit(id, period_us, quota_us, burst_us);
}

/*
 * Finds the cgroups with a quota among the thread's cgroup and its ancestors, and links them. Also
 * finds the entry of the thread's cgroup in `g_groups`.
 */
static __attribute__((noinline)) void find_limits(struct task_struct *p,
						  struct thread *thread)
{
	struct task_group *group = BPF_CORE_READ(p, sched_task_group);
	struct limit *below = 0;
	int level;

	thread->limits_version = g_limits.version;
	thread->limit = 0;
	thread->group = find_group(p);
	bpf_for(level, 0, ANCESTORS_MAX)
	{
		struct task_group *parent;
		struct limit *limit;
		__u64 id;

		parent = group ? BPF_CORE_READ(group, parent) : 0;
		if (!parent)
			break;
		id = BPF_CORE_READ(group, css.cgroup, kn, id);
		if (!KERNEL_REPORTS_QUOTAS)
			read_quota(group, id);
		limit = limit_of(id);
		if (limit) {
			if (below)
				below->parent = id;
			else
				thread->limit = id;
			below = limit;
		}
		group = parent;
	}
	if (below)
		below->parent = 0;
}

/*
 * Ends a grant of the cgroup `id` and its ancestors, up to `levels` cgroups with a quota. If
 * threads are parked although a part of the budget is left now, lets the timer release them.
 */
__noinline int end_grant(__u64 id, __u64 grant_ns, __u64 taken_at_ns,
			 __u64 used_ns, __u32 levels)
{
	__u64 now = now_ns();
	int level;

	bpf_for(level, 0, LIMITS_NESTED_MAX)
	{
		struct limit *limit = limit_of(id);
		_Bool has_budget;

		if (!limit || (__u32)level >= levels)
			break;
		bpf_spin_lock(&limit->lock);
		refill_quota(&limit->quota, now);
		return_quota(&limit->quota, grant_ns, taken_at_ns, used_ns);
		has_budget = limit->quota.left_ns >= (__s64)RUN_MIN_NS;
		bpf_spin_unlock(&limit->lock);
		if (limit->has_parked && has_budget)
			arm_release(limit, now + RELEASE_DELAY_NS, now);
		id = limit->parent;
	}
	return 0;
}

/* Returns the grant of a thread that does not run. */
static inline void drop_grant(struct thread *thread)
{
	if (thread->granted_ns)
		end_grant(thread->limit, thread->granted_ns,
			  thread->granted_at_ns, 0, LIMITS_NESTED_MAX);
	thread->granted_ns = 0;
}

/*
 * Determines the grant that all cgroups of the thread with a quota permit. Returns 0 if one is
 * exhausted, which `throttled_by` then names.
 */
__noinline __u64 find_grant(struct thread *thread, __u64 now)
{
	__u64 grant = g_settings.slice_ns;
	__u64 until = now + grant;
	__u64 id;
	int level;

	if (!thread)
		return 0;
	id = thread->limit;
	bpf_for(level, 0, LIMITS_NESTED_MAX)
	{
		struct limit *limit = limit_of(id);

		if (!limit)
			break;
		bpf_spin_lock(&limit->lock);
		refill_quota(&limit->quota, now);
		grant = grantable(&limit->quota, now, grant, g_limits.cpus);
		if (!level || is_before(limit->quota.period_ends_ns, until))
			until = limit->quota.period_ends_ns;
		bpf_spin_unlock(&limit->lock);
		if (!grant) {
			thread->throttled_by = id;
			return 0;
		}
		id = limit->parent;
	}
	thread->granted_until_ns = until;
	return grant;
}

/* Takes a grant for the thread. Returns whether all cgroups with a quota had enough left. */
__noinline int take_grant(struct thread *thread, __u64 now)
{
	__u64 grant, id;
	int level;

	if (!thread)
		return 0;
	grant = find_grant(thread, now);
	if (!grant)
		return 0;
	id = thread->limit;
	bpf_for(level, 0, LIMITS_NESTED_MAX)
	{
		struct limit *limit = limit_of(id);
		_Bool is_taken;

		if (!limit)
			break;
		bpf_spin_lock(&limit->lock);
		is_taken = take_quota(&limit->quota, grant);
		bpf_spin_unlock(&limit->lock);
		if (!is_taken) {
			thread->throttled_by = id;
			end_grant(thread->limit, grant, now, 0, level);
			return 0;
		}
		id = limit->parent;
	}
	thread->granted_ns = grant;
	thread->granted_epoch = g_limits.epoch;
	thread->granted_at_ns = now;
	return 1;
}

/* Implements admit() for threads that may have a quota. */
static __attribute__((noinline)) _Bool admit_limited(struct task_struct *p,
						     struct thread *thread)
{
	__u64 now = now_ns();

	if (thread->limits_version != g_limits.version) {
		drop_grant(thread);
		find_limits(p, thread);
	}
	if (!thread->limit)
		return 1;
	if (thread->granted_ns && thread->granted_epoch == g_limits.epoch &&
	    is_before(now, thread->granted_until_ns))
		return 1;
	drop_grant(thread);
	return take_grant(thread, now);
}

/* Returns whether a thread has a quota, or the quotas have changed since it was examined. */
ALWAYS _Bool may_be_limited(const struct thread *thread)
{
	return thread->limit || thread->limits_version != g_limits.version;
}

/*
 * Returns whether a thread may wait for a CPU: it has a grant, or no cgroup with a quota. The fast
 * path is for threads without a quota.
 */
ALWAYS _Bool admit(struct task_struct *p, struct thread *thread)
{
	return !may_be_limited(thread) || admit_limited(p, thread);
}

/*
 * Returns the DSQ of the park queue of the exhausted cgroup, after arming its timer; 0: the cgroup
 * has lost its quota in the meantime.
 */
__noinline __u64 park_queue_of(struct thread *thread)
{
	__u64 now = now_ns();
	struct limit *limit;
	__u64 ready;

	if (!thread)
		return 0;
	limit = limit_of(thread->throttled_by);
	if (!limit)
		return 0;
	bpf_spin_lock(&limit->lock);
	limit->joined_ns = now;
	limit->has_parked = 1;
	ready = ready_at(&limit->quota, now + RELEASE_DELAY_NS);
	bpf_spin_unlock(&limit->lock);
	arm_release(limit, earlier(ready, now + PARK_MAX_NS), now);
	return PARKS + limit->park;
}

/* Lets a thread wait in the park queue of the exhausted cgroup. Returns whether it waits there. */
ALWAYS _Bool park(struct task_struct *p, struct thread *thread, __u64 flags)
{
	__u64 dsq = park_queue_of(thread);

	if (!dsq)
		return 0;
	thread->parked_at_ns = now_ns();
	thread->queue = PARKED;
	remove_count(&thread->counted);
	thread->urgent = 0;
	thread->why = WHY_THROTTLED;
	insert_at(p, dsq, g_settings.slice_ns, thread->parked_at_ns, flags);
	return 1;
}

/* Ends the grant of the thread that has run on a CPU. */
__noinline int end_run(__u32 cpu, __u64 used_ns)
{
	struct limited_run *run = &state_of(cpu)->run;
	__u64 id = run->limit;

	run->limit = 0;
	return end_grant(id, run->granted_ns, run->granted_at_ns, used_ns,
			 LIMITS_NESTED_MAX);
}

/*
 * Ends the grant of the CPU if `p` holds it, or if another thread runs now. The caller holds the
 * lock of the CPU. If the thread with the grant is not known any more, the time since it began
 * counts, but at most RUN_EXCESS_NS beyond the grant.
 */
ALWAYS void settle_run(struct task_struct *p, __u32 cpu)
{
	struct limited_run *run = &state_of(cpu)->run;
	__u64 most, used;

	if (!run->limit)
		return;
	if (p && run->pid == (__u32)p->pid) {
		used = p->se.sum_exec_runtime - run->began_exec_ns;
	} else {
		most = run->granted_ns + RUN_EXCESS_NS;
		used = since(run->began_ns, now_ns());
		if (used > most)
			used = most;
	}
	end_run(cpu, used);
}

/* Ends the grant of a thread that is enqueued, if it has just run on its CPU. */
ALWAYS void settle_own_run(struct task_struct *p, const struct thread *thread)
{
	if (thread->limit && state_of(thread->cpu)->run.pid == (__u32)p->pid &&
	    cpu_of(p) == thread->cpu)
		settle_run(p, thread->cpu);
}

/* Lets the CPU's timer end the slice of the running thread after `ns`. */
__noinline int start_slice_timer(__u32 cpu, __u64 ns)
{
	struct slice_timer *slice_timer;

	cpu %= CPUS_MAX;
	slice_timer = bpf_map_lookup_elem(&slice_timers, &cpu);
	if (slice_timer)
		bpf_timer_start(&slice_timer->timer, ns, 0);
	return 0;
}

/* Ends the slice of a CPU, if its grant has ended. */
static int slice_ends(void *map, __u32 *cpu, struct slice_timer *slice_timer)
{
	struct limited_run *run = &state_of(*cpu)->run;

	(void)map;
	(void)slice_timer;
	if (run->limit && !is_before(now_ns(), run->began_ns + run->granted_ns))
		scx_bpf_kick_cpu(*cpu, KICK_PREEMPT);
	return 0;
}

/*
 * Gives the grant of a thread that starts to run, or continues, to the CPU. `has_waited`: the thread
 * comes from a queue of this scheduler. If such a thread gets no grant, the CPU dispatches again,
 * and the thread is parked. Other threads without a grant were dispatched by the kernel, and would
 * be dispatched by the kernel again; they run, and leave a debt.
 */
static __attribute__((noinline)) void begin_run(struct task_struct *p,
						struct thread *thread,
						__u32 cpu, _Bool has_waited)
{
	struct limited_run *run = &state_of(cpu)->run;
	_Bool is_admitted = admit_limited(p, thread);
	__u64 slice;

	if (!thread->limit)
		return;
	run->granted_ns = is_admitted ? thread->granted_ns : 0;
	run->granted_at_ns = thread->granted_at_ns;
	run->began_ns = now_ns();
	run->began_exec_ns = p->se.sum_exec_runtime;
	run->pid = p->pid;
	run->limit = thread->limit;
	thread->granted_ns = 0;
	if (!is_admitted && has_waited) {
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
		return;
	}
	slice = is_admitted ? run->granted_ns : GRANT_MIN_NS;
	if (slice >= p->scx.slice)
		return;
	set_slice(p, slice);
	start_slice_timer(cpu, slice);
}

/*
 * Ends the grant of the CPU before a dispatch, and applies a change of the quotas to the previous
 * thread. Returns `prev`, or 0 if the previous thread has to be parked.
 */
static __attribute__((noinline)) struct task_struct *
settle_prev(struct task_struct *prev, __u32 cpu)
{
	struct thread *thread;

	settle_run(prev, cpu);
	state_of(cpu)->limits_version = g_limits.version;
	if (!prev || !(prev->scx.flags & TASK_QUEUED))
		return prev;
	thread = thread_of(prev);
	return thread && !admit(prev, thread) ? 0 : prev;
}

/* Returns whether a dispatch has to call settle_prev(). */
ALWAYS _Bool has_limited_prev(const struct cpu_state *state)
{
	return state->run.limit || state->limits_version != g_limits.version;
}

/* Gives the grant of the previous thread to the CPU again, if that thread continues. */
ALWAYS void resume_prev(struct task_struct *prev, __u32 cpu)
{
	struct thread *thread = thread_of(prev);

	if (thread && thread->granted_ns && prev->scx.slice)
		begin_run(prev, thread, cpu, 0);
}

#endif
