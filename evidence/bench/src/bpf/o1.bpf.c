// SPDX-License-Identifier: GPL-2.0-only
/*
 * O(1) scheduler of Linux 2.6, the baseline of paper 4, and paper 4's improvement
 * ===============================================================================
 *
 * This is a sched_ext scheduler. The declarations of kernel functions are those of Usher's
 * scheduler (crates/scx/src/bpf).
 *
 * 1. Idea
 * -------
 * arrays.h describes the order of threads: arrays, levels and arrivals. For each CPU, array and
 * level, a dispatch queue of the kernel holds the waiting threads, ordered by arrival.
 *
 * 2. Steps, in the order of a thread's life
 * ----------------------------------------
 * 1. `select_cpu`: a thread that wakes runs on its last CPU if that CPU is idle, else on any idle
 *    CPU. SMT is ignored.
 * 2. `enqueue`: without an idle CPU, the thread waits in an array of its last CPU. If the thread
 *    has just woken and its level is better than that of the running thread, it preempts the
 *    running thread.
 * 3. `dispatch`: the running thread competes with the best waiting thread (arrays.h). A CPU without
 *    a thread takes a thread from the CPU with the most waiting threads. Every 200 ms, a CPU also
 *    takes a thread from a CPU with at least two more waiting threads than it has itself.
 * 4. `tick`: if threads wait on this CPU, kicks an idle CPU, which then takes a thread.
 *
 * 3. Bound
 * --------
 * With `aggregate` (paper 4), a decision searches for a thread of the running address space among
 * the first SCAN_MAX threads of each of two queues. All other steps of a decision take constant
 * time; taking a thread of another CPU takes time proportional to the number of CPUs.
 *
 * 4. Known limits
 * ---------------
 * - sched_yield() does nothing before the end of the slice. Linux 2.6 moved the thread to the
 *   expired array.
 * - A child gets a slice of its own. Linux 2.6 divided the slice of the parent.
 * - There is no callback for CPU hotplug; if a CPU goes online or offline, the kernel ends the
 *   scheduler.
 * - `aggregate` requires Linux 6.13.
 * - Kernel threads that are bound to one CPU enter no array; they preempt the running thread.
 */
#include "kernel.h"

#include "arrays.h"

char LICENSE[] SEC("license") = "GPL";

/* This kernel function exists from Linux 6.13 on. */
extern _Bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it,
			      struct task_struct *p, __u64 dsq,
			      __u64 flags) __ksym __weak;
extern __s32 scx_bpf_dsq_nr_queued(__u64 dsq) __ksym;

/* Whether paper 4's improvement applies. The loader sets the value before it loads the program. */
const volatile __u32 g_aggregate SEC(".rodata.aggregate");

struct o1_cpu g_cpus[CPUS_MAX];

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct o1_thread);
} threads SEC(".maps");

#define QUEUES_PER_ARRAY 64
#define BALANCE_NS (200 * MSEC)
#define SCAN_MAX 64
/*
 * Upper limit of the attempts of a decision. An attempt fails if its thread has left the queue
 * in the meantime.
 */
#define ATTEMPTS_MAX (2 * NICE_LEVELS)
/*
 * The kernel ends the scheduler if a thread waits for longer. This is the kernel's maximum,
 * because the order does not limit waiting times.
 */
#define TIMEOUT_MS 30000

static inline struct o1_cpu *state_of(__u32 cpu)
{
	return &g_cpus[cpu % CPUS_MAX];
}

static inline struct o1_thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&threads, p, 0, 0);
}

static inline __u64 queue_of(__u32 cpu, __u32 array, __u32 level)
{
	return ((__u64)cpu * 2 + (array & 1)) * QUEUES_PER_ARRAY + level -
	       LEVEL_FIRST;
}

/*
 * Stores the address space of the thread in its state. After the store to a map value, the
 * verifier treats the pointer as a number.
 */
static inline void read_mm(struct task_struct *p, struct o1_thread *thread)
{
	*(struct mm_struct *volatile *)&thread->mm = p->mm;
}

static inline void leave(struct o1_thread *thread)
{
	if (thread->waits_on)
		__sync_fetch_and_add(&state_of(thread->waits_on - 1)->waiting,
				     -1);
	thread->waits_on = 0;
}

/*
 * Claims the CPU `prev` if it is idle, else any idle CPU on which the thread may run. Returns -1
 * if there is none.
 */
