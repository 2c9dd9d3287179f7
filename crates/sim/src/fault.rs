// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detection of runs that cannot continue: deadlocks of threads, and steps or events without end.
//!
//! A simulation could run for ever for these reasons. Each of them is detected:
//!
//! - Steps or events that take no virtual time: at most 4,000,000 steps and events at one instant.
//! - Wake-ups without work: at one instant, at most 1,000 threads may wake one another in a chain.
//! - A repetition of a program that takes no virtual time.
//! - Deadlock of a program's threads: each program is checked once per virtual second. Programs do
//!   not wait for other programs, so that each program is checked alone.
//! - Too many events: `Engine::limit_events` sets the limit; by default, there is none.
//!
//! The first fault is kept, and ends the run for good. A check of the limits takes constant time;
//! the check for deadlocks visits all threads.

use crate::job::{RunState, Thread, ThreadId};
use crate::script::Op;
use crate::task_table::TaskTable;

/// Maximum number of steps and events of all threads together at one virtual instant. A barrier
/// that wakes a thread on each CPU of the largest machine takes a hundredth of this number.
const INSTANT_MAX: u32 = 4_000_000;
/// Maximum nesting of wake-ups at one instant: a thread wakes a thread, which wakes the next thread
/// without working itself.
const CHAIN_MAX: u32 = 1_000;
/// Period of the deadlock check.
pub(crate) const DEADLOCK_CHECK_NS: u64 = 1_000_000_000;

/// Reason why a run cannot continue.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Fault {
    /// All threads of a program wait, and none of them can be woken.
    #[error(
        "program '{program}': deadlock: since {at_s:.3} s or earlier, all threads have waited for \
         one another; {waiter}"
    )]
    Deadlock {
        /// Name of the program.
        program: String,
        /// Time of the detection in virtual seconds.
        at_s: f64,
        /// The first waiting thread and what it waits for.
        waiter: String,
    },
    /// A program executed too many steps at one virtual instant.
    #[error(
        "program '{program}': role {role}, step {step}: a thread executed more than {INSTANT_MAX} \
         steps at {at_s:.6} s in zero time; add a step with work to the loop"
    )]
    ZeroTimeLoop {
        /// Name of the program.
        program: String,
        /// Index of the role of the thread that ran last.
        role: usize,
        /// Index of the step that this thread executed last.
        step: usize,
        /// Time of the detection in virtual seconds.
        at_s: f64,
    },
    /// A program makes no progress while other programs run.
    #[error("program '{program}' made no progress during the simulated time")]
    Starved {
        /// Name of the program.
        program: String,
    },
    /// Threads wake one another without end.
    #[error(
        "program '{program}': more than {CHAIN_MAX} threads without work wake one another at \
         {at_s:.6} s"
    )]
    WakeupChain {
        /// Name of the program.
        program: String,
        /// Time of the detection in virtual seconds.
        at_s: f64,
    },
    /// A repetition of a repeating program takes no virtual time.
    #[error("program '{program}': a repetition takes zero time: add a step with work")]
    NoWork {
        /// Name of the program.
        program: String,
    },
    /// The number of events exceeds the limit.
    #[error(
        "the run exceeded its limit of {events} simulated events at {at_s:.3} s of virtual time"
    )]
    Events {
        /// The limit.
        events: u64,
        /// Time of the detection in virtual seconds.
        at_s: f64,
    },
}

/// Counters and limits that detect a run that cannot continue.
#[derive(Debug, Clone)]
pub(crate) struct FaultDetector {
    pub fault: Option<Fault>,
    pub events_max: u64,
    instant_ns: u64,
    /// Number of steps and events at the instant `instant_ns`.
    instant: u32,
    chain: u32,
}

impl Default for FaultDetector {
    fn default() -> Self {
        Self {
            fault: None,
            events_max: u64::MAX,
            instant_ns: 0,
            instant: 0,
            chain: 0,
        }
    }
}

impl FaultDetector {
    /// Records a fault. Only the first fault is kept.
    fn fail(&mut self, fault: impl FnOnce() -> Fault) {
        self.fault.get_or_insert_with(fault);
    }

    /// Counts a step or event. Returns whether the limit per instant is exceeded.
    fn exceeds_instant_limit(&mut self, now_ns: u64) -> bool {
        if self.instant_ns != now_ns {
            (self.instant_ns, self.instant) = (now_ns, 0);
        }
        self.instant += 1;
        self.instant > INSTANT_MAX
    }

