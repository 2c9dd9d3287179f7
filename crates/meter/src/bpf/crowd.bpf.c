// SPDX-License-Identifier: GPL-2.0-only
/*
 * Crowds: threads that wait for one another on one CPU while another runs
 * nothing but background work. The kernel spreads threads over CPUs that idle,
 * counts background threads like any other, and so finds all CPUs busy and
 * nothing to mend, for seconds at times, although whoever runs when nobody else
 * wants to (SCHED_IDLE) would make room at once.
 *
 * A timer looks at the run queues while there are background programs. Two looks
 * in a row have to find the same CPU crowded: what lasts for less is no worse
 * than any scheduler's hesitation.
 *
 * It also sees when CPUs that were all busy are so no longer, long before
 * anybody could afford to look at the CPU times of all threads for that.
 *
 * Where a CPU's run queue is, kernels need not tell (without KALLSYMS_ALL they
 * do not), but a thread knows the one that it was on last. All are known at once,
 * as the kernel has threads for each CPU; in a container, whose threads alone are
 * visited there, those that it has been on.
 */
#include "bell.h"
#include "rules.h"

#define MOST_CPUS 4096
/* Between two looks while background work runs, while none does, without any. */
#define CROWDS_NS 2000000
#define VACANCIES_NS 8000000
#define NOTHING_NS 100000000

struct watch {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct watch);
} watches SEC(".maps");

struct queue {
	/* A struct rq, which stays where it is. */
	__u64 rq;
	/* Whether the last look found it crowded. */
	__u32 was_crowded;
	__u32 unused;
};

/* By CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_CPUS);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct crowds);
} crowds SEC(".maps");

struct round {
	_Bool background;
	_Bool crowd;
	__u32 idle;
};

/* A thread tells of the CPU that it was on last. */
static void note_queue(struct task_struct *task)
{
	__u32 only = 0;
	struct crowds *all = bpf_map_lookup_elem(&crowds, &only);
	struct queue *queue;
	struct rq *rq;
	__u32 cpu;

	if (!bpf_core_field_exists(task->se.cfs_rq))
		return;
	rq = BPF_CORE_READ(task, se.cfs_rq, rq);
	cpu = BPF_CORE_READ(rq, cpu);
	queue = bpf_map_lookup_elem(&queues, &cpu);
	/* A thread that changes groups just now may lead anywhere. */
	if (!queue || !all || queue->rq || BPF_CORE_READ(rq, cfs.rq) != rq)
		return;
	queue->rq = (__u64)rq;
	if (cpu >= all->cpus)
		all->cpus = cpu + 1;
}

/* Threads of the fair class that can run and are not SCHED_IDLE. */
static __u32 ordinary(struct rq *rq)
{
	struct rq___older *older = (void *)rq;

	if (bpf_core_field_exists(rq->cfs.h_nr_idle))
		return less(BPF_CORE_READ(rq, cfs.h_nr_runnable),
			    BPF_CORE_READ(rq, cfs.h_nr_idle));
	return less(BPF_CORE_READ(older, cfs.h_nr_running),
		    BPF_CORE_READ(older, cfs.idle_h_nr_running));
}

static long look_at_queue(__u32 cpu, struct round *round)
{
	struct queue *queue = bpf_map_lookup_elem(&queues, &cpu);
	struct rq *rq;
	__u32 count;

	if (!queue)
		return 1;
	rq = (struct rq *)queue->rq;
	if (!rq || !BPF_CORE_READ(rq, online))
		return 0;
	count = ordinary(rq);
	if (!BPF_CORE_READ(rq, nr_running))
		round->idle += 1;
	else if (count == 0)
		round->background = 1;
	if (count >= 2 && queue->was_crowded)
		round->crowd = 1;
	queue->was_crowded = count >= 2;
	return 0;
}

static int look_for_crowds(void *map, __u32 *key, struct watch *watch)
{
	struct control *orders = orders_given();
	__u32 only = 0;
	struct crowds *seen = bpf_map_lookup_elem(&crowds, &only);
	__u64 pause_ns = NOTHING_NS;
	__u64 now = bpf_ktime_get_ns();
	struct round round = {};

	if (!orders || !seen)
		return 0;
	if (orders->programs) {
		bpf_loop(seen->cpus, look_at_queue, &round, 0);
		pause_ns = round.background ? CROWDS_NS : VACANCIES_NS;
	}
	note_vacancy(seen, round.idle, now);
	if (orders->vacancies && seen->vacant_looks == VACANT_LOOKS)
		ring(now);
	if (round.background && round.crowd) {
		seen->found += 1;
		ring(now);
	}
	bpf_timer_start(&watch->timer, pause_ns, 0);
	return 0;
}

/* Run once, by user space. */
SEC("syscall")
int watch_for_crowds(void *ctx)
{
	__u32 only = 0;
	struct watch *watch = bpf_map_lookup_elem(&watches, &only);

	if (!watch)
		return 1;
	if (bpf_timer_init(&watch->timer, &watches, CLOCK_MONOTONIC))
		return 1;
	bpf_timer_set_callback(&watch->timer, look_for_crowds);
	return bpf_timer_start(&watch->timer, NOTHING_NS, 0) != 0;
}
