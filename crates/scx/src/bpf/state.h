/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * State of the scheduler per CPU (`struct cpu_state`) and per LLC (`struct llc_rq`), and the
 * functions that read and update it. idle.h has the idle CPUs.
 *
 * Settings and the state of threads, which user space accesses, are in shared.h; the variables are
 * in globals.h. The tables hold CPUS_MAX CPUs and LLCS_MAX LLCs (sets.h). User space loads the build
 * with the smallest tables that hold the machine, rejects a machine for which no table is large
 * enough, and lets further LLCs share queues.
 *
 * Vtime is CPU time over weight, in nanoseconds that may overflow: vtimes are compared by their
 * difference (is_before()). The clock of an LLC is the highest minimum vtime of waiting threads
 * that a selection has found there, so that it never decreases. Several CPUs write such a clock,
 * and only through advance().
 *
 * Limits: advance() makes CLOCK_ATTEMPTS (4) attempts, and may then leave a clock behind. Each
 * function takes constant time.
 */
#ifndef USHER_SCX_STATE_H
#define USHER_SCX_STATE_H

#include "machine.h"
#include "rules.h"

/* Grant of the running thread (limits.h). */
struct limited_run {
	/* Nearest cgroup of the thread with a quota; 0: the thread has no quota. */
	__u64 limit;
	__u64 granted_ns;
	__u64 granted_at_ns;
	/* Start of the run, and the thread's sum_exec_runtime at that time. */
	__u64 began_ns;
	__u64 began_exec_ns;
	__u32 pid;
	__u32 unused;
};

/* State of a CPU that other CPUs read. */
struct cpu_state {
	/* 1: the running thread may migrate. */
	__u32 movable;
	/*
	 * Urgency (`enum urgency`) of the running thread, until urgent_until_ns.
	 */
	__u32 urgency;
	/*
	 * Reason (`enum why`) for the next thread, if it comes from another LLC; else WHY_UNKNOWN.
	 */
	__u32 why;
	/* 1: the CPU is idle, as reported by update_idle. */
	__u32 idle;
	/* Address space of the last user thread. */
	__u64 last_mm;
	/*
	 * Address space that has the turn. An urgent thread of another address space may interrupt
	 * the turn without ending it.
	 */
	__u64 turn_mm;
	/*
	 * Key of the queue that has the turn, and number of the queue from which the turn's last
	 * thread came.
	 */
	__u64 turn_key;
	__u32 turn_queue;
	/* 1: the running thread should run on a fast core (capacity.h). */
	__u32 demanding;
	/* 1: the running thread has an unlimited slice (isolation.h). */
	__u32 unlimited;
	__u32 unused;
	/*
	 * Start of the next search of find_smt_pull_source(), as a number of CPUs after this CPU:
	 * in the own LLC, and in the other LLCs.
	 */
	__u32 pull_passed[2];
	__u64 turn_began_ns;
	/* Time at which the urgency ends, unless it is URGENT_PINNED (urgency_on()). */
	__u64 urgent_until_ns;
	/*
	 * Time at which a thread that is not urgent last ran; 0: no such thread has waited since
	 * then.
	 */
	__u64 served_ns;
	/*
	 * Minimum vtime of the threads that wait for this CPU; it never decreases. This clock is
	 * behind the LLC's clock if threads are pinned to some CPUs of the LLC and crowd there. It
	 * catches up when no thread waits.
	 */
	__u64 clock;
	/* Record of waiting threads for the starvation rule (share.h). */
	struct aging aging;
	/* Queues of the LLC with a head that may not run on this CPU (turns.h). */
	struct head_skip head_skip;
	/* Affinity of the running thread, in kernel memory; valid while that thread runs. */
	const struct cpumask *allowed;
	/* Counter of the running thread, and the number of that thread (groups.h). */
	struct counted counted;
	__u32 counted_pid;
	/* Version of the quotas that the last dispatch has applied. */
	__u32 limits_version;
	struct limited_run run;
} __attribute__((aligned(CACHE_LINE)));

