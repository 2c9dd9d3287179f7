/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Accounting of CPU time
 *
 * A thread is charged when it is next enqueued, when it continues on its CPU, and when it ends. The
 * kernel accumulates the CPU time. A `stopping` callback would cost each switch some three hundred
 * instructions. A thread that the kernel puts on a CPU without a callback (from 6.14 on, threads
 * with migration disabled) is charged later.
 */
#ifndef USHER_SCX_CHARGE_H
#define USHER_SCX_CHARGE_H

#include "seats.h"

/* CPU time not charged yet. */
static inline __u64 uncharged(const struct task_struct *p,
			      const struct thread *thread)
{
	return p->se.sum_exec_runtime - thread->counted_ns;
}

/* Same, and counts it as charged. */
static inline __u64 note_run(struct task_struct *p, struct thread *thread)
{
	__u64 ran = uncharged(p, thread);

	thread->counted_ns += ran;
	thread->burst_ns += ran;
	note_use(thread, thread->cpu, ran);
	return ran;
}

ALWAYS void charge(struct task_struct *p, struct thread *thread)
{
	__u64 ran = note_run(p, thread);

	thread->vtime += virtual_ns(ran, weight_of(p, thread));
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
