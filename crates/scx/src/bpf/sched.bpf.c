// SPDX-License-Identifier: GPL-2.0-only
/*
 * Usher's scheduler: the kernel's callbacks, in the order of a thread's life.
 *
 *   seats.h   whose CPU: programs' own ones, softly kept (paper 1)
 *   where.h   on which CPU: idle physical cores first (paper 3b)
 *   when.h    who is next: address spaces in turns (paper 4)
 *   o1.h      the same as in Linux 2.6, to compare with
 *   rules.h   the arithmetic of the first three, without a kernel
 *   levels.h  the arithmetic of o1.h
 *   state.h   what is known of the machine, of threads and queues
 *   ending.h  what is told when the kernel ends it
 *   kernel.h  the kernel, as far as we use it
 *
 * A thread that wakes goes straight to an idle CPU, if there is one, or to one
 * that a guest has to give back. Otherwise it waits in its LLC: among urgent ones if
 * it only wakes for a moment, else in the queue of its address space. Virtual time (CPU
 * time over weight) orders each queue and all of them. A CPU that has used up a slice
 * asks who is next; one that finds nobody in its LLC asks the others.
 *
 * When a CPU comes or goes, the kernel ends us and user space begins us anew, for
 * there is no callback for it here. A CPU that goes is not asked for its next
 * thread any more and yet waits until it has none, so that threads that may run
 * nowhere else must not be in our queues.
 *
 * Per-CPU kernel threads never wait in a queue. If anything is wrong, the
 * kernel takes all threads back to its own scheduler and calls `exit`.
 */
#include "ending.h"
#include "o1.h"

char LICENSE[] SEC("license") = "GPL";

#define MS 1000000ULL

static inline _Bool stays_here(struct task_struct *p)
{
	return p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1;
}

/* Verified once: the average over the queues of an LLC. */
__noinline __u64 ask_average(__u32 llc)
{
	struct hall *hall = hall_of(llc);

	return hall ? average_of(hall->spaces, hall->clock) : 0;
}

/* A thread that has slept: what it is owed. */
static inline void follow_sleep(struct thread *thread,
				const struct settings *wants)
{
	struct hall *hall = hall_of(thread->llc);

	if (hall)
		thread->vtime =
			wake_at(thread->vtime, hall->clock, wants->slice_ns);
}

/*
 * The same, and whether it is urgent. It may be as far ahead of the others as anybody
 * gets in a turn.
 */
static inline void wake(struct thread *thread, const struct settings *wants)
{
	struct hall *hall = hall_of(thread->llc);
	__u64 ahead =
		ahead_at_most(wants->lead_ns, wants->slice_ns, WEIGHT_NORMAL);

	if (!hall)
		return;
	follow_sleep(thread, wants);
	thread->urgent = is_urgent(thread->burst_average_ns, thread->vtime,
				   hall->clock + ahead);
	/* Who is further behind than the clock tells stands still while others have their
	 * turns, so the average decides. Asked seldom, as it takes long. */
	if (!thread->urgent && thread->burst_average_ns < SHORT_BURST_NS)
		thread->urgent = is_before(thread->vtime,
					   ask_average(thread->llc) + ahead);
}

/* Of one that may run nowhere else the kernel does not ask where it is to run: a guest
 * gives way to it here. */
static inline _Bool take_back(struct task_struct *p, struct thread *thread,
			      __u32 cpu)
{
	struct outlook *sees = ONLY(outlooks);

	return has_guest(cpu) && sees && !is_movable(p) &&
	       look_around(sees, p, thread, cpu) && has_cpu(&sees->home, cpu) &&
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
	return wants->o1 ? thread->stands.slice_left_ns : wants->slice_ns;
}

OP(usher_select_cpu)
__s32 BPF_PROG(usher_select_cpu, struct task_struct *p, __s32 prev, __u64 flags)
{
	struct settings *wants = ONLY(settings);
	struct thread *thread = thread_of(p);
	__s32 cpu;

	if (!wants || !thread)
		return prev;
	if (wants->o1)
		give_key(thread, p->static_prio, now_ns());
	cpu = claim(p, thread, prev, wants->smt && !wants->fifo, 0);
	if (cpu < 0)
		return prev;
	if (!wants->o1)
		follow_sleep(thread, wants);
	insert(p, DSQ_LOCAL, slice_of(thread, wants), or_preempt(thread));
	return cpu;
}

