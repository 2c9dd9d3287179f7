// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU selection of the simulated kernel (module `turns` selects the next thread of a queue).
//!
//! The model follows Linux's fair scheduler. Each CPU has a queue.
//!
//! 1. A woken thread goes to its last CPU if that is idle, else to an idle CPU of the same domain.
//!    A kernel with SMT awareness prefers CPUs of idle cores.
//! 2. Without such a CPU it goes to the waker's CPU, or to an idle CPU near it, if the waker's CPU
//!    is allowed and has less load; else it queues on its last CPU.
//! 3. A new thread goes to the least loaded CPU of the machine.
//! 4. An idle CPU pulls a waiting thread, nearest CPUs first.
//! 5. Periodically, loads are balanced between domains.

use serde::{Deserialize, Serialize};
use usher_model::Topology;
use usher_rules::select_cpu::{CPUS_MAX, LLCS_MAX};

use crate::engine::Engine;
use crate::job::ThreadId;
use crate::machine::Mask;
pub use crate::queue_order::QueueOrder;

/// The entities that share CPU time evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupBy {
    /// Threads: Linux before 2.6.38, the kernel of paper 1.
    Threads,
    /// Programs: each has the autogroup of its session, or its own cgroup.
    Programs,
}

/// Configuration of the simulated kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kernel {
    /// The entities that share CPU time evenly.
    pub group_by: GroupBy,
    /// Whether an idle core is preferred to an idle hardware thread of a busy core.
    pub smt_aware: bool,
    /// The order of the queues.
    pub order: QueueOrder,
    /// Length of a slice while other threads wait; under CFS its minimum.
    pub slice_ns: u64,
    /// EEVDF: time during which a running thread cannot be preempted by a woken one.
    pub protect_ns: u64,
    /// Usher's scheduler: threads of one address space run one after another.
    pub aggregate: bool,
    /// Usher's scheduler: maximum length of such a series.
    pub turn_ns: u64,
    /// Usher's scheduler: maximum virtual time by which such a series may get ahead of waiting
    /// threads.
    pub max_lag_ns: u64,
    /// CFS: period in which each queued thread runs once. A woken thread may be ahead of the others
    /// by at most half of it.
    pub latency_ns: u64,
    /// CFS: virtual time by which a woken thread must be ahead of the running one to preempt it.
    pub wakeup_granularity_ns: u64,
    /// Period at which idle CPUs search other queues for work.
    pub balance_ns: u64,
    /// Period at which the loads of busy CPUs are balanced.
    pub busy_balance_ns: u64,
}

impl Default for Kernel {
    /// Linux on eight CPUs or more.
    fn default() -> Self {
        Self {
            group_by: GroupBy::Programs,
            smt_aware: true,
            order: QueueOrder::Eevdf,
            slice_ns: 3_000_000,
            protect_ns: 750_000,
            aggregate: true,
            turn_ns: 24_000_000,
            max_lag_ns: 24_000_000,
            latency_ns: 24_000_000,
            wakeup_granularity_ns: 4_000_000,
            balance_ns: 4_000_000,
            busy_balance_ns: 128_000_000,
        }
    }
}

impl Kernel {
    /// Linux 2.6.37 on eight CPUs or more, the kernel of paper 1: CFS without autogroups. The
    /// figures are those of its source: a latency of 24 ms, slices of at least 3 ms, a wakeup
    /// granularity of 4 ms.
    pub fn cfs() -> Self {
        Self {
            group_by: GroupBy::Threads,
            order: QueueOrder::Cfs,
            ..Self::default()
        }
    }

    /// A current kernel under Usher's scheduler (`usher sched`) with its default settings.
    pub fn usher() -> Self {
        Self {
            group_by: GroupBy::Threads,
            order: QueueOrder::Usher,
            ..Self::default()
        }
    }

    /// Checks that the scheduler supports the machine.
    ///
    /// # Errors
    /// The machine has more CPUs or domains than the tables of Usher's scheduler.
    pub fn check(&self, machine: &Topology) -> Result<(), TooLarge> {
        let (cpus, llcs) = (machine.cpus.len(), machine.domains.len());
        match self.order {
            QueueOrder::Usher if cpus > CPUS_MAX => Err(TooLarge::Cpus(cpus)),
            QueueOrder::Usher if llcs > LLCS_MAX => Err(TooLarge::Llcs(llcs)),
            _ => Ok(()),
        }
    }
}

/// A machine that exceeds the tables of Usher's scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Too many CPUs.
    #[error("it has {0} CPUs; Usher's scheduler supports {CPUS_MAX}")]
    Cpus(usize),
    /// Too many last-level caches; some would have to share queues.
    #[error("it has {0} last-level caches; Usher's scheduler supports {LLCS_MAX}")]
    Llcs(usize),
}

