/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Shares of cgroups: counts of runnable threads, and the timer that computes the factors
 *
 * group_share.h describes the algorithm. This file keeps its data:
 *
 * - `g_groups`: one entry for each cgroup that has had threads. Entry 0 is the root cgroup. The entry
 *   of a parent is in front of those of its children.
 * - `group_numbers`: the entry of a cgroup.
 * - `g_runnable`: weight of the runnable threads of each entry, by LLC, so that CPUs of different
 *   LLCs write to different counters. The sum over all LLCs determines the shares.
 * - `g_llc_loads`: number of the runnable threads of all cgroups, by LLC (placement.h).
 *
 * A thread is counted when it begins to wait or to run, and until it sleeps. There is no callback
 * when a thread sleeps. Therefore, while a thread runs, its CPU owns the count: the CPU removes it
 * when another thread starts to run or the CPU becomes idle, unless the thread has been enqueued
 * again before. A throttled thread is not counted. With one LLC, and while no cgroup but the root has
 * had threads, the counts have no effect, and threads are not counted (counts_threads()).
 *
 * The timer visits all entries every GROUP_PERIOD_NS, while any thread is counted. Counting takes
 * constant time. With more than GROUPS_MAX (1,024) cgroups with threads, the threads of further
 * cgroups count as threads of the parent.
 */
#ifndef USHER_SCX_GROUPS_H
#define USHER_SCX_GROUPS_H

#include "state.h"

/*
 * Returns an entry. Without the barrier, the compiler would drop the modulo where it knows that the
 * number is small enough; the verifier needs the modulo as a bound of the index.
 */
static inline struct group *group_at(__u32 number)
{
	barrier_var(number);
	return &g_groups[number % GROUPS_MAX];
}

/* Returns the counter of the runnable threads of a cgroup in an LLC. */
static inline __u32 *runnable_of(__u32 group, __u32 llc)
{
	barrier_var(group);
	barrier_var(llc);
	return &g_runnable[group % GROUPS_MAX].weights[llc % LLCS_MAX];
}

/* Returns the factor for the weight of the threads of a cgroup. */
ALWAYS __u32 factor_of(__u32 group)
{
	__u32 factor = group_at(group)->factor;

	return factor ? factor : FACTOR_ONE;
}

/*
 * Time after which a thread examines its quotas again, if the kernel does not report them: at most
 * one second, except in kernels with a hundred ticks per second. The unit is the tick because
 * reading the time is slower.
 */
#define LIMITS_REFRESH_TICKS 250

/*
 * Returns the weight of a thread, from its nice value and its cgroups, for virtual_in(). On a machine
 * without cgroups, the weight of nice 0 is WEIGHT_NORMAL * FACTOR_ONE.
 */
ALWAYS __u64 weight_of(struct task_struct *p, struct thread *thread)
{
	thread->group_weight = factor_of(thread->group);
	if (!KERNEL_REPORTS_QUOTAS) {
		__u64 now = bpf_jiffies64();

		if (now - thread->limits_read_at_ticks > LIMITS_REFRESH_TICKS) {
			thread->limits_read_at_ticks = now;
			thread->limits_version = g_limits.version - 1;
		}
	}
	return weight_in(p->scx.weight, thread->group_weight);
}

/* Starts the timer that computes the factors. */
__noinline int start_group_timer(void)
{
	__u32 only = 0;
	struct group_timer *group_timer;

	g_group_timer_runs = 1;
	group_timer = bpf_map_lookup_elem(&group_timers, &only);
	if (group_timer)
		bpf_timer_start(&group_timer->timer, GROUP_PERIOD_NS, 0);
	return 0;
}

/*
 * Adds a thread to the load of an LLC, or with -1 removes it. With one LLC, the load is not needed.
 */
ALWAYS void count_load(__u32 llc, __u32 threads)
{
	barrier_var(llc);
	if (g_settings.llcs > 1)
		__sync_fetch_and_add(&g_llc_loads[llc % LLCS_MAX].threads,
				     threads);
}

