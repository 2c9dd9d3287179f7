/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Enqueueing a thread
 * ===================
 *
 * 1. Problem
 * ----------
 * The kernel calls `enqueue` (callbacks.h) for a runnable thread that has no CPU: it woke or is new
 * and select_cpu found no idle CPU; its slice ended; it was preempted; or its allowed CPUs changed.
 * The scheduler has to charge the thread's last run and to decide in which queue the thread waits.
 *
 * 2. Terms
 * --------
 * - vtime: CPU time over weight. The clock of an LLC is the minimum vtime of its waiting threads. A
 *   thread with a vtime below the clock has credit; a thread with a vtime above the clock has lag.
 * - Burst: the CPU time of a thread between two sleeps.
 * - Urgent: a thread with an average burst below 1 ms (new threads included) that has not exceeded
 *   its share. Urgent threads wait in one queue per LLC, in FIFO order. CPUs dispatch from this
 *   queue before all others, with the exception in take_urgent().
 * - Family: the young threads that a process forks, and the young threads that these fork in turn.
 *   They share a vtime, so that a fork storm gets the share of one thread (share.h).
 * - Seat: the CPUs that user space gave to a program (seats.h). On these CPUs, the threads of the
 *   program preempt borrowers, which are threads that run outside the seat of their own program.
 *
 * 3. Steps
 * --------
 * 1. account_run(): charge the last run. A sleep ends the burst.
 * 2. A kernel thread that is bound to one CPU goes to that CPU directly and preempts the running
 *    thread.
 * 3. wake(), after a sleep or a fork: limit the credit to one slice; decide whether the thread is
 *    urgent.
 * 4. move_to_idle_cpu(), for a thread that did not wake: move the thread to a suitable idle CPU, if
 *    there is any.
 * 5. If no other thread is runnable on this CPU (ENQ_LAST), the thread continues here.
 * 6. enqueue_wait(): preempt a borrower, if the thread is pinned to that CPU and prefers it.
 *    Otherwise join_queue() (run_queue.h) inserts the thread into the urgent queue or the queue of
 *    its address space, of which an LLC has MM_QUEUES_PER_LLC = 32.
 * 7. An urgent thread that woke preempts a less urgent thread of its CPU. New threads are less
 *    urgent than threads of known short bursts. A running thread loses its urgency when its burst
 *    exceeds its average burst by BURST_MARGIN_NS, 0.5 ms. If several threads wait, there are no
 *    seats and the thread may run on all CPUs, it preempts a less urgent thread of another CPU of
 *    the LLC. A suitable idle CPU is kicked, because it may have become idle just before the thread
 *    was inserted.
 *
 * 4. Bound
 * --------
 * The cost does not depend on the number n of threads, except for the kernel's insertion into a
 * queue ordered by vtime, which takes O(log n). All loops have constant limits: the 32 queues of
 * the LLC, the CPUs of the LLC, the words of a CPU set, the nodes, the nested cgroups, and four
 * attempts to claim an idle CPU. turns.h states the bound on waits.
 *
 * 5. Known limits
 * ---------------
 * An address space may use 8 of the 32 queues of an LLC. With more than eight address spaces, two
 * of them may share a queue, and therefore turns. An urgent thread preempts the thread of its own
 * CPU if that thread is less urgent, even if the thread of another CPU has run longer.
 */
#ifndef USHER_SCX_ENQUEUE_H
#define USHER_SCX_ENQUEUE_H

#include "run_queue.h"

/* Returns whether the thread is a kernel thread that is bound to one CPU, such as ksoftirqd. */
static inline _Bool is_pinned_kthread(struct task_struct *p)
{
	return p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1;
}

/*
 * Returns the average vtime of the threads that wait in an LLC. The function is not inlined, so
 * that the verifier checks it once.
 */
__noinline __u64 average_in_llc(__u32 llc)
{
	struct llc_rq *llc_rq = llc_rq_of(llc);

	return average_of(llc_rq->mm_queues, llc_rq->clock);
}

/*
 * Charges the last run. If the thread has slept, its burst has ended. If it has not, the burst
 * continues, and the thread stays urgent until it has run for SHORT_BURST_NS.
 */
ALWAYS void account_run(struct task_struct *p, struct thread *thread,
			_Bool has_slept)
{
	charge(p, thread);
	if (has_slept) {
		end_burst(thread);
		return;
	}
	note_lag(thread);
	if (thread->burst_ns >= SHORT_BURST_NS)
		thread->urgent = 0;
}

/* Limits the credit of a thread that slept and now runs without waiting. */
static inline void clamp_sleeper_vtime(struct thread *thread,
				       const struct settings *settings)
{
	thread->vtime =
		clamp_sleeper(thread->vtime, llc_rq_of(thread->llc)->clock,
			      settings->slice_ns);
	note_lag(thread);
}

