// SPDX-License-Identifier: GPL-2.0-only
/*
 * Usher's scheduler for sched_ext
 * ===============================
 *
 * 1. Problem
 * ----------
 * Switches between address spaces cost cache and TLB contents. Two threads that share a core slow
 * each other down, which is needless while another core is idle. A program with CPUs of its own
 * leaves these CPUs idle while it waits.
 *
 * 2. Idea
 * -------
 * - CPU selection: a thread that wakes goes directly to an idle CPU, and to a CPU of an idle core
 *   if there is any (paper 3b).
 * - Selection of the next thread: threads of one address space run one after another, within a
 *   bound on lag (paper 4).
 * - Cgroups: the share of a thread's cgroups is part of its weight, and a thread whose cgroup has
 *   used up its quota waits in a queue that no CPU examines.
 * - Seats: user space gives a program preferred CPUs. Threads of other programs, called borrowers,
 *   use these CPUs while they are idle, and are preempted when a thread of the owner wakes (paper
 *   1).
 *
 * 3. Data structures
 * ------------------
 * - `struct llc_rq`, per LLC: a queue for each address space (`struct mm_queue`), ordered by
 *   virtual time (vtime: CPU time over weight), and a FIFO queue for urgent threads. A vtime clock
 *   holds the minimum vtime of the waiting threads.
 * - `struct cpu_state`, per CPU: the current turn, the CPU's own vtime clock, and the state that
 *   other CPUs read.
 * - `struct thread`, per thread: vtime, lag, average burst, seat.
 * - `struct settings`: written by user space, read at every decision.
 *
 * 4. Steps, in the order of a thread's life
 * ----------------------------------------
 * 1. `select_cpu`: charge the last run, clamp the credit for sleep, and claim an idle CPU or the
 *    CPU of a borrower.
 * 2. `enqueue`: if `select_cpu` has claimed no CPU, wait in a queue of the LLC. New threads and
 *    threads with short bursts are urgent and wait in the urgent queue. Other threads wait in the
 *    queue of their address space.
 * 3. `dispatch`: a CPU that needs a thread takes an urgent thread; without an urgent thread, the
 *    CPU continues the turn or begins a new turn; without a waiting thread in its LLC, the CPU
 *    takes a thread from another LLC.
 * 4. `running`: update the counts of the queue that the thread has left, and begin a turn.
 * 5. `tick`: move a thread from a shared core to an idle core if no kick has moved it.
 * 6. `update_idle`: a core that becomes idle pulls a thread from a core that runs two threads.
 *
 * 5. Files
 * --------
 *   callbacks.h  the callbacks of sched_ext
 *   enqueue.h    enqueueing, and the decision to wait
 *   dispatch.h   selection on a CPU that needs a thread
 *   seats.h      preferred CPUs and borrowers (paper 1)
 *   charge.h     accounting of CPU time
 *   limits.h     quotas of cgroups (cpu.max)
 *   limit_table.h  table of the cgroups with a quota
 *   groups.h     shares of cgroups (cpu.weight)
 *   release.h    release of threads of throttled cgroups
 *   cgroups.h    callbacks for cgroups
 *   idle.h       idle CPUs, and copies of the kernel's masks
 *   near_core.h  claim of an idle core in the LLC of a thread
 *   select_cpu.h selection of a CPU: idle cores first (paper 3b)
 *   capacity.h   cores of different capacity
 *   isolation.h  isolated CPUs
 *   placement.h  selection of an LLC, for new threads by load
 *   realtime.h   CPUs that a real-time thread takes
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
 * for `timeout_ms` (5 s; 30 s in FIFO order), and takes all threads back to its own scheduler. The
 * cost of a callback does not depend on the number of threads, except for the kernel's insertion
 * into a queue ordered by vtime (enqueue.h).
 *
 * 7. Known limits
 * ---------------
 * - There is no callback for CPU hotplug. The kernel ends the scheduler, and user space starts a
 *   new one. A CPU that goes off line no longer dispatches, but the kernel waits until the CPU has
 *   no thread. Threads that may run only on that CPU must therefore not wait in the scheduler's
 *   queues.
 * - Per-CPU kernel threads never wait in a queue; they go to their CPU directly.
 * - At most 2,048 CPUs; the build for machines with at most 64 CPUs has smaller tables. LLCs from LLCS_MAX = 64 on share queues with others.
 */
#include "callbacks.h"
#include "dump.h"
#include "ending.h"

char LICENSE[] SEC("license") = "GPL";

SEC(".struct_ops.link")
struct sched_ext_ops usher = {
	.flags = OPS_FLAGS,
	/*
	 * Waits longer than this limit occur only with some 1,000 threads on one CPU (turns.h).
	 * FIFO order does not bound waits; for it, user space sets the kernel's maximum of 30 s.
	 */
	.timeout_ms = 5000,
	.exit_dump_len = DUMP_BYTES,
	.cpu_release = (void *)usher_cpu_release,
	.select_cpu = (void *)usher_select_cpu,
	.enqueue = (void *)usher_enqueue,
	.dispatch = (void *)usher_dispatch,
	.tick = (void *)usher_tick,
	.running = (void *)usher_running,
	.update_idle = (void *)usher_update_idle,
	.enable = (void *)usher_enable,
	.disable = (void *)usher_disable,
	.init_task = (void *)usher_init_task,
	.cgroup_init = (void *)usher_cgroup_init,
	.cgroup_exit = (void *)usher_cgroup_exit,
	.cgroup_move = (void *)usher_cgroup_move,
	.cgroup_set_bandwidth = (void *)usher_cgroup_set_bandwidth,
	.init = (void *)usher_init,
	.dump = (void *)usher_dump,
	.exit = (void *)usher_exit,
	.name = "usher",
};
