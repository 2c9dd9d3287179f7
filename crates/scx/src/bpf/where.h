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

#include "seats.h"

/* Whether the kernel keeps the idle CPUs of each node apart; it has the functions then. */
static inline _Bool has_nodes(void)
{
	return g_order.nodes &&
	       bpf_ksym_exists(scx_bpf_get_idle_cpumask_node) &&
	       bpf_ksym_exists(scx_bpf_get_idle_smtmask_node);
}

/* The idle CPUs of the node that a CPU lies in, or all; not read where there are none. */
static inline _Bool read_idle(struct cpu_set *idle, const struct place *here)
{
	const struct cpumask *mask =
		has_nodes() ? scx_bpf_get_idle_cpumask_node(here->node_number)
			    : scx_bpf_get_idle_cpumask();
	_Bool any = !bpf_cpumask_empty(mask);

	if (any)
		read_set(idle, mask);
	scx_bpf_put_idle_cpumask(mask);
	return any;
}

/* CPUs that fell idle while the kernel had all threads back for a moment, as it does when a
 * machine is suspended, and did not tell. While others are idle one of these counts as at work
 * until it has been so again, which costs its core's other threads a move at most. */
static inline void find_unreported_idle(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	__u32 word;

	if (any_idle() || !read_idle(&scan->remaining, here))
		return;
	for (word = 0; word < CPU_WORDS; word++)
		if (scan->remaining.words[word])
			__sync_fetch_and_or(&g_idle_cpus.words[word],
					    scan->remaining.words[word]);
}

/* The CPUs of cores that are idle. */
static inline void read_cores(struct cpu_set *cores, const struct place *here)
{
	const struct cpumask *mask =
		has_nodes() ? scx_bpf_get_idle_smtmask_node(here->node_number)
			    : scx_bpf_get_idle_smtmask();

	read_set(cores, mask);
	scx_bpf_put_idle_cpumask(mask);
}

static inline void add_mask(struct cpu_set *to, struct cpu_set *by_way_of,
			    const struct cpumask *mask)
{
	__u32 word;

	read_set(by_way_of, mask);
	scx_bpf_put_idle_cpumask(mask);
	for (word = 0; word < CPU_WORDS; word++)
		to->words[word] |= by_way_of->words[word];
}

/*
 * What other nodes have is not looked at before one's own turns out not to do. Whether
 * any CPU is idle.
 */
__noinline int read_other_nodes(void)
{
	struct idle_scan_ctx *scan = scan_ctx();
	int node;

	if (!has_nodes())
		return 0;
	bpf_for(node, 0, NODES_MAX)
	{
		if (!(scan->unread_nodes >> node & 1))
			continue;
		add_mask(&scan->idle, &scan->remaining,
			 scx_bpf_get_idle_cpumask_node(node));
		add_mask(&scan->cores, &scan->remaining,
			 scx_bpf_get_idle_smtmask_node(node));
	}
	scan->unread_nodes = 0;
	return has_any(&scan->idle);
}

/* No CPU is idle and nobody has a seat: there is nothing to choose from. */
ALWAYS _Bool has_no_choice(void)
{
	return !any_idle() && !seats_version();
}

static inline _Bool skip_scan(struct thread *thread)
{
	leave_seat(thread);
	return 0;
}

/* False: there is nothing to choose from. */
static inline _Bool fill_scan_ctx(struct idle_scan_ctx *scan,
				  struct task_struct *p, struct thread *thread,
				  __u32 last)
{
	struct place *here = place_of(last);

	if (has_no_choice())
		return skip_scan(thread);
	scan->unread_nodes =
		g_order.nodes & ~(1ULL << here->node_number % NODES_MAX);
	if (read_idle(&scan->idle, here)) {
		read_cores(&scan->cores, here);
	} else {
		if (!g_order.nodes && !seats_version())
			return skip_scan(thread);
		__builtin_memset(&scan->idle, 0, sizeof(scan->idle));
		__builtin_memset(&scan->cores, 0, sizeof(scan->cores));
		if (!read_other_nodes() && !seats_version())
			return skip_scan(thread);
	}
	read_set(&scan->allowed, p->cpus_ptr);
	scan->borrowers = g_borrowers;
	read_preferred(scan, p, thread);
	return 1;
}

/* Seats have changed while this thread ran. */
static inline void follow_seats(struct task_struct *p, struct thread *thread,
				__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();

	if (!is_stale(thread, seats_version()))
		return;
	fill_scan_ctx(scan, p, thread, cpu);
	note_borrower(cpu, !is_preferred(thread->seat, cpu));
}

/* An idle CPU at home in this node; if there is none, other nodes are seen from now on. */
static inline __s32 choose_near(_Bool smt, const struct idle_scan_ctx *scan,
				__u32 last, const struct place *here)
{
	__s32 cpu = NOWHERE;

	if (scan->unread_nodes) {
		cpu = choose_best(smt, scan, last, here);
		if (cpu < 0)
			read_other_nodes();
	}
	return cpu;
}

/* Verified once, for whoever calls it. */
__noinline int choose(__u32 smt, __u32 last)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(last);
	__s32 near;

	near = choose_near(smt, scan, last, here);
	return near >= 0 ? near : choose_cpu(smt, scan, last, here);
}

__noinline int choose_core(__u32 last)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(last);
	__s32 near;

	near = choose_near(1, scan, last, here);
	return near >= 0 ? near : choose_core_of(scan, last, here);
}

static inline void clear_cpu(struct cpu_set *set, __u32 cpu)
{
	set->words[cpu / 64 % CPU_WORDS] &= ~(1ULL << cpu % 64);
}