/* Run queues of an LLC. */
struct llc_rq {
	struct mm_queue mm_queues[MM_QUEUES_PER_LLC];
	/*
	 * Minimum vtime of the waiting threads; it never decreases. It does not change while no
	 * thread waits. The clocks of different LLCs are independent.
	 */
	__u64 clock;
	/* Number of threads in the queues of address spaces, and in the urgent queue. */
	__u32 waiting;
	__u32 urgent;
	/* Number of CPUs. */
	__u32 cpus;
	__u32 unused;
	/* Time of the next check of another LLC. */
	__u64 balance_at_ns;
	/* Shared vtimes of young threads, by family. */
	__u64 family_vtimes[FAMILIES];
} __attribute__((aligned(CACHE_LINE)));

/* Load of an LLC. Only `threads` changes after the start. */
struct llc_load {
	/* Number of runnable threads: those that run and those that wait. */
	__u32 threads;
	/* Number of CPUs, and the lowest CPU. */
	__u32 cpus;
	__u32 first_cpu;
	__u32 unused;
} __attribute__((aligned(CACHE_LINE)));

/*
 * These structures are elements of arrays, and different CPUs write different elements. No two
 * elements share a cache line.
 */
_Static_assert(sizeof(struct cpu_state) % CACHE_LINE == 0, "cpu_state");
_Static_assert(sizeof(struct llc_rq) % CACHE_LINE == 0, "llc_rq");
_Static_assert(sizeof(struct llc_load) % CACHE_LINE == 0, "llc_load");
_Static_assert(sizeof(struct idle_scan_ctx) % CACHE_LINE == 0, "idle_scan_ctx");
_Static_assert(sizeof(struct cpu_tally) % CACHE_LINE == 0, "cpu_tally");

/* Quota of a cgroup (limits.h). The lock protects `quota` and `fires_at_ns`. */
struct limit {
	struct bpf_spin_lock lock;
	/* Number of the park queue. */
	__u32 park;
	struct quota quota;
	/* Next ancestor with a quota; 0: there is none. */
	__u64 parent;
	/* Time at which the timer of the park queue expires; 0: the timer is not armed. */
	__u64 fires_at_ns;
	/* Time at which a thread last joined the park queue. */
	__u64 joined_ns;
	/* 1: threads may be in the park queue. */
	__u32 has_parked;
	__u32 unused;
};

/* Timer of a park queue, and the cgroup that owns the queue; 0: the queue is free. */
struct park {
	struct bpf_timer timer;
	__u64 cgroup;
};

/* Timer that ends a slice. */
struct slice_timer {
	struct bpf_timer timer;
};

/* Cgroup with threads (groups.h). */
struct group {
	struct group_share share;
	/* Address of the kernel's structure. */
	__u64 task_group;
	/* Number of the parent. */
	__u32 parent;
	/* Factor for the weights of the threads; 0: FACTOR_ONE. */
	__u32 factor;
	/* 0: the entry is free. 1: in use. 2: being added. */
	__u32 is_used;
	__u32 unused;
};

/* Weights of the runnable threads of a cgroup, by LLC. */
struct runnable {
	__u32 weights[LLCS_MAX];
};

/* Timer that computes the factors. */
struct group_timer {
	struct bpf_timer timer;
};

/* Upper limit of cgroups with threads, and of nested cgroups without an entry. */
#define GROUPS_MAX 1024
#define NEW_GROUPS_MAX 16

/* Upper limits of cgroups with a quota, of nested quotas, and of nested cgroups. */
#define LIMITS_MAX 4096
#define LIMITS_NESTED_MAX 16
#define ANCESTORS_MAX 32
/* Time after which a CPU's unused budget lets parked threads run. */
#define RELEASE_DELAY_NS 50000ULL
/* Longest wait in a park queue: a second less than the timeout of the kernel's watchdog. */
#define PARK_MAX_NS 4000000000ULL
/* Time within which a thread that joins a park queue has been inserted. */
#define JOIN_MAX_NS 10000000ULL
/* Upper limit of the CPU time beyond a grant that is charged if it is not known (a tick). */
#define RUN_EXCESS_NS 4000000ULL

