/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the scheduler knows: its settings, each CPU, each thread, each queue.
 */
#ifndef USHER_SCX_STATE_H
#define USHER_SCX_STATE_H

#include "levels.h"
#include "machine.h"
#include "rules.h"

/* A CPU, as others see it. */
struct cpu_state {
	/* What runs may run elsewhere. */
	__u32 movable;
	__u32 urgent;
	/* How the next thread is come by, where not by its own queue. */
	__u32 why;
	/* As the kernel says when a CPU falls idle, and when it is so no more. */
	__u32 idle;
	/* The last user thread's address space. */
	__u64 last_mm;
	/* Whose turn it is; an urgent thread of another's comes in between. */
	__u64 turn_mm;
	/* Those who share that turn, and the queue that the last of them came from. */
	__u64 turn_key;
	__u32 turn_queue;
	__u32 unused;
	__u64 turn_began_ns;
	/* When one that is not urgent last ran; 0: none has waited since. */
	__u64 served_ns;
	/* The virtual time of whoever waits for this CPU and is furthest behind, at its
	 * latest: behind the hall's where threads are kept to some of its CPUs, and crowd
	 * there. Not behind it where nobody waits. */
	__u64 clock;
	struct pace pace;
	/* Of the LLC's queues. */
	struct head_skip head_skip;
	/* The key of what runs, where levels decide. */
	__u64 key;
	/* Where the kernel has the CPUs that it may run on, as long as it runs. */
	const struct cpumask *allowed;
};

/* The two arrays of Linux 2.6; the active one is that of the hall's clock. */
struct arrays {
	__u64 arrivals;
	/* A key of the array that somebody expired into last; when the first did. */
	__u64 expired;
	__u64 expired_since_ns;
};

/* The queues of an LLC. */
struct llc_rq {
	struct mm_queue mm_queues[MM_QUEUES_PER_LLC];
	/* The virtual time of whoever waits and is furthest behind, at its latest; it
	 * stands still while nobody waits. Other halls' are ahead or behind. */
	__u64 clock;
	/* In the queues of address spaces, and in the urgent one. */
	__u32 waiting;
	__u32 urgent;
	/* The LLC's CPUs. */
	__u32 cpus;
	__u32 unused;
	/* When one of them is to look at another LLC. */
	__u64 balance_at_ns;
	struct arrays arrays;
};

#ifdef __bpf__
#include "maps.h"
#include "globals.h"
#else
#include "instance.h"
#endif

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

/* Whether any CPU is idle; most of the time none is. */
ALWAYS _Bool any_idle(void)
{
	__u64 words = g_order.cpu_words;
	__u64 any = 0;
	__u32 word;

	for (word = 0; word < CPU_WORDS; word++)
		if (word < words)
			any |= g_idle_cpus.words[word];
	return any != 0;
}

/*
 * As far as the kernel has said. What runs may be a real-time thread, and what is known of
 * the CPU tell of ours that ran before.
 */
static inline _Bool is_busy(__u32 cpu)
{
	return !has_cpu(&g_idle_cpus, cpu);
}

/* Whether a CPU is in a set from now on; most of them are as they were. */
static inline void note_in(struct cpu_set *set, __u32 cpu, _Bool is_in)
{
	if (has_cpu(set, cpu) == is_in)
		return;
	if (is_in)
		add_to(set, cpu);
	else
		remove_from(set, cpu);
}

static inline struct idle_scan_ctx *scan_ctx(void)
{
	return &g_scan_ctxs[bpf_get_smp_processor_id() % CPUS_MAX];
}

/* Queues are numbered by LLC, then by address space; behind those, the queue
 * of urgent threads. */
#define QUEUES_EACH 64
#define URGENT MM_QUEUES_PER_LLC
#define QUEUES 0x1000
#define NO_QUEUE 0
#define FIFO (QUEUES - 1)

/* On the CPU that counts. */
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

static inline void advance_clock(struct llc_rq *llc_rq, __u64 vtime)
{
	if (is_before(llc_rq->clock, vtime))
		llc_rq->clock = vtime;
}

