// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of the simulated programs: each program ([`Job`]) with its threads ([`Thread`]), and the
//! barriers, locks and queues that its threads share. A program has a script (module `script`): a
//! list of steps for each role, which is a group of threads with the same steps.
//!
//! This file contains data, and only one operation, the reset of a program. Other modules change
//! the data:
//!
//! 1. `programs.rs` creates a [`Job`] when a program arrives. For each repetition of the program's
//!    work, it calls [`Job::reset`], which creates the barriers, locks and queues anew. It then
//!    creates all threads anew.
//! 2. `steps.rs` executes the steps of a thread. A step either gives the thread work to do, or lets
//!    the thread wait for a barrier, a lock, a queue or a timer.
//! 3. `sim_kernel` decides which thread runs on which CPU, and charges CPU time and work.
//! 4. `contention.rs` sets the speed of each program.
//!
//! Work is in nanoseconds of an undisturbed core. A [`Queue`] holds items that threads pass to one
//! another; it is not a run queue. A program has at most `script::THREADS_MAX` threads.
//! [`Job::reset`] takes time in proportion to the number of steps times that of barriers and
//! queues, since each barrier and each queue counts the threads that use it.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use oorandom::Rand32;
use usher_rules::sched::TaskId;

use crate::machine::Mask;
use crate::script::{Memory, Script};

pub(crate) type ThreadId = usize;

/// State of a thread under Usher's scheduler: the task of the host build that represents the
/// thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchedEntity {
    pub task: Option<TaskId>,
    /// Whether the scheduler has enqueued the thread at least once.
    pub has_begun: bool,
    /// Whether the thread has slept since it last ran.
    pub slept: bool,
}

/// Scheduling state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Runs on this CPU.
    Running(usize),
    /// Waits in the run queue of this CPU. Under Usher's scheduler, the thread waits in the run
    /// queue of an LLC, and the number is that of the LLC's first CPU.
    Queued(usize),
    /// Waits for a lock, queue, barrier or timer.
    Waiting,
    /// Would be runnable, but the thread or its program is stopped, or the program has no CPU.
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
    /// For each `loop` step of the role, the number of completed iterations.
    pub rounds: Vec<u32>,
    pub run_state: RunState,
    /// Whether the thread has completed all its steps.
    pub finished: bool,
    /// Number of the timer that wakes the sleeping thread; 0: the thread does not sleep. Timers of
    /// earlier sleeps have other numbers and are ignored.
    pub sleep_timer: u64,
    /// Remaining work of the current step.
    pub work: f64,
    /// Remaining work for the context switch and the refill of caches, which is done before the
    /// work of the step.
    pub cold: f64,
    /// Remaining work of a cache-bounce step (`Op::CacheBounce`). This work does not count as
    /// progress.
    pub bounce_work: f64,
    /// The barrier at which the thread spins (busy-waits), if any.
    pub spins_at: Option<usize>,
    /// Value of `cpu_ns` at which the thread stops spinning and blocks.
    pub spins_until_ns: u64,
    pub cpu_ns: u64,
    pub vruntime: f64,
    pub deadline: f64,
    pub lag: f64,
    /// State of the thread under Usher's scheduler.
    pub entity: SchedEntity,
    /// The CPU to which `vruntime` refers; `None` for a new thread.
    pub queue: Option<usize>,
    /// The CPU that the thread last ran on.
    pub last: usize,
    /// Number that distinguishes the thread from an earlier thread with the same index.
    pub generation: u64,
    /// The thread's own affinity; `None`: all CPUs.
    pub affinity: Option<Mask>,
    /// CPUs that the thread may use now, if they differ from its program's mask.
    pub allowed: Option<Mask>,
    /// Whether the thread itself is stopped (`SIGSTOP`), independently of its program.
    pub signal_stopped: bool,
    /// Whether the program was suspended since the thread last ran.
    pub resumed: bool,
    pub random: Rand32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Barrier {
    pub parties: u32,
    pub arrived: u32,
    pub sleepers: Vec<ThreadId>,
    /// Threads that spin at the barrier, whether they run or are preempted.
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
    /// Number of threads that may still put items into the queue. The queue is closed when the
    /// number is 0.
    pub writers: u32,
    pub takers: VecDeque<ThreadId>,
    pub putters: VecDeque<ThreadId>,
}

/// A script in execution. `memory` is the memory behaviour of the program's current phase.
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

/// A program that the simulated kernel runs.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub script: RunningScript,
    pub threads: Vec<ThreadId>,
    /// Number of threads of the current repetition that have not ended.
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
    /// CPU time since the program's arrival.
    pub cpu_ns: u64,
    pub work: f64,
    /// Value of `work` at the end of the last repetition.
    pub work_finished: f64,
    /// CPU time that threads have used for spinning.
    pub spun_ns: f64,
    pub wait_ns: u64,
    pub wait_since_ns: Option<u64>,
    pub queued: u32,
    /// Time that threads have waited in queues, summed over all threads, until `queued_ns`.
    pub delay_ns: u64,
    /// Time of the last change of `queued`.
    pub queued_ns: u64,
    /// Speed of the program's threads in each LLC domain, relative to an undisturbed core.
    pub speed: Vec<f64>,
    /// CPU time of the program's threads in each domain, since the last update of the contention
    /// model.
    pub busy_ns: Vec<f64>,
    /// Work done in each domain since that update, in nanoseconds of an undisturbed core.
    pub done_ns: Vec<f64>,
    /// Share of the program's memory on each NUMA node; the sum is 1.
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
