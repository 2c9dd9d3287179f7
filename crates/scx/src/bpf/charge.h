/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Accounting of CPU time, to threads and to families of young threads (share.h)
 *
 * 1. charge(): the kernel accumulates the CPU time of a thread. Its increase since the last charge,
 *    divided by the weight of the thread, is added to the thread's vtime. It also counts for the
 *    thread's burst and for the counters of its seat.
 * 2. charge_family(): for a young thread, the increase is also added to the vtime of its family,
 *    unless that is FAMILY_LAG_MAX_NS ahead of the clock. When the thread is young no more, its
 *    part is subtracted again.
 * 3. wait_for_family(): a young thread waits by the later of its own vtime and that of its family.
 *    The difference is removed when the thread has run (leave_family_wait()).
 * 4. end_burst(), after a sleep: the burst goes into the average that makes a thread urgent.
 *
 * A thread is charged when it is next enqueued, when it continues on its CPU, and when it ends. A
 * `stopping` callback would cost each switch some three hundred instructions.
 *
 * A charge takes constant time. Two families out of more than FAMILIES may share a vtime. A thread
 * that the kernel puts on a CPU without a callback (from 6.14 on, threads with migration disabled)
 * is charged later.
 */
#ifndef USHER_SCX_CHARGE_H
#define USHER_SCX_CHARGE_H

#include "seats.h"

/* Returns the CPU time that is not charged yet. */
static inline __u64 uncharged(const struct task_struct *p,
			      const struct thread *thread)
{
	return p->se.sum_exec_runtime - thread->counted_ns;
}

/* Returns the CPU time that is not charged yet, and counts it as charged. */
static inline __u64 note_run(struct task_struct *p, struct thread *thread)
{
	__u64 ran = uncharged(p, thread);

	thread->counted_ns += ran;
	thread->burst_ns += ran;
	note_use(thread, thread->cpu, ran);
	return ran;
}

/*
 * Returns whether the thread is a young one of a family. It has none if it existed before the
 * scheduler.
 */
static inline _Bool has_family(const struct thread *thread)
{
	return thread->family && is_young(thread->counted_ns);
}

/* Returns the shared vtime of the thread's family, with a credit of one slice at most. */
static inline __u64 *family_vtime_of(const struct thread *thread,
				     struct llc_rq *llc_rq)
{
	__u64 *shared = &llc_rq->family_vtimes[thread->family % FAMILIES];

	advance(shared, llc_rq->clock - g_settings.slice_ns);
	return shared;
}

/*
 * Charges the family of a young thread. A thread that is young no more takes its part back, as its
 * own vtime bounds its share from then on. Not inlined, so that the verifier checks it once.
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
 * Returns the vtime of a thread in the competition with others: if it is young, at least that of
 * its family. `clock` is the clock by which the thread is placed.
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

/* Lets a young thread wait until its family has its turn. */
static inline void wait_for_family(struct thread *thread, __u64 clock)
{
	__u64 vtime = vtime_in_family(thread, clock);

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

/* Charges a thread, and the family of a young one, for the CPU time since the last charge. */
ALWAYS void charge(struct task_struct *p, struct thread *thread)
{
	_Bool young = has_family(thread);
	__u64 ran = virtual_ns(note_run(p, thread), weight_of(p, thread));

	if (young) {
		leave_family_wait(thread);
		charge_family(thread, ran);
	}
	thread->vtime += ran;
}

/* Publishes the lag for `usher sched explain`. */
static inline void note_lag(struct thread *thread)
{
	thread->lag_ns = thread->vtime - llc_rq_of(thread->llc)->clock;
}

/* Ends a burst: the thread sleeps, or has slept since it ran. */
static inline void end_burst(struct thread *thread)
{
	thread->urgent = 0;
	/* `enqueue` may follow `select_cpu` for the same wake-up. */
	if (!thread->burst_ns)
		return;
	thread->burst_average_ns =
		burst_after(thread->burst_average_ns, thread->burst_ns);
	thread->burst_ns = 0;
}

#endif
