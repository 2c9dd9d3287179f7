/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Accounting of CPU time, to threads and to families of young threads (share.h)
 *
 * 1. charge(): the kernel accumulates the CPU time of a thread. The increase since the last charge,
 *    divided by the weight of the thread, is added to the thread's vtime. The increase is also
 *    added to the thread's burst and to the counters of its seat.
 * 2. charge_family(): for a young thread, the increase is also added to the vtime of its family, up
 *    to FAMILY_LAG_MAX_NS ahead of the clock. When the thread is no longer young, its part of the
 *    family's vtime is subtracted again.
 * 3. wait_for_family(): a young thread waits with the later of its own vtime and the vtime of its
 *    family. When the thread has run, leave_family_wait() removes the difference again. A thread
 *    that is preempted before the end of its slice waits at its previous vtime plus its run
 *    (note_resume()).
 * 4. end_burst(), after a sleep: the burst is added to the thread's average burst, which determines
 *    whether the thread is urgent.
 *
 * A thread is charged when it is next enqueued, when it continues on its CPU, and when it ends. A
 * `stopping` callback would cost each switch some three hundred instructions.
 *
 * A charge takes constant time. With more than FAMILIES (128) families, two families may share a vtime.
 * FAMILY_LAG_MAX_NS is 200 ms.
 * The kernel may put a thread on a CPU without a callback (from 6.14 on, threads with migration
 * disabled). Such a thread is charged at the next callback.
 */
#ifndef USHER_SCX_CHARGE_H
#define USHER_SCX_CHARGE_H

#include "seats.h"

/* Returns the CPU time of a thread that has not been charged yet. */
static inline __u64 uncharged(const struct task_struct *p,
			      const struct thread *thread)
{
	return p->se.sum_exec_runtime - thread->counted_ns;
}

/* Returns the CPU time of a thread that has not been charged yet, and marks it as charged. */
static inline __u64 note_run(struct task_struct *p, struct thread *thread)
{
	__u64 ran = uncharged(p, thread);

	thread->counted_ns += ran;
	thread->burst_ns += ran;
	note_use(thread, thread->cpu, ran);
	return ran;
}

/*
 * Returns whether the thread is young and belongs to a family. Threads that existed before the
 * scheduler belong to no family.
 */
static inline _Bool has_family(const struct thread *thread)
{
	return thread->family && is_young(thread->counted_ns);
}

/*
 * Returns whether the thread competes with the vtime of its family. A thread that has slept does
 * not, because an interactive thread may need minutes to use YOUNG_NS, and would wait for the fork
 * storm of a relative all that time. It still adds to the shared vtime, so that the family as a
 * whole does not exceed its share.
 */
static inline _Bool waits_for_family(const struct thread *thread)
{
	return has_family(thread) && !thread->burst_average_ns;
}

/*
 * Returns a pointer to the shared vtime of the thread's family, after limiting its credit to one
 * slice.
 */
static inline __u64 *family_vtime_of(const struct thread *thread,
				     struct llc_rq *llc_rq)
{
	__u64 *shared = &llc_rq->family_vtimes[thread->family % FAMILIES];

	advance(shared, llc_rq->clock - g_settings.slice_ns);
	return shared;
}

/*
 * Charges the family of a young thread. When a thread is no longer young, its part is subtracted
 * from the shared vtime, because from then on the thread's own vtime bounds its share. The function
 * is not inlined, so that the verifier checks it once.
 */
__noinline int charge_family(struct thread *thread, __u64 ran)
{
	struct llc_rq *llc_rq;
	__u64 *shared;
	__u64 charged;

	if (!thread)
		return 0;
	llc_rq = llc_rq_of(thread->llc);
	shared = family_vtime_of(thread, llc_rq);
	if (!is_young(thread->counted_ns)) {
		__sync_fetch_and_sub(shared, thread->family_ns);
		thread->family_ns = 0;
		return 0;
	}
	charged = family_charge(*shared, llc_rq->clock, ran);
	__sync_fetch_and_add(shared, charged);
	thread->family_ns += charged;
	return 0;
}

/*
 * Returns the vtime with which a young thread competes: at least the vtime of its family. `clock`
 * is the clock by which the thread is placed.
 */
__noinline __u64 vtime_in_family(struct thread *thread, __u64 clock)
{
	struct llc_rq *llc_rq;

	if (!thread)
		return 0;
	llc_rq = llc_rq_of(thread->llc);
	return later(thread->vtime,
		     *family_vtime_of(thread, llc_rq) - llc_rq->clock + clock);
}

/*
 * Raises the vtime of a young thread to the vtime of its family, so that a fork storm waits as long
 * as one thread would.
 */
static inline void wait_for_family(struct thread *thread, __u64 clock)
{
	__u64 vtime = vtime_in_family(thread, clock);

	if (thread->resume_vtime)
		vtime = later(thread->vtime,
			      earlier(vtime, thread->resume_vtime));
	thread->family_wait_ns = vtime - thread->vtime;
	thread->vtime = vtime;
}

/*
 * Removes the wait for the family from the thread's own vtime. The removal leaves a credit of one
 * slice at most.
 */
static inline void leave_family_wait(struct thread *thread)
{
	__u64 least = llc_rq_of(thread->llc)->clock - g_settings.slice_ns;

	thread->vtime = later(thread->vtime - thread->family_wait_ns,
			      earlier(thread->vtime, least));
	thread->family_wait_ns = 0;
}

/*
 * Records the vtime at which a young thread waits again that has waited for its family and was
 * preempted before the end of its slice. Otherwise, the thread would wait behind all threads of the
 * family after each preemption.
 */
static inline void note_resume(struct thread *thread, __u64 ran)
{
	thread->resume_vtime = 0;
	if (thread->family_wait_ns && ran < g_settings.slice_ns)
		thread->resume_vtime = thread->vtime + ran;
}

/* Charges a thread, and its family if it is young, for the CPU time since the last charge. */
ALWAYS void charge(struct task_struct *p, struct thread *thread)
{
	_Bool young = has_family(thread);
	__u64 ran = virtual_in(note_run(p, thread), weight_of(p, thread));

	if (young) {
		note_resume(thread, ran);
		leave_family_wait(thread);
		charge_family(thread, ran);
	}
	thread->vtime += ran;
}

/* Stores the thread's lag, which `usher sched explain` displays. */
static inline void note_lag(struct thread *thread)
{
	thread->lag_ns = thread->vtime - llc_rq_of(thread->llc)->clock;
}

/*
 * Urgency of a thread. A thread that has not slept yet is urgent although its bursts may be long,
 * and a thread of known short bursts preempts it.
 */
enum urgency {
	NOT_URGENT,
	URGENT_NEW,
	URGENT_KNOWN,
	/* A kernel thread that is bound to its CPU. */
	URGENT_PINNED,
};

static inline __u32 urgency_of(const struct thread *thread)
{
	if (!thread->urgent)
		return NOT_URGENT;
	return thread->burst_average_ns ? URGENT_KNOWN : URGENT_NEW;
}

/* Ends a burst: the thread sleeps, or has slept since it ran. */
static inline void end_burst(struct thread *thread)
{
	thread->urgent = 0;
	/*
	 * The burst may have ended already, because `enqueue` may follow `select_cpu` for the same
	 * wake-up.
	 */
	if (!thread->burst_ns)
		return;
	thread->burst_average_ns =
		burst_after(thread->burst_average_ns, thread->burst_ns);
	thread->burst_ns = 0;
}

#endif