    /// Counts a step of a thread. Returns whether the run has failed.
    pub fn exceeds_step_limit(&mut self, id: ThreadId, now_ns: u64, tasks: &TaskTable) -> bool {
        if !self.exceeds_instant_limit(now_ns) {
            return false;
        }
        self.fail(|| {
            let thread = &tasks.threads[id];
            Fault::ZeroTimeLoop {
                program: name_of(tasks, thread.program),
                role: thread.role,
                step: thread.step,
                at_s: seconds(now_ns),
            }
        });
        true
    }

    /// Counts an event. Returns whether the run has failed.
    pub fn exceeds_event_limit(&mut self, events: u64, now_ns: u64) -> bool {
        let exceeded = events > self.events_max;
        if exceeded || self.exceeds_instant_limit(now_ns) {
            self.fail(|| Fault::Events {
                events: if exceeded {
                    events - 1
                } else {
                    INSTANT_MAX.into()
                },
                at_s: seconds(now_ns),
            });
        }
        self.fault.is_some()
    }

    /// Counts a nested wakeup. Returns whether the run has failed. [`Self::end_wakeup`] must
    /// follow when the woken thread has taken its steps.
    pub fn exceeds_wakeup_limit(&mut self, id: ThreadId, now_ns: u64, tasks: &TaskTable) -> bool {
        self.chain += 1;
        if self.chain <= CHAIN_MAX {
            return false;
        }
        self.fail(|| Fault::WakeupChain {
            program: name_of(tasks, tasks.threads[id].program),
            at_s: seconds(now_ns),
        });
        true
    }

    pub fn end_wakeup(&mut self) {
        self.chain -= 1;
    }

    /// Checks that the last repetition of a program took virtual time. Returns false, and records a
    /// fault, if it did not.
    pub fn check_took_time(&mut self, program: usize, now_ns: u64, tasks: &TaskTable) -> bool {
        if now_ns > tasks.jobs[program].began_ns {
            return true;
        }
        self.fail(|| Fault::NoWork {
            program: name_of(tasks, program),
        });
        false
    }

    /// Checks all programs for deadlocks of their threads.
    pub fn check_for_deadlocks(&mut self, now_ns: u64, tasks: &TaskTable) {
        for (program, job) in tasks.jobs.iter().enumerate() {
            let stuck = |&id: &ThreadId| is_stuck(&tasks.threads[id]);
            if job.gone || !job.threads.iter().all(stuck) {
                continue;
            }
            let waiting = |&&id: &&ThreadId| !tasks.threads[id].finished;
            let Some(&first) = job.threads.iter().find(waiting) else {
                continue;
            };
            self.fail(|| Fault::Deadlock {
                program: name_of(tasks, program),
                at_s: seconds(now_ns),
                waiter: waits_for(tasks, first),
            });
            return;
        }
    }
}

fn seconds(now_ns: u64) -> f64 {
    now_ns as f64 / 1e9
}

fn name_of(tasks: &TaskTable, program: usize) -> String {
    tasks.jobs[program].script.name.clone()
}

/// Returns whether only another thread of the same program can resume the thread.
fn is_stuck(thread: &Thread) -> bool {
    let waits = thread.run_state == RunState::Waiting && thread.sleep_timer == 0;
    thread.finished || thread.spins_at.is_some() || waits
}

fn waits_for(tasks: &TaskTable, id: ThreadId) -> String {
    let thread = &tasks.threads[id];
    let steps = &tasks.jobs[thread.program].script.roles[thread.role].steps;
    let (step, op) = match steps.get(thread.step) {
        Some(op @ (Op::Lock(_) | Op::Put(_) | Op::Take(_))) => (thread.step, Some(op)),
        // A thread that waits at a barrier has already advanced to the next step.
        _ => {
            let before = thread.step.saturating_sub(1);
            (before, steps.get(before))
        }
    };
    let what = match op {
        Some(Op::Lock(lock)) => format!("for lock {lock}"),
        Some(Op::Put(queue)) => format!("for free space in queue {queue}"),
        Some(Op::Take(queue)) => format!("for an item in queue {queue}"),
        Some(Op::Barrier(barrier)) => format!("at barrier {barrier}"),
        _ => "without end".to_owned(),
    };
    format!(
        "a thread of role {} waits in step {step} {what}",
        thread.role
    )
}
