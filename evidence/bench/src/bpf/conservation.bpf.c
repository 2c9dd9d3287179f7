// SPDX-License-Identifier: GPL-2.0-only
/*
 * Work conservation of any scheduler: CPU time that is idle although threads wait
 *
 * 1. Problem
 * ----------
 * A scheduler conserves work if no thread waits while a CPU that it may use is idle. A CPU that has
 * been requested to reschedule still runs the idle task until the interrupt arrives. This delay is
 * a property of the machine, and long in an emulator; it does not count.
 *
 * 2. Definitions
 * --------------
 * - A thread *waits* from its wake-up, or from its preemption, until it runs. Only user threads
 *   that may run on all CPUs count.
 * - A CPU is *idle* if it runs the idle task, and *called* if it has also been requested to
 *   reschedule.
 * - Each called CPU is assumed to take one waiting thread. The number of *unserved* CPUs is the
 *   smaller of the number of idle CPUs and of (waiting threads - called CPUs).
 * - `unserved_ns` is the integral of unserved CPUs over time. An *episode* is a time without
 *   interruption in which at least one CPU is unserved. The longest episode is an upper bound of
 *   the longest time for which a thread waited while a CPU was idle.
 *
 * 3. Steps
 * --------
 * One word holds the three counters, so that one atomic operation changes them together:
 * - sched_wakeup, sched_wakeup_new: a thread waits.
 * - sched_switch: the next thread runs, the previous thread waits if it is still runnable, and the
 *   CPU becomes busy or idle.
 * - sched_set_need_resched_tp: an idle CPU is called. Kernels without this trace point (6.16) use
 *   the trace points of interrupts to other CPUs instead.
 * - cpu_idle: a called CPU that has found no thread is idle again.
 *
 * Every program takes constant time.
 *
 * 4. Known limits
 * ---------------
 * - A thread without state (no memory) does not count.
 * - The state of a CPU is unknown, and counts as busy, until its first switch.
 * - Two events at the same time on two CPUs may be attributed to each other's interval.
 */
#include "kernel.h"
#include "numbers.h"

char LICENSE[] SEC("license") = "GPL";

/* Units of the three counters in `struct totals.counters`, which have 21 bits each. */
#define WAITING 1ULL
#define IDLE (1ULL << 21)
#define CALLED (1ULL << 42)
#define COUNTER_MASK ((1ULL << 21) - 1)

enum cpu_state {
	CPU_BUSY,
	CPU_IDLE,
	CPU_CALLED,
};

/* Number of CPUs; threads with fewer permitted CPUs do not count. User space sets the value. */
const volatile __u32 g_all_cpus SEC(".rodata.all_cpus");

struct totals {
	__u64 counters;
	/* Time of the last change of `counters`; 0: nothing has been counted yet. */
	__u64 changed_ns;
	__u64 unserved_ns;
	__u64 idle_ns;
	/* Begin of the present episode; 0: no episode. */
	__u64 begun_ns;
	__u64 longest_ns;
	__u64 episodes;
	/* Number of the measurement, from 1 on. User space sets it, and zeroes the rest. */
	__u64 measurement;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

/* `enum cpu_state` of each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CPUS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} cpu_states SEC(".maps");

/* Number of the measurement in which the thread waits; another number: the thread does not wait. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} waits SEC(".maps");

struct task_struct___running {
	int on_cpu;
} __attribute__((preserve_access_index));

/* Returns the number of unserved CPUs. */
static inline __u64 unserved(__u64 counters)
{
	__u64 waiting = counters & COUNTER_MASK;
	__u64 idle = counters >> 21 & COUNTER_MASK;
	__u64 called = counters >> 42 & COUNTER_MASK;

	if (waiting <= called)
		return 0;
	waiting -= called;
	return waiting < idle ? waiting : idle;
}

static inline void end_episode(struct totals *all, __u64 now)
{
	__u64 begun = __sync_lock_test_and_set(&all->begun_ns, 0);

	if (!begun || !is_before(begun, now))
		return;
	__sync_fetch_and_add(&all->episodes, 1);
	if (now - begun > all->longest_ns)
		all->longest_ns = now - begun;
}

static inline struct totals *the_totals(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&totals, &only);
}

