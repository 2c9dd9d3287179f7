/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What a thread is charged for having run: when it next comes to run, when a CPU lets it run
 * on, and when it ends. The kernel keeps count of what each has run; to be called whenever one
 * stops, too, would cost a switch some three hundred instructions. Whom the kernel puts on a
 * CPU without asking us (from 6.14 on, who must not migrate just now) is charged later.
 */
#ifndef USHER_SCX_CHARGE_H
#define USHER_SCX_CHARGE_H

#include "seats.h"

/* What a thread has run that is not charged yet. */
static inline __u64 uncharged(const struct task_struct *p,
			      const struct thread *thread)
{
	return p->se.sum_exec_runtime - thread->counted_ns;
}

/* The same, which counts as charged from now on. */
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

/* For who asks where it is among the others. */
static inline void note_lag(struct thread *thread)
{
	thread->lag_ns = thread->vtime - llc_rq_of(thread->llc)->clock;
}

/* It sleeps, or has slept since it ran. */
static inline void end_burst(struct thread *thread)
{
	thread->urgent = 0;
	/* `enqueue` may have been called after `select_cpu`. */
	if (!thread->burst_ns)
		return;
	thread->burst_average_ns =
		burst_after(thread->burst_average_ns, thread->burst_ns);
	thread->burst_ns = 0;
}

#endif
