// SPDX-License-Identifier: GPL-2.0-only
/*
 * Scans the run queues of all CPUs to detect imbalances and vacant CPUs.
 *
 * Problem: the kernel's load balancer moves threads to idle CPUs. The load
 * balancer counts SCHED_IDLE threads as load, and considers a CPU that runs
 * background work busy. Therefore two ordinary threads can share one CPU for
 * seconds while another CPU runs only background work, although a SCHED_IDLE
 * thread would yield its CPU to an ordinary thread at once.
 *
 * Method: a BPF timer scans the run queues of all CPUs while there are
 * background programs. Each scan has four steps:
 *
 * 1. Read the number of runnable, fair and SCHED_IDLE threads of each CPU.
 * 2. Detect imbalances. A CPU with two or more ordinary threads in two
 *    consecutive scans is imbalanced if in both scans another CPU ran only
 *    background work and no CPU was idle. Shorter imbalances are normal for any
 *    scheduler. Ordinary threads of all owners are counted: also threads of the
 *    kernel, of services, and of background work that could not be made
 *    SCHED_IDLE.
 * 3. Record the time since which at least one CPU has been vacant. The CPU
 *    times of all threads would show this time, too, but reading them at this
 *    rate would be too expensive.
 * 4. Notify user space of imbalances and vacancies (notify.h).
 *
 * Bound: the interval is 2 ms while background work runs, and 8 ms while all
 * background work is stopped or idle. The interval is also at least 200 times
 * the mean duration of a scan (SCAN_INTERVAL_RATIO). The scan takes at most 0.5
 * % of one CPU. CPUs with numbers from 4096 (MAX_CPUS) on are not scanned.
 *
 * Limit: kernels without KALLSYMS_ALL do not expose the addresses of run
 * queues. Therefore the programs take the address of a run queue from a thread
 * that the task iterator visits and that last ran on this queue. On a host, all
 * run queues are known after one iteration, because the kernel has threads for
 * each CPU. In a container, the iterator visits only the container's threads.
 * In this case, only the run queues of CPUs on which these threads have run are
 * known.
 */
#include "notify.h"
#include "logic.h"

#define MAX_CPUS 4096
/* Scan intervals: while background work runs, while all background work is
 * stopped or idle, and while there is no background program. */
#define SCAN_BACKGROUND_NS 2000000
#define SCAN_IDLE_NS 8000000
#define SCAN_NO_PROGRAM_NS 100000000
/* Lower bound of the interval, as a multiple of the mean duration of a scan. */
#define SCAN_INTERVAL_RATIO 200

struct scan_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scan_timer);
} scan_timers SEC(".maps");

struct queue {
	/* Address of the CPU's struct rq, which never changes. */
	__u64 rq;
	/* Number of consecutive scans in which the CPU was imbalanced. */
	__u32 imbalanced_scans;
	__u32 unused;
};

/* The known run queues, by CPU number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rq_scan);
} rq_scans SEC(".maps");

/* Records the address of the run queue on which the task last ran. */
static void note_queue(struct task_struct *task)
{
	__u32 zero = 0;
	struct rq_scan *scan = bpf_map_lookup_elem(&rq_scans, &zero);
	struct queue *queue;
	struct rq *rq;
	__u32 cpu;

	if (!bpf_core_field_exists(task->se.cfs_rq) ||
	    !bpf_core_field_exists(struct rq, cpu))
		return;
	rq = BPF_CORE_READ(task, se.cfs_rq, rq);
	cpu = BPF_CORE_READ(rq, cpu);
	queue = bpf_map_lookup_elem(&queues, &cpu);
	/* While a task changes its task group, the pointer may refer to an
	 * unrelated structure. Therefore the pointer is checked. */
	if (!queue || !scan || queue->rq || BPF_CORE_READ(rq, cfs.rq) != rq)
		return;
	queue->rq = (__u64)rq;
	scan->queues += 1;
	if (cpu >= scan->cpus)
		scan->cpus = cpu + 1;
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
		/*
		 * Threads with a delayed dequeue sleep, but the kernel still
		 * counts them. Such threads are subtracted.
		 */
		if (bpf_core_field_exists(delaying->cfs.h_nr_delayed))
			runnable = saturating_sub(
				runnable,
				BPF_CORE_READ(delaying, cfs.h_nr_delayed));
	}
	load->ordinary = saturating_sub(runnable, load->background);
}

static long scan_queue(__u32 cpu, void *unused)
{
	__u32 zero = 0;
	struct rq_scan *scan = bpf_map_lookup_elem(&rq_scans, &zero);
	struct queue *queue = bpf_map_lookup_elem(&queues, &cpu);
	struct load load = {};
	struct rq *rq;

	if (!queue || !scan)
		return 1;
	rq = (struct rq *)queue->rq;
	if (!rq)
		return 0;
	if (!BPF_CORE_READ(rq, online)) {
		queue->imbalanced_scans = 0;
		return 0;
	}
	read_load(rq, &load);
	add_cpu(scan, &queue->imbalanced_scans, &load);
	return 0;
}

/*
 * Scans the known run queues. The results are stored in a map instead of local
 * variables, because verifiers before Linux 6.7 analyse the body of a loop only
 * once, and would infer wrong bounds for local variables.
 */
static __u64 scan_queues(struct bpf_config *config, struct rq_scan *scan)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 vacant;

	begin_scan(scan);
	bpf_loop(scan->cpus, scan_queue, NULL, 0);
	/* A waiting background program may use any CPU that runs no foreground work. */
	vacant = scan->idle + (config->notify_vacancies ? scan->background : 0);
	if (note_vacancy(scan, vacant, now, config->notify_vacancies))
		notify(now);
	note_background_only(scan, now);
	if (end_scan(scan) && config->notify_imbalances)
		notify(now);
	scan->scans += 1;
	scan->scans_ns += bpf_ktime_get_ns() - now;
	return scan->background && config->notify_imbalances
		       ? SCAN_BACKGROUND_NS
		       : SCAN_IDLE_NS;
}

static int scan_on_timer(void *map, __u32 *key, struct scan_timer *timer)
{
	struct bpf_config *config = get_config();
	__u32 zero = 0;
	struct rq_scan *scan = bpf_map_lookup_elem(&rq_scans, &zero);
	__u64 interval_ns = SCAN_NO_PROGRAM_NS;
	__u64 min_ns;

	if (!config || !scan)
		return 0;
	if (config->programs) {
		interval_ns = scan_queues(config, scan);
		min_ns = scan->scans_ns / scan->scans * SCAN_INTERVAL_RATIO;
		if (min_ns > interval_ns)
			interval_ns = min_ns;
	}
	bpf_timer_start(&timer->timer, interval_ns, 0);
	return 0;
}

/* Starts the timer of the scan. User space runs this program once, after
 * loading. */
SEC("syscall")
int start_rq_scan(void *ctx)
{
	__u32 zero = 0;
	struct scan_timer *timer = bpf_map_lookup_elem(&scan_timers, &zero);

	if (!timer)
		return 1;
	if (bpf_timer_init(&timer->timer, &scan_timers, CLOCK_MONOTONIC))
		return 1;
	bpf_timer_set_callback(&timer->timer, scan_on_timer);
	return bpf_timer_start(&timer->timer, SCAN_NO_PROGRAM_NS, 0) != 0;
}
