/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Callbacks of sched_ext
 *
 * The kernel calls these functions; sched.bpf.c registers them and describes the scheduler. Each
 * callback updates the state of the thread and of its CPU. The other headers make the decisions.
 *
 *   usher_select_cpu   a thread wakes or is forked: select an LLC (placement.h), and claim an idle
 *                      CPU (select_cpu.h)
 *   usher_enqueue      a runnable thread has no CPU yet: let it wait, or move it (enqueue.h)
 *   usher_dispatch     a CPU needs a thread: select a waiting thread (dispatch.h)
 *   usher_running      a thread starts to run: count it out of its queue, begin its turn
 *   usher_tick         CONFIG_HZ times per second on a busy CPU: leave a shared core
 *   usher_update_idle  a CPU becomes idle or busy: record it; an idle core pulls a thread
 *   usher_cpu_release  a real-time thread takes a CPU: enqueue its threads again (realtime.h)
 *   usher_enable       a thread comes under this scheduler: initial vtime
 *   usher_disable      a thread ends or leaves this scheduler: charge its last run
 *   usher_init_task    a thread is forked, or exists at the start: create its state
 *   usher_init         before all others, once: create the dispatch queues
 *
 * A turn is the time in which the threads of one address space run one after another (turns.h). A
 * borrower is a thread on a CPU outside its program's seat, the set of CPUs that the program
 * prefers (seats.h). An urgent thread has short bursts and waits in a queue of its own (enqueue.h).
 *
 * Callbacks run on many CPUs at the same time and take no lock of their own, except the lock of a
 * cgroup's budget (limits.h). Atomic operations update the counts, clocks and CPU sets that several
 * CPUs write. A minimum vtime may be stale for a while (run_queue.h). No loop depends on the number
 * of threads. All loops have constant limits: CPUs, nodes, LLCs, queues of an LLC, nested cgroups,
 * entries of tables of cgroups, and STEPS_MAX entries of a queue.
 *
 * A thread without state in the scheduler runs in the local queue of its CPU, with slices of 20 ms.
 * Without memory for the state, usher_init_task() fails with -ENOMEM. If a dispatch queue cannot be
 * created, usher_init() fails with the kernel's error.
 */
#ifndef USHER_SCX_CALLBACKS_H
#define USHER_SCX_CALLBACKS_H

#include "cgroups.h"
#include "dispatch.h"
#include "enqueue.h"
#include "placement.h"
#include "realtime.h"

#define MS 1000000ULL

OP(usher_select_cpu)
__s32 BPF_PROG(usher_select_cpu, struct task_struct *p, __s32 prev, __u64 flags)
{
	const struct settings *settings = &g_settings;
	struct thread *thread = thread_of(p);
	__u32 home;
	__s32 cpu;

	if (!thread)
		return prev;
	account_run(p, thread, 1);
	if (is_bound(p))
		return prev;
	/* A thread without a grant is parked by `enqueue`. */
	if (!g_variant.fifo && !admit(p, thread))
		return prev;
	home = home_of(p, thread, prev, flags);
	cpu = claim(p, thread, home, settings->smt && !g_variant.fifo, 0);
	note_placement(p, thread, prev, home, cpu, flags);
	if (cpu < 0) {
		if (home != (__u32)prev)
			follow_clock(thread, place_of(home)->llc);
		return home;
	}
	clamp_sleeper_vtime(thread, settings);
	insert(p, DSQ_LOCAL, settings->slice_ns,
	       preempt_flag(thread) | ENQ_IMMED);
	return cpu;
}

