// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts of simulated programs, and their validation. A script has a list of steps for each role;
//! a role is a group of threads with the same steps. `steps.rs` executes the steps.
//!
//! [`Script::check`] rejects scripts that refer to missing pools or queues, exceed a limit, or take
//! no time. The check takes quadratic time in the number of steps, because loops and queues refer
//! to other steps. Deadlocks are not detected by the check; module `fault` detects deadlocks while
//! the script runs. A script has at most [`THREADS_MAX`] threads, barriers and locks numbered 0 to
//! 9,999, and steps of at most 10^15 ns (eleven days) of work.
//!
//! The unit of work is a nanosecond of an undisturbed core: a core of capacity 1 with warm caches,
//! and an idle memory system.

use serde::{Deserialize, Serialize};

/// One step of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// Computes. The work is uniformly distributed between `1 - spread` and `1 + spread` times
    /// `ns`.
    Work {
        /// Mean work in nanoseconds.
        ns: f64,
        /// Half-width of the distribution, relative to the mean; 0 to 1.
        #[serde(default)]
        spread: f64,
    },
    /// Computes items from a pool that all threads share, until the pool is empty. When a barrier
    /// opens, all pools are refilled.
    Items {
        /// Index of the pool.
        pool: usize,
        /// Mean work of an item in nanoseconds.
        ns: f64,
        /// Half-width of the distribution, relative to the mean; 0 to 1.
        #[serde(default)]
        spread: f64,
    },
    /// The first thread of the role computes; the other threads continue with the next step.
    Serial {
        /// Work in nanoseconds.
        ns: f64,
    },
    /// Fetches cache lines that other threads of the program wrote on other CPUs. The cost grows
    /// with the number of CPUs that the program may use, up to the number of its threads. The step
    /// takes time, but its work does not count as progress.
    #[serde(rename = "cache_bounce_ns")]
    CacheBounce {
        /// Cost per CPU at 16 CPUs, in nanoseconds.
        per_cpu: f64,
        /// Growth of the cost: at n CPUs, the cost per CPU is `(n / 16)^(power - 1)` times
        /// `per_cpu`.
        power: f64,
    },
    /// Takes a lock. Waiting threads get the lock in the order of their arrival.
    Lock(usize),
    /// Releases a lock.
    Unlock(usize),
    /// Waits until all threads that use this barrier have arrived.
    Barrier(usize),
    /// Puts an item into a queue, and waits while the queue is full.
    Put(usize),
    /// Takes an item out of a queue, and waits while the queue is empty. The thread ends when the
    /// queue is empty and closed. A queue is closed when every thread that puts items into it has
    /// ended.
    Take(usize),
    /// Sleeps.
    Sleep {
        /// Duration in nanoseconds.
        ns: u64,
    },
    /// Jumps back to an earlier step. The steps from that step to this step run `times` times in
    /// total.
    Loop {
        /// Index of the step to jump to, counted from 0.
        to: usize,
        /// Total number of iterations.
        times: u32,
    },
    /// Starts a phase: sets the memory behaviour of the whole program until the next phase or the
    /// end of the repetition.
    Memory(Memory),
}

/// A group of threads with the same steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadKind {
    /// Number of threads of this role.
    pub threads: u32,
    /// Steps of each thread.
    pub steps: Vec<Op>,
}

/// How threads wait at barriers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BarrierWait {
    /// Threads block. When the barrier opens, each thread must be scheduled again.
    Block,
    /// Threads spin.
    Spin,
    /// Threads spin for this much CPU time in nanoseconds, and then block.
    SpinThenBlock(u64),
}

/// A program's use of caches and memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Share of time in which the program waits for memory, when it runs alone on one core; 0 to 1.
    pub stall: f64,
    /// Memory traffic of one thread in GB/s, when it runs alone at full speed with a warm cache.
    pub gbps: f64,
    /// Bytes that all threads share. Each domain in which a thread runs has a copy in its cache.
    pub shared_bytes: f64,
    /// Private bytes of each thread.
    pub private_bytes: f64,
    /// Relative increase of traffic and stall time when none of the data fits the cache.
    pub sensitivity: f64,
    /// Whether one thread touches all memory first, so that all memory is on the NUMA node of this
    /// thread. If false, each thread touches its own memory first.
    pub one_node: bool,
    /// Throughput of two threads on one core, relative to one thread.
    pub smt: f64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            stall: 0.0,
            gbps: 0.0,
            shared_bytes: 0.0,
            private_bytes: 64e3,
            sensitivity: 0.0,
            one_node: false,
            smt: 1.25,
        }
    }
}