static inline void remove_count(struct counted *counted)
{
	if (counted->weight) {
		__sync_fetch_and_sub(runnable_of(counted->group, counted->llc),
				     counted->weight);
		count_load(counted->llc, -1);
	}
	counted->weight = 0;
}

/* Counts a thread as runnable, with its present cgroup and weight. */
ALWAYS void count_thread(struct task_struct *p, struct thread *thread,
			 __u32 llc)
{
	struct counted *counted = &thread->counted;

	if (!g_group_timer_runs)
		start_group_timer();
	if (counted->weight) {
		if (counted->weight == p->scx.weight &&
		    counted->group == thread->group && counted->llc == llc)
			return;
		remove_count(counted);
	}
	counted->group = thread->group;
	counted->llc = llc;
	counted->weight = p->scx.weight;
	__sync_fetch_and_add(runnable_of(counted->group, llc), counted->weight);
	count_load(llc, 1);
}

/*
 * Returns whether runnable threads are counted. Threads that are runnable when the first cgroup gets
 * an entry are counted from their next wait or run on.
 */
static inline _Bool counts_threads(void)
{
	return g_settings.llcs > 1 || g_groups_used > 1;
}

/* Counts a thread that is enqueued. If it has just run on its CPU, it is still counted. */
ALWAYS void count_waiter(struct task_struct *p, struct thread *thread,
			 __u32 cpu)
{
	struct cpu_state *state = state_of(cpu);

	if (!counts_threads())
		return;
	if (state->counted.weight && state->counted_pid == (__u32)p->pid) {
		remove_count(&thread->counted);
		thread->counted = state->counted;
		state->counted.weight = 0;
	}
	count_thread(p, thread, place_of(cpu)->llc);
}

/* Gives the count of a thread that starts to run to the CPU. */
ALWAYS void count_runner(struct task_struct *p, struct thread *thread,
			 struct cpu_state *state, __u32 llc)
{
	if (!counts_threads())
		return;
	if (state->counted.weight) {
		if (state->counted_pid == (__u32)p->pid &&
		    !thread->counted.weight)
			return;
		remove_count(&state->counted);
	}
	count_thread(p, thread, llc);
	state->counted = thread->counted;
	state->counted_pid = p->pid;
	thread->counted.weight = 0;
}

/* Samples an entry. Returns the average weight of its runnable threads. */
__noinline __u64 sample_entry(__u32 number)
{
	struct group *group = group_at(number);
	__u64 own = 0;
	int llc;

	if (!group->is_used)
		return 0;
	bpf_for(llc, 0, LLCS_MAX)
	{
		if ((__u32)llc >= g_settings.llcs)
			break;
		own += *runnable_of(number, llc);
	}
	/* Reading the weight is slow, and the weight of an inactive cgroup has no effect. */
	if (number && (own || group->share.active))
		group->share.weight =
			group_weight_of((void *)group->task_group);
	sample_group(&group->share, own);
	return group->share.own * (group->share.own_active >> 8) /
	       (SHARE_ONE >> 8);
}

/* Computes the factors of all entries, from a sample of the counts. */
__noinline int compute_factors(void)
{
	__u32 used = g_groups_used;
	__u64 sum = 0, all;
	__u32 compete = 0;
	int at;

	bpf_for(at, 0, GROUPS_MAX)
	{
		if ((__u32)at >= used)
			break;
		sum += sample_entry(at);
	}
	bpf_for(at, 1, GROUPS_MAX)
	{
		struct group *group = group_at(used - at);

		if ((__u32)at >= used)
			break;
		if (group->is_used)
			add_to_parent(&group->share,
				      &group_at(group->parent)->share);
	}
	complete_group(&g_groups[0].share);
	g_groups[0].share.share = SHARE_ONE;
	all = weight_while_active(sum, &g_groups[0].share);
	bpf_for(at, 0, GROUPS_MAX)
	{
		struct group *group = group_at(at);

		if ((__u32)at >= used)
			break;
		if (!group->is_used)
			continue;
		if (at)
			divide_group(&group->share,
				     &group_at(group->parent)->share);
		group->factor = group_factor(&group->share, all);
		if (group->share.own_active && group->factor != FACTOR_ONE)
			compete = 1;
	}
	g_groups_compete = compete;
	return sum != 0;
}