/* Adds `delta` to the counters, and the time since the last change to the totals. */
static void change(__u64 delta)
{
	struct totals *all = the_totals();
	__u64 before, then, now, lost;

	if (!all || !delta)
		return;
	now = bpf_ktime_get_ns();
	before = __sync_fetch_and_add(&all->counters, delta);
	then = __sync_lock_test_and_set(&all->changed_ns, now);
	lost = unserved(before);
	if (then && is_before(then, now)) {
		__u64 idle = (before >> 21 & COUNTER_MASK) +
			     (before >> 42 & COUNTER_MASK);

		__sync_fetch_and_add(&all->unserved_ns, lost * (now - then));
		__sync_fetch_and_add(&all->idle_ns, idle * (now - then));
	}
	if (!lost == !unserved(before + delta))
		return;
	if (lost)
		end_episode(all, now);
	else
		all->begun_ns = now;
}

static inline __u64 weight(__u32 state)
{
	if (state == CPU_IDLE)
		return IDLE;
	return state == CPU_CALLED ? CALLED : 0;
}

/* Sets the state of a CPU. Returns the change of the counters. */
static inline __u64 set_cpu(__u32 cpu, __u32 to)
{
	__u32 *state = bpf_map_lookup_elem(&cpu_states, &cpu);
	__u32 from;

	if (!state)
		return 0;
	from = __sync_lock_test_and_set(state, to);
	return weight(to) - weight(from);
}

/* As set_cpu(), but changes only the state `from`. */
static inline __u64 set_cpu_if(__u32 cpu, __u32 from, __u32 to)
{
	__u32 *state = bpf_map_lookup_elem(&cpu_states, &cpu);

	if (!state || __sync_val_compare_and_swap(state, from, to) != from)
		return 0;
	return weight(to) - weight(from);
}

/* Records that a thread waits. Returns the change of the counters. */
static inline __u64 begin_wait(struct task_struct *p)
{
	struct totals *all = the_totals();
	__u64 *wait;

	if (!all || !BPF_CORE_READ(p, mm) ||
	    (__u32)BPF_CORE_READ(p, nr_cpus_allowed) < g_all_cpus)
		return 0;
	wait = bpf_task_storage_get(&waits, p, 0,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!wait || *wait == all->measurement)
		return 0;
	*wait = all->measurement;
	return WAITING;
}

/* Records that a thread runs. Returns the change of the counters. */
static inline __u64 end_wait(struct task_struct *p)
{
	__u64 *wait = bpf_task_storage_get(&waits, p, 0, 0);
	struct totals *all = the_totals();

	if (!all || !wait || *wait != all->measurement)
		return 0;
	*wait = 0;
	return -WAITING;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, _Bool preempt, struct task_struct *prev,
	     struct task_struct *next, __u32 prev_state)
{
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 delta = set_cpu(cpu, next->pid ? CPU_BUSY : CPU_IDLE);

	if (prev->pid && (preempt || !prev_state))
		delta += begin_wait(prev);
	if (next->pid)
		delta += end_wait(next);
	change(delta);
	return 0;
}

static inline int on_wake(struct task_struct *p)
{
	struct task_struct___running *running = (void *)p;

	/* A wake-up of a thread that has not stopped to run yet. */
	if (!BPF_CORE_READ(running, on_cpu))
		change(begin_wait(p));
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	return on_wake(p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_first_wakeup, struct task_struct *p)
{
	return on_wake(p);
}

SEC("?tp_btf/sched_set_need_resched_tp")
int BPF_PROG(on_need_resched, struct task_struct *p, int cpu, int flag)
{
	change(set_cpu_if(cpu, CPU_IDLE, CPU_CALLED));
	return 0;
}

SEC("?tp_btf/ipi_send_cpu")
int BPF_PROG(on_interrupt, __u32 cpu)
{
	change(set_cpu_if(cpu, CPU_IDLE, CPU_CALLED));
	return 0;
}

SEC("?tp_btf/sched_wake_idle_without_ipi")
int BPF_PROG(on_wake_idle, int cpu)
{
	change(set_cpu_if(cpu, CPU_IDLE, CPU_CALLED));
	return 0;
}

/* The trace point also reports the end of idle time, with this state. */
#define IDLE_ENDS 0xffffffffU

SEC("tp_btf/cpu_idle")
int BPF_PROG(on_idle, __u32 state, __u32 cpu)
{
	if (state != IDLE_ENDS)
		change(set_cpu_if(cpu, CPU_CALLED, CPU_IDLE));
	return 0;
}
