/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * CPUs that a thread of a higher class takes
 * ==========================================
 *
 * 1. Problem
 * ----------
 * A real-time or deadline thread runs before every thread of this scheduler. When it starts on a
 * CPU, the kernel leaves the preempted thread, and a thread that was dispatched to the CPU but has
 * not run yet, in the local queue of that CPU. No other CPU takes threads from a local queue, so
 * that these threads would wait until the real-time thread sleeps, and the kernel would end the
 * scheduler after 5 s.
 *
 * 2. Idea
 * -------
 * The threads are enqueued again, and any CPU may take them.
 *
 * - From Linux 7.1 on, ENQ_IMMED marks a thread that is dispatched to a local queue. If a thread of
 *   a higher class has the CPU or takes it, the kernel enqueues the marked thread again. The kernel
 *   has a server that gives 5 % of the CPU to threads of this scheduler which may run only there.
 * - Older kernels call usher_cpu_release(). A thread that another CPU dispatches to the local queue
 *   at the moment of the switch may be inserted after the callback, and then waits.
 *
 * 3. Known limits
 * ---------------
 * Linux 6.12 to 6.19 have no such server. Threads that may run only on the taken CPU then wait until
 * the real-time thread sleeps, and the kernel ends the scheduler if that takes 5 s.
 *
 * From Linux 7.1 on, a thread that continues because no other thread waits (WHY_ALONE) is not marked
 * and waits if a real-time thread preempts it before it runs again.
 */
#ifndef USHER_SCX_REALTIME_H
#define USHER_SCX_REALTIME_H

#include "seats.h"

/* Called when a thread of a higher class takes the CPU. */
OP(usher_cpu_release)
void BPF_PROG(usher_cpu_release, __s32 cpu)
{
	/* A thread that preempted the borrower would wait for the real-time thread. */
	note_borrower(cpu, 0);
	if (bpf_ksym_exists(scx_bpf_reenqueue_local))
		scx_bpf_reenqueue_local();
}

/*
 * Returns whether a thread is enqueued again before it has run since its last wake-up. Its first
 * dispatch was direct, so that its credit and urgency are still to be determined.
 */
static inline _Bool has_not_run(const struct thread *thread, __u64 flags)
{
	return flags & ENQ_REENQ && !thread->burst_ns;
}

#endif
