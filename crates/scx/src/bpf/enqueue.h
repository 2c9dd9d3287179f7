/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * A thread comes to run: what its sleep is worth, and which way it goes. That is to an
 * idle CPU, to one that a guest has to give back, or into a queue, whence a CPU that
 * fell asleep too early is called.
 */
#ifndef USHER_SCX_ENQUEUE_H
#define USHER_SCX_ENQUEUE_H

#include "o1.h"

static inline _Bool stays_here(struct task_struct *p)
{
	return p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1;
}

/* Verified once: the average over the queues of an LLC. */
__noinline __u64 ask_average(__u32 llc)
{
	struct hall *hall = hall_of(llc);

	return average_of(hall->spaces, hall->clock);
}

/* It is charged for what it has run; preempted in a short burst it is still in a hurry. */
ALWAYS void come_back(struct task_struct *p, struct thread *thread,
		      _Bool has_slept)
{
	charge(p, thread);
	if (has_slept) {
		end_burst(thread);
		return;
	}
	note_pace(thread);
	if (thread->burst_ns >= SHORT_BURST_NS)
		thread->urgent = 0;
}

/* A thread that has slept, and need not wait: what it is owed. */
static inline void follow_sleep(struct thread *thread,
				const struct settings *wants)
{
	thread->vtime = wake_at(thread->vtime, hall_of(thread->llc)->clock,
				wants->slice_ns);
	note_pace(thread);
}

/*
 * The same of one that may have to, and whether it is urgent. It may be as far ahead of
 * the others as anybody gets in a turn.
 */
static inline void wake(struct task_struct *p, struct thread *thread, __u32 cpu,
			const struct settings *wants)
{
	struct hall *hall = hall_of(thread->llc);
	__u64 ahead =
		ahead_at_most(wants->lead_ns, wants->slice_ns, WEIGHT_NORMAL);
	__u64 clock;

	clock = clock_for(p, thread, cpu, thread->llc, hall);
	thread->vtime = wake_at(thread->vtime, clock, wants->slice_ns);
	note_pace(thread);
	thread->urgent = is_urgent(thread->burst_average_ns, thread->vtime,
				   clock + ahead);
	/* Who is further behind than the LLC's clock tells stands still while others have
	 * their turns, so the average decides. Asked seldom, as it takes long. */
	if (!thread->urgent && clock == hall->clock &&
	    thread->burst_average_ns < SHORT_BURST_NS)
		thread->urgent = is_before(thread->vtime,
					   ask_average(thread->llc) + ahead);
}

/* Of one that may run nowhere else the kernel does not ask where it is to run: a guest
 * gives way to it here. */
static inline _Bool take_back(struct task_struct *p, struct thread *thread,
			      __u32 cpu)
{
	struct outlook *sees;

	if (!has_guest(cpu) || is_movable(p))
		return 0;
	sees = outlook();
	return look_around(sees, p, thread, cpu) && has_cpu(&sees->home, cpu) &&
	       claim_from_guest(thread, cpu);
}

/* A guest that has to go does not wait for the end of its slice. */
static inline __u64 or_preempt(const struct thread *thread)
{
	return thread->why == WHY_RETURNED ? ENQ_PREEMPT : 0;
}

static inline __u64 slice_of(const struct thread *thread,
			     const struct settings *wants)
{
	return g_order.o1 ? thread->stands.slice_left_ns : wants->slice_ns;
}

/* Off to an idle CPU: of an idle core, where it would keep the one it has. For one that does
 * not wake; who wakes was asked where to run already. */
static inline _Bool move_over(struct task_struct *p, struct thread *thread,
			      __u32 cpu, __u64 flags,
			      const struct settings *wants)
{
	_Bool is_last = flags & ENQ_LAST;
	__s32 to;

	if (!is_movable(p) || (is_last && !wants->smt))
		return 0;
	to = claim(p, thread, cpu, wants->smt, is_last);
	if (to < 0)
		return 0;
	COUNT(moved);
	insert(p, DSQ_LOCAL_ON | to, slice_of(thread, wants),
	       flags | or_preempt(thread));
	scx_bpf_kick_cpu(to, KICK_IDLE);
	return 1;
}

/* An idle CPU at home, of whatever node. */
__noinline int find_idle(__u32 cpu)
{
	struct outlook *sees = outlook();
	struct place *here = place_of(cpu);
	__s32 idle;

	idle = nearest_of(&sees->idle, &sees->home, cpu, here);
	if (idle < 0 && sees->unseen && see_far())
		idle = nearest_of(&sees->idle, &sees->home, cpu, here);
	return idle;
}

/*
 * A CPU that fell idle while the thread was being put into its queue has looked
 * there too early, and would sleep on. One that may run nowhere else waits for a CPU
 * that is at work: that will look.
 */
static inline void rouse_nearest(struct task_struct *p, struct thread *thread,
				 __u32 cpu)
{
	struct outlook *sees = outlook();
	struct place *here = place_of(cpu);
	__s32 idle;

	if (is_at_work(cpu) && !is_movable(p))
		return;
	idle = look_around(sees, p, thread, cpu) ? find_idle(cpu) : NOWHERE;
	if (idle < 0) {
		/* The kernel may be about to mark it. */
		read_set(&sees->allowed, p->cpus_ptr);
		look_home(sees, p, thread);
		idle = nearest_of(&g_idlers, &sees->home, cpu, here);
	}
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, KICK_IDLE);
}

/* Whether any is idle takes no call to see. */
ALWAYS void rouse(struct task_struct *p, struct thread *thread, __u32 cpu)
{
	if (any_idle())
		rouse_nearest(p, thread, cpu);
}

static inline void enqueue_by_level(struct task_struct *p,
				    struct thread *thread, __u32 cpu,
				    const struct settings *wants, __u64 flags)
{
	struct place *here = place_of(cpu);

	leave_queue(thread);
	give_key(thread, p->static_prio, now_ns());
	if (!(flags & ENQ_WAKEUP) && move_over(p, thread, cpu, flags, wants))
		return;
	if (flags & ENQ_LAST) {
		thread->why = WHY_ALONE;
		insert(p, DSQ_LOCAL, slice_of(thread, wants), flags);
		return;
	}
	join_by_level(p, thread, here->llc, wants, flags);
	if (flags & ENQ_WAKEUP)
		preempt_by_level(p, thread, cpu, wants);
	rouse(p, thread, cpu);
}

/* Unless a guest gives way. */
ALWAYS void come_to_wait(struct task_struct *p, struct thread *thread,
			 __u32 cpu, const struct settings *wants, __u64 flags)
{
	struct cpu_state *state = state_of(cpu);
	struct place *here = place_of(cpu);

	if (flags & ENQ_WAKEUP && take_back(p, thread, cpu)) {
		insert(p, DSQ_LOCAL, wants->slice_ns, flags | ENQ_PREEMPT);
		return;
	}
	join_queue(p, thread, cpu, waits_in(p, thread, cpu, here->llc), wants,
		   flags);
	if (flags & ENQ_WAKEUP && thread->urgent && is_at_work(cpu) &&
	    !state->urgent && is_home(thread->seat, cpu)) {
		COUNT(preempted);
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	}
	rouse(p, thread, cpu);
}

#endif
