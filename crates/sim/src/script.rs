// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs as their threads see them: what a thread does, step by step.
//!
//! Work is counted in nanoseconds on a core of capacity 1 that the thread has
//! to itself, with warm caches and nobody else at the memory.

use serde::{Deserialize, Serialize};

/// One step of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// Computes for so long, give or take: evenly between `1 - spread` and
    /// `1 + spread` times.
    Work {
        /// Mean work in nanoseconds.
        ns: f64,
        /// Half-width of the distribution, relative; 0..1.
        #[serde(default)]
        spread: f64,
    },
    /// Computes items of a pool that all threads take from, until none is left.
    /// Barriers fill the pools again.
    Items {
        /// Which pool.
        pool: usize,
        /// Mean work of an item in nanoseconds.
        ns: f64,
        /// As for `work`.
        #[serde(default)]
        spread: f64,
    },
    /// The first thread of the role computes; the others go on.
    Serial {
        /// Work in nanoseconds.
        ns: f64,
    },
    /// Reaches for what the program's other threads wrote on other CPUs: so much
    /// time for each of the CPUs that they may be on. Nothing gets done in it.
    Contend {
        /// Nanoseconds for each of sixteen CPUs.
        ns: f64,
        /// How that grows: for each of n it is `(n / 16)^(power - 1)` times that.
        power: f64,
    },
    /// Takes a lock, after whoever came before.
    Lock(usize),
    /// Gives it back.
    Unlock(usize),
    /// Waits for all threads that come to this barrier.
    Barrier(usize),
    /// Puts an item into a queue; waits while it is full.
    Put(usize),
    /// Takes an item out; waits while it is empty; ends when it is closed: when
    /// every thread that puts into it has ended.
    Take(usize),
    /// Waits for so long.
    Sleep {
        /// Nanoseconds.
        ns: u64,
    },
    /// Goes back to a step, so that the steps between are done so many times
    /// in all.
    Again {
        /// The step, counted from 0.
        to: usize,
        /// How often.
        times: u32,
    },
    /// A phase begins: from now on, until the next one or the end of the
    /// repetition, this is what the whole program asks of caches and memory.
    Memory(Memory),
}

/// Threads that do the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// How many.
    pub threads: u32,
    /// What each does.
    pub steps: Vec<Op>,
}

/// How threads wait at barriers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// They sleep, at the cost of being woken.
    Block,
    /// They spin.
    Spin,
    /// They spin for so many nanoseconds of their CPU time, then sleep.
    SpinThenBlock(u64),
}

/// What a program asks of caches and memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Share of its time, alone on one core, that waits for memory: 0..1.
    pub stall: f64,
    /// Traffic of one thread at full speed with all it uses in the cache that
    /// fits there when it is alone, GB/s.
    pub gbps: f64,
    /// Bytes that all threads use together, in every domain where one runs.
    pub shared_bytes: f64,
    /// Bytes of each thread's own.
    pub private_bytes: f64,
    /// How much more traffic and waiting there is when nothing of it fits,
    /// relative.
    pub sensitivity: f64,
    /// Whether one thread touches all memory first, so that it lies in that
    /// thread's node; else each touches its own.
    pub one_node: bool,
    /// Throughput of two threads of it on one core, relative to one.
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

/// Threads that a program may have: four stages on the largest machine that a
/// description can ask for would be more, and no program has them.
pub const THREADS_MAX: u32 = 16_384;
/// Work that a step may have, in nanoseconds: eleven days.
const WORK_NS_MAX: f64 = 1e15;
/// Most nanoseconds for each of sixteen CPUs: a second.
const CONTEND_NS_MAX: f64 = 1e9;
/// The steepest that it may grow.
const CONTEND_POWER_MAX: f64 = 4.0;

/// A program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Its name.
    pub name: String,
    /// Its threads.
    pub roles: Vec<Role>,
    /// Items in each pool.
    #[serde(default)]
    pub pools: Vec<u32>,
    /// Places in each queue.
    #[serde(default)]
    pub queues: Vec<u32>,
    /// How its threads wait at barriers.
    pub wait: Wait,
    /// Whether they settle at their start, by the cores found then, that they
    /// spin: they go on to when they have fewer.
    #[serde(default)]
    pub settles: bool,
    /// What it asks of the memory.
    #[serde(default)]
    pub memory: Memory,
}

/// What is wrong with a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("program '{program}': {reason}")]
pub struct ScriptError {
    /// Whose.
    pub program: String,
    /// What.
    pub reason: String,
}

