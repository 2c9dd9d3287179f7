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
static inline void keep(struct task_struct *prev, __u32 cpu, __u64 now,
			const struct settings *wants)
{
	if (wants->smt && !g_order.fifo && wants_out(prev, cpu))
		return;
	if (g_order.o1) {
		keep_by_level(prev, cpu, now);
		return;
	}
	state_of(cpu)->served_ns = now;
	set_slice(prev, wants->slice_ns);
}

/* What it has run until now is no part of what it will be charged for; nor is it owed
 * anything by whoever comes later. */
static inline void forgive(struct task_struct *prev, __u32 cpu,
			   const struct settings *wants)
{
	struct thread *thread = thread_of(prev);
	struct hall *hall;

	if (!thread)
		return;
	hall = hall_of(thread->llc);
	note_run(prev, thread);
	catch_up(state_of(cpu), hall);
	thread->vtime = wake_at(thread->vtime, hall->clock, wants->slice_ns);
	note_pace(thread);
	if (thread->why == WHY_TURN)
		thread->why = WHY_ALONE;
}

/* It is charged for what it has run while others waited, whatever it is forgiven later. */
static inline void settle(struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	charge(prev, thread);
	note_pace(thread);
}

/* Lets a thread run on, as nobody waits who may run here. */
static inline void prolong(struct task_struct *prev, __u32 cpu, __u64 now,
			   const struct settings *wants)
{
	COUNT(prolonged);
	if (!g_order.o1 && !g_order.fifo)
		forgive(prev, cpu, wants);
	keep(prev, cpu, now, wants);
}

/* A turn of the CPU's LLC; whether the CPU has something to run now. */
static inline _Bool next_turn(struct moment *is, struct task_struct *prev,
			      __u32 cpu, __u32 llc,
			      const struct settings *wants)
{
	struct cpu_state *state = state_of(cpu);
	__u32 outcome = take_next(llc, is);

	if (outcome == TAKEN || outcome == PREV_FIRST)
		state->clock = later(state->clock, is->least);
	if (prev && outcome == PREV_ALONE) {
		prolong(prev, cpu, is->now_ns, wants);
	} else if (prev && outcome == PREV_FIRST) {
		COUNT(turns_kept);
		if (!g_order.o1)
			settle(prev);
		keep(prev, cpu, is->now_ns, wants);
	}
	return outcome != NOBODY_WAITS;
}

static inline void look_at_prev(struct moment *is, struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);
	__u64 ran;

	if (!thread)
		return;
	ran = virtual_ns(uncharged(prev, thread), weight_of(prev, thread));
	is->has_prev = 1;
	is->prev_vtime = paced(state_of(is->cpu), hall_of(thread->llc),
			       thread->vtime + ran, is->now_ns);
}

/*
 * Another LLC is looked at now and then, as it may have more to do. Where nobody goes on or
 * waits here all are looked at anyway.
 */
static inline _Bool take_far(__u32 cpu, const struct task_struct *prev,
			     struct hall *hall, const struct place *here,
			     __u64 now, __u32 llcs)
{
	enum surplus surplus;
	struct hall *other;
	__u32 far, not ;

	if (!prev && !all_waiting(hall))
		return 0;
	if (!begins_look(now, &hall->look_at_ns))
		return 0;
	far = other_llc(here->llc, llcs, bpf_get_prandom_u32());
	other = hall_of(far);
	if (other == hall)
		return 0;
	not = strangers(far, cpu);
	surplus = surplus_of(left_of(other, not ), load_of(hall), !prev,
			     here->node_llcs >> far % LLCS_MAX & 1);
	if (surplus == SURPLUS_NONE ||
	    !take_hindmost(far, not, seats_version() != 0))
		return 0;
	end_look(surplus, now, &hall->look_at_ns, &other->look_at_ns);
	note_theft(cpu);
	return 1;
}

/* There may be more guests than this CPU takes in: an idle one of its core looks, too. */
static inline void call_sibling(__u32 cpu)
{
	struct outlook *sees = outlook();
	struct place *here = place_of(cpu);
	__s32 sibling;

	if (!read_idle(&sees->left, here))
		return;
	strike(&sees->left, cpu);
	sibling = first_of(&sees->left, &here->core, 0);
	if (sibling >= 0)
		scx_bpf_kick_cpu(sibling, KICK_IDLE);
}

/* Nobody who is at home here wants the CPU: anybody may have it. */
static inline void have_guests(__u32 cpu, __u32 llc, struct task_struct *prev,
			       struct moment *is, const struct settings *wants)
{
	is->not = 0;
	if (prev)
		look_at_prev(is, prev);
	if ((hall_of(llc)->waiting && next_turn(is, prev, cpu, llc, wants)) ||
	    (!prev && steal(cpu, llc, wants->llcs, 1)))
		call_sibling(cpu);
	else if (prev)
		prolong(prev, cpu, is->now_ns, wants);
}

/* Somebody waits who is not urgent, or there is nobody. */
static __attribute__((noinline)) void
take_turns(__u32 cpu, struct task_struct *prev, const struct settings *wants)
{
	struct moment is = {
		.now_ns = now_ns(), .aggregate = wants->aggregate, .cpu = cpu};
	struct place *here = place_of(cpu);
	struct cpu_state *state = state_of(cpu);
	struct hall *hall = hall_of(here->llc);
	_Bool prev_is_guest;

	is.passes = state->passed.queues;
	is.not = strangers(here->llc, cpu);
	if (hall->urgent && take_urgent(hall, here->llc, state, &is, wants))
		return;
	prev_is_guest = prev && has_guest(cpu);
	if (prev && !prev_is_guest && g_order.o1)
		look_by_level(&is, prev);
	else if (prev && !prev_is_guest)
		look_at_prev(&is, prev);
	is.turn.began_ns = state->turn_began_ns;
	is.turn.turn_ns = wants->turn_ns;
	is.turn.lead_ns = wants->lead_ns;
	is.own = wants->aggregate ? space_of(hall->spaces, state->turn_of)
				  : SPACES;
	if (take_far(cpu, prev, hall, here, is.now_ns, wants->llcs))
		return;
	if (hall->waiting && next_turn(&is, prev, cpu, here->llc, wants))
		return;
	catch_up(state, hall);
	if (prev && !prev_is_guest) {
		prolong(prev, cpu, is.now_ns, wants);
		return;
	}
	if (steal(cpu, here->llc, wants->llcs, 0))
		return;
	if (seats_version() && !is_shared(cpu, 1))
		have_guests(cpu, here->llc, prev, &is, wants);
	else if (prev)
		prolong(prev, cpu, is.now_ns, wants);
}

static inline void dispatch(__u32 cpu, struct task_struct *prev,
			    const struct settings *wants)
{
	__u32 llc = place_of(cpu)->llc;
	struct hall *hall = hall_of(llc);

	if (!hall->urgent || hall->waiting ||
	    !take_urgent_alone(hall, llc, state_of(cpu)))
		take_turns(cpu, prev, wants);
}

#endif
