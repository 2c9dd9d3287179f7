// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a CPU's queue and the length of slices.
//!
//! Every thread has a *virtual runtime*, which grows as the thread runs, at a rate inversely
//! proportional to its weight. On each CPU the scheduler keeps the virtual runtimes of all threads
//! close together. The kernels differ in the method:
//!
//! - *EEVDF* (Linux since 6.6; Stoica and Abdel-Wahab, 1995): among the *eligible* threads (those
//!   that have received at most their share) the thread with the earliest virtual deadline runs. A
//!   sleeping thread keeps its lag.
//! - *CFS* (Linux 2.6.23 to 6.5): the thread with the least virtual runtime runs, for its part of
//!   the latency. A thread that sleeps also gains the time that the others run meanwhile, up to
//!   half the latency. A new thread starts one slice behind. Not modelled: early preemption of a
//!   thread that is far ahead of the next one, and longer slices for heavier threads (weights do
//!   slow the virtual runtime).
//! - *Usher's scheduler* is in module `usher_sched`.

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::job::{RunState, ThreadId};
use crate::kernel::GroupBy;

/// Period of the kernel's tick (`HZ=1000`).
const TICK_NS: u64 = 1_000_000;

/// The order in which queued threads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    /// Earliest eligible virtual deadline first.
    Eevdf,
    /// Least virtual runtime first.
    Cfs,
    /// Usher's sched_ext scheduler: threads grouped by address space.
    #[serde(rename = "usher-sched")]
    Usher,
}

impl Engine {
    /// Weight of a thread in its queue.
    pub(crate) fn weight(&self, thread: ThreadId) -> f64 {
        match self.kernel.group_by {
            GroupBy::Threads => 1.0,
            GroupBy::Programs => {
                let runnable = self.jobs[self.threads[thread].program].runnable.max(1);
                1.0 / f64::from(runnable)
            }
        }
    }

    /// The virtual time of a CPU, which corresponds to a lag of 0. EEVDF: the weighted mean of the
    /// running and waiting threads. CFS: their minimum, which never decreases.
    fn virtual_time(&self, cpu: usize) -> f64 {
        let state = &self.cpus[cpu];
        let here = || state.queue.iter().chain(&state.current);
        match self.kernel.order {
            QueueOrder::Eevdf | QueueOrder::Usher => {
                let (sum, weights) = here().fold((0.0, 0.0), |(sum, weights), &thread| {
                    let weight = self.weight(thread);
                    let vruntime = self.threads[thread].vruntime;
                    (sum + weight * vruntime, weights + weight)
                });
                if weights > 0.0 {
                    sum / weights
                } else {
                    state.vtime
                }
            }
            QueueOrder::Cfs => {
                let vruntimes = here().map(|&thread| self.threads[thread].vruntime);
                let least = vruntimes.reduce(f64::min);
                least.map_or(state.vtime, |least| least.max(state.vtime))
            }
        }
    }

    /// Sets the virtual runtime of a thread that arrives at a CPU.
    pub(crate) fn join(&mut self, thread: ThreadId, cpu: usize) {
        let here = self.virtual_time(cpu);
        let weight = self.weight(thread);
        let slice = self.kernel.slice_ns as f64 / weight;
        let state = &self.threads[thread];
        let lag = match (self.kernel.order, state.queue) {
            (QueueOrder::Eevdf | QueueOrder::Usher, _) => state.lag.clamp(-slice, slice),
            (QueueOrder::Cfs, None) => -(self.cfs_slice_ns(cpu, 1) as f64) / weight,
            (QueueOrder::Cfs, Some(before)) => {
                let lag = match state.run_state {
                    RunState::Queued(_) => state.lag,
                    _ => self.virtual_time(before) - state.vruntime,
                };
                lag.min(self.kernel.latency_ns as f64 / 2.0 / weight)
            }
        };
        self.cpus[cpu].vtime = here;
        let state = &mut self.threads[thread];
        state.vruntime = here - lag;
        state.deadline = state.vruntime + slice;
        state.queue = Some(cpu);
    }

    /// Puts a thread into a CPU's queue.
    pub(crate) fn enqueue(&mut self, thread: ThreadId, cpu: usize) {
        self.join(thread, cpu);
        self.threads[thread].run_state = RunState::Queued(cpu);
        self.cpus[cpu].queue.push(thread);
    }

    /// Stores the thread's lag when it leaves a CPU.
    pub(crate) fn leave(&mut self, thread: ThreadId, cpu: usize) {
        if self.kernel.is_usher() {
            return self.leave_usher(thread);
        }
        let here = self.virtual_time(cpu);
        let state = &mut self.threads[thread];
        state.lag = here - state.vruntime;
        self.cpus[cpu].vtime = here;
    }

    /// Removes the next thread from a CPU's queue.
    pub(crate) fn pick(&mut self, cpu: usize) -> Option<ThreadId> {
        let queue = self.cpus[cpu].queue.iter().copied().enumerate();
        let threads = &self.threads;
        let (at, thread) = match self.kernel.order {
            QueueOrder::Eevdf | QueueOrder::Usher => {
                let mean = self.virtual_time(cpu);
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
        self.cpus[cpu].queue.remove(at);
        Some(thread)
    }

    /// Returns whether a woken thread preempts the current thread.
    pub(crate) fn preempts(&self, thread: ThreadId, cpu: usize) -> bool {
        let Some(current) = self.cpus[cpu].current else {
            return true;
        };
        let (new, old) = (&self.threads[thread], &self.threads[current]);
        match self.kernel.order {
            QueueOrder::Eevdf | QueueOrder::Usher => {
                let ran_ns = self.now_ns - self.cpus[cpu].started_ns;
                ran_ns >= self.kernel.protect_ns
                    && new.deadline < old.deadline
                    && new.vruntime <= self.virtual_time(cpu)
            }
            QueueOrder::Cfs => {
                let ahead = self.kernel.wakeup_granularity_ns as f64 / self.weight(thread);
                new.vruntime + ahead < old.vruntime
            }
        }
    }

    /// CFS: length of a slice on a CPU with `more` additional threads.
    fn cfs_slice_ns(&self, cpu: usize, more: u64) -> u64 {
        let state = &self.cpus[cpu];
        let here = (state.queue.len() + usize::from(state.current.is_some())) as u64 + more;
        (self.kernel.latency_ns / here.max(1)).max(self.kernel.slice_ns)
    }

    /// End of the current slice, if other threads wait; at least `not_before_ns`.
    pub(crate) fn slice_ends_at_ns(&self, cpu: usize, not_before_ns: u64) -> u64 {
        let state = &self.cpus[cpu];
        match self.kernel.order {
            QueueOrder::Eevdf | QueueOrder::Usher => state.slice_end_ns.max(not_before_ns),
            QueueOrder::Cfs => {
                let turn_ns = self.cfs_slice_ns(cpu, 0);
                // CFS checks the slice only at ticks.
                let end_ns = (state.started_ns + turn_ns).max(not_before_ns);
                end_ns.next_multiple_of(TICK_NS)
            }
        }
    }
}