OP(usher_enqueue)
void BPF_PROG(usher_enqueue, struct task_struct *p, __u64 flags)
{
	__u32 cpu = cpu_of(p);
	const struct settings *settings = &g_settings;
	struct thread *thread = thread_of(p);

	if (!thread) {
		insert(p, DSQ_LOCAL, 20 * MS, flags);
		return;
	}
	account_run(p, thread, flags & ENQ_WAKEUP);
	if (is_pinned_kthread(p)) {
		/*
		 * A kernel thread that is bound to one CPU runs at once, because other threads wait
		 * for its work.
		 */
		if (flags & ENQ_WAKEUP && !g_variant.fifo)
			clamp_sleeper_vtime(thread, settings);
		/* A thread that claimed the idle CPU would wait for the kernel thread. */
		if (!is_busy(cpu))
			scx_bpf_test_and_clear_cpu_idle(cpu);
		thread->why = WHY_ONLY_HERE;
		insert(p, DSQ_LOCAL, settings->slice_ns,
		       g_variant.fifo ? flags : flags | ENQ_PREEMPT);
		return;
	}
	if (g_variant.fifo) {
		thread->why = WHY_FIFO;
		insert(p, flags & ENQ_LAST ? DSQ_LOCAL : FIFO,
		       settings->slice_ns, flags);
		return;
	}
	leave_queue(thread);
	settle_own_run(p, thread);
	if (is_bound(p)) {
		remove_count(&thread->counted);
		enqueue_isolated(p, thread, cpu, flags);
		return;
	}
	if (!admit(p, thread) && park(p, thread, flags))
		return;
	count_waiter(p, thread, cpu);
	if (flags & ENQ_WAKEUP || !thread->counted_ns ||
	    has_not_run(thread, flags))
		wake(p, thread, cpu, settings);
	if (!(flags & ENQ_WAKEUP) &&
	    move_to_idle_cpu(p, thread, cpu, flags, settings))
		return;
	if (flags & ENQ_LAST && !is_isolated(cpu)) {
		thread->why = WHY_ALONE;
		insert(p, DSQ_LOCAL, settings->slice_ns, flags);
		return;
	}
	enqueue_wait(p, thread, cpu, settings, flags);
}

OP(usher_dispatch)
void BPF_PROG(usher_dispatch, __s32 cpu, struct task_struct *prev)
{
	const struct settings *settings = &g_settings;
	_Bool is_limited = has_limited_prev(state_of(cpu));

	if (is_limited && !g_variant.fifo)
		prev = settle_prev(prev, cpu);
	if (prev && !(prev->scx.flags & TASK_QUEUED))
		prev = 0;
	if (is_isolated(cpu)) {
		dispatch_isolated(prev, cpu);
	} else if (!g_variant.fifo) {
		dispatch(cpu, prev, settings);
		if (is_limited && prev)
			resume_prev(prev, cpu);
	} else if (!take(FIFO) && prev) {
		continue_prev(prev, cpu, now_ns(), settings);
	}
}

/* Counts a switch of address spaces. Kernel threads (`mm` is 0) do not count. */
static inline void note_space(struct cpu_state *state, __u64 mm)
{
	COUNT(switches);
	if (!mm || mm == state->last_mm)
		return;
	state->last_mm = mm;
	COUNT(space_switches);
}

/*
 * Begins or continues the turn of the thread's address space `mm`. The caller skips this function
 * for urgent threads, because they interrupt a turn without ending it.
 */
static inline void note_turn(struct cpu_state *state, struct thread *thread,
			     __u64 mm, __u32 queue)
{
	__u64 now = now_ns();

	state->served_ns = now;
	if (!mm)
		return;
	state->turn_key = queue_key_of(thread, mm, &g_settings);
	if (begins_turn(state->turn_mm, state->turn_queue, mm, queue))
		state->turn_began_ns = now;
	state->turn_mm = mm;
	state->turn_queue = queue;
}

/*
 * Converts the thread's vtime to the LLC that it runs in. If no thread waits in that LLC, the vtime
 * is capped at the LLC's clock, because the thread has delayed no other thread.
 */
static inline void note_llc(struct thread *thread, __u32 llc)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);

	follow_clock(thread, llc);
	if (!all_waiting(llc_rq))
		thread->vtime = clamp_to_clock(thread->vtime, llc_rq->clock);
}