static inline __s32 claim_idle(struct task_struct *p, __s32 prev)
{
	const struct cpumask *idle;
	int cpu, cpus = scx_bpf_nr_cpu_ids();
	__s32 found = -1;

	if (bpf_cpumask_test_cpu(prev, p->cpus_ptr) &&
	    scx_bpf_test_and_clear_cpu_idle(prev))
		return prev;
	idle = scx_bpf_get_idle_cpumask();
	bpf_for(cpu, 0, cpus)
	{
		if (bpf_cpumask_test_cpu(cpu, idle) &&
		    bpf_cpumask_test_cpu(cpu, p->cpus_ptr) &&
		    scx_bpf_test_and_clear_cpu_idle(cpu)) {
			found = cpu;
			break;
		}
	}
	scx_bpf_put_idle_cpumask(idle);
	return found;
}

/* Kicks an idle CPU on which the thread may run. The kicked CPU then takes a waiting thread. */
static inline void kick_idle(struct task_struct *p)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	int cpu, cpus = scx_bpf_nr_cpu_ids();

	bpf_for(cpu, 0, cpus)
	{
		if (bpf_cpumask_test_cpu(cpu, idle) &&
		    bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			scx_bpf_kick_cpu(cpu, KICK_IDLE);
			break;
		}
	}
	scx_bpf_put_idle_cpumask(idle);
}

OP(o1_select_cpu)
__s32 BPF_PROG(o1_select_cpu, struct task_struct *p, __s32 prev, __u64 flags)
{
	struct o1_thread *thread = thread_of(p);
	__s32 cpu;

	if (!thread)
		return prev;
	cpu = claim_idle(p, prev);
	if (cpu < 0)
		return prev;
	place(thread, state_of(cpu), cpu, p->static_prio, now_ns());
	insert(p, DSQ_LOCAL, thread->slice_left_ns, 0);
	return cpu;
}

static inline void join(struct task_struct *p, struct o1_thread *thread,
			struct o1_cpu *state, __u32 cpu, __u64 flags)
{
	__u32 array = thread->array & 1;

	__sync_fetch_and_or(&state->levels[array], bit_of(thread->level));
	__sync_fetch_and_add(&state->waiting, 1);
	thread->waits_on = cpu + 1;
	insert_at(p, queue_of(cpu, array, thread->level), thread->slice_left_ns,
		  thread->arrival, flags);
}

OP(o1_enqueue)
void BPF_PROG(o1_enqueue, struct task_struct *p, __u64 flags)
{
	__u32 cpu = cpu_of(p);
	struct o1_cpu *state = state_of(cpu);
	struct o1_thread *thread = thread_of(p);

	if (!thread) {
		insert(p, DSQ_LOCAL, SLICE_NORMAL_NS, flags);
		return;
	}
	leave(thread);
	read_mm(p, thread);
	if (!thread->is_placed)
		place(thread, state, cpu, p->static_prio, now_ns());
	thread->is_placed = 0;
	if (p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1) {
		insert(p, DSQ_LOCAL, thread->slice_left_ns,
		       flags | ENQ_PREEMPT);
		return;
	}
	join(p, thread, state, cpu, flags);
	if (flags & ENQ_WAKEUP && preempts(thread, state, g_aggregate))
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	kick_idle(p);
}

/*
 * Returns the arrival of the first thread of the address space `mm` among the first SCAN_MAX
 * threads of the queue; NO_ARRIVAL: there is none. With `is_taken`, also moves the thread to the
 * local queue of this CPU.
 */
static __noinline __u64 first_of_space(__u64 queue, __u64 mm, _Bool is_taken)
{
	struct bpf_iter_scx_dsq it;
	__u64 arrival = NO_ARRIVAL;
	int at;

	if (bpf_iter_scx_dsq_new(&it, queue, 0))
		goto end;
	bpf_for(at, 0, SCAN_MAX)
	{
		struct task_struct *p = bpf_iter_scx_dsq_next(&it);
		struct o1_thread *thread;

		if (!p)
			break;
		thread = thread_of(p);
		if (!thread || thread->mm != mm)
			continue;
		if (!is_taken || scx_bpf_dsq_move(&it, p, DSQ_LOCAL, 0))
			arrival = p->scx.dsq_vtime;
		break;
	}
end:
	bpf_iter_scx_dsq_destroy(&it);
	return arrival;
}

/*
 * Clears the bit of a level with an empty queue. Only the CPU itself clears its bits. Its run-queue
 * lock is held in this function and in `enqueue`; no bit of a thread that is just enqueued is
 * therefore lost.
 */
static inline void note_empty(struct o1_cpu *state, __u32 cpu, __u32 level)
{
	__u32 array = state->active & 1;

	if (level < LEVELS &&
	    scx_bpf_dsq_nr_queued(queue_of(cpu, array, level)) <= 0)
		__sync_fetch_and_and(&state->levels[array], ~bit_of(level));
}