/*
 * Limits the credit of a thread that is new, or slept, and may have to wait. Decides whether the
 * thread is urgent: its average burst is short, and its vtime is less than max_lag() ahead of the
 * clock. This limit is the lag that a thread may reach in a turn. For a young thread, the vtime of
 * its family counts.
 */
static inline void wake(struct task_struct *p, struct thread *thread, __u32 cpu,
			const struct settings *settings)
{
	struct llc_rq *llc_rq = llc_rq_of(thread->llc);
	__u64 ahead = max_lag(settings->max_lag_ns, settings->slice_ns,
			      WEIGHT_NORMAL * FACTOR_ONE);
	__u64 clock;

	clock = clock_for(p, thread, cpu, thread->llc, llc_rq);
	thread->vtime = clamp_sleeper(thread->vtime, clock, settings->slice_ns);
	note_lag(thread);
	if (waits_for_family(thread)) {
		thread->urgent = is_urgent(thread->burst_average_ns,
					   vtime_in_family(thread, clock),
					   clock + ahead);
		return;
	}
	thread->urgent = is_urgent(thread->burst_average_ns, thread->vtime,
				   clock + ahead);
	/*
	 * The LLC's clock does not advance during a turn, so that a vtime far ahead of the clock
	 * may still be below the average vtime of the waiting threads. In this case the average
	 * decides. The average takes a loop over the queues, and is seldom needed.
	 */
	if (!thread->urgent && clock == llc_rq->clock &&
	    thread->burst_average_ns < SHORT_BURST_NS)
		thread->urgent = is_before(thread->vtime,
					   average_in_llc(thread->llc) + ahead);
}

/*
 * Preempts a borrower on the only CPU on which a pinned thread may run. The kernel does not call
 * select_cpu for pinned threads. Returns whether a borrower was preempted.
 */
static inline _Bool reclaim_cpu(struct task_struct *p, struct thread *thread,
				__u32 cpu)
{
	struct idle_scan_ctx *scan;

	if (!has_borrower(cpu) || is_movable(p))
		return 0;
	scan = scan_ctx();
	return fill_scan_ctx(scan, p, thread, cpu) &&
	       has_cpu(&scan->preferred_cpus, cpu) &&
	       claim_from_borrower(thread, cpu);
}

/* Returns the flag that preempts the borrower on a claimed CPU; 0: the claimed CPU was idle. */
static inline __u64 preempt_flag(const struct thread *thread)
{
	return thread->why == WHY_RETURNED ? ENQ_PREEMPT : 0;
}

/*
 * Moves a thread to an idle CPU, and returns whether it was moved. If the thread could also
 * continue on its CPU (ENQ_LAST), only a CPU of an idle core is worth the move. The function is not
 * called for threads that wake, because select_cpu has already tried to find an idle CPU for them.
 */
static inline _Bool move_to_idle_cpu(struct task_struct *p,
				     struct thread *thread, __u32 cpu,
				     __u64 flags,
				     const struct settings *settings)
{
	_Bool is_last = flags & ENQ_LAST;
	__s32 to;

	if (!is_movable(p) || (is_last && !settings->smt))
		return 0;
	to = claim(p, thread, cpu, settings->smt, is_last);
	if (to < 0)
		return 0;
	COUNT(moved);
	insert(p, DSQ_LOCAL_ON | to, settings->slice_ns,
	       flags | preempt_flag(thread) | ENQ_IMMED);
	scx_bpf_kick_cpu(to, KICK_IDLE);
	return 1;
}

/*
 * Returns the nearest idle CPU to `cpu` among the thread's preferred CPUs; NOWHERE if none of them
 * is idle.
 */
__noinline int find_idle(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	__s32 idle;

	idle = nearest_of(&scan->idle, &scan->preferred_cpus, cpu, here,
			  scan->words);
	if (idle < 0 && scan->unread_nodes && read_other_nodes())
		idle = nearest_of(&scan->idle, &scan->preferred_cpus, cpu, here,
				  scan->words);
	return idle;
}

/*
 * Kicks an idle CPU. A CPU that became idle while the thread was being inserted has examined the
 * queue too early, and would stay idle. A pinned thread needs no kick if its CPU is busy, because
 * that CPU will dispatch.
 */
static inline void kick_nearest_idle(struct task_struct *p,
				     struct thread *thread, __u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	__s32 idle;

	if (is_busy(cpu) && !is_movable(p))
		return;
	idle = fill_window(scan, p, thread, cpu) ? find_idle(cpu) : NOWHERE;
	if (idle < 0) {
		/*
		 * The kernel's set of idle CPUs may not yet contain a CPU that has just become
		 * idle. g_idle_cpus may already contain that CPU.
		 */
		read_allowed(p, here->all_words);
		read_preferred(scan, p, thread);
		idle = nearest_of(&g_idle_cpus, &scan->preferred_cpus, cpu,
				  here, here->near_words | idle_words());
	}
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, KICK_IDLE);
}