#ifdef __bpf__
#include "maps.h"
#include "globals.h"
#else
#include "instance.h"
#endif

/* Returns the number of waiting threads, including urgent threads. */
static inline __u32 all_waiting(const struct llc_rq *llc_rq)
{
	return llc_rq->waiting + llc_rq->urgent;
}

static inline struct load load_of(const struct llc_rq *llc_rq)
{
	struct load load = {all_waiting(llc_rq), llc_rq->cpus};

	return load;
}

static inline void add_to(struct cpu_set *set, __u32 cpu)
{
	__sync_fetch_and_or(&set->words[cpu / 64 % CPU_WORDS],
			    1ULL << cpu % 64);
}

static inline void remove_from(struct cpu_set *set, __u32 cpu)
{
	__sync_fetch_and_and(&set->words[cpu / 64 % CPU_WORDS],
			     ~(1ULL << cpu % 64));
}

/*
 * Returns whether another CPU of this CPU's core is busy. With `owners_only`, CPUs that run
 * borrowers do not count.
 */
__noinline int is_shared(__u32 cpu, __u32 owners_only)
{
	const struct place *here = place_of(cpu);
	struct word_scan left = {here->core_words, 0};
	__u64 others = 0;
	__u32 word;

	for_words(left, word)
	{
		__u64 busy;

		busy = here->core.words[word] & ~g_idle_cpus.words[word];
		if (owners_only)
			busy &= ~g_borrowers.words[word];
		if (word == cpu / 64)
			busy &= ~(1ULL << cpu % 64);
		others |= busy;
	}
	return others != 0;
}

/*
 * Adds a CPU to a set, or removes it. In the common case nothing changes, and the test avoids a
 * write.
 */
static inline void note_in(struct cpu_set *set, __u32 cpu, _Bool is_in)
{
	if (has_cpu(set, cpu) == is_in)
		return;
	if (is_in)
		add_to(set, cpu);
	else
		remove_from(set, cpu);
}

/* Returns the scratch CPU sets of the current CPU. */
static inline struct idle_scan_ctx *scan_ctx(void)
{
	return &g_scan_ctxs[bpf_get_smp_processor_id() % CPUS_MAX];
}

/*
 * Numbers of the kernel's dispatch queues: QUEUES + llc * QUEUES_PER_LLC + the index of the queue
 * in the LLC. URGENT is the highest index. FIFO is the only queue of the variant `fifo`.
 */
#define QUEUES_PER_LLC 64
#define URGENT MM_QUEUES_PER_LLC
#define QUEUES 0x1000
#define NO_QUEUE 0
/* Value of `thread->queue` for a thread in a park queue. */
#define PARKED 1
#define FIFO (QUEUES - 1)
/* Number of the dispatch queue of park queue 0. */
#define PARKS (QUEUES + LLCS_MAX * QUEUES_PER_LLC)

/* Increments a counter of the current CPU. */
#define COUNT(what) \
	(g_tallies[bpf_get_smp_processor_id() % CPUS_MAX].tally.what++)

static inline struct cpu_state *state_of(__u32 cpu)
{
	return &g_cpu_states[cpu % CPUS_MAX];
}

static inline struct llc_rq *llc_rq_of(__u32 llc)
{
	return &g_llc_rqs[llc % LLCS_MAX];
}

/* Records that a thread waits in an LLC, after the thread has been counted. */
static inline void mark_waiting(__u32 llc)
{
	__u64 bit = 1ULL << llc % LLCS_MAX;

	if (!(*(volatile __u64 *)&g_waiting_llcs & bit))
		__sync_fetch_and_or(&g_waiting_llcs, bit);
}

/*
 * Records that no thread waits in an LLC. If another CPU counts a thread at the same time and still
 * finds the LLC marked, this function marks the LLC again.
 */
