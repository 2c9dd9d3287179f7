/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Selection of a thread for a CPU that needs one
 * ==============================================
 *
 * 1. Problem
 * ----------
 * The kernel calls `dispatch` when the slice of the running thread has ended or when the thread
 * sleeps. The queues of an LLC are one queue for urgent threads (threads with short bursts) and 32
 * queues for address spaces. The CPU has to weigh urgent threads, the turn of the current address
 * space, the load of other LLCs, and seats. A seat is a set of CPUs that a program prefers; on
 * other CPUs, its threads are borrowers.
 *
 * 2. Idea
 * -------
 * Candidates are tried in a fixed order. The previous thread, if it is still runnable, competes by
 * its vtime without being enqueued. While the previous thread is the only candidate, its CPU time
 * delays no other thread and is not charged.
 *
 * 3. Data structures
 * ------------------
 * - `struct pick_ctx`: arguments and results of the selection in one LLC.
 * - `struct llc_rq`, `struct cpu_state`: see state.h.
 *
 * 4. Steps
 * --------
 * 1. Take an urgent thread of this LLC. Exception: if only urgent threads have run for too long,
 *    another thread is next (take_urgent()).
 * 2. At most once per BALANCE_PERIOD_NS (50 ms) and LLC, take a thread from another LLC with more
 *    load (balance_llcs()).
 * 3. Take the next thread of this LLC, or let the previous thread continue (pick_in_own_llc()).
 *    Queues of programs that do not prefer this CPU are excluded.
 * 4. If no thread can be taken and the previous thread is not a borrower, it continues.
 * 5. Steal a thread that prefers this CPU from another LLC.
 * 6. If the other CPUs of this core run only borrowers or are idle, run any thread
 *    (run_borrowers()). Otherwise the previous thread continues.
 *
 * 5. Bound
 * --------
 * The cost does not depend on the number of threads. A selection in an LLC tries to take a thread
 * from each of the 32 queues at most once, and each attempt compares all queues. Steps 5 and 6 each
 * visit each LLC with waiting threads at most once. After max_lag_ns in which only urgent threads
 * ran, a waiting thread that is not urgent is next. If a thread is overdue (share.h), this limit is
 * one slice.
 *
 * 6. Known limits
 * ---------------
 * - Balancing compares the number of waiting threads with that of one other LLC, selected at
 *   random. Weights do not count.
 * - Shares are fair only within an LLC. Between LLCs, only the number of threads per CPU is
 *   balanced.
 */
#ifndef USHER_SCX_DISPATCH_H
#define USHER_SCX_DISPATCH_H

#include "run_queue.h"

/* Gives the thread another slice, unless it shares a core while another core is idle. */
static inline void refill_slice(struct task_struct *prev, __u32 cpu, __u64 now,
				const struct settings *settings)
{
	if (settings->smt && !g_variant.fifo &&
	    should_migrate_to_idle_core(prev, cpu))
		return;
	state_of(cpu)->served_ns = now;
	set_slice(prev, settings->slice_ns);
}

/*
 * Marks the CPU time until now as accounted without charging it, and clamps the thread's credit as
 * after a sleep.
 */
static inline void reset_vtime(struct task_struct *prev, __u32 cpu,
			       const struct settings *settings)
{
	struct thread *thread = thread_of(prev);
	struct llc_rq *llc_rq;

	if (!thread)
		return;
	llc_rq = llc_rq_of(thread->llc);
	note_run(prev, thread);
	catch_up(state_of(cpu), llc_rq);
	thread->vtime =
		clamp_sleeper(thread->vtime, llc_rq->clock, settings->slice_ns);
	note_lag(thread);
	if (thread->why == WHY_TURN)
		thread->why = WHY_ALONE;
}

/* Charges the CPU time until now, because other threads waited during that time. */
static inline void charge_prev(struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	charge(prev, thread);
	note_lag(thread);
}

/* Lets the previous thread continue, because no waiting thread may run on this CPU. */
static inline void continue_prev(struct task_struct *prev, __u32 cpu, __u64 now,
				 const struct settings *settings)
{
	COUNT(prolonged);
	if (!g_variant.fifo)
		reset_vtime(prev, cpu, settings);
	refill_slice(prev, cpu, now, settings);
}

/*
 * Selects the next thread among the previous thread and the threads that wait in the CPU's own LLC.
 * Returns whether the CPU has a thread to run.
 */
static inline _Bool pick_in_own_llc(struct pick_ctx *ctx,
				    struct task_struct *prev, __u32 cpu,
				    __u32 llc, const struct settings *settings)
{
	struct cpu_state *state = state_of(cpu);
	__u32 outcome = take_next(llc, ctx);

	if (outcome == TAKEN || outcome == PREV_FIRST)
		state->clock = later(state->clock, ctx->min_vtime_with_prev);
	if (prev && outcome == PREV_ALONE) {
		continue_prev(prev, cpu, ctx->now_ns, settings);
	} else if (prev && outcome == PREV_FIRST) {
		COUNT(turns_kept);
		charge_prev(prev);
		refill_slice(prev, cpu, ctx->now_ns, settings);
	}
	return outcome != NONE_WAITING;
}

/* Adds the previous thread as a candidate, with the vtime that it has after the current run. */
static inline void add_prev(struct pick_ctx *ctx, struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);
	struct llc_rq *llc_rq;
	__u64 vtime, ran;

	if (!thread)
		return;
	ran = virtual_in(uncharged(prev, thread), weight_of(prev, thread));
	ctx->has_prev = 1;
	llc_rq = llc_rq_of(thread->llc);
	vtime = thread->vtime;
	if (waits_for_family(thread))
		vtime = vtime_in_family(thread,
					clock_of(state_of(ctx->cpu), llc_rq));
	ctx->prev_vtime =
		aged(state_of(ctx->cpu), llc_rq, vtime + ran, ctx->now_ns);
}

