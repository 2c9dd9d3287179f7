// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selects the next thread of a CPU's queue, and determines the length of slices, as Linux's fair
//! schedulers do. A selection, and each addition or removal of a thread, visits each thread of the
//! queue.
//!
//! Every thread has a *virtual runtime*, which grows as the thread runs, at a rate inversely
//! proportional to its weight. On each CPU the scheduler keeps the virtual runtimes of all threads
//! close together. The kernels differ in how they do this:
//!
//! - *EEVDF* (Linux since 6.6; Stoica and Abdel-Wahab, 1995): among the *eligible* threads (those
//!   that have received at most their share) the thread with the earliest virtual deadline runs. A
//!   sleeping thread keeps its lag.
//! - *CFS* (Linux 2.6.23 to 6.5): the thread with the least virtual runtime runs, for its part of
//!   the latency. A thread that sleeps gets the time that other threads run meanwhile as credit, up
//!   to half the latency. A new thread starts one slice behind the other threads. Two properties of
//!   CFS are not modelled: a thread that is far ahead of the next thread is not preempted early,
//!   and heavier threads do not get longer slices (but their virtual runtime grows more slowly).
//! - *Usher's scheduler* is in module `usher_sched`.

use crate::cpu::CpuState;
use crate::job::{RunState, ThreadId};
use crate::kernel::{Kernel, QueueOrder};
use crate::task_table::TaskTable;

/// Period of the kernel's tick (`HZ=1000`).
const TICK_NS: u64 = 1_000_000;

impl Kernel {
    /// Returns the virtual time of a CPU: the virtual runtime of a thread with lag 0. Under EEVDF,
    /// it is the weighted mean of the virtual runtimes of the running and waiting threads. Under
    /// CFS, it is their minimum, and never decreases.
    fn virtual_time(&self, cpu: &CpuState, tasks: &TaskTable) -> f64 {
        match self.order {
            QueueOrder::Eevdf | QueueOrder::Usher => {
                let (sum, weights) = cpu.threads().fold((0.0, 0.0), |(sum, weights), thread| {
                    let weight = tasks.weight(thread, self.group_by);
                    let vruntime = tasks.threads[thread].vruntime;
                    (sum + weight * vruntime, weights + weight)
                });
                if weights > 0.0 {
                    sum / weights
                } else {
                    cpu.vtime
                }
            }
            QueueOrder::Cfs => {
                let vruntimes = cpu.threads().map(|thread| tasks.threads[thread].vruntime);
                let least = vruntimes.reduce(f64::min);
                least.map_or(cpu.vtime, |least| least.max(cpu.vtime))
            }
        }
    }

    /// Sets the virtual runtime of a thread that is placed on a CPU, from the thread's lag.
    pub(crate) fn join(
        &self,
        cpus: &mut [CpuState],
        tasks: &mut TaskTable,
        thread: ThreadId,
        cpu: usize,
    ) {
        let here = self.virtual_time(&cpus[cpu], tasks);
        let weight = tasks.weight(thread, self.group_by);
        let slice = self.slice_ns as f64 / weight;
        let state = &tasks.threads[thread];
        let lag = match (self.order, state.queue) {
            (QueueOrder::Eevdf | QueueOrder::Usher, _) => state.lag.clamp(-slice, slice),
            (QueueOrder::Cfs, None) => -(self.cfs_slice_ns(&cpus[cpu], 1) as f64) / weight,
            (QueueOrder::Cfs, Some(before)) => {
                let lag = match state.run_state {
                    RunState::Queued(_) => state.lag,
                    _ => self.virtual_time(&cpus[before], tasks) - state.vruntime,
                };
                lag.min(self.latency_ns as f64 / 2.0 / weight)
            }
        };
        cpus[cpu].vtime = here;
        let state = &mut tasks.threads[thread];
        state.vruntime = here - lag;
        state.deadline = state.vruntime + slice;
        state.queue = Some(cpu);
    }