/// Maximum number of threads of a program. A program with four stages on the largest machine that
/// can be described could exceed this limit; real programs do not.
pub const THREADS_MAX: u32 = 16_384;
/// Maximum work of a step, in nanoseconds: eleven days.
const WORK_NS_MAX: f64 = 1e15;
/// Maximum of `per_cpu` of a cache-bounce step, in nanoseconds: one second.
const CACHE_BOUNCE_NS_MAX: f64 = 1e9;
/// Maximum of `power` of a cache-bounce step.
const CACHE_BOUNCE_POWER_MAX: f64 = 4.0;

/// The steps of a program's threads, and the objects that they share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Name of the program.
    pub name: String,
    /// The kinds of threads of the program.
    pub roles: Vec<ThreadKind>,
    /// Number of items in each full pool.
    #[serde(default)]
    pub pools: Vec<u32>,
    /// Capacity of each queue.
    #[serde(default)]
    pub queues: Vec<u32>,
    /// How threads wait at barriers.
    pub wait: BarrierWait,
    /// Whether the program decides at its start, from the number of cores at that time, whether its
    /// threads spin. The decision does not change when cores are taken away.
    #[serde(default)]
    pub adaptive_spin: bool,
    /// Use of caches and memory.
    #[serde(default)]
    pub memory: Memory,
}

/// An invalid script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("program '{program}': {reason}")]
pub struct ScriptError {
    /// Name of the program.
    pub program: String,
    /// Invalid part of the script.
    pub reason: String,
}

/// The highest index of a barrier or lock.
const ID_MAX: usize = 9_999;

impl Script {
    /// Returns the number of threads of all roles.
    pub fn threads(&self) -> u32 {
        self.roles.iter().map(|role| role.threads).sum()
    }

    /// Returns the number of barriers: the highest index used, plus one.
    pub(crate) fn barriers(&self) -> usize {
        self.highest(|op| match op {
            Op::Barrier(id) => Some(*id),
            _ => None,
        })
    }

    /// Returns the number of locks: the highest index used, plus one.
    pub(crate) fn locks(&self) -> usize {
        self.highest(|op| match op {
            Op::Lock(id) | Op::Unlock(id) => Some(*id),
            _ => None,
        })
    }

    fn highest(&self, pick: impl Fn(&Op) -> Option<usize>) -> usize {
        let steps = self.roles.iter().flat_map(|role| &role.steps);
        steps.filter_map(pick).max().map_or(0, |id| id + 1)
    }

    /// Checks that the script is valid, and that its loops end.
    ///
    /// # Errors
    /// The first invalid part of the script.
    pub fn check(&self) -> Result<(), ScriptError> {
        self.fault().map_or(Ok(()), |reason| {
            Err(ScriptError {
                program: self.name.clone(),
                reason,
            })
        })
    }

    fn fault(&self) -> Option<String> {
        let threads: u64 = self.roles.iter().map(|role| u64::from(role.threads)).sum();
        if threads == 0 {
            return Some("the program has no threads".to_owned());
        }
        if threads > u64::from(THREADS_MAX) {
            return Some(format!(
                "the program has {threads} threads; the maximum is {THREADS_MAX}"
            ));
        }
        if let Some(reason) = self.memory.fault() {
            return Some(reason);
        }
        let mut works = false;
        for (number, role) in self.roles.iter().enumerate() {
            for (at, op) in role.steps.iter().enumerate() {
                if role.threads == 0 {
                    continue;
                }
                let reason = self.op_fault(role, at, op);
                if let Some(reason) = reason.or_else(|| self.queue_fault(op)) {
                    return Some(format!("role {number}, step {at}: {reason}"));
                }
                works |= matches!(op, Op::Work { ns, .. } | Op::Items { ns, .. } | Op::Serial { ns } if *ns > 0.0);
            }
        }
        (!works).then(|| "the program has no work".to_owned())
    }