/* The timer that computes the factors. It stops while no thread is runnable. */
static int group_timer_expires(void *map, __u32 *key,
			       struct group_timer *group_timer)
{
	(void)map;
	(void)key;
	if (compute_factors())
		bpf_timer_start(&group_timer->timer, GROUP_PERIOD_NS, 0);
	else
		g_group_timer_runs = 0;
	return 0;
}

/* Prepares the entry of the root cgroup, and the timer. */
static inline void create_groups(void)
{
	__u32 only = 0;
	struct group_timer *group_timer;

	g_groups[0].is_used = 1;
	g_groups_used = 1;
	group_timer = bpf_map_lookup_elem(&group_timers, &only);
	if (!group_timer)
		return;
	bpf_timer_init(&group_timer->timer, &group_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&group_timer->timer, group_timer_expires);
}

/* Returns the entry of a cgroup; `none` if the cgroup has none. */
static inline __u32 group_number(__u64 id, __u32 none)
{
	__u32 *number = bpf_map_lookup_elem(&group_numbers, &id);

	return number ? *number : none;
}

/* Claims an entry behind that of the parent. Returns its number; `parent` if there is none. */
__noinline __u32 add_group(__u64 id, __u64 task_group, __u32 parent)
{
	int number;

	bpf_for(number, 1, GROUPS_MAX)
	{
		struct group *group = group_at(number);
		__u32 key = number;

		if (key <= parent || group->is_used ||
		    !__sync_bool_compare_and_swap(&group->is_used, 0, 2))
			continue;
		__builtin_memset(&group->share, 0, sizeof(group->share));
		group->task_group = task_group;
		group->parent = parent;
		group->factor = factor_of(parent);
		group->share.weight = group_weight_of((void *)task_group);
		if (bpf_map_update_elem(&group_numbers, &id, &key,
					BPF_NOEXIST)) {
			/* Another CPU has added the same cgroup, or the map is full. */
			group->is_used = 0;
			return group_number(id, parent);
		}
		group->is_used = 1;
		advance(&g_groups_used, key + 1);
		return key;
	}
	return parent;
}

/*
 * Determines the entry of the thread's cgroup, and adds entries for the cgroup and its ancestors that
 * have none.
 */
static __attribute__((noinline)) __u32 find_group(struct task_struct *p)
{
	struct task_group *group = BPF_CORE_READ(p, sched_task_group);
	__u64 path[NEW_GROUPS_MAX] = {};
	__u32 depth = 0, number = 0;
	int level;

	bpf_for(level, 0, NEW_GROUPS_MAX)
	{
		struct task_group *parent;
		__u64 id;

		parent = group ? BPF_CORE_READ(group, parent) : 0;
		id = parent ? BPF_CORE_READ(group, css.cgroup, kn, id) : 0;
		if (!id)
			break;
		number = group_number(id, 0);
		if (number)
			break;
		barrier_var(level);
		path[(__u32)level % NEW_GROUPS_MAX] = (__u64)group;
		depth = level + 1;
		group = parent;
	}
	bpf_for(level, 0, NEW_GROUPS_MAX)
	{
		__u32 at = depth - 1 - level;
		struct task_group *missing;

		if ((__u32)level >= depth)
			break;
		barrier_var(at);
		missing = (void *)path[at % NEW_GROUPS_MAX];
		number = add_group(BPF_CORE_READ(missing, css.cgroup, kn, id),
				   (__u64)missing, number);
	}
	return number;
}

/* Frees the entry of a cgroup that has been removed. */
__noinline int forget_group(__u64 id)
{
	__u32 *number = bpf_map_lookup_elem(&group_numbers, &id);
	__u32 at;

	if (!number)
		return 0;
	at = *number;
	bpf_map_delete_elem(&group_numbers, &id);
	group_at(at)->is_used = 0;
	return 0;
}

#endif
