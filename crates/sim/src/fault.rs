// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detection of runs that cannot continue: deadlocks of threads, and steps or events without end.
//!
//! Three causes could make a simulation hang; each has a limit:
//!
//! - Steps that take no virtual time: their number per instant is limited.
//! - Deadlock of a program's threads: checked every virtual second. Programs do not wait for other
//!   programs, so each is checked alone.
//! - Too many events: limited by `Engine::limit_events`.

use crate::engine::Engine;
use crate::job::{RunState, ThreadId};
use crate::script::Op;

/// Maximum number of steps and events at one virtual instant. A barrier that wakes every thread of
/// the largest machine takes a hundredth of it.
const INSTANT_MAX: u32 = 4_000_000;
/// Maximum nesting of wakeups in one instant.
const CHAIN_MAX: u32 = 1_000;
/// Period of the deadlock check.
pub(crate) const DEADLOCK_CHECK_NS: u64 = 1_000_000_000;

/// Reason why a run cannot continue.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Fault {
    /// All threads of a program wait, and none of them can be woken.
    #[error(
        "program '{program}': deadlock: all its threads wait for one another since {at_s:.3} s or earlier: {waiter}"
    )]
    Deadlock {
        /// Name of the program.
        program: String,
        /// Time of the detection in virtual seconds.
        at_s: f64,
        /// The first waiting thread and what it waits for.
        waiter: String,
    },
    /// Too many steps without virtual time passing.
    #[error(
        "program '{program}': role {role}, step {step}: more than {INSTANT_MAX} steps at {at_s:.6} s without time passing; give the repeated steps some work"
    )]
    ZeroTimeLoop {
        /// Name of the program.
        program: String,
        /// Index of the role of the thread that ran last.
        role: usize,
        /// Index of the step.
        step: usize,
        /// Virtual seconds.
        at_s: f64,
    },
    /// A program makes no progress while others run.
    #[error("program '{program}' makes no progress during the simulated period")]
    Starved {
        /// Name of the program.
        program: String,
    },
    /// Threads wake one another without end.
    #[error(
        "program '{program}': more than {CHAIN_MAX} threads wake one another at {at_s:.6} s, and none of them has work"
    )]
    WakeupChain {
        /// Name of the program.
        program: String,
        /// Virtual seconds.
        at_s: f64,
    },
    /// A repeating program has no work.
    #[error("program '{program}': a repetition takes no time")]
    NoWork {
        /// Name of the program.
        program: String,
    },
    /// The number of events exceeds the limit.
    #[error("more than {events} events by {at_s:.3} s of virtual time")]
    Events {
        /// The limit.
        events: u64,
        /// Virtual seconds.
        at_s: f64,
    },
}

/// Counters and limits that detect a run that cannot continue.
#[derive(Debug, Clone)]
pub(crate) struct FaultDetector {
    pub fault: Option<Fault>,
    pub events_max: u64,
    instant_ns: u64,
    /// Number of steps and events at that instant.
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

impl Engine {
    /// Limits the number of events; the run then ends with [`Fault::Events`].
    pub fn limit_events(&mut self, events_max: u64) {
        self.fault_detector.events_max = events_max;
    }

    /// The reason why the run cannot continue, if any. It is permanent.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault_detector.fault.as_ref()
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.now_ns as f64 / 1e9
    }

    fn name_of(&self, program: usize) -> String {
        self.jobs[program].script.name.clone()
    }

    /// Records a fault; only the first is kept.
    pub(crate) fn fail(&mut self, fault: impl FnOnce(&Self) -> Fault) {
        if self.fault_detector.fault.is_none() {
            self.fault_detector.fault = Some(fault(self));
        }
    }

    /// Counts a step or event. Returns whether the limit per instant is exceeded.
    fn exceeds_instant_limit(&mut self) -> bool {
        let detector = &mut self.fault_detector;
        if detector.instant_ns != self.now_ns {
            (detector.instant_ns, detector.instant) = (self.now_ns, 0);
        }
        detector.instant += 1;
        detector.instant > INSTANT_MAX
    }

    /// Counts a step of a thread. Returns whether the run has failed.
    pub(crate) fn exceeds_step_limit(&mut self, id: ThreadId) -> bool {
        if !self.exceeds_instant_limit() {
            return false;
        }
        self.fail(|engine| {
            let thread = &engine.threads[id];
            Fault::ZeroTimeLoop {
                program: engine.name_of(thread.program),
                role: thread.role,
                step: thread.step,
                at_s: engine.seconds(),
            }
        });
        true
    }

    /// Counts an event. Returns whether the run has failed.
    pub(crate) fn exceeds_event_limit(&mut self, events: u64) -> bool {
        let exceeded = events > self.fault_detector.events_max;
        if exceeded || self.exceeds_instant_limit() {
            self.fail(|engine| Fault::Events {
                events: if exceeded {
                    events - 1
                } else {
                    INSTANT_MAX.into()
                },
                at_s: engine.seconds(),
            });
        }
        self.fault_detector.fault.is_some()
    }

    /// Counts a nested wakeup. Returns whether the run has failed. [`Engine::end_wakeup`] must
    /// follow when the woken thread has taken its steps.
    pub(crate) fn exceeds_wakeup_limit(&mut self, id: ThreadId) -> bool {
        self.fault_detector.chain += 1;
        if self.fault_detector.chain <= CHAIN_MAX {
            return false;
        }
        self.fail(|engine| Fault::WakeupChain {
            program: engine.name_of(engine.threads[id].program),
            at_s: engine.seconds(),
        });
        true
    }

    pub(crate) fn end_wakeup(&mut self) {
        self.fault_detector.chain -= 1;
    }

    /// Checks that a program which restarts took time. Returns false if it did not.
    pub(crate) fn check_took_time(&mut self, program: usize) -> bool {
        if self.now_ns > self.jobs[program].began_ns {
            return true;
        }
        self.fail(|engine| Fault::NoWork {
            program: engine.name_of(program),
        });
        false
    }

    /// Checks all programs for deadlocks of their threads.
    pub(crate) fn check_for_deadlocks(&mut self) {
        for program in 0..self.jobs.len() {
            let job = &self.jobs[program];
            let stuck = |&id: &ThreadId| self.is_stuck(id);
            if job.gone || !job.threads.iter().all(stuck) {
                continue;
            }
            let waiting = |&&id: &&ThreadId| !self.threads[id].finished;
            let Some(&first) = job.threads.iter().find(waiting) else {
                continue;
            };
            self.fail(|engine| Fault::Deadlock {
                program: engine.name_of(program),
                at_s: engine.seconds(),
                waiter: engine.waits_for(first),
            });
            return;
        }
    }

    /// Returns whether only another thread of the same program can resume the thread.
    fn is_stuck(&self, id: ThreadId) -> bool {
        let thread = &self.threads[id];
        let waits = thread.run_state == RunState::Waiting && thread.sleep_timer == 0;
        thread.finished || thread.spins_at.is_some() || waits
    }

    fn waits_for(&self, id: ThreadId) -> String {
        let thread = &self.threads[id];
        let steps = &self.jobs[thread.program].script.roles[thread.role].steps;
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
            Some(Op::Put(queue)) => format!("for room in queue {queue}"),
            Some(Op::Take(queue)) => format!("for an item in queue {queue}"),
            Some(Op::Barrier(barrier)) => format!("at barrier {barrier}"),
            _ => "without end".to_owned(),
        };
        format!("role {}, step {step} waits {what}", thread.role)
    }
}