static inline void find_candidates(struct candidates *of, struct o1_cpu *state,
				   __u32 cpu)
{
	of->first = of->sharing = of->below = NO_ARRIVAL;
	of->level = best_level(state);
	if (of->level >= LEVELS)
		return;
	of->first = first_vtime(queue_of(cpu, state->active, of->level),
				NO_ARRIVAL);
	if (!g_aggregate || !state->mm)
		return;
	of->sharing = first_of_space(queue_of(cpu, state->active, of->level),
				     state->mm, 0);
	if (of->sharing == NO_ARRIVAL && of->level < LEVEL_LAST)
		of->below = first_of_space(
			queue_of(cpu, state->active, of->level + 1), state->mm,
			0);
}

static inline _Bool take_chosen(enum next next, const struct candidates *of,
				struct o1_cpu *state, __u32 cpu)
{
	__u32 level = of->level + (next == NEXT_BELOW);
	__u64 queue = queue_of(cpu, state->active, level);
	_Bool is_taken = next == NEXT_FIRST ? take(queue)
					    : first_of_space(queue, state->mm,
							     1) != NO_ARRIVAL;

	note_empty(state, cpu, level);
	return is_taken;
}

/* Selects the next thread from the CPU's own arrays and from `prev`, the running thread. */
static __noinline enum next take_next(__u32 cpu, struct o1_thread *prev)
{
	struct o1_cpu *state = state_of(cpu);
	struct candidates of = {};
	int attempt;

	if (prev) {
		of.has_prev = 1;
		of.prev_shares = prev->mm && prev->mm == state->mm;
		of.prev_level = prev->level;
		of.prev = prev->arrival;
	}
	bpf_for(attempt, 0, ATTEMPTS_MAX)
	{
		enum next next;

		swap_if_empty(state, prev);
		of.has_prev = prev && prev->array == state->active;
		find_candidates(&of, state, cpu);
		if (of.level < LEVELS && of.first == NO_ARRIVAL) {
			note_empty(state, cpu, of.level);
			continue;
		}
		next = choose(&of, g_aggregate);
		if (next == NEXT_NONE || next == NEXT_PREV)
			return next;
		if (take_chosen(next, &of, state, cpu))
			return next;
	}
	return prev ? NEXT_PREV : NEXT_NONE;
}

/*
 * Takes the best thread of the CPU `cpu` that may run on this CPU. Expired threads are taken
 * before active threads, as in Linux 2.6.
 */
static __noinline _Bool pull_from(__u32 cpu)
{
	struct o1_cpu *state = state_of(cpu);
	int at;

	bpf_for(at, 0, 2 * NICE_LEVELS)
	{
		__u32 array = (at < NICE_LEVELS) ^ (state->active & 1);
		__u32 level = LEVEL_FIRST + at % NICE_LEVELS;

		if (state->levels[array & 1] & bit_of(level) &&
		    take(queue_of(cpu, array, level)))
			return 1;
	}
	return 0;
}

/*
 * Returns the other CPU with the most waiting threads if it has at least `least` waiting
 * threads, else -1.
 */
static inline __s32 busiest(__u32 cpu, __u32 least)
{
	int other, cpus = scx_bpf_nr_cpu_ids();
	__s32 found = -1;

	bpf_for(other, 0, cpus)
	{
		__u32 waiting = state_of(other)->waiting;

		if ((__u32)other == cpu || (__s32)waiting < (__s32)least)
			continue;
		least = waiting + 1;
		found = other;
	}
	return found;
}

/*
 * Takes a thread of another CPU for a CPU without a thread. If the affinity masks of the busiest
 * CPU's threads exclude this CPU, all other CPUs are tried.
 */
static __noinline _Bool pull(__u32 cpu)
{
	int other, cpus = scx_bpf_nr_cpu_ids();
	__s32 from = busiest(cpu, 1);

	if (from < 0)
		return 0;
	if (pull_from(from))
		return 1;
	bpf_for(other, 0, cpus)
	{
		if ((__u32)other != cpu && state_of(other)->waiting &&
		    pull_from(other))
			return 1;
	}
	return 0;
}

/* Takes a thread of another CPU, every 200 ms, for a CPU that has a thread. */
static inline _Bool balance(__u32 cpu, struct o1_cpu *state, __u64 now)
{
	__s32 from;

	if (since(state->balanced_at_ns, now) < BALANCE_NS)
		return 0;
	state->balanced_at_ns = now;
	from = busiest(cpu, state->waiting + 2);
	return from >= 0 && pull_from(from);
}