OP(usher_running)
void BPF_PROG(usher_running, struct task_struct *p)
{
	__u32 cpu = cpu_of(p);
	struct thread *thread = thread_of(p);
	struct cpu_state *state = state_of(cpu);
	struct place *here = place_of(cpu);
	__u64 mm;
	__u32 queue;

	if (!thread)
		return;
	mm = mm_id(p, thread);
	queue = thread->queue;
	if (queue != NO_QUEUE && state->why)
		thread->why = state->why;
	state->why = WHY_UNKNOWN;
	dequeue_account(queue, thread, cpu, state, here->llc);
	thread->cpu = cpu;
	note_llc(thread, here->llc);
	note_start(thread, cpu);
	note_space(state, mm);
	if (!thread->urgent)
		note_turn(state, thread, mm, queue);
	if (state->run.limit)
		settle_run(p, cpu);
	if (is_isolated(cpu)) {
		limit_unbound(p, state);
	} else if (!g_variant.fifo) {
		if (may_be_limited(thread))
			begin_run(p, thread, cpu, queue != NO_QUEUE);
		count_runner(p, thread, state, here->llc);
	}
	note_capacity(thread, state, here);
	state->movable = is_movable(p);
	note_urgency(state, thread, is_pinned_kthread(p));
	note_allowed(state, p);
}

/*
 * Returns whether the running thread has to yield to an urgent thread that waits in the LLC: it has
 * run for longer than an urgent thread runs.
 */
static inline _Bool should_yield_to_urgent(struct task_struct *p,
					   struct thread *thread, __u32 cpu)
{
	return llc_rq_of(place_of(cpu)->llc)->urgent && !is_pinned_kthread(p) &&
	       uncharged(p, thread) >= SHORT_BURST_NS;
}

/*
 * Finds idle CPUs that the kernel did not report, and applies a change of the seats to the running
 * thread. Ends the slice of a thread while urgent threads wait, or if the thread shares a core
 * although another core is idle. This is the fallback for threads that no kick has moved.
 */
OP(usher_tick)
void BPF_PROG(usher_tick, struct task_struct *p)
{
	const struct settings *settings = &g_settings;
	struct thread *thread = thread_of(p);
	__u32 cpu = cpu_of(p);

	note_idle(cpu, 0);
	if (is_isolated(cpu))
		return;
	find_unreported_idle(cpu);
	if (!thread || g_variant.fifo)
		return;
	follow_seats(p, thread, cpu);
	note_capacity(thread, state_of(cpu), place_of(cpu));
	if (should_yield_to_urgent(p, thread, cpu) ||
	    (settings->smt && should_migrate_to_idle_core(p, cpu)))
		set_slice(p, 0);
}

/*
 * Kicks the CPU, which has just become idle, if threads wait. A thread that was enqueued between
 * the CPU's last dispatch and its transition to idle found no idle CPU to kick, and the kernel does
 * not report the transition again.
 */
static inline void kick_if_waiting(__u32 cpu, const struct llc_rq *llc_rq)
{
	if (all_waiting(llc_rq))
		scx_bpf_kick_cpu(cpu, 0);
}

OP(usher_update_idle)
void BPF_PROG(usher_update_idle, __s32 cpu, _Bool idle)
{
	const struct settings *settings = &g_settings;
	struct cpu_state *state = state_of(cpu);
	struct llc_rq *llc_rq = llc_rq_of(place_of(cpu)->llc);

	if (is_isolated(cpu)) {
		state->unlimited = 0;
		return;
	}
	note_idle(cpu, idle);
	note_borrower(cpu, 0);
	if (g_variant.fifo)
		return;
	state->idle = idle;
	settle_run(0, cpu);
	remove_count(&state->counted);
	if (!idle) {
		catch_up(state, llc_rq);
		return;
	}
	kick_if_waiting(cpu, llc_rq);
	if (settings->smt)
		smt_pull(cpu);
}

OP(usher_enable)
void BPF_PROG(usher_enable, struct task_struct *p)
{
	struct thread *thread = thread_of(p);
	struct place *here = place_of(cpu_of(p));
	struct llc_rq *llc_rq = llc_rq_of(here->llc);

	if (!thread)
		return;
	/*
	 * A child starts with the vtime of its parent. If it started at the clock, a thread could
	 * shed its lag by forking.
	 */
	follow_clock(thread, here->llc);
	if (is_before(thread->vtime, llc_rq->clock))
		thread->vtime = llc_rq->clock;
	thread->counted_ns = p->se.sum_exec_runtime;
	thread->burst_ns = thread->urgent = 0;
	thread->queue = NO_QUEUE;
}

/*
 * Called when a thread ends or becomes a real-time thread, possibly while it waits. A thread that
 * is dequeued for another reason passes through `enqueue` again, which updates the counters of its
 * queue. A `quiescent` callback would do so earlier, but would cost each sleep a hundred
 * instructions.
 */
