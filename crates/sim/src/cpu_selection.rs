// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU selection of the simulated kernel: selects the CPU on which a thread runs or waits. (Module
//! `queue_order` selects the next thread of a CPU.)
//!
//! The model follows Linux's fair scheduler. Each CPU has a queue, and the load of a CPU is the sum
//! of the weights of its threads. A selection takes time in proportion to the CPUs and to the
//! threads in their queues, which it visits at most a few times.
//!
//! 1. A woken thread goes to its last CPU if that CPU is idle, else to an idle CPU of the same
//!    domain. A kernel with SMT awareness prefers CPUs of idle cores.
//! 2. If no CPU of that domain is idle, the thread goes to the waker's CPU or to an idle CPU in the
//!    waker's domain, provided that the waker's CPU is allowed and has less load than the last CPU.
//!    Otherwise the thread waits on its last CPU.
//! 3. A new thread goes to the least loaded CPU of the machine.
//! 4. An idle CPU pulls a waiting thread from the nearest CPU that has waiting threads.
//! 5. Periodically, busy CPUs pull waiting threads from more loaded CPUs.
//!
//! A selection finds no CPU if the mask is empty, or if no suitable thread waits.

use crate::cpu::CpuState;
use crate::job::ThreadId;
use crate::kernel::{Kernel, mix};
use crate::machine::{Machine, Mask};
use crate::task_table::TaskTable;

/// The loads of two CPUs count as balanced up to this ratio of the larger load to the smaller load.
const IMBALANCE: f64 = 1.25;

/// The state that the selection reads. The selection changes nothing.
pub(crate) struct CpuSelection<'a> {
    pub machine: &'a Machine,
    pub kernel: &'a Kernel,
    pub cpus: &'a [CpuState],
    pub tasks: &'a TaskTable,
    /// The CPU that handles the current event. Threads that wake at this event are woken by calls
    /// on this CPU.
    pub waker: Option<usize>,
    pub seed: u64,
}

