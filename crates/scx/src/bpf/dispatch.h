/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A CPU asks for its next thread: urgent ones; now and then one of an LLC that has more to
 * do; its own LLC's queues by turns; where nobody waits there, other LLCs; then guests.
 * Whoever ran until now may run on, and what it ran is charged or forgiven.
 */
#ifndef USHER_SCX_DISPATCH_H
#define USHER_SCX_DISPATCH_H

#include "o1.h"

/* Has the thread run on, as any other would; but not on half a core beside an idle one. */
static inline void refill_slice(struct task_struct *prev, __u32 cpu, __u64 now,
				const struct settings *settings)
{
	if (settings->smt && !g_order.fifo &&
	    should_migrate_to_idle_core(prev, cpu))
		return;
	if (g_order.o1) {
		refill_by_level(prev, cpu, now);
		return;
	}
	state_of(cpu)->served_ns = now;
	set_slice(prev, settings->slice_ns);
}

/* What it has run until now is no part of what it will be charged for; nor is it owed
 * anything by whoever comes later. */
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

/* It is charged for what it has run while others waited, whatever it is forgiven later. */
static inline void charge_prev(struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	charge(prev, thread);
	note_lag(thread);
}

/* Lets a thread run on, as nobody waits who may run here. */
static inline void continue_prev(struct task_struct *prev, __u32 cpu, __u64 now,
				 const struct settings *settings)
{
	COUNT(prolonged);
	if (!g_order.o1 && !g_order.fifo)
		reset_vtime(prev, cpu, settings);
	refill_slice(prev, cpu, now, settings);
}

/* A turn of the CPU's LLC; whether the CPU has something to run now. */
static inline _Bool next_turn(struct pick_ctx *ctx, struct task_struct *prev,
			      __u32 cpu, __u32 llc,
			      const struct settings *settings)
{
	struct cpu_state *state = state_of(cpu);
	__u32 outcome = take_next(llc, ctx);

	if (outcome == TAKEN || outcome == PREV_FIRST)
		state->clock = later(state->clock, ctx->min_vtime_with_prev);
	if (prev && outcome == PREV_ALONE) {
		continue_prev(prev, cpu, ctx->now_ns, settings);
	} else if (prev && outcome == PREV_FIRST) {
		COUNT(turns_kept);
		if (!g_order.o1)
			charge_prev(prev);
		refill_slice(prev, cpu, ctx->now_ns, settings);
	}
	return outcome != NONE_WAITING;
}

static inline void add_prev(struct pick_ctx *ctx, struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);
	__u64 ran;

	if (!thread)
		return;
	ran = virtual_ns(uncharged(prev, thread), weight_of(prev, thread));
	ctx->has_prev = 1;
	ctx->prev_vtime = paced(state_of(ctx->cpu), llc_rq_of(thread->llc),
				thread->vtime + ran, ctx->now_ns);
}

/*
 * Another LLC is looked at now and then, as it may have more to do. Where nobody goes on or
 * waits here all are looked at anyway.
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
	surplus = surplus_of(left_of(other, excluded), load_of(llc_rq), !prev,
			     here->node_llcs >> far % LLCS_MAX & 1);
	if (surplus == SURPLUS_NONE ||
	    !take_min_vtime(far, excluded, seats_version() != 0))
		return 0;
	end_balance(surplus, now, &llc_rq->balance_at_ns,
		    &other->balance_at_ns);
	note_steal(cpu);
	return 1;
}

/* There may be more guests than this CPU takes in: an idle one of its core looks, too. */
static inline void kick_idle_sibling(__u32 cpu)
{
	struct idle_scan_ctx *scan = scan_ctx();
	struct place *here = place_of(cpu);
	__s32 sibling;

	if (!read_idle(&scan->remaining, here))
		return;
	clear_cpu(&scan->remaining, cpu);
	sibling = first_of(&scan->remaining, &here->core, 0);
	if (sibling >= 0)
		scx_bpf_kick_cpu(sibling, KICK_IDLE);
}

/* Nobody who is at home here wants the CPU: anybody may have it. */
static inline void run_borrowers(__u32 cpu, __u32 llc, struct task_struct *prev,
				 struct pick_ctx *ctx,
				 const struct settings *settings)
{
	ctx->excluded = 0;
	if (prev)
		add_prev(ctx, prev);
	if ((llc_rq_of(llc)->waiting &&
	     next_turn(ctx, prev, cpu, llc, settings)) ||
	    (!prev && steal(cpu, llc, settings->llcs, 1)))
		kick_idle_sibling(cpu);
	else if (prev)
		continue_prev(prev, cpu, ctx->now_ns, settings);
}

/* Somebody waits who is not urgent, or there is nobody. */
static __attribute__((noinline)) void
take_turns(__u32 cpu, struct task_struct *prev, const struct settings *settings)
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
	if (prev && !prev_is_borrower && g_order.o1)
		add_prev_by_level(&ctx, prev);
	else if (prev && !prev_is_borrower)
		add_prev(&ctx, prev);
	ctx.turn.began_ns = state->turn_began_ns;
	ctx.turn.turn_ns = settings->turn_ns;
	ctx.turn.max_lag_ns = settings->max_lag_ns;
	ctx.own = settings->aggregate
			  ? mm_queue_of(llc_rq->mm_queues, state->turn_key)
			  : MM_QUEUES_PER_LLC;
	if (balance_llcs(cpu, prev, llc_rq, here, ctx.now_ns, settings->llcs))
		return;
	if (llc_rq->waiting && next_turn(&ctx, prev, cpu, here->llc, settings))
		return;
	catch_up(state, llc_rq);
	if (prev && !prev_is_borrower) {
		continue_prev(prev, cpu, ctx.now_ns, settings);
		return;
	}
	if (steal(cpu, here->llc, settings->llcs, 0))
		return;
	if (seats_version() && !is_shared(cpu, 1))
		run_borrowers(cpu, here->llc, prev, &ctx, settings);
	else if (prev)
		continue_prev(prev, cpu, ctx.now_ns, settings);
}

static inline void dispatch(__u32 cpu, struct task_struct *prev,
			    const struct settings *settings)
{
	__u32 llc = place_of(cpu)->llc;
	struct llc_rq *llc_rq = llc_rq_of(llc);

	if (!llc_rq->urgent || llc_rq->waiting ||
	    !take_urgent_alone(llc_rq, llc, state_of(cpu)))
		take_turns(cpu, prev, settings);
}

#endif
