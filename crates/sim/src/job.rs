// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads, and a program that runs.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use oorandom::Rand32;

use crate::machine::Mask;
use crate::ours::Standing;
use crate::script::{Memory, Script};

pub(crate) type ThreadId = usize;

/// Where a thread is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// On that CPU.
    Running(usize),
    /// In that CPU's queue.
    Queued(usize),
    /// For a lock, a queue, a barrier, a time.
    Waiting,
    /// It would run, and its program is frozen or has no CPU.
    Stopped,
    Ended,
}

#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub program: usize,
    pub role: usize,
    /// Its number in its role.
    pub number: u32,
    pub step: usize,
    /// How often each step that goes back has done so.
    pub rounds: Vec<u32>,
    pub doing: Doing,
    /// It has done all its steps.
    pub over: bool,
    /// The timer that it sleeps for; timers of earlier naps mean nothing.
    pub nap: u64,
    /// Work left of the present step.
    pub work: f64,
    /// Work to refill caches before that goes on.
    pub cold: f64,
    /// Work of reaching for what others wrote, of the present step; it counts
    /// for nothing.
    pub contended: f64,
    /// The barrier that it spins at, if it does.
    pub spins_at: Option<usize>,
    /// CPU time after which it spins no more, if it is to sleep then.
    pub spins_until_ns: u64,
    pub cpu_ns: u64,
    pub vruntime: f64,
    pub deadline: f64,
    pub lag: f64,
    /// The same under Usher's scheduler.
    pub standing: Standing,
    /// The CPU in whose virtual time `vruntime` is; none for a new thread.
    pub queue: Option<usize>,
    /// The CPU that it last ran on.
    pub last: usize,
    /// Tells it from an earlier thread with the same number.
    pub born: u64,
    /// The CPUs that its own affinity names; `None`: all.
    pub affinity: Option<Mask>,
    /// CPUs that it may run on now, where that is not its program's whole mask.
    pub allowed: Option<Mask>,
    /// Stopped by itself, whatever its program is.
    pub held: bool,
    pub random: Rand32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Barrier {
    pub parties: u32,
    pub arrived: u32,
    pub sleepers: Vec<ThreadId>,
    /// Spinning threads, on a CPU or not.
    pub spinners: Vec<ThreadId>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Lock {
    pub held: bool,
    pub waiters: VecDeque<ThreadId>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    pub items: u32,
    pub places: u32,
    /// Threads that may still put something in.
    pub writers: u32,
    pub takers: VecDeque<ThreadId>,
    pub putters: VecDeque<ThreadId>,
}

/// A script as it is being played: its memory is that of the present phase.
#[derive(Debug, Clone)]
pub(crate) struct Played {
    pub memory: Memory,
    pub text: Arc<Script>,
}

impl From<Arc<Script>> for Played {
    fn from(text: Arc<Script>) -> Self {
        Self {
            memory: text.memory.clone(),
            text,
        }
    }
}

impl Deref for Played {
    type Target = Script;

    fn deref(&self) -> &Script {
        &self.text
    }
}

/// A program under management of the simulated kernel.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub script: Played,
    pub threads: Vec<ThreadId>,
    /// Threads of this repetition that have not ended.
    pub alive: u32,
    pub runnable: u32,
    pub barriers: Vec<Barrier>,
    pub locks: Vec<Lock>,
    pub pools: Vec<u32>,
    pub queues: Vec<Queue>,
    /// CPUs that some thread of it may run on now: its seat, of those that are
    /// online, as far as its threads' affinities go.
    pub mask: Mask,
    pub seat: Option<Mask>,
    /// The affinity that new threads are born with.
    pub inherited: Option<Mask>,
    pub frozen: bool,
    pub gone: bool,
    /// Whether it starts again when it ends.
    pub repeats: bool,
    pub began_ns: u64,
    pub repetitions: u32,
    /// Totals since it arrived.
    pub cpu_ns: u64,
    pub work: f64,
    /// What `work` was when the last repetition had ended.
    pub work_finished: f64,
    /// CPU time spent spinning.
    pub spun_ns: f64,
    pub wait_ns: u64,
    pub wait_since_ns: Option<u64>,
    pub queued: u32,
    /// Speed of its threads in each domain: 1 is alone with warm caches.
    pub speed: Vec<f64>,
    /// Thread time in each domain since the last look at the memory.
    pub busy_ns: Vec<f64>,
    /// What was done in it, in nanoseconds of a core to itself.
    pub done_ns: Vec<f64>,
    /// Where its memory lies, by node; sums to 1.
    pub home: Vec<f64>,
    pub touched_ns: f64,
}

impl Job {
    /// Everything that a repetition starts with.
    pub fn rewind(&mut self, at_ns: u64) {
        let script = Arc::clone(&self.script.text);
        self.script.memory.clone_from(&script.memory);
        let comes_to = |id: usize| {
            let comes = |role: &&crate::script::Role| {
                let names = |op: &crate::script::Op| *op == crate::script::Op::Barrier(id);
                role.steps.iter().any(names)
            };
            script.roles.iter().filter(comes).map(|r| r.threads).sum()
        };
        let barrier = |id| Barrier {
            parties: comes_to(id),
            ..Barrier::default()
        };
        let writers = |id: usize| {
            let writes =
                |role: &&crate::script::Role| role.steps.contains(&crate::script::Op::Put(id));
            script.roles.iter().filter(writes).map(|r| r.threads).sum()
        };
        let queue = |(id, &places): (usize, &u32)| Queue {
            places,
            writers: writers(id),
            ..Queue::default()
        };
        self.barriers = (0..script.barriers()).map(barrier).collect();
        self.locks = vec![Lock::default(); script.locks()];
        self.pools.clone_from(&script.pools);
        self.queues = script.queues.iter().enumerate().map(queue).collect();
        self.alive = script.threads();
        self.began_ns = at_ns;
        self.touched_ns = 0.0;
    }
}