/// Hashes three numbers to a pseudo-random one (after splitmix64).
pub(crate) fn mix(a: u64, b: u64, c: u64) -> u64 {
    let mut z = a
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(b.wrapping_mul(0xbf58_476d_1ce4_e5b9))
        .wrapping_add(c.wrapping_mul(0x94d0_49bb_1331_11eb));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Load ratio up to which loads count as balanced.
const IMBALANCE: f64 = 1.25;

impl Engine {
    fn is_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].current.is_none() && self.cpus[cpu].queue.is_empty()
    }

    fn is_idle_core(&self, cpu: usize) -> bool {
        let siblings = &self.machine.places[cpu].siblings;
        self.is_idle(cpu) && siblings.iter().all(|&other| self.is_idle(other))
    }

    /// Load of a CPU: the weights of its running and waiting threads.
    fn load(&self, cpu: usize) -> f64 {
        let state = &self.cpus[cpu];
        let here = state.queue.iter().chain(&state.current);
        here.map(|&thread| self.weight(thread)).sum()
    }

    /// Selects the CPU of a woken thread.
    pub(crate) fn select_cpu(&self, thread: ThreadId) -> Option<usize> {
        let state = &self.threads[thread];
        let mask = &self.jobs[state.program].mask;
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
        // No idle CPU near the last one: use the waker's neighbourhood if it has less load.
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

    /// Load of every CPU.
    fn loads(&self) -> Vec<f64> {
        (0..self.cpus.len()).map(|cpu| self.load(cpu)).collect()
    }

    /// Spreads the new threads of a program over its CPUs, as the kernel does at fork.
    pub(crate) fn place_new_threads(&mut self, program: usize) {
        if self.kernel.is_usher() {
            return self.create_tasks(program);
        }
        let mut loads = self.loads();
        for thread in self.jobs[program].threads.clone() {
            let mask = &self.jobs[program].mask;
            if let Some(cpu) = self.idlest(mask, thread, 0, &loads) {
                loads[cpu] += self.weight(thread);
                self.threads[thread].last = cpu;
            }
        }
    }

    /// The CPU with the least load. Ties are broken, in this order, by: an idle core, the load of
    /// the domain, the distance to `near`, the CPU's number.
    fn idlest(&self, mask: &Mask, thread: ThreadId, near: usize, loads: &[f64]) -> Option<usize> {
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

    /// Pulls a thread for a CPU that would be idle, from the longest queue of the nearest group of
    /// CPUs with waiting threads.
    pub(crate) fn pull(&mut self, cpu: usize) -> Option<ThreadId> {
        let home = self.machine.places[cpu].domain;
        let package = self.machine.places[cpu].package;
        let reach: [&dyn Fn(usize) -> bool; 3] = [
            &|other| self.machine.places[other].domain == home,
            &|other| self.machine.places[other].package == package,
            &|_| true,
        ];
        if self.waiting == 0 {
            return None;
        }
        let found = reach.iter().find_map(|near| {
            let queues = (0..self.cpus.len()).filter(|&other| other != cpu && near(other));
            let waiting = queues.filter_map(|other| {
                let queue = &self.cpus[other].queue;
                let may = |thread: &ThreadId| self.may_run(*thread, cpu);
                let at = queue.iter().position(may)?;
                Some((queue.len(), other, at))
            });
            waiting.max_by_key(|&(len, other, _)| (len, std::cmp::Reverse(other)))
        });
        let (_, other, at) = found?;
        self.account(other);
        let thread = self.cpus[other].queue.remove(at);
        self.leave(thread, other);
        Some(thread)
    }

    /// Lets idle CPUs pull. At every busy-balance period it also moves one thread per CPU from
    /// queues with a load above the CPU's by more than the margin.
    pub(crate) fn balance(&mut self) {
        if self.kernel.is_usher() {
            return self.tick_usher();
        }
        for cpu in 0..self.cpus.len() {
            if self.waiting > 0 && self.cpus[cpu].online && self.is_idle(cpu) {
                self.dispatch(cpu);
            }
        }
        if self.now_ns >= self.balanced_ns + self.kernel.busy_balance_ns {
            self.balanced_ns = self.now_ns;
            let mut loads = self.loads();
            let queues = |&cpu: &usize| !self.cpus[cpu].queue.is_empty();
            let busy: Vec<usize> = (0..self.cpus.len()).filter(queues).collect();
            for cpu in 0..self.cpus.len() {
                if self.cpus[cpu].online && self.has_waiters_for(cpu) {
                    self.pull_load(cpu, &busy, &mut loads);
                }
            }
        }
        if self.kernel.smt_aware {
            self.fill_idle_cores();
        }
    }

    /// Moves running threads from cores that run several threads to idle cores.
    fn fill_idle_cores(&mut self) {
        for cpu in 0..self.cpus.len() {
            let has_siblings = !self.machine.places[cpu].siblings.is_empty();
            if !has_siblings || !self.cpus[cpu].online || !self.is_idle_core(cpu) {
                continue;
            }
            let shares = |&other: &usize| {
                let mut siblings = self.machine.places[other].siblings.iter();
                siblings.any(|&sibling| self.cpus[sibling].current.is_some())
            };
            let movable = |other: usize| {
                let thread = self.cpus[other].current?;
                let may = self.jobs[self.threads[thread].program].mask.has(cpu);
                may.then_some(thread)
            };
            let crowded = (0..self.cpus.len()).filter(shares);
            if let Some(thread) = crowded.filter_map(movable).next() {
                self.move_running(thread, cpu);
            }
        }
    }

    /// Moves one thread from the most loaded CPU to `cpu`, if that balances the loads; among
    /// equal loads, from the nearest CPU. `busy` are the CPUs that had waiting threads.
    fn pull_load(&mut self, cpu: usize, busy: &[usize], loads: &mut [f64]) {
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
                mine + weight < theirs - weight * 0.5
                    && self.jobs[self.threads[*thread].program].mask.has(cpu)
            };
            if let Some(at) = self.cpus[other].queue.iter().position(fits) {
                best = Some((theirs, near, other, at));
            }
        }
        let Some((_, _, other, at)) = best else {
            return;
        };
        let thread = self.cpus[other].queue.remove(at);
        let weight = self.weight(thread);
        loads[other] -= weight;
        loads[cpu] += weight;
        self.account(other);
        self.leave(thread, other);
        self.arm(other);
        self.account(cpu);
        self.enqueue(thread, cpu);
        match self.cpus[cpu].current {
            None => self.dispatch(cpu),
            Some(_) => self.arm(cpu),
        }
    }
}