static inline void unmark_waiting(__u32 llc)
{
	__sync_fetch_and_and(&g_waiting_llcs, ~(1ULL << llc % LLCS_MAX));
	if (all_waiting(llc_rq_of(llc)))
		mark_waiting(llc);
}

/* Upper limit of attempts to advance a clock that other CPUs advance at the same time. */
#define CLOCK_ATTEMPTS 4

/*
 * Advances a clock to a vtime if the clock is behind. A plain store could undo the advance of
 * another CPU. If each of the CLOCK_ATTEMPTS attempts fails, other CPUs have advanced the clock in
 * the meantime, and the clock may stay behind this vtime until the next call.
 */
static inline void advance(__u64 *clock, __u64 vtime)
{
	int attempt;

	for (attempt = 0; attempt < CLOCK_ATTEMPTS; attempt++) {
		__u64 before = *(volatile __u64 *)clock;

		if (!is_before(before, vtime))
			return;
		before_swap(clock);
		if (__sync_bool_compare_and_swap(clock, before, vtime))
			return;
	}
}

static inline void advance_clock(struct llc_rq *llc_rq, __u64 vtime)
{
	advance(&llc_rq->clock, vtime);
}

/*
 * Advances the CPU's clock to the clock of the LLC. The caller has found that no thread waits for
 * this CPU.
 */
static inline void catch_up(struct cpu_state *state,
			    const struct llc_rq *llc_rq)
{
	state->clock = later(state->clock, llc_rq->clock);
	reset_aging(&state->aging);
}

/* Returns the clock of a CPU, which is at most that of its LLC. */
static inline __u64 clock_of(const struct cpu_state *state,
			     const struct llc_rq *llc_rq)
{
	return state->idle ? llc_rq->clock
			   : earlier(state->clock, llc_rq->clock);
}

/* Converts the vtime of a thread to the clock of another LLC. */
static inline void follow_clock(struct thread *thread, __u32 llc)
{
	if (thread->llc == llc)
		return;
	thread->vtime += llc_rq_of(llc)->clock - llc_rq_of(thread->llc)->clock;
	thread->family_ns = thread->resume_vtime = 0;
	thread->llc = llc;
}

/*
 * Returns a number that identifies the address space; 0: the thread has none. The pointer is stored
 * in a map value and read back, so that the verifier treats it as a number. This takes fifty
 * instructions less than a BPF_CORE_READ.
 */
static inline __u64 mm_id(struct task_struct *p, struct thread *thread)
{
	*(struct mm_struct *volatile *)&thread->mm = p->mm;
	return *(volatile __u64 *)&thread->mm;
}

/* Returns the state of a thread; 0: usher_init_task() has not run for it. */
static inline struct thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&threads, p, 0, 0);
}

/* Returns the weight of a cgroup for `struct group_share`. */
static inline __u64 group_weight_of(struct task_group *group)
{
	struct task_group___flat *flat = (void *)group;

	if (bpf_core_field_exists(group->idle) &&
	    BPF_CORE_READ(group, idle) > 0)
		return GROUP_WEIGHT_IDLE;
	if (bpf_core_field_exists(group->scx))
		return (__u64)BPF_CORE_READ(group, scx.weight) << OWN_SHIFT;
	if (bpf_core_field_exists(flat->scx_weight))
		return (__u64)BPF_CORE_READ(flat, scx_weight) << OWN_SHIFT;
	/* The kernel has no weights for sched_ext. */
	return WEIGHT_NORMAL << OWN_SHIFT;
}

/* Returns whether the thread may run on another CPU than its current CPU. */
ALWAYS _Bool is_movable(struct task_struct *p)
{
	__u32 disabled = p->migration_disabled;

	if (p->nr_cpus_allowed == 1)
		return 0;
	/*
	 * The amount that BPF callbacks add is limited to `disabled`. It may have been measured too
	 * high, because the thread that enabled the scheduler may have disabled migration itself.
	 */
	if (disabled && p == bpf_get_current_task_btf())
		disabled -=
			disabled < g_added_by_bpf ? disabled : g_added_by_bpf;
	return !disabled;
}

#endif
