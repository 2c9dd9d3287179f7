/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * On which CPU: an idle one, of an idle core if there is any (paper 3b).
 *
 * On wake-up and fork this is asked first. It is asked again of a thread whose
 * core has become shared while another core is idle: when a core falls idle, it
 * kicks one of two threads that share one; that thread comes through `enqueue`,
 * which sends it over. The tick asks the same, for whatever the kick missed: a
 * core that fell idle while the thread could not be moved.
 */
#ifndef USHER_SCX_WHERE_H
#define USHER_SCX_WHERE_H

#include "state.h"

static inline void look_around(struct outlook *sees, struct task_struct *p)
{
	const struct cpumask *mask = scx_bpf_get_idle_cpumask();

	read_set(&sees->idle, mask);
	scx_bpf_put_idle_cpumask(mask);
	mask = scx_bpf_get_idle_smtmask();
	read_set(&sees->cores, mask);
	scx_bpf_put_idle_cpumask(mask);
	read_set(&sees->allowed, p->cpus_ptr);
}

/* Verified once, for whoever calls it. */
__noinline int choose(__u32 smt, __u32 last)
{
	struct outlook *sees = ONLY(outlooks);
	struct place *here = place_of(last);

	if (!sees || !here)
		return NOWHERE;
	return choose_cpu(smt, sees, last, here);
}

__noinline int choose_core(__u32 last)
{
	struct outlook *sees = ONLY(outlooks);
	struct place *here = place_of(last);

	if (!sees || !here)
		return NOWHERE;
	return nearest_of(&sees->cores, &sees->allowed, last, here);
}

static inline void strike(struct cpu_set *set, __u32 cpu)
{
	set->words[cpu / 64 % CPU_WORDS] &= ~(1ULL << cpu % 64);
}

/* An idle CPU for this thread, taken; somebody else may take one first. */
static inline __s32 claim(struct task_struct *p, __u32 last, _Bool smt,
			  _Bool cores_only)
{
	struct outlook *sees = ONLY(outlooks);
	int try;

	if (!sees)
		return NOWHERE;
	look_around(sees, p);
	bpf_for(try, 0, 4)
	{
		__s32 cpu = cores_only ? choose_core(last) : choose(smt, last);

		if (cpu < 0)
			break;
		if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
			if (has_cpu(&sees->cores, cpu))
				COUNT(idle_cores);
			else
				COUNT(idle_threads);
			return cpu;
		}
		strike(&sees->idle, cpu);
		strike(&sees->cores, cpu);
	}
	return NOWHERE;
}

/* Another thread works on this CPU's core. */
__noinline int is_shared(__u32 cpu)
{
	struct place *here = place_of(cpu);
	struct seat *seat;
	__u32 word;

	if (!here)
		return 0;
	for (word = 0; word < CPU_WORDS; word++) {
		__u64 bits = here->core.words[word];
		int thread;

		/* More than eight threads a core nobody has built. */
		bpf_for(thread, 0, 8)
		{
			__u32 other = word * 64 + lowest_bit(bits);

			if (!bits)
				break;
			bits &= bits - 1;
			seat = seat_of(other);
			if (other != cpu && seat && seat->running)
				return 1;
		}
	}
	return 0;
}

/* The thread that runs on this CPU had better go to an idle core. */
static inline _Bool wants_out(struct task_struct *p, __u32 cpu)
{
	struct outlook *sees = ONLY(outlooks);

	if (!sees || !is_movable(p) || !is_shared(cpu))
		return 0;
	look_around(sees, p);
	return choose_core(cpu) >= 0;
}

/* A thread that shares a core and may come to this CPU; of this LLC, or any. */
__noinline int find_sharer(__u32 idle, __u32 any_llc)
{
	struct place *here = place_of(idle);
	__u32 cpus = scx_bpf_nr_cpu_ids();
	int cpu;

	if (!here)
		return NOWHERE;
	bpf_for(cpu, 0, (int)cpus)
	{
		struct seat *seat = seat_of(cpu);

		if (!seat || !seat->running || !seat->movable)
			continue;
		if (!has_cpu(&seat->allowed, idle))
			continue;
		if (!any_llc && !has_cpu(&here->near, cpu))
			continue;
		if (is_shared(cpu))
			return cpu;
	}
	return NOWHERE;
}

/* This CPU has nothing to do. If its core has not either, one comes over. */
static inline void invite(__u32 cpu)
{
	__s32 from;

	if (is_shared(cpu))
		return;
	from = find_sharer(cpu, 0);
	if (from < 0)
		from = find_sharer(cpu, 1);
	if (from < 0)
		return;
	COUNT(pulls);
	scx_bpf_kick_cpu(from, KICK_PREEMPT);
}

#endif