/* Nobody waits for this CPU: it is behind the others no more. */
static inline void catch_up(struct cpu_state *state,
			    const struct llc_rq *llc_rq)
{
	state->clock = later(state->clock, llc_rq->clock);
	reset_pace(&state->pace);
}

static inline __u64 clock_of(const struct cpu_state *state,
			     const struct llc_rq *llc_rq)
{
	return state->idle ? llc_rq->clock
			   : earlier(state->clock, llc_rq->clock);
}

/* A thread's virtual time is by the clock of an LLC, from now on of this one. */
static inline void follow_clock(struct thread *thread, __u32 llc)
{
	if (thread->llc == llc)
		return;
	thread->vtime += llc_rq_of(llc)->clock - llc_rq_of(thread->llc)->clock;
	thread->llc = llc;
}

/*
 * A number by which the thread's address space is known; 0: it has none. By way of a map,
 * whose words are no pointers to the verifier, this takes fifty instructions less than a
 * BPF_CORE_READ.
 */
static inline __u64 mm_id(struct task_struct *p, struct thread *thread)
{
	*(struct mm_struct *volatile *)&thread->mm = p->mm;
	return *(volatile __u64 *)&thread->mm;
}

static inline struct thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&threads, p, 0, 0);
}

/* Cgroups in one another whose weights count. */
#define GROUPS_DEEP 8
/* Of those with cpu.idle: the least that there is. */
#define GROUP_WEIGHT_IDLE 1
/* A new weight, or a new cgroup, is noticed after so long: a second at most, unless the kernel
 * was built for a hundred ticks a second. The count of ticks is at hand, the time is not. */
#define WEIGHT_LASTS_TICKS 250

static inline __u32 group_weight_of(struct task_group *group)
{
	struct task_group___flat *flat = (void *)group;

	if (bpf_core_field_exists(group->idle) &&
	    BPF_CORE_READ(group, idle) > 0)
		return GROUP_WEIGHT_IDLE;
	if (bpf_core_field_exists(group->scx))
		return BPF_CORE_READ(group, scx.weight);
	if (bpf_core_field_exists(flat->scx_weight))
		return BPF_CORE_READ(flat, scx_weight);
	return 0;
}

/* cpu.weight multiplies the weights of all threads below. */
static __attribute__((noinline)) __u32 weigh_groups(struct task_struct *p)
{
	struct task_group *group = BPF_CORE_READ(p, sched_task_group);
	__u32 percent = 100;
	int level;

	bpf_for(level, 0, GROUPS_DEEP)
	{
		struct task_group *parent;

		parent = group ? BPF_CORE_READ(group, parent) : 0;
		if (!parent)
			break;
		percent = within_group(percent, group_weight_of(group));
		group = parent;
	}
	return percent;
}

/* Of nice value and cgroups. */
ALWAYS __u64 weight_of(struct task_struct *p, struct thread *thread)
{
	__u64 now = bpf_jiffies64();

	if (now - thread->weighed_at_ticks > WEIGHT_LASTS_TICKS) {
		thread->weighed_at_ticks = now;
		thread->group_weight = weigh_groups(p);
	}
	return weight_in(p->scx.weight, thread->group_weight);
}

static inline void read_set(struct cpu_set *to, const struct cpumask *from)
{
	__u32 bytes = (scx_bpf_nr_cpu_ids() + 63) / 64 * 8;

	__builtin_memset(to, 0, sizeof(*to));
	if (bytes > sizeof(*to))
		bytes = sizeof(*to);
	bpf_probe_read_kernel(to, bytes, from);
}

/* May run on other CPUs than the one that it is on. */
ALWAYS _Bool is_movable(struct task_struct *p)
{
	__u32 disabled = p->migration_disabled;

	if (p->nr_cpus_allowed == 1)
		return 0;
	if (disabled && p == bpf_get_current_task_btf())
		disabled -= g_added_by_bpf;
	return !disabled;
}

#endif
