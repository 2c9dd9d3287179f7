// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters of context switches, migrations and wake-ups under any scheduler, at the kernel's trace
 * points
 *
 * - A switch of address spaces: a user thread runs after a thread of another address space *on the
 *   same CPU*. Idle and kernel threads in between do not count.
 * - Needless sharing: two threads run on one core while another core is idle. One 64-bit word holds
 *   the numbers of shared and of idle cores, so that one atomic operation updates them together.
 *   The time since the last update is added to the durations according to the previous value of the
 *   word.
 * - A migration: a thread starts to run on another CPU than before. Migrations are counted
 *   separately by distance.
 * - The latency of a wake-up: the time from the kernel's report that the thread is runnable until
 *   the thread runs.
 *
 * The programs run at the trace points sched_switch, sched_wakeup and sched_wakeup_new, and take
 * constant time. User space (src/counter.rs) reads the maps `counts` (per CPU) and `sharing`, and
 * rejects machines with CPU numbers from CPUS_MAX on. A CPU on which no switch has occurred since
 * the start counts as idle.
 *
 * A histogram has LATENCY_SLOTS (256) slots. If the kernel has no memory for the state of a thread,
 * the migrations and wake-ups of that thread are not counted.
 */
#include "machine.h"
#include "choose.h"

char LICENSE[] SEC("license") = "GPL";

/* State of a thread. */
struct trace {
	/* Time of the wake-up; 0: the thread runs or sleeps. */
	__u64 woken_ns;
	/* Last CPU, counted from 1; 0: unknown. */
	__u32 last;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct trace);
} traces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* State of a CPU. */
struct cpu_now {
	/* Address space of the last user thread. */
	__u64 last_mm;
	/* Address space of the running thread; 0: a kernel thread. */
	__u64 previous_mm;
	/* 1: a thread runs. 0: the CPU is idle. */
	__u32 works;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_now);
} cpus_now SEC(".maps");

/* Number of busy hardware threads of each core; the key is the first CPU of the core. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} working SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sharing);
} sharing SEC(".maps");

/* Increment of the field `cores` of `struct sharing` for each shared core. */
#define SHARED_ONE (1ULL << 32)

/*
 * Adds the time since the last change to the durations of shared cores. `before` is the value of
 * the field `cores` during that time.
 */
static inline void charge(struct sharing *all, __u64 before, __u64 now)
{
	__u64 then = __sync_lock_test_and_set(&all->since_ns, now);
	__u64 shared = before >> 32;

	if (!then || !is_before(then, now) || !shared)
		return;
	__sync_fetch_and_add(&all->shared_ns, now - then);
	if ((__u32)before)
		__sync_fetch_and_add(&all->needless_ns, now - then);
}

/* Records that a CPU becomes busy or idle. */
static void change(__u32 cpu, _Bool works, __u64 now)
{
	struct sharing *all = ONLY(sharing);
	struct place *here = place_of(cpu);
	__u64 step = works ? 1 : -1ULL;
	__u64 delta = 0;
	__u64 *threads;
	__u64 before;
	__u32 core;

	if (!all || !here->known)
		return;
	core = first_of(&here->core, &here->core, 0, here->core_words);
	threads = bpf_map_lookup_elem(&working, &core);
	if (!threads)
		return;
	before = __sync_fetch_and_add(threads, step);
	if (before == !works)
		delta = works ? -1ULL : 1;
	else if (before == 1 + !works)
		delta = works ? SHARED_ONE : -SHARED_ONE;
	before = __sync_fetch_and_add(&all->cores, delta);
	charge(all, before, now);
}

/* Counts a migration by distance. */
static inline void note_move(struct counts *here, __u32 from, __u32 to)
{
	struct place *place = place_of(from);

	if (from == to)
		return;
	if (has_cpu(&place->core, to))
		here->migrations_core++;
	else if (has_cpu(&place->near, to))
		here->migrations_llc++;
	else if (has_cpu(&place->node, to))
		here->migrations_node++;
	else
		here->migrations_far++;
}

/* Counts the migration and the wake-up latency of a thread that starts to run. */
static inline void note_run(struct counts *here, struct task_struct *next,
			    __u32 cpu, __u64 now)
{
	struct trace *trace;

	trace = bpf_task_storage_get(&traces, next, 0,
				     BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!trace)
		return;
	if (trace->last)
		note_move(here, trace->last - 1, cpu);
	trace->last = cpu + 1;
	if (trace->woken_ns) {
		__u32 slot = latency_slot(since(trace->woken_ns, now));

		trace->woken_ns = 0;
		here->wakeups++;
		here->latency[slot]++;
	}
}

/* Discards a wake-up that was reported while the thread ran, because the thread did not wait. */
static inline void note_rest(struct task_struct *prev)
{
	struct trace *trace = bpf_task_storage_get(&traces, prev, 0, 0);

	if (trace)
		trace->woken_ns = 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(count_switch, _Bool preempt, struct task_struct *prev,
	     struct task_struct *next)
{
	__u64 mm = (__u64)BPF_CORE_READ(next, mm);
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu_now *now_here = ONLY(cpus_now);
	struct counts *here = ONLY(counts);
	__u64 now = bpf_ktime_get_ns();
	_Bool works = next->pid;

	if (!here || !now_here)
		return 0;
	here->switches++;
	if (works != now_here->works) {
		now_here->works = works;
		change(cpu, works, now);
	}
	if (mm && mm != now_here->previous_mm)
		here->mm_changes++;
	now_here->previous_mm = mm;
	if (mm && mm != now_here->last_mm) {
		now_here->last_mm = mm;
		here->space_switches++;
	}
	if (prev->pid)
		note_rest(prev);
	if (works)
		note_run(here, next, cpu, now);
	return 0;
}

static inline void note_wake(struct task_struct *p)
{
	struct trace *trace;

	trace = bpf_task_storage_get(&traces, p, 0,
				     BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (trace)
		trace->woken_ns = bpf_ktime_get_ns();
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(count_wakeup, struct task_struct *p)
{
	note_wake(p);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(count_first_wakeup, struct task_struct *p)
{
	note_wake(p);
	return 0;
}