/*
 * Kicks an idle CPU for a new waiter. The fast path, without a function call, is for the case that
 * no CPU is idle.
 */
ALWAYS void kick_idle(struct task_struct *p, struct thread *thread, __u32 cpu)
{
	if (any_idle())
		kick_nearest_idle(p, thread, cpu);
}

/* CPU time by which a burst may exceed the thread's average burst until the urgency is lost. */
#define BURST_MARGIN_NS (SHORT_BURST_NS / 2)

/*
 * Records the urgency of the thread that begins to run, and the time at which it ends. A thread that
 * starts programs alternates short bursts with long ones. Without this end, its CPU would run each
 * long burst until the tick, although urgent threads wait.
 */
static inline void note_urgency(struct cpu_state *state,
				const struct thread *thread,
				_Bool is_pinned_kthread)
{
	if (is_pinned_kthread) {
		state->urgency = URGENT_PINNED;
		return;
	}
	state->urgency = urgency_of(thread);
	if (state->urgency)
		state->urgent_until_ns = now_ns() + thread->burst_average_ns +
					 BURST_MARGIN_NS - thread->burst_ns;
}

/* Returns the urgency of the thread that runs on a CPU. */
static inline __u32 urgency_on(__u32 cpu, __u64 now)
{
	const struct cpu_state *state = state_of(cpu);

	return state->urgency < URGENT_PINNED &&
			       is_before(state->urgent_until_ns, now)
		       ? NOT_URGENT
		       : state->urgency;
}

/*
 * Upper limit of the steps of a search for a less urgent thread. Each step examines a CPU, or
 * continues with the next word of the LLC.
 */
#define PREEMPT_STEPS_MAX 10

/*
 * Returns a CPU of the LLC of `cpu` that runs a less urgent thread; NOWHERE: PREEMPT_STEPS_MAX steps
 * after `cpu` have found none.
 */
__noinline int find_less_urgent(__u32 cpu, __u32 urgency)
{
	__u64 now = now_ns();
	const struct place *here = place_of(cpu);
	__u32 at = (cpu + 1) % CPUS_MAX;
	__s32 found = NOWHERE;
	int step;

	bpf_for(step, 0, PREEMPT_STEPS_MAX)
	{
		__u32 word = at / 64 % CPU_WORDS;
		__u64 bits = here->near.words[word] >> at % 64;
		__u32 other;

		if (!bits) {
			word = following_word(here->near_words, word);
			at = UNKNOWN(word * 64) % CPUS_MAX;
			continue;
		}
		other = UNKNOWN(at + lowest_bit(bits)) % CPUS_MAX;
		at = UNKNOWN(other + 1) % CPUS_MAX;
		if (is_busy(other) && urgency_on(other, now) < urgency) {
			found = other;
			break;
		}
	}
	return found;
}

/*
 * Preempts a less urgent thread, so that a CPU takes an urgent thread that woke from the queue:
 * the thread of the own CPU or, if several threads wait and the thread may run on all CPUs, a
 * thread of another CPU of the LLC.
 */
static inline void preempt_less_urgent(struct task_struct *p,
				       struct thread *thread, __u32 cpu)
{
	__u32 urgency = urgency_of(thread);
	__s32 other = cpu;

	if (!urgency || is_isolated(cpu))
		return;
	if (!is_busy(cpu) || urgency_on(cpu, now_ns()) >= urgency) {
		if (all_waiting(llc_rq_of(place_of(cpu)->llc)) < 2 ||
		    urgency < URGENT_KNOWN || seats_version() ||
		    (__u32)p->nr_cpus_allowed < scx_bpf_nr_cpu_ids() ||
		    !is_movable(p))
			return;
		other = find_less_urgent(cpu, urgency);
		if (other < 0)
			return;
	} else if (!is_preferred(thread->seat, cpu)) {
		return;
	}
	COUNT(preempted);
	scx_bpf_kick_cpu(other, KICK_PREEMPT);
}

/*
 * Puts a thread into a queue, or lets it preempt a borrower. An urgent thread that wakes preempts a
 * less urgent thread (charge.h).
 */
ALWAYS void enqueue_wait(struct task_struct *p, struct thread *thread,
			 __u32 cpu, const struct settings *settings,
			 __u64 flags)
{
	if (flags & ENQ_WAKEUP && reclaim_cpu(p, thread, cpu)) {
		insert(p, DSQ_LOCAL, settings->slice_ns, flags | ENQ_PREEMPT);
		return;
	}
	join_queue(p, thread, cpu_to_wait_for(p, thread, cpu), settings, flags);
	if (flags & ENQ_WAKEUP)
		preempt_less_urgent(p, thread, cpu);
	kick_idle(p, thread, cpu);
}

#endif