static inline void begin(struct o1_thread *thread, struct o1_cpu *state,
			 __u64 now)
{
	thread->is_placed = 0;
	thread->slice_ends_ns = now + thread->slice_left_ns;
	state->level = thread->level;
}

OP(o1_dispatch)
void BPF_PROG(o1_dispatch, __s32 cpu, struct task_struct *prev)
{
	struct o1_cpu *state = state_of(cpu);
	struct o1_thread *thread = 0;
	__u64 now = now_ns();
	enum next next;

	if (prev && prev->scx.flags & TASK_QUEUED)
		thread = thread_of(prev);
	if (thread && !thread->is_placed) {
		account_run(thread, now);
		thread->slice_left_ns = left_of_slice(thread, now);
		place(thread, state, cpu, prev->static_prio, now);
		thread->is_placed = 1;
	}
	if ((thread || state->waiting) && balance(cpu, state, now))
		return;
	next = take_next(cpu, thread);
	if (next == NEXT_NONE)
		pull(cpu);
	if (next != NEXT_PREV || !thread)
		return;
	begin(thread, state, now);
	set_slice(prev, thread->slice_left_ns);
}

OP(o1_running)
void BPF_PROG(o1_running, struct task_struct *p)
{
	struct o1_cpu *state = state_of(cpu_of(p));
	struct o1_thread *thread = thread_of(p);
	__u64 now = now_ns();

	if (!thread)
		return;
	leave(thread);
	read_mm(p, thread);
	if (thread->mm)
		state->mm = thread->mm;
	thread->ran_since_ns = now;
	begin(thread, state, now);
}

OP(o1_stopping)
void BPF_PROG(o1_stopping, struct task_struct *p, _Bool runnable)
{
	struct o1_thread *thread = thread_of(p);
	__u64 now = now_ns();

	state_of(cpu_of(p))->level = 0;
	if (!thread)
		return;
	account_run(thread, now);
	if (!thread->is_placed)
		thread->slice_left_ns = left_of_slice(thread, now);
	if (runnable)
		return;
	thread->slept_at_ns = now;
	thread->is_placed = 0;
}

/*
 * A CPU that becomes idle while a thread is being enqueued does not see that thread. The kick by
 * the next tick corrects this.
 */
OP(o1_tick)
void BPF_PROG(o1_tick, struct task_struct *p)
{
	if (state_of(cpu_of(p))->waiting)
		kick_idle(p);
}

OP(o1_enable)
void BPF_PROG(o1_enable, struct task_struct *p)
{
	struct o1_thread *thread = thread_of(p);

	if (!thread)
		return;
	thread->has_slice = thread->is_placed = thread->waits_on = 0;
	thread->slept_at_ns = 0;
}

OP(o1_disable)
void BPF_PROG(o1_disable, struct task_struct *p)
{
	struct o1_thread *thread = thread_of(p);

	if (thread)
		leave(thread);
}

/* The sleep average of a thread that existed before the scheduler was loaded is unknown. */
OP(o1_init_task)
__s32 BPF_PROG(o1_init_task, struct task_struct *p,
	       struct scx_init_task_args *args)
{
	struct o1_thread *thread = bpf_task_storage_get(
		&threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct o1_thread *parent = 0;

	if (!thread)
		return -12;
	if (args->fork)
		parent = thread_of(bpf_get_current_task_btf());
	thread->sleep_average_ns =
		parent ? average_of_child(parent->sleep_average_ns)
		       : SLEEP_MOST_NS / 2;
	return 0;
}

OP_SLEEPABLE(o1_init)
__s32 BPF_PROG(o1_init)
{
	int cpu, at, cpus = scx_bpf_nr_cpu_ids();
	__s32 failed;

	if (cpus > CPUS_MAX)
		return -7;
	bpf_for(cpu, 0, cpus)
	{
		bpf_for(at, 0, 2 * NICE_LEVELS)
		{
			failed = scx_bpf_create_dsq(
				queue_of(cpu, at / NICE_LEVELS,
					 LEVEL_FIRST + at % NICE_LEVELS),
				-1);
			if (failed)
				return failed;
		}
	}
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops o1 = {
	.timeout_ms = TIMEOUT_MS,
	.select_cpu = (void *)o1_select_cpu,
	.enqueue = (void *)o1_enqueue,
	.dispatch = (void *)o1_dispatch,
	.tick = (void *)o1_tick,
	.running = (void *)o1_running,
	.stopping = (void *)o1_stopping,
	.enable = (void *)o1_enable,
	.disable = (void *)o1_disable,
	.init_task = (void *)o1_init_task,
	.init = (void *)o1_init,
	.name = "o1",
};
