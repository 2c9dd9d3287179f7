// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whose turn it is on a CPU, and for how long.
//!
//! Every thread has a *virtual runtime*, which grows as it runs, the slower the
//! more it weighs; on each CPU those of all threads are held near one another.
//! Kernels differ in how:
//!
//! - *EEVDF* (Linux since 6.6; Stoica and Abdel-Wahab, 1995): of the threads
//!   that are *eligible* (have had no more than their share) the one with the
//!   earliest virtual deadline runs. Who sleeps keeps what it is owed.
//! - *CFS* (Linux 2.6.23 to 6.5): the thread with the least virtual runtime
//!   runs, for its part of the latency. To who sleeps, what the others run
//!   meanwhile is owed too, up to half the latency; a new thread owes a turn.
//!   Left out: that a turn may end early when its thread has had far more than
//!   the next one, and that weights lengthen turns (they do slow the virtual
//!   runtime).
//! - *Usher's scheduler* is in module `ours`.

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::job::{Doing, ThreadId};
use crate::kernel::Fair;

/// Time between two ticks of the kernel's clock (`HZ=1000`).
const TICK_NS: u64 = 1_000_000;

/// Who is next in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Earliest eligible virtual deadline first.
    Eevdf,
    /// The least virtual runtime first.
    Cfs,
    /// Address spaces in turns, by the rules of Usher's sched_ext scheduler.
    #[serde(rename = "usher-sched")]
    Usher,
}

impl Engine {
    /// Weight of a thread in its queue.
    pub(crate) fn weight(&self, thread: ThreadId) -> f64 {
        match self.kernel.fair {
            Fair::Threads => 1.0,
            Fair::Programs => {
                let runnable = self.jobs[self.threads[thread].program].runnable.max(1);
                1.0 / f64::from(runnable)
            }
        }
    }

    /// The virtual runtime on a CPU that owes nobody and is owed nothing: the
    /// mean of who runs and waits there, or the least, which never falls.
    fn virtual_time(&self, cpu: usize) -> f64 {
        let state = &self.cpus[cpu];
        let here = || state.queue.iter().chain(&state.current);
        match self.kernel.order {
            Order::Eevdf | Order::Usher => {
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
            Order::Cfs => {
                let vruntimes = here().map(|&thread| self.threads[thread].vruntime);
                let least = vruntimes.reduce(f64::min);
                least.map_or(state.vtime, |least| least.max(state.vtime))
            }
        }
    }

    /// Gives a thread that comes to a CPU its virtual runtime there.
    pub(crate) fn join(&mut self, thread: ThreadId, cpu: usize) {
        let here = self.virtual_time(cpu);
        let weight = self.weight(thread);
        let slice = self.kernel.slice_ns as f64 / weight;
        let state = &self.threads[thread];
        let owed = match (self.kernel.order, state.queue) {
            (Order::Eevdf | Order::Usher, _) => state.lag.clamp(-slice, slice),
            (Order::Cfs, None) => -(self.turn_ns(cpu, 1) as f64) / weight,
            (Order::Cfs, Some(before)) => {
                let owed = match state.doing {
                    Doing::Queued(_) => state.lag,
                    _ => self.virtual_time(before) - state.vruntime,
                };
                owed.min(self.kernel.latency_ns as f64 / 2.0 / weight)
            }
        };
        self.cpus[cpu].vtime = here;
        let state = &mut self.threads[thread];
        state.vruntime = here - owed;
        state.deadline = state.vruntime + slice;
        state.queue = Some(cpu);
    }

    /// Puts a thread into a CPU's queue.
    pub(crate) fn enqueue(&mut self, thread: ThreadId, cpu: usize) {
        self.join(thread, cpu);
        self.threads[thread].doing = Doing::Queued(cpu);
        self.cpus[cpu].queue.push(thread);
    }

    /// Takes note of what a thread is owed as it leaves a CPU.
    pub(crate) fn leave(&mut self, thread: ThreadId, cpu: usize) {
        if self.kernel.order == Order::Usher {
            return self.leave_ours(thread);
        }
        let here = self.virtual_time(cpu);
        let state = &mut self.threads[thread];
        state.lag = here - state.vruntime;
        self.cpus[cpu].vtime = here;
    }

    /// Takes the thread out of the queue that runs next on a CPU.
    pub(crate) fn pick(&mut self, cpu: usize) -> Option<ThreadId> {
        let queue = self.cpus[cpu].queue.iter().copied().enumerate();
        let threads = &self.threads;
        let (at, thread) = match self.kernel.order {
            Order::Eevdf | Order::Usher => {
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
            Order::Cfs => queue.min_by(|&(_, a), &(_, b)| {
                let (a_ran, b_ran) = (threads[a].vruntime, threads[b].vruntime);
                a_ran.total_cmp(&b_ran).then(a.cmp(&b))
            })?,
        };
        self.cpus[cpu].queue.remove(at);
        Some(thread)
    }

    /// Whether a thread that has just woken there is to run at once.
    pub(crate) fn preempts(&self, thread: ThreadId, cpu: usize) -> bool {
        let Some(current) = self.cpus[cpu].current else {
            return true;
        };
        let (new, old) = (&self.threads[thread], &self.threads[current]);
        match self.kernel.order {
            Order::Eevdf | Order::Usher => {
                let ran_ns = self.now_ns - self.cpus[cpu].started_ns;
                ran_ns >= self.kernel.protect_ns
                    && new.deadline < old.deadline
                    && new.vruntime <= self.virtual_time(cpu)
            }
            Order::Cfs => {
                let ahead = self.kernel.wakeup_granularity_ns as f64 / self.weight(thread);
                new.vruntime + ahead < old.vruntime
            }
        }
    }

    /// Under CFS, a turn on a CPU when so many more come to it.
    fn turn_ns(&self, cpu: usize, more: u64) -> u64 {
        let state = &self.cpus[cpu];
        let here = (state.queue.len() + usize::from(state.current.is_some())) as u64 + more;
        (self.kernel.latency_ns / here.max(1)).max(self.kernel.slice_ns)
    }

    /// When the turn of who runs on a CPU is over, if others wait; not before
    /// that time.
    pub(crate) fn turn_ends_ns(&self, cpu: usize, not_before_ns: u64) -> u64 {
        let state = &self.cpus[cpu];
        match self.kernel.order {
            Order::Eevdf | Order::Usher => state.slice_end_ns.max(not_before_ns),
            Order::Cfs => {
                let turn_ns = self.turn_ns(cpu, 0);
                // It is looked at with each tick only.
                let end_ns = (state.started_ns + turn_ns).max(not_before_ns);
                end_ns.next_multiple_of(TICK_NS)
            }
        }
    }
}
