// SPDX-License-Identifier: GPL-2.0-only
/*
 * Usher's scheduler: the kernel's callbacks, in the order of a thread's life.
 *
 *   enqueue.h   a thread comes to run
 *   dispatch.h  a CPU asks for its next thread
 *   seats.h     whose CPU: programs' own ones, softly kept (paper 1)
 *   charge.h    what a thread has run, and what that costs it
 *   where.h     on which CPU: idle physical cores first (paper 3b)
 *   when.h      who is next: address spaces in turns (paper 4)
 *   o1.h        the same as in Linux 2.6, to compare with
 *   rules.h     the arithmetic of these, without a kernel
 *   levels.h    the arithmetic of o1.h
 *   state.h     what is known of the machine, of threads and queues
 *   dump.h      what the kernel's dump tells of our queues
 *   ending.h    what is told when the kernel ends it
 *   kernel.h    the kernel, as far as we use it
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
#include "callbacks.h"
#include "dump.h"
#include "ending.h"

char LICENSE[] SEC("license") = "GPL";

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
	.dump = (void *)usher_dump,
	.exit = (void *)usher_exit,
	.name = "usher",
};