    /// Puts a thread into a CPU's queue.
    pub(crate) fn enqueue(
        &self,
        cpus: &mut [CpuState],
        tasks: &mut TaskTable,
        thread: ThreadId,
        cpu: usize,
    ) {
        self.join(cpus, tasks, thread, cpu);
        tasks.threads[thread].run_state = RunState::Queued(cpu);
        cpus[cpu].queue.push(thread);
    }

    /// Stores the lag of a thread that leaves a CPU.
    pub(crate) fn leave(&self, cpu: &mut CpuState, tasks: &mut TaskTable, thread: ThreadId) {
        let here = self.virtual_time(cpu, tasks);
        let state = &mut tasks.threads[thread];
        state.lag = here - state.vruntime;
        cpu.vtime = here;
    }

    /// Selects the next thread of a CPU's queue, and removes it from the queue.
    pub(crate) fn pick(&self, cpu: &mut CpuState, tasks: &TaskTable) -> Option<ThreadId> {
        let queue = cpu.queue.iter().copied().enumerate();
        let threads = &tasks.threads;
        let (at, thread) = match self.order {
            QueueOrder::Eevdf | QueueOrder::Usher => {
                let mean = self.virtual_time(cpu, tasks);
                queue.min_by(|&(_, a), &(_, b)| {
                    let late = |thread: ThreadId| threads[thread].vruntime > mean + 1.0;
                    let deadline = |thread: ThreadId| threads[thread].deadline;
                    late(a)
                        .cmp(&late(b))
                        .then(deadline(a).total_cmp(&deadline(b)))
                        .then(a.cmp(&b))
                })?
            }
            QueueOrder::Cfs => queue.min_by(|&(_, a), &(_, b)| {
                let (a_ran, b_ran) = (threads[a].vruntime, threads[b].vruntime);
                a_ran.total_cmp(&b_ran).then(a.cmp(&b))
            })?,
        };
        cpu.queue.remove(at);
        Some(thread)
    }

    /// Returns whether a woken thread preempts the running thread of the CPU.
    pub(crate) fn preempts(
        &self,
        cpu: &CpuState,
        tasks: &TaskTable,
        thread: ThreadId,
        now_ns: u64,
    ) -> bool {
        let Some(current) = cpu.current else {
            return true;
        };
        let (new, old) = (&tasks.threads[thread], &tasks.threads[current]);
        match self.order {
            QueueOrder::Eevdf | QueueOrder::Usher => {
                let ran_ns = now_ns - cpu.started_ns;
                ran_ns >= self.protect_ns
                    && new.deadline < old.deadline
                    && new.vruntime <= self.virtual_time(cpu, tasks)
            }
            QueueOrder::Cfs => {
                let ahead = self.wakeup_granularity_ns as f64 / tasks.weight(thread, self.group_by);
                new.vruntime + ahead < old.vruntime
            }
        }
    }

    /// Returns the length of a CFS slice on a CPU, if the CPU had `more` additional threads.
    fn cfs_slice_ns(&self, cpu: &CpuState, more: u64) -> u64 {
        let here = cpu.runnable() as u64 + more;
        (self.latency_ns / here.max(1)).max(self.slice_ns)
    }

    /// Returns the end of the current slice, which applies if other threads wait; at least
    /// `not_before_ns`.
    pub(crate) fn slice_ends_at_ns(&self, cpu: &CpuState, not_before_ns: u64) -> u64 {
        match self.order {
            QueueOrder::Eevdf | QueueOrder::Usher => cpu.slice_end_ns.max(not_before_ns),
            QueueOrder::Cfs => {
                let turn_ns = self.cfs_slice_ns(cpu, 0);
                // CFS checks the end of a slice only at ticks.
                let end_ns = (cpu.started_ns + turn_ns).max(not_before_ns);
                end_ns.next_multiple_of(TICK_NS)
            }
        }
    }
}