/// The highest number of a barrier or a lock.
const ID_MAX: usize = 9_999;

impl Script {
    /// Threads in all.
    pub fn threads(&self) -> u32 {
        self.roles.iter().map(|role| role.threads).sum()
    }

    /// Barriers that it names.
    pub(crate) fn barriers(&self) -> usize {
        self.highest(|op| match op {
            Op::Barrier(id) => Some(*id),
            _ => None,
        })
    }

    /// Locks that it names.
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

    /// Checks that it can be run and comes to an end.
    ///
    /// # Errors
    /// The first thing that makes no sense.
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
            return Some("it has no thread".to_owned());
        }
        if threads > u64::from(THREADS_MAX) {
            return Some(format!(
                "it has {threads} threads, the most is {THREADS_MAX}"
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
        (!works).then(|| "it has no work".to_owned())
    }

    fn op_fault(&self, role: &Role, at: usize, op: &Op) -> Option<String> {
        match op {
            Op::Work { ns, spread } | Op::Items { ns, spread, .. }
                if !((0.0..=WORK_NS_MAX).contains(ns) && (0.0..=1.0).contains(spread)) =>
            {
                Some(format!(
                    "work must be from 0 to {WORK_NS_MAX:e} ns with a spread of 0 to 1, not {ns} with {spread}"
                ))
            }
            Op::Serial { ns } if !(0.0..=WORK_NS_MAX).contains(ns) => Some(format!(
                "work must be from 0 to {WORK_NS_MAX:e} ns, not {ns}"
            )),
            Op::Contend { ns, power }
                if !((0.0..=CONTEND_NS_MAX).contains(ns)
                    && (0.0..=CONTEND_POWER_MAX).contains(power)) =>
            {
                Some(format!(
                    "contention must be from 0 to {CONTEND_NS_MAX:e} ns with a power of 0 to {CONTEND_POWER_MAX}, not {ns} with {power}"
                ))
            }
            Op::Barrier(id) | Op::Lock(id) | Op::Unlock(id) if *id > ID_MAX => Some(format!(
                "barriers and locks are numbered from 0 to {ID_MAX}, not {id}"
            )),
            Op::Memory(memory) => memory.fault(),
            Op::Items { pool, .. } if *pool >= self.pools.len() => {
                Some(format!("there is no pool {pool}"))
            }
            Op::Again { to, times } if *to >= at || *times == 0 => {
                Some("it can only go back, once or more".to_owned())
            }
            Op::Again { to, .. } if !role.steps[*to..at].iter().any(Op::takes_time) => {
                Some("what is repeated takes no time".to_owned())
            }
            _ => None,
        }
    }

    /// What is wrong with the queue that a step names.
    fn queue_fault(&self, op: &Op) -> Option<String> {
        let (queue, other_end, nobody) = match op {
            Op::Put(queue) => (*queue, Op::Take(*queue), "takes anything out of"),
            Op::Take(queue) => (*queue, Op::Put(*queue), "puts anything into"),
            _ => return None,
        };
        let roles = self.roles.iter().filter(|role| role.threads > 0);
        let has_two_ends = roles
            .flat_map(|role| &role.steps)
            .any(|op| *op == other_end);
        match self.queues.get(queue) {
            None => Some(format!("there is no queue {queue}")),
            Some(0) => Some(format!("queue {queue} has no place")),
            Some(_) if !has_two_ends => Some(format!("nobody {nobody} queue {queue}")),
            Some(_) => None,
        }
    }
}

impl Memory {
    /// What makes no sense in it.
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
            return Some(format!("stall must be below 1, not {}", self.stall));
        }
        if !(0.5..=2.0).contains(&self.smt) {
            return Some(format!("smt must be from 0.5 to 2, not {}", self.smt));
        }
        None
    }
}

impl Op {
    /// Whether it takes virtual time or waits for somebody who does.
    fn takes_time(&self) -> bool {
        match self {
            Self::Work { ns, .. } | Self::Items { ns, .. } | Self::Contend { ns, .. } => *ns > 0.0,
            Self::Take(_) | Self::Put(_) | Self::Barrier(_) => true,
            Self::Sleep { ns } => *ns > 0,
            Self::Serial { .. }
            | Self::Lock(_)
            | Self::Unlock(_)
            | Self::Again { .. }
            | Self::Memory(_) => false,
        }
    }
}
