// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads, programs (`Job`), barriers, locks and queues as the simulated kernel keeps them. Other
//! modules of the engine change this state.
//!
//! Work is in nanoseconds of an undisturbed core (`script.rs`), which also limits the number of
//! threads. A [`Queue`] is a queue of items between threads, not a run queue.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use oorandom::Rand32;
use usher_rules::sched::TaskId;

use crate::machine::Mask;
use crate::script::{Memory, Script};

pub(crate) type ThreadId = usize;

/// A thread as Usher's scheduler knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchedEntity {
    pub task: Option<TaskId>,
    /// Whether the thread was enqueued before.
    pub has_begun: bool,
    /// Whether the thread has slept since it last ran.
    pub slept: bool,
}

/// Scheduling state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Runs on this CPU.
    Running(usize),
    /// Waits in this CPU's run queue; under Usher's scheduler, in that of the LLC with this first CPU.
    Queued(usize),
    /// Waits for a lock, queue, barrier or timer.
    Waiting,
    /// Is runnable, but its program is frozen or has no CPU.
    Stopped,
    Ended,
}

#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub program: usize,
    pub role: usize,
    /// Index of the thread in its role.
    pub number: u32,
    pub step: usize,
    /// Iterations of each `loop` step so far.
    pub rounds: Vec<u32>,
    pub run_state: RunState,
    /// All steps are done.
    pub finished: bool,
    /// The timer that wakes the thread; timers of earlier sleeps are ignored.
    pub sleep_timer: u64,
    /// Remaining work of the current step.
    pub work: f64,
    /// Remaining work of the cache refill, which precedes the step's work.
    pub cold: f64,
    /// Remaining work of bouncing cache lines in the current step. It does not count as progress.
    pub bounce_work: f64,
    /// The barrier at which the thread spins, if any.
    pub spins_at: Option<usize>,
    /// CPU time at which the thread stops spinning and blocks.
    pub spins_until_ns: u64,
    pub cpu_ns: u64,
    pub vruntime: f64,
    pub deadline: f64,
    pub lag: f64,
    /// The thread's entity in Usher's scheduler.
    pub entity: SchedEntity,
    /// The CPU that `vruntime` refers to; none for a new thread.
    pub queue: Option<usize>,
    /// The CPU that the thread last ran on.
    pub last: usize,
    /// Distinguishes the thread from an earlier one with the same index.
    pub generation: u64,
    /// The thread's own affinity; `None`: all CPUs.
    pub affinity: Option<Mask>,
    /// CPUs that the thread may use now, if they differ from its program's mask.
    pub allowed: Option<Mask>,
    /// The thread itself is stopped, independently of its program.
    pub signal_stopped: bool,
    pub random: Rand32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Barrier {
    pub parties: u32,
    pub arrived: u32,
    pub sleepers: Vec<ThreadId>,
    /// Spinning threads, running or preempted.
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
    pub capacity: u32,
    /// Threads that may still put items into the queue.
    pub writers: u32,
    pub takers: VecDeque<ThreadId>,
    pub putters: VecDeque<ThreadId>,
}

/// A script in execution; `memory` belongs to the current phase.
#[derive(Debug, Clone)]
pub(crate) struct RunningScript {
    pub memory: Memory,
    pub text: Arc<Script>,
}

impl From<Arc<Script>> for RunningScript {
    fn from(text: Arc<Script>) -> Self {
        Self {
            memory: text.memory.clone(),
            text,
        }
    }
}

impl Deref for RunningScript {
    type Target = Script;

    fn deref(&self) -> &Script {
        &self.text
    }
}

/// A program run by the simulated kernel.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub script: RunningScript,
    pub threads: Vec<ThreadId>,
    /// Threads of this repetition that have not ended.
    pub alive: u32,
    pub runnable: u32,
    pub barriers: Vec<Barrier>,
    pub locks: Vec<Lock>,
    pub pools: Vec<u32>,
    pub queues: Vec<Queue>,
    /// CPUs that at least one thread may use now: the online CPUs of the program's seat, restricted
    /// by the threads' affinities.
    pub mask: Mask,
    pub seat: Option<Mask>,
    /// The affinity of new threads.
    pub inherited: Option<Mask>,
    pub frozen: bool,
    pub gone: bool,
    /// Whether the program restarts when it ends.
    pub repeats: bool,
    pub began_ns: u64,
    pub repetitions: u32,
    /// Totals since the program's arrival.
    pub cpu_ns: u64,
    pub work: f64,
    /// Value of `work` at the end of the last repetition.
    pub work_finished: f64,
    /// CPU time spent spinning.
    pub spun_ns: f64,
    pub wait_ns: u64,
    pub wait_since_ns: Option<u64>,
    pub queued: u32,
    /// Speed of the threads in each domain; 1: alone with warm caches.
    pub speed: Vec<f64>,
    /// Thread time in each domain since the last contention update.
    pub busy_ns: Vec<f64>,
    /// Work done in that time, in nanoseconds of an undisturbed core.
    pub done_ns: Vec<f64>,
    /// Distribution of the program's memory over the nodes; sums to 1.
    pub home: Vec<f64>,
    pub touched_ns: f64,
}

impl Job {
    /// Resets the program to the start of a repetition.
    pub fn reset(&mut self, at_ns: u64) {
        let script = Arc::clone(&self.script.text);
        self.script.memory.clone_from(&script.memory);
        let arriving = |id: usize| {
            let uses = |role: &&crate::script::ThreadKind| {
                let is_barrier = |op: &crate::script::Op| *op == crate::script::Op::Barrier(id);
                role.steps.iter().any(is_barrier)
            };
            script.roles.iter().filter(uses).map(|r| r.threads).sum()
        };
        let barrier = |id| Barrier {
            parties: arriving(id),
            ..Barrier::default()
        };
        let writers = |id: usize| {
            let writes = |role: &&crate::script::ThreadKind| {
                role.steps.contains(&crate::script::Op::Put(id))
            };
            script.roles.iter().filter(writes).map(|r| r.threads).sum()
        };
        let queue = |(id, &capacity): (usize, &u32)| Queue {
            capacity,
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