/* More idle CPUs than these are not looked at for a guest. */
#define BORROWER_SCANS_MAX 8

/*
 * An idle CPU beside other guests: with all cores at work, a guest may share one
 * of those on which nobody is at home.
 */
__noinline int choose_beside_borrowers(__u32 last)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(last);
	__s32 found = NOWHERE;
	int look;

	if (!seats_version())
		return NOWHERE;
	scan->remaining = scan->idle;
	bpf_for(look, 0, BORROWER_SCANS_MAX)
	{
		__s32 cpu = nearest_of(&scan->remaining, &scan->allowed, last,
				       here);

		if (cpu < 0)
			break;
		if (only_borrowers_run(&place_of(cpu)->core, scan)) {
			found = cpu;
			break;
		}
		clear_cpu(&scan->remaining, cpu);
	}
	return found;
}

/* A guest's CPU, if nobody else has just had it back. */
static inline _Bool claim_from_borrower(struct thread *thread, __u32 cpu)
{
	if (!preempt_borrower(cpu))
		return 0;
	COUNT(returned);
	thread->why = WHY_RETURNED;
	thread->returning_ns = now_ns();
	return 1;
}

static inline _Bool claim_idle(struct thread *thread, __u32 cpu,
			       const struct idle_scan_ctx *scan)
{
	if (!scx_bpf_test_and_clear_cpu_idle(cpu))
		return 0;
	if (has_cpu(&scan->cores, cpu)) {
		COUNT(idle_cores);
		thread->why = WHY_IDLE_CORE;
	} else {
		COUNT(idle_threads);
		thread->why = WHY_IDLE_THREAD;
	}
	if (!has_cpu(&scan->preferred, cpu))
		COUNT(borrowed);
	return 1;
}

/* A CPU for this thread, taken; somebody else may take one first. */
static inline __s32 claim_best(struct task_struct *p, struct thread *thread,
			       __u32 last, _Bool smt, _Bool cores_only)
{
	struct idle_scan_ctx *scan = scan_ctx();
	int try;

	if (!fill_scan_ctx(scan, p, thread, last))
		return NOWHERE;
	bpf_for(try, 0, 4)
	{
		__s32 cpu = cores_only ? choose_core(last) : choose(smt, last);

		if (cpu < 0 && !cores_only)
			cpu = choose_beside_borrowers(last);
		if (cpu < 0)
			break;
		if (has_cpu(&scan->idle, cpu)
			    ? claim_idle(thread, cpu, scan)
			    : claim_from_borrower(thread, cpu))
			return cpu;
		clear_cpu(&scan->idle, cpu);
		clear_cpu(&scan->cores, cpu);
		clear_cpu(&scan->borrowers, cpu);
	}
	return NOWHERE;
}

/* The same, without a call where there is nothing to choose from. */
ALWAYS __s32 claim(struct task_struct *p, struct thread *thread, __u32 last,
		   _Bool smt, _Bool cores_only)
{
	if (has_no_choice()) {
		leave_seat(thread);
		return NOWHERE;
	}
	return claim_best(p, thread, last, smt, cores_only);
}

/* Another thread works on this CPU's core; one that is at home there, if so asked. */
__noinline int is_shared(__u32 cpu, __u32 owners_only)
{
	struct place *here = place_of(cpu);
	__u32 word;

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
			if (other == cpu || !is_busy(other))
				continue;
			if (!owners_only || !has_borrower(other))
				return 1;
		}
	}
	return 0;
}

/* The thread that runs on this CPU had better go to an idle core. */
static inline _Bool should_migrate_to_idle_core(struct task_struct *p,
						__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct thread *thread = thread_of(p);

	if (!thread || !is_movable(p) || !is_shared(cpu, 0))
		return 0;
	return fill_scan_ctx(scan, p, thread, cpu) && choose_core(cpu) >= 0;
}

/* What runs on a CPU is asked where it may run by whoever has nothing to do. */
static inline void note_allowed(struct cpu_state *state, struct task_struct *p)
{
	*(const struct cpumask *volatile *)&state->allowed = p->cpus_ptr;
}

/* A hint: it may stop running now, and what tells of its CPUs be gone with it. */
static inline _Bool can_migrate(const struct cpu_state *state, __u32 cpu)
{
	const struct cpumask *allowed = state->allowed;
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), &allowed->bits[cpu / 64]);
	return word >> cpu % 64 & 1;
}

/* A thread that shares a core and may come to this CPU; of this LLC, or any. The walk begins
 * behind this CPU, so that one that is in vain, as a real-time thread runs there, is not
 * everybody's first. */
__noinline int find_smt_pull_source(__u32 idle, __u32 any_llc)
{
	struct place *here = place_of(idle);
	__u32 cpus = scx_bpf_nr_cpu_ids();
	int step;

	bpf_for(step, 1, (int)cpus)
	{
		__u32 cpu = idle + step;
		struct cpu_state *state;

		if (cpu >= cpus)
			cpu -= cpus;
		state = state_of(cpu);
		if (!is_busy(cpu) || !state->movable)
			continue;
		if (!any_llc && !has_cpu(&here->near, cpu))
			continue;
		if (is_shared(cpu, 0) && can_migrate(state, idle))
			return cpu;
	}
	return NOWHERE;
}

/* This CPU has nothing to do. If its core has not either, one comes over. */
static inline void smt_pull(__u32 cpu)
{
	__s32 from;

	if (is_shared(cpu, 0))
		return;
	from = find_smt_pull_source(cpu, 0);
	if (from < 0)
		from = find_smt_pull_source(cpu, 1);
	if (from < 0)
		return;
	COUNT(pulls);
	scx_bpf_kick_cpu(from, KICK_PREEMPT);
}

#endif
