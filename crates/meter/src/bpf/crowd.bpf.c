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
 * than any scheduler's hesitation. Whose the threads are is not asked: those of
 * the kernel, of services, of background work that could not be made SCHED_IDLE
 * crowd, too.
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
/* Many CPUs take long to look at: apart by so many times what a look takes. */
#define LOOK_PAUSES 200

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
	/* For how many looks it has been crowded. */
	__u32 crowded_looks;
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

/* A thread tells of the CPU that it was on last. */
static void note_queue(struct task_struct *task)
{
	__u32 only = 0;
	struct crowds *all = bpf_map_lookup_elem(&crowds, &only);
	struct queue *queue;
	struct rq *rq;
	__u32 cpu;

	if (!bpf_core_field_exists(task->se.cfs_rq) ||
	    !bpf_core_field_exists(struct rq, cpu))
		return;
	rq = BPF_CORE_READ(task, se.cfs_rq, rq);
	cpu = BPF_CORE_READ(rq, cpu);
	queue = bpf_map_lookup_elem(&queues, &cpu);
	/* A thread that changes groups just now may lead anywhere. */
	if (!queue || !all || queue->rq || BPF_CORE_READ(rq, cfs.rq) != rq)
		return;
	queue->rq = (__u64)rq;
	all->queues += 1;
	if (cpu >= all->cpus)
		all->cpus = cpu + 1;
}

static void read_load(struct rq *rq, struct load *load)
{
	struct rq___6_13 *older = (void *)rq;
	struct rq___6_12 *delaying = (void *)rq;
	__u32 runnable;

	load->all = BPF_CORE_READ(rq, nr_running);
	if (bpf_core_field_exists(rq->cfs.h_nr_idle)) {
		load->background = BPF_CORE_READ(rq, cfs.h_nr_idle);
		runnable = BPF_CORE_READ(rq, cfs.h_nr_runnable);
	} else {
		load->background = BPF_CORE_READ(older, cfs.idle_h_nr_running);
		runnable = BPF_CORE_READ(older, cfs.h_nr_running);
		/* Some that sleep stay in the queue for a while. */
		if (bpf_core_field_exists(delaying->cfs.h_nr_delayed))
			runnable = minus_or_none(
				runnable,
				BPF_CORE_READ(delaying, cfs.h_nr_delayed));
	}
	load->ordinary = minus_or_none(runnable, load->background);
}

static long look_at_queue(__u32 cpu, void *unused)
{
	__u32 only = 0;
	struct crowds *seen = bpf_map_lookup_elem(&crowds, &only);
	struct queue *queue = bpf_map_lookup_elem(&queues, &cpu);
	struct load load = {};
	struct rq *rq;

	if (!queue || !seen)
		return 1;
	rq = (struct rq *)queue->rq;
	if (!rq)
		return 0;
	if (!BPF_CORE_READ(rq, online)) {
		queue->crowded_looks = 0;
		return 0;
	}
	read_load(rq, &load);
	add_cpu(seen, &queue->crowded_looks, &load);
	return 0;
}

/*
 * All that a look finds lies in a map: verifiers before 6.7 walk through a
 * loop's body once, and would conclude from that what it cannot have found.
 */
static __u64 look_at_queues(struct control *orders, struct crowds *seen)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 vacant;

	begin_look(seen);
	bpf_loop(seen->cpus, look_at_queue, NULL, 0);
	/* Whoever waits for a CPU is background work: others' is no hindrance. */
	vacant = seen->idle + (orders->vacancies ? seen->background : 0);
	if (note_vacancy(seen, vacant, now, orders->vacancies))
		ring(now);
	note_alone(seen, now);
	if (end_look(seen) && orders->crowds)
		ring(now);
	seen->looks += 1;
	seen->looks_ns += bpf_ktime_get_ns() - now;
	return seen->background && orders->crowds ? CROWDS_NS : VACANCIES_NS;
}

static int look_for_crowds(void *map, __u32 *key, struct watch *watch)
{
	struct control *orders = orders_given();
	__u32 only = 0;
	struct crowds *seen = bpf_map_lookup_elem(&crowds, &only);
	__u64 pause_ns = NOTHING_NS;
	__u64 least_ns;

	if (!orders || !seen)
		return 0;
	if (orders->programs) {
		pause_ns = look_at_queues(orders, seen);
		least_ns = seen->looks_ns / seen->looks * LOOK_PAUSES;
		if (least_ns > pause_ns)
			pause_ns = least_ns;
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
