// SPDX-License-Identifier: GPL-2.0-only
/*
 * Usher's scheduler for sched_ext
 * ===============================
 *
 * 1. Problem
 * ----------
 * Switches between address spaces cost cache and TLB contents. Two threads that share a core slow
 * each other down, needlessly so while another core is idle. A program with CPUs of its own leaves
 * them idle while it waits.
 *
 * 2. Idea
 * -------
 * - CPU selection: a thread that wakes goes straight to an idle CPU, of an idle core if there is
 *   one (paper 3b).
 * - Selection of the next thread: threads of one address space run one after another, within a
 *   bound on lag (paper 4).
 * - Seats: user space gives a program preferred CPUs. Threads of other programs borrow them while
 *   they are idle, and these borrowers are preempted when the owner wakes (paper 1).
 *
 * 3. Data structures
 * ------------------
 * - `struct llc_rq`, per LLC: a queue for each address space (`struct mm_queue`), ordered by
 *   virtual time (vtime: CPU time over weight), and a FIFO queue for urgent threads. A clock holds
 *   the minimum vtime.
 * - `struct cpu_state`, per CPU: the current turn, the CPU's own clock, and what other CPUs need to
 *   know about it.
 * - `struct thread`, per thread: vtime, lag, average burst, seat.
 * - `struct settings`: written by user space, read at every decision.
 *
 * 4. Steps, in the order of a thread's life
 * ----------------------------------------
 * 1. `select_cpu`: charge the last run, clamp the credit for sleep, and claim an idle CPU or the
 *    CPU of a borrower.
 * 2. `enqueue`: if there is no such CPU, wait in the LLC. New threads and those with short bursts
 *    are urgent and wait in the urgent queue; others wait in the queue of their address space.
 * 3. `dispatch`: a CPU without a runnable thread takes an urgent thread, then continues the turn or
 *    begins a new one, then takes threads of other LLCs.
 * 4. `running`: account for the departure from the queue and begin a turn.
 * 5. `tick`: move a thread from a shared core to an idle one if no kick did so.
 * 6. `update_idle`: an idle core pulls a thread from a core that runs two.
 *
 * 5. Files
 * --------
 *   callbacks.h  the callbacks of sched_ext
 *   enqueue.h    enqueueing, and the decision to wait
 *   dispatch.h   selection on a CPU that needs a thread
 *   seats.h      preferred CPUs and borrowers (paper 1)
 *   charge.h     accounting of CPU time
 *   select_cpu.h selection of a CPU: idle cores first (paper 3b)
 *   run_queue.h  run queues of address spaces (paper 4)
 *   rules.h      arithmetic of these, without a kernel
 *   state.h      state of CPUs, threads and queues
 *   dump.h       contribution to the kernel's dump
 *   ending.h     report of the reason when the kernel ends the scheduler
 *   kernel.h     declarations of the kernel
 *
 * 6. Bound
 * --------
 * turns.h states the bound on the wait of a thread. The kernel ends the scheduler if a thread waits
 * for `timeout_ms`, and takes all threads back to its own scheduler.
 *
 * 7. Known limits
 * ---------------
 * - There is no callback for CPU hotplug. The kernel ends the scheduler, and user space starts a
 *   new one. A CPU that goes off line no longer dispatches, yet the kernel waits until it has no
 *   thread. Threads that may run nowhere else must therefore not wait in the scheduler's queues.
 * - Per-CPU kernel threads never wait in a queue; they go to their CPU directly.
 * - At most CPUS_MAX = 512 CPUs. LLCs from LLCS_MAX = 64 on share queues with others.
 */
#include "callbacks.h"
#include "dump.h"
#include "ending.h"

char LICENSE[] SEC("license") = "GPL";

SEC(".struct_ops.link")
struct sched_ext_ops usher = {
	.flags = OPS_FLAGS,
	/*
	 * A wait is longer only with some 1,000 threads on one CPU (turns.h). User space sets the
	 * kernel's maximum of 30 s for FIFO order, which bounds no waits.
	 */
	.timeout_ms = 5000,
	.exit_dump_len = DUMP_BYTES,
	.select_cpu = (void *)usher_select_cpu,
	.enqueue = (void *)usher_enqueue,
	.dispatch = (void *)usher_dispatch,
	.tick = (void *)usher_tick,
	.running = (void *)usher_running,
	.update_idle = (void *)usher_update_idle,
	.enable = (void *)usher_enable,
	.disable = (void *)usher_disable,
	.init_task = (void *)usher_init_task,
	.init = (void *)usher_init,
	.dump = (void *)usher_dump,
	.exit = (void *)usher_exit,
	.name = "usher",
};