    fn op_fault(&self, role: &ThreadKind, at: usize, op: &Op) -> Option<String> {
        match op {
            Op::Work { ns, spread } | Op::Items { ns, spread, .. }
                if !((0.0..=WORK_NS_MAX).contains(ns) && (0.0..=1.0).contains(spread)) =>
            {
                Some(format!(
                    "work must be from 0 to {WORK_NS_MAX:e} ns with a spread of 0 to 1, not {ns} \
                     ns with a spread of {spread}"
                ))
            }
            Op::Serial { ns } if !(0.0..=WORK_NS_MAX).contains(ns) => Some(format!(
                "work must be from 0 to {WORK_NS_MAX:e} ns, not {ns} ns"
            )),
            Op::CacheBounce { per_cpu, power }
                if !((0.0..=CACHE_BOUNCE_NS_MAX).contains(per_cpu)
                    && (0.0..=CACHE_BOUNCE_POWER_MAX).contains(power)) =>
            {
                Some(format!(
                    "cache_bounce_ns: per_cpu must be from 0 to {CACHE_BOUNCE_NS_MAX:e} ns with \
                     a power of 0 to {CACHE_BOUNCE_POWER_MAX}, not {per_cpu} ns with a power of \
                     {power}"
                ))
            }
            Op::Barrier(id) | Op::Lock(id) | Op::Unlock(id) if *id > ID_MAX => Some(format!(
                "the number of a barrier or lock must be from 0 to {ID_MAX}, not {id}"
            )),
            Op::Memory(memory) => memory.fault(),
            Op::Items { pool, .. } if *pool >= self.pools.len() => {
                Some(format!("the program has no pool {pool}"))
            }
            Op::Loop { to, times } if *to >= at || *times == 0 => {
                Some("a loop must repeat from an earlier step, at least once".to_owned())
            }
            Op::Loop { to, .. } if !role.steps[*to..at].iter().any(Op::takes_time) => {
                Some("the steps of the loop take zero time: add a step with work".to_owned())
            }
            _ => None,
        }
    }

    /// Returns the reason why the queue of a step is invalid, if any.
    fn queue_fault(&self, op: &Op) -> Option<String> {
        let (queue, other_end, missing) = match op {
            Op::Put(queue) => (*queue, Op::Take(*queue), "takes from"),
            Op::Take(queue) => (*queue, Op::Put(*queue), "puts into"),
            _ => return None,
        };
        let roles = self.roles.iter().filter(|role| role.threads > 0);
        let has_two_ends = roles
            .flat_map(|role| &role.steps)
            .any(|op| *op == other_end);
        match self.queues.get(queue) {
            None => Some(format!("the program has no queue {queue}")),
            Some(0) => Some(format!(
                "the capacity of queue {queue} is 0; it must be at least 1"
            )),
            Some(_) if !has_two_ends => {
                Some(format!("no thread of the program {missing} queue {queue}"))
            }
            Some(_) => None,
        }
    }
}

impl Memory {
    /// Returns the reason why the memory behaviour is invalid, if any.
    fn fault(&self) -> Option<String> {
        let amounts = [
            ("stall", self.stall),
            ("gbps", self.gbps),
            ("shared_bytes", self.shared_bytes),
            ("private_bytes", self.private_bytes),
            ("sensitivity", self.sensitivity),
        ];
        for (name, amount) in amounts {
            if !(amount.is_finite() && amount >= 0.0) {
                return Some(format!("{name} must be 0 or more, not {amount}"));
            }
        }
        if self.stall >= 1.0 {
            return Some(format!("stall must be less than 1, not {}", self.stall));
        }
        if !(0.5..=2.0).contains(&self.smt) {
            return Some(format!("smt must be from 0.5 to 2, not {}", self.smt));
        }
        None
    }
}

impl Op {
    /// Returns whether the step takes virtual time, or waits for a step that takes virtual time.
    fn takes_time(&self) -> bool {
        match self {
            Self::Work { ns, .. }
            | Self::Items { ns, .. }
            | Self::CacheBounce { per_cpu: ns, .. } => *ns > 0.0,
            Self::Take(_) | Self::Put(_) | Self::Barrier(_) => true,
            Self::Sleep { ns } => *ns > 0,
            Self::Serial { .. }
            | Self::Lock(_)
            | Self::Unlock(_)
            | Self::Loop { .. }
            | Self::Memory(_) => false,
        }
    }
}