/* Off to an idle CPU: of an idle core, where it would keep the one it has. */
static inline _Bool move_over(struct task_struct *p, struct thread *thread,
			      __u32 cpu, __u64 flags,
			      const struct settings *wants)
{
	_Bool is_last = flags & ENQ_LAST;
	__s32 to;

	if (flags & ENQ_WAKEUP || !is_movable(p) || (is_last && !wants->smt))
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

/*
 * A CPU that fell idle while the thread was being put into its queue has looked
 * there too early, and would sleep on. One that may run nowhere else waits for a CPU
 * that is at work: that will look.
 */
static inline void rouse(struct task_struct *p, struct thread *thread,
			 __u32 cpu)
{
	struct outlook *sees = ONLY(outlooks);
	struct cpu_state *state = state_of(cpu);
	struct place *here = place_of(cpu);
	__s32 idle;

	if (state && state->running && !is_movable(p))
		return;
	if (!sees || !here || !look_around(sees, p, thread, cpu))
		return;
	idle = nearest_of(&sees->idle, &sees->home, cpu, here);
	if (idle < 0 && sees->unseen && see_far())
		idle = nearest_of(&sees->idle, &sees->home, cpu, here);
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, KICK_IDLE);
}

static inline void enqueue_by_level(struct task_struct *p,
				    struct thread *thread, __u32 cpu,
				    const struct settings *wants, __u64 flags)
{
	struct place *here = place_of(cpu);

	leave_queue(thread);
	give_key(thread, p->static_prio, now_ns());
	if (!here || move_over(p, thread, cpu, flags, wants))
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
static inline void come_to_wait(struct task_struct *p, struct thread *thread,
				__u32 cpu, const struct settings *wants,
				__u64 flags)
{
	struct cpu_state *state = state_of(cpu);
	struct place *here = place_of(cpu);

	if (!state || !here) {
		insert(p, DSQ_LOCAL, wants->slice_ns, flags);
		return;
	}
	if (flags & ENQ_WAKEUP && take_back(p, thread, cpu)) {
		insert(p, DSQ_LOCAL, wants->slice_ns, flags | ENQ_PREEMPT);
		return;
	}
	join_queue(p, thread, waits_in(p, thread, cpu, here->llc), wants,
		   flags);
	if (flags & ENQ_WAKEUP && thread->urgent && state->running &&
	    !state->urgent && is_home(thread->seat, cpu)) {
		COUNT(preempted);
		scx_bpf_kick_cpu(cpu, KICK_PREEMPT);
	}
	rouse(p, thread, cpu);
}

OP(usher_enqueue)
void BPF_PROG(usher_enqueue, struct task_struct *p, __u64 flags)
{
	__u32 cpu = scx_bpf_task_cpu(p);
	struct settings *wants = ONLY(settings);
	struct thread *thread = thread_of(p);
	struct place *here = place_of(cpu);

	if (!wants || !thread || !here) {
		insert(p, DSQ_LOCAL, 20 * MS, flags);
		return;
	}
	if (stays_here(p)) {
		/* What the CPU itself wants done, and somebody waits for. */
		if (flags & ENQ_WAKEUP && !wants->o1 && !wants->fifo)
			follow_sleep(thread, wants);
		thread->why = WHY_ONLY_HERE;
		insert(p, DSQ_LOCAL, wants->slice_ns,
		       wants->fifo ? flags : flags | ENQ_PREEMPT);
		return;
	}
	if (wants->fifo) {
		thread->why = WHY_FIFO;
		insert(p, flags & ENQ_LAST ? DSQ_LOCAL : FIFO, wants->slice_ns,
		       flags);
		return;
	}
	if (wants->o1) {
		enqueue_by_level(p, thread, cpu, wants, flags);
		return;
	}
	leave_queue(thread);
	if (flags & ENQ_WAKEUP)
		wake(thread, wants);
	else if (!thread->began_ns)
		thread->urgent = 1;
	if (move_over(p, thread, cpu, flags, wants))
		return;
	if (flags & ENQ_LAST) {
		thread->why = WHY_ALONE;
		insert(p, DSQ_LOCAL, wants->slice_ns, flags);
		return;
	}
	come_to_wait(p, thread, cpu, wants, flags);
}

/* Has the thread run on, as any other would; but not on half a core beside an idle one. */
static inline void keep(struct task_struct *prev, __u32 cpu, __u64 now,
			const struct settings *wants)
{
	struct cpu_state *state = state_of(cpu);

	if (wants->smt && !wants->fifo && wants_out(prev, cpu))
		return;
	if (wants->o1) {
		keep_by_level(prev, cpu, now);
		return;
	}
	if (state)
		state->served_ns = now;
	set_slice(prev, wants->slice_ns);
}

/* How long a thread has run until now, which is not counted again. */
static inline __u64 note_run(struct thread *thread, __u64 now)
{
	__u64 ran = since(thread->began_ns, now);

	thread->burst_ns += ran;
	note_use(thread, thread->cpu, ran);
	thread->began_ns = now;
	return ran;
}

static inline void charge(struct thread *thread, __u64 ran, __u64 weight)
{
	struct hall *hall = hall_of(thread->llc);

	thread->vtime += virtual_ns(ran, weight);
	thread->ahead_ns = hall ? thread->vtime - hall->clock : 0;
}

/* What it has run until now is no part of what it will be charged for. */
static inline void forgive(struct task_struct *prev, __u64 now)
{
	struct thread *thread = thread_of(prev);

	if (!thread)
		return;
	note_run(thread, now);
	if (thread->why == WHY_TURN)
		thread->why = WHY_ALONE;
}

/* It is charged for what it has run while others waited, whatever it is forgiven later. */
static inline void settle(struct task_struct *prev, __u64 now)
{
	struct thread *thread = thread_of(prev);

	if (thread)
		charge(thread, note_run(thread, now),
		       weight_of(prev, thread, now));
}

/* Lets a thread run on, as nobody waits who may run here. */
static inline void prolong(struct task_struct *prev, __u32 cpu, __u64 now,
			   const struct settings *wants)
{
	COUNT(prolonged);
	if (!wants->o1 && !wants->fifo)
		forgive(prev, now);
	keep(prev, cpu, now, wants);
}

/* A turn of the CPU's LLC; whether the CPU has something to run now. */
static inline _Bool next_turn(struct moment *is, struct task_struct *prev,
			      __u32 cpu, __u32 llc,
			      const struct settings *wants)
{
	__u32 outcome = take_next(llc, is);

	if (prev && outcome == PREV_ALONE) {
		prolong(prev, cpu, is->now_ns, wants);
	} else if (prev && outcome == PREV_FIRST) {
		COUNT(turns_kept);
		if (!wants->o1)
			settle(prev, is->now_ns);
		keep(prev, cpu, is->now_ns, wants);
	}
	return outcome != NOBODY_WAITS;
}

static inline void look_at_prev(struct moment *is, struct task_struct *prev)
{
	struct thread *thread = thread_of(prev);
	struct hall *hall = thread ? hall_of(thread->llc) : 0;
	__u64 ran;

	if (!hall)
		return;
	ran = virtual_ns(since(thread->began_ns, is->now_ns),
			 weight_of(prev, thread, is->now_ns));
	is->has_prev = 1;
	is->prev_vtime = paced(hall, thread->vtime + ran, is->now_ns);
}

/*
 * Another LLC is looked at now and then: it may have more to do. Where it has more by one,
 * it does not look for as long as this: whoever is one too many would be taken back at
 * once, and be here for a shorter time than there, again and again. Where it has more than
 * that, the next CPU that asks looks again.
 *
 * Where the last thread sleeps, one that waits here would run: others are compared with
 * who waits then.
 */
static inline _Bool take_far(__u32 cpu, const struct task_struct *prev,
			     struct hall *hall, const struct place *here,
			     __u64 now, __u32 llcs)
{
	struct load own = load_of(hall);
	struct hall *other;
	_Bool by_far;
	__u32 far;

	if (is_before(now, hall->look_at_ns))
		return 0;
	hall->look_at_ns = now + LOOK_EVERY_NS;
	far = other_llc(here->llc, llcs, bpf_get_prandom_u32());
	other = hall_of(far);
	if (!prev && own.waiting)
		own.waiting--;
	if (!other || other == hall ||
	    !is_fuller(load_of(other), own,
		       here->node_llcs >> far % LLCS_MAX & 1))
		return 0;
	by_far = is_fuller(load_of(other), own, 0);
	if (!take_hindmost(far, strangers(far, cpu)))
		return 0;
	if (by_far)
		hall->look_at_ns = now;
	else
		other->look_at_ns = now + LOOK_EVERY_NS;
	note_theft(cpu);
	return 1;
}

/* There may be more guests than this CPU takes in: an idle one of its core looks, too. */
static inline void call_sibling(__u32 cpu)
{
	struct outlook *sees = ONLY(outlooks);
	struct place *here = place_of(cpu);
	__s32 sibling;

	if (!sees || !here)
		return;
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
	struct hall *hall = hall_of(llc);

	is->not = 0;
	if (prev)
		look_at_prev(is, prev);
	if ((hall && hall->waiting && next_turn(is, prev, cpu, llc, wants)) ||
	    (!prev && steal(cpu, llc, wants->llcs, 1)))
		call_sibling(cpu);
	else if (prev)
		prolong(prev, cpu, is->now_ns, wants);
}

static inline void dispatch(__u32 cpu, struct task_struct *prev,
			    const struct settings *wants)
{
	struct moment is = {.now_ns = now_ns(), .aggregate = wants->aggregate};
	struct place *here = place_of(cpu);
	struct cpu_state *state = state_of(cpu);
	struct hall *hall;
	_Bool prev_is_guest;

	if (!here || !state)
		return;
	hall = hall_of(here->llc);
	if (!hall)
		return;
	is.not = strangers(here->llc, cpu);
	if (hall->urgent && take_urgent(hall, here->llc, state, &is, wants))
		return;
	prev_is_guest = prev && has_guest(cpu);
	if (prev && !prev_is_guest && wants->o1)
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

OP(usher_dispatch)
void BPF_PROG(usher_dispatch, __s32 cpu, struct task_struct *prev)
{
	struct settings *wants = ONLY(settings);

	if (!wants)
		return;
	if (prev && !(prev->scx.flags & TASK_QUEUED))
		prev = 0;
	if (!wants->fifo)
		dispatch(cpu, prev, wants);
	else if (!take(FIFO) && prev)
		prolong(prev, cpu, now_ns(), wants);
}

static inline void note_space(struct cpu_state *state, struct thread *thread,
			      __u64 mm, __u32 queue, __u64 now,
			      const struct settings *wants)
{
	COUNT(switches);
	if (!mm)
		return;
	if (mm != state->last_mm) {
		state->last_mm = mm;
		COUNT(space_switches);
	}
	if (thread->urgent)
		return;
	state->turn_of = sharers_of(thread, mm, wants);
	if (ends_turn(state->turn_mm, state->turn_queue, mm, queue))
		state->turn_began_ns = now;
	state->turn_mm = mm;
	state->turn_queue = queue;
}

static inline void note_service(struct thread *thread, __u32 cpu,
				struct cpu_state *state, __u64 now)
{
	struct place *here = place_of(cpu);
	struct hall *hall = here ? hall_of(here->llc) : 0;

	if (!hall)
		return;
	follow_clock(thread, here->llc);
	if (!all_waiting(hall))
		thread->vtime = alone_at(thread->vtime, hall->clock);
	if (!thread->urgent)
		state->served_ns = now;
}

OP(usher_running)
void BPF_PROG(usher_running, struct task_struct *p)
{
	__u32 cpu = scx_bpf_task_cpu(p);
	struct thread *thread = thread_of(p);
	struct cpu_state *state = state_of(cpu);
	struct settings *wants = ONLY(settings);
	__u64 now = now_ns();
	__u32 queue;

	if (!wants || !thread || !state)
		return;
	queue = thread->queue;
	if (queue != NO_QUEUE && state->why)
		thread->why = state->why;
	state->why = WHY_UNKNOWN;
	leave_queue(thread);
	thread->began_ns = now;
	thread->cpu = cpu;
	if (wants->o1)
		begin_by_level(thread, cpu, now);
	else
		note_service(thread, cpu, state, now);
	note_arrival(thread, cpu, now);
	note_space(state, thread, space_number(p, thread), queue, now, wants);
	state->movable = is_movable(p);
	state->urgent = thread->urgent || stays_here(p);
	if (wants->smt && state->movable)
		read_set(&state->allowed, p->cpus_ptr);
	state->running = 1;
}

/* For what no kick has brought into order. */
OP(usher_tick)
void BPF_PROG(usher_tick, struct task_struct *p)
{
	struct settings *wants = ONLY(settings);
	struct thread *thread = thread_of(p);
	__u32 cpu = scx_bpf_task_cpu(p);

	if (!wants || !thread || wants->fifo)
		return;
	follow_seats(p, thread, cpu);
	if (wants->smt && wants_out(p, cpu))
		set_slice(p, 0);
}

OP(usher_stopping)
void BPF_PROG(usher_stopping, struct task_struct *p, _Bool runnable)
{
	__u32 cpu = scx_bpf_task_cpu(p);
	struct thread *thread = thread_of(p);
	struct cpu_state *state = state_of(cpu);
	struct settings *wants = ONLY(settings);
	__u64 now = now_ns();
	__u64 ran;

	if (!wants || !thread || !state)
		return;
	state->running = 0;
	note_guest(cpu, 0);
	ran = note_run(thread, now);
	if (wants->o1)
		end_by_level(thread, now, ran, runnable);
	else
		charge(thread, ran, weight_of(p, thread, now));
	/* Preempted in a short burst it is still in a hurry. */
	thread->urgent =
		thread->urgent && runnable && thread->burst_ns < SHORT_BURST_NS;
	if (runnable)
		return;
	thread->burst_average_ns =
		burst_after(thread->burst_average_ns, thread->burst_ns);
	thread->burst_ns = 0;
}

/*
 * Who came to wait after this CPU had looked, and before it counted as idle, has found
 * nobody to rouse. The kernel does not tell of going idle a second time.
 */
static inline void look_again(__u32 cpu)
{
	struct place *here = place_of(cpu);
	struct hall *hall = here ? hall_of(here->llc) : 0;

	if (hall && all_waiting(hall))
		scx_bpf_kick_cpu(cpu, 0);
}

OP(usher_update_idle)
void BPF_PROG(usher_update_idle, __s32 cpu, _Bool idle)
{
	struct settings *wants = ONLY(settings);

	if (!idle || !wants || wants->fifo)
		return;
	look_again(cpu);
	if (wants->smt)
		invite(cpu);
}

OP(usher_enable)
void BPF_PROG(usher_enable, struct task_struct *p)
{
	struct thread *thread = thread_of(p);
	struct place *here = place_of(scx_bpf_task_cpu(p));
	struct hall *hall = here ? hall_of(here->llc) : 0;

	if (!thread || !hall)
		return;
	/* A child begins where its parent is, or it could leave a debt behind by forking. */
	follow_clock(thread, here->llc);
	if (is_before(thread->vtime, hall->clock))
		thread->vtime = hall->clock;
	thread->queue = NO_QUEUE;
	thread->stands.has_key = 0;
	thread->stands.slept_at_ns = 0;
}

/*
 * It becomes a real-time one, maybe while it waits. Who is taken out of a queue for another
 * reason comes through `enqueue` again; a callback whenever one stops being runnable would
 * cost each sleep a hundred instructions.
 */
OP(usher_disable)
void BPF_PROG(usher_disable, struct task_struct *p)
{
	struct thread *thread = thread_of(p);

	if (thread)
		leave_queue(thread);
}

/*
 * Of threads that are there already the kernel tells in a thread that may
 * migrate, so that what disables it here is this very callback.
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
		added_by_bpf = bpf_get_current_task_btf()->migration_disabled;
	if (!thread)
		return -12;
	inherit(thread, parent);
	if (parent) {
		thread->vtime = parent->vtime;
		thread->llc = parent->llc;
	}
	return 0;
}

static inline void count_cpus(void)
{
	int cpu;

	bpf_for(cpu, 0, CPUS_MAX)
	{
		struct place *place = place_of(cpu);
		struct hall *hall = place ? hall_of(place->llc) : 0;

		if (hall && place->known)
			hall->cpus++;
	}
}

OP_SLEEPABLE(usher_init)
__s32 BPF_PROG(usher_init)
{
	struct settings *wants = ONLY(settings);
	int llc, at;
	__s32 failed;

	if (!wants)
		return -22;
	count_cpus();
	failed = scx_bpf_create_dsq(FIFO, -1);
	if (failed)
		return failed;
	bpf_for(llc, 0, LLCS_MAX)
	{
		if ((__u32)llc >= wants->llcs)
			break;
		bpf_for(at, 0, SPACES + 1)
		{
			failed = scx_bpf_create_dsq(queue_at(llc, at), -1);
			if (failed)
				return failed;
		}
	}
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops usher = {
	.flags = OPS_FLAGS,
	/* The most that the kernel allows: many that wait for one CPU do so for long. */
	.timeout_ms = 30000,
	.exit_dump_len = DUMP_BYTES,
	.select_cpu = (void *)usher_select_cpu,
	.enqueue = (void *)usher_enqueue,
	.dispatch = (void *)usher_dispatch,
	.tick = (void *)usher_tick,
	.running = (void *)usher_running,
	.stopping = (void *)usher_stopping,
	.update_idle = (void *)usher_update_idle,
	.enable = (void *)usher_enable,
	.disable = (void *)usher_disable,
	.init_task = (void *)usher_init_task,
	.init = (void *)usher_init,
	.exit = (void *)usher_exit,
	.name = "usher",
};