/*
 * Takes a thread from another LLC with more waiting threads per CPU (balance.h). Returns whether a
 * thread was taken. Once per BALANCE_PERIOD_NS, one LLC is selected at random and checked. If this
 * LLC has no waiting thread and the previous thread sleeps, this check is skipped, because steal()
 * then checks all LLCs.
 */
static inline _Bool balance_llcs(__u32 cpu, const struct task_struct *prev,
				 struct llc_rq *llc_rq,
				 const struct place *here, __u64 now,
				 __u32 llcs)
{
	enum surplus surplus;
	struct llc_rq *other;
	__u32 far, excluded;

	if (!prev && !all_waiting(llc_rq))
		return 0;
	if (!begins_balance(now, &llc_rq->balance_at_ns))
		return 0;
	far = other_llc(here->llc, llcs, bpf_get_prandom_u32());
	other = llc_rq_of(far);
	if (other == llc_rq)
		return 0;
	excluded = remote_queues(far, cpu);
	surplus = surplus_of(load_without(other, excluded), load_of(llc_rq),
			     !prev, here->node_llcs >> far % LLCS_MAX & 1);
	if (surplus == SURPLUS_NONE ||
	    !take_min_vtime(far, excluded, seats_version() != 0))
		return 0;
	end_balance(surplus, now, &llc_rq->balance_at_ns,
		    &other->balance_at_ns);
	note_steal(cpu);
	return 1;
}

/* Kicks an idle CPU of the same core, because more borrowers may wait than this CPU runs. */
static inline void kick_idle_sibling(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	__s32 sibling;

	if (!read_idle(&scan->remaining, here, here->core_words))
		return;
	clear_cpu(&scan->remaining, cpu);
	sibling = first_of(&scan->remaining, &here->core, 0, here->core_words);
	if (sibling >= 0)
		scx_bpf_kick_cpu(sibling, KICK_IDLE);
}

/* Lets this CPU run any thread, because no thread runs on this core as part of its own seat. */
ALWAYS void run_borrowers(__u32 cpu, __u32 llc, struct task_struct *prev,
			  struct pick_ctx *ctx, const struct settings *settings)
{
	ctx->excluded = 0;
	if (prev)
		add_prev(ctx, prev);
	if ((llc_rq_of(llc)->waiting &&
	     pick_in_own_llc(ctx, prev, cpu, llc, settings)) ||
	    (!prev && steal(cpu, llc, 1)))
		kick_idle_sibling(cpu);
	else if (prev)
		continue_prev(prev, cpu, ctx->now_ns, settings);
}

/* Steps 1 to 6 of the overview, for all cases that the fast path of dispatch() does not handle. */
static __attribute__((noinline)) void
dispatch_slow_path(__u32 cpu, struct task_struct *prev,
		   const struct settings *settings)
{
	struct pick_ctx ctx = {.now_ns = now_ns(),
			       .aggregate = settings->aggregate,
			       .cpu = cpu};
	struct place *here = place_of(cpu);
	struct cpu_state *state = state_of(cpu);
	struct llc_rq *llc_rq = llc_rq_of(here->llc);
	_Bool prev_is_borrower;

	ctx.skipped = state->head_skip.queues;
	ctx.excluded = remote_queues(here->llc, cpu);
	if (llc_rq->urgent &&
	    take_urgent(llc_rq, here->llc, state, &ctx, settings))
		return;
	prev_is_borrower = prev && has_borrower(cpu);
	if (prev && !prev_is_borrower)
		add_prev(&ctx, prev);
	ctx.turn.began_ns = state->turn_began_ns;
	if (!has_overdue(&state->aging, clock_of(state, llc_rq)))
		ctx.turn.turn_ns = settings->turn_ns;
	ctx.turn.max_lag_ns = settings->max_lag_ns;
	if (g_groups_compete)
		shorten_turn(&ctx.turn, load_of(llc_rq));
	ctx.own = settings->aggregate
			  ? mm_queue_of(llc_rq->mm_queues, state->turn_key)
			  : MM_QUEUES_PER_LLC;
	if (balance_llcs(cpu, prev, llc_rq, here, ctx.now_ns, settings->llcs))
		return;
	if (llc_rq->waiting &&
	    pick_in_own_llc(&ctx, prev, cpu, here->llc, settings))
		return;
	catch_up(state, llc_rq);
	if (prev && !prev_is_borrower) {
		continue_prev(prev, cpu, ctx.now_ns, settings);
		return;
	}
	if (steal(cpu, here->llc, 0))
		return;
	if (seats_version() && !is_shared(cpu, 1))
		run_borrowers(cpu, here->llc, prev, &ctx, settings);
	else if (prev)
		continue_prev(prev, cpu, ctx.now_ns, settings);
}

/*
 * Selects a thread for the CPU. Fast path: if only urgent threads wait, the first of them is taken.
 */
static inline void dispatch(__u32 cpu, struct task_struct *prev,
			    const struct settings *settings)
{
	__u32 llc = place_of(cpu)->llc;
	struct llc_rq *llc_rq = llc_rq_of(llc);

	if (!llc_rq->urgent || llc_rq->waiting ||
	    !take_urgent_alone(llc_rq, llc, state_of(cpu)))
		dispatch_slow_path(cpu, prev, settings);
}

#endif