impl CpuSelection<'_> {
    /// Selects an allowed CPU for a woken thread.
    pub fn select(&self, thread: ThreadId) -> Option<usize> {
        let cpu = self.select_any(thread)?;
        match self.tasks.may_run(thread, cpu) {
            true => Some(cpu),
            false => self.shortest_allowed_queue(thread),
        }
    }

    /// Selects a CPU for a woken thread, from the mask of the thread's program.
    fn select_any(&self, thread: ThreadId) -> Option<usize> {
        let state = &self.tasks.threads[thread];
        let mask = &self.tasks.job_of(thread).mask;
        if mask.is_empty() {
            return None;
        }
        let last = state.last;
        let aware = self.kernel.smt_aware;
        let idle = |cpu: usize| mask.has(cpu) && self.is_idle(cpu);
        let idle_core = |cpu: usize| mask.has(cpu) && self.is_idle_core(cpu);
        let fits = if aware { idle_core(last) } else { idle(last) };
        if fits {
            return Some(last);
        }
        let near = &self.machine.domains[self.machine.places[last].domain];
        let core = near.iter().copied().find(|&cpu| aware && idle_core(cpu));
        let any = || idle(last).then_some(last);
        let core = core.or_else(any);
        if let Some(cpu) = core.or_else(|| near.iter().copied().find(|&cpu| idle(cpu))) {
            return Some(cpu);
        }
        // No CPU in the domain of the last CPU is idle. If the waker's CPU has less load, its
        // domain is tried.
        let waker = self.waker.filter(|&cpu| mask.has(cpu));
        let lighter = |&cpu: &usize| !mask.has(last) || self.load(cpu) < self.load(last);
        if let Some(cpu) = waker.filter(lighter) {
            let near = &self.machine.domains[self.machine.places[cpu].domain];
            return near.iter().copied().find(|&cpu| idle(cpu)).or(Some(cpu));
        }
        if mask.has(last) {
            return Some(last);
        }
        self.idlest(mask, thread, last, &self.loads())
    }

    fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].is_idle()
    }

    pub fn is_idle_core(&self, cpu: usize) -> bool {
        let siblings = &self.machine.places[cpu].siblings;
        self.is_idle(cpu) && siblings.iter().all(|&other| self.is_idle(other))
    }

    fn weight(&self, thread: ThreadId) -> f64 {
        self.tasks.weight(thread, self.kernel.group_by)
    }

    /// Returns the load of a CPU: the sum of the weights of its running and waiting threads.
    fn load(&self, cpu: usize) -> f64 {
        let threads = self.cpus[cpu].threads();
        threads.map(|thread| self.weight(thread)).sum()
    }

    /// Returns the load of each CPU.
    pub fn loads(&self) -> Vec<f64> {
        (0..self.cpus.len()).map(|cpu| self.load(cpu)).collect()
    }

    /// Returns the CPU of the mask with the least load. Among CPUs of equal load, the order is:
    /// CPUs of idle cores first, then by the load of the domain, then CPUs in the domain of `near`,
    /// then by number.
    pub fn idlest(
        &self,
        mask: &Mask,
        thread: ThreadId,
        near: usize,
        loads: &[f64],
    ) -> Option<usize> {
        let home = self.machine.places[near].domain;
        let domains = self.machine.domains.iter();
        let domains: Vec<f64> = domains
            .map(|cpus| cpus.iter().map(|&cpu| loads[cpu]).sum::<f64>() / cpus.len() as f64)
            .collect();
        let cpus = (0..self.cpus.len()).filter(|&cpu| mask.has(cpu));
        cpus.min_by(|&a, &b| {
            let siblings = |cpu: usize| self.machine.places[cpu].siblings.iter();
            let busy_core = |cpu: usize| {
                self.kernel.smt_aware && siblings(cpu).any(|&other| loads[other] > 0.0)
            };
            let domain = |cpu: usize| self.machine.places[cpu].domain;
            // A kernel without SMT awareness selects hardware threads in arbitrary order.
            let order = |cpu: usize| match self.kernel.smt_aware {
                true => cpu as u64,
                false => mix(self.seed, thread as u64, cpu as u64),
            };
            let away = |cpu: usize| (domain(cpu) != home, order(cpu));
            loads[a]
                .total_cmp(&loads[b])
                .then_with(|| busy_core(a).cmp(&busy_core(b)))
                .then_with(|| domains[domain(a)].total_cmp(&domains[domain(b)]))
                .then_with(|| away(a).cmp(&away(b)))
        })
    }

    /// Returns the allowed CPU with the fewest threads.
    pub fn shortest_allowed_queue(&self, thread: ThreadId) -> Option<usize> {
        let length = |&cpu: &usize| (self.cpus[cpu].runnable(), cpu);
        let cpus = 0..self.cpus.len();
        cpus.filter(|&cpu| self.tasks.may_run(thread, cpu))
            .min_by_key(length)
    }

    /// Selects a waiting thread that an idle CPU pulls. The thread comes from the longest queue in
    /// the nearest group of CPUs (domain, package, machine) with a suitable waiting thread. Returns
    /// the thread's CPU and the thread's position in the queue.
    pub fn waiting_near(&self, cpu: usize) -> Option<(usize, usize)> {
        let home = self.machine.places[cpu].domain;
        let package = self.machine.places[cpu].package;
        let reach: [&dyn Fn(usize) -> bool; 3] = [
            &|other| self.machine.places[other].domain == home,
            &|other| self.machine.places[other].package == package,
            &|_| true,
        ];
        let found = reach.iter().find_map(|near| {
            let queues = (0..self.cpus.len()).filter(|&other| other != cpu && near(other));
            let waiting = queues.filter_map(|other| {
                let queue = &self.cpus[other].queue;
                let may = |thread: &ThreadId| self.tasks.may_run(*thread, cpu);
                let at = queue.iter().position(may)?;
                Some((queue.len(), other, at))
            });
            waiting.max_by_key(|&(len, other, _)| (len, std::cmp::Reverse(other)))
        });
        found.map(|(_, other, at)| (other, at))
    }

    /// Selects a waiting thread to move from the most loaded CPU to `cpu`, if the move balances the
    /// loads. Among equal loads, a CPU of the same domain comes first. `busy` are the CPUs that had
    /// waiting threads. Returns the thread's CPU and the thread's position in the queue.
    pub fn overload(&self, cpu: usize, busy: &[usize], loads: &[f64]) -> Option<(usize, usize)> {
        let home = self.machine.places[cpu].domain;
        let mine = loads[cpu];
        let mut best: Option<(f64, bool, usize, usize)> = None;
        for &other in busy {
            let theirs = loads[other];
            let near = self.machine.places[other].domain == home;
            let better = best.is_none_or(|(load, nearer, ..)| {
                theirs > load || theirs == load && near && !nearer
            });
            if other == cpu || theirs <= mine * IMBALANCE || !better {
                continue;
            }
            let fits = |thread: &ThreadId| {
                let weight = self.weight(*thread);
                mine + weight < theirs - weight * 0.5 && self.tasks.job_of(*thread).mask.has(cpu)
            };
            if let Some(at) = self.cpus[other].queue.iter().position(fits) {
                best = Some((theirs, near, other, at));
            }
        }
        best.map(|(_, _, other, at)| (other, at))
    }

    /// Returns a running thread that shares its core with another running thread and may move to
    /// this idle CPU.
    pub fn crowded(&self, cpu: usize) -> Option<ThreadId> {
        let shares = |&other: &usize| {
            let mut siblings = self.machine.places[other].siblings.iter();
            siblings.any(|&sibling| self.cpus[sibling].current.is_some())
        };
        let movable = |other: usize| {
            let thread = self.cpus[other].current?;
            let may = self.tasks.job_of(thread).mask.has(cpu);
            may.then_some(thread)
        };
        let crowded = (0..self.cpus.len()).filter(shares);
        crowded.filter_map(movable).next()
    }
}