OP(usher_disable)
void BPF_PROG(usher_disable, struct task_struct *p)
{
	struct thread *thread = thread_of(p);

	if (!thread)
		return;
	leave_queue(thread);
	settle_own_run(p, thread);
	drop_grant(thread);
	remove_count(&thread->counted);
	charge(p, thread);
}

/* Returns the family of a child of the current thread. */
static inline __u32 family_of_child(const struct thread *parent)
{
	__u32 family = bpf_get_current_task_btf()->tgid;

	/*
	 * Without the barrier, the compiler would merge the loads of `tgid` and of the parent's
	 * family into one load, which the verifier rejects.
	 */
	barrier_var(family);
	return has_family(parent) ? parent->family : family;
}

/*
 * Lets a child use what its parent, the current thread, has found out about their cgroup, unless
 * they are in different cgroups.
 */
static inline void inherit_cgroup(struct task_struct *p, struct thread *thread,
				  const struct thread *parent)
{
	if (BPF_CORE_READ(p, sched_task_group) !=
	    BPF_CORE_READ(bpf_get_current_task_btf(), sched_task_group))
		return;
	thread->limit = parent->limit;
	thread->limits_version = parent->limits_version;
	thread->group = parent->group;
}

/*
 * For threads that exist at the start, the kernel calls this callback from a thread that may
 * migrate. If migration of that thread is disabled inside the callback, the call of the callback
 * has disabled it.
 */
OP(usher_init_task)
__s32 BPF_PROG(usher_init_task, struct task_struct *p,
	       struct scx_init_task_args *args)
{
	struct thread *thread = bpf_task_storage_get(
		&threads, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct thread *parent = 0;

	if (args->fork)
		parent = thread_of(bpf_get_current_task_btf());
	else
		g_added_by_bpf = bpf_get_current_task_btf()->migration_disabled;
	if (!thread)
		return -12;
	if (parent) {
		thread->family = family_of_child(parent);
		thread->is_process =
			p->tgid != bpf_get_current_task_btf()->tgid;
		/* The wait for the family is no CPU time of the parent. */
		thread->vtime = parent->vtime - parent->family_wait_ns;
		thread->llc = parent->llc;
		inherit_cgroup(p, thread, parent);
	}
	return 0;
}

/* Adds a CPU to the load of its LLC. */
static inline void count_cpu(__u32 llc, __u32 cpu)
{
	struct llc_load *load = &g_llc_loads[llc % LLCS_MAX];

	if (!load->cpus++)
		load->first_cpu = cpu;
}

static inline void note_cpus(void)
{
	int cpu, cpus = scx_bpf_nr_cpu_ids();

	bpf_for(cpu, 0, CPUS_MAX)
	{
		struct place *place = place_of(cpu);

		if (cpu >= cpus)
			break;
		if (!place->known)
			continue;
		g_limits.cpus++;
		if (place->known == PLACE_ISOLATED)
			continue;
		llc_rq_of(place->llc)->cpus++;
		count_cpu(place->llc, cpu);
		note_in(&g_cpus, cpu, 1);
		add_to(&g_class_cpus[place->capacity_class % CLASSES_MAX], cpu);
		note_idle(cpu, 1);
		g_node_words[place->node_number % NODES_MAX] |= word_bit(cpu);
	}
}

OP_SLEEPABLE(usher_init)
__s32 BPF_PROG(usher_init)
{
	const struct settings *settings = &g_settings;
	int llc, at;
	__s32 failed;

	note_cpus();
	create_slice_timers();
	create_groups();
	/* Each thread has to find its cgroups once. */
	g_limits.version = 1;
	failed = create_parks(PARKS_AT_START);
	if (failed)
		return failed;
	failed = scx_bpf_create_dsq(FIFO, -1);
	if (failed)
		return failed;
	bpf_for(llc, 0, LLCS_MAX)
	{
		if ((__u32)llc >= settings->llcs)
			break;
		bpf_for(at, 0, MM_QUEUES_PER_LLC + 1)
		{
			failed = scx_bpf_create_dsq(queue_at(llc, at), -1);
			if (failed)
				return failed;
		}
	}
	return 0;
}

#endif
