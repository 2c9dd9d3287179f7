// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs that cannot go on: threads that wait for one another for ever, and
//! steps or events without end.
//!
//! A simulation that hangs says nothing. Three things can make one hang, and
//! each has its bound: steps that take no virtual time (counted an instant),
//! threads none of which can ever be woken (looked for every virtual second:
//! programs do not wait for one another, so one program's threads decide it),
//! and more events than anybody wants to wait for (`Engine::limit_events`).

use crate::engine::Engine;
use crate::job::{Doing, ThreadId};
use crate::script::Op;

/// Steps and events at one virtual instant; a barrier that opens for every
/// thread of the largest machine takes a hundredth of this.
const INSTANT_MAX: u32 = 4_000_000;
/// Threads that wake one another in one instant, each before the last is done.
const CHAIN_MAX: u32 = 1_000;
/// How often it is looked whether everybody waits.
pub(crate) const WATCH_NS: u64 = 1_000_000_000;

/// Why a run cannot go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Fault {
    /// All threads of a program wait, and none of them can be woken.
    #[error(
        "program '{program}': all its threads wait for one another, since {at_s:.3} s at the latest: {who}"
    )]
    Deadlock {
        /// Whose.
        program: String,
        /// Virtual seconds.
        at_s: f64,
        /// The first of them and what it waits for.
        who: String,
    },
    /// Steps that let no time pass.
    #[error(
        "program '{program}': role {role}, step {step}: more than {INSTANT_MAX} steps at {at_s:.6} s without time passing; give what is repeated some work"
    )]
    Storm {
        /// Whose.
        program: String,
        /// The role of the thread that was at it last.
        role: usize,
        /// Its step.
        step: usize,
        /// Virtual seconds.
        at_s: f64,
    },
    /// A program that does nothing at all while others run.
    #[error("program '{program}' does nothing for as long as it is looked at")]
    Starved {
        /// Whose.
        program: String,
    },
    /// Threads wake one another without end.
    #[error(
        "program '{program}': more than {CHAIN_MAX} threads wake one another at {at_s:.6} s, none of which has work"
    )]
    Chain {
        /// Whose.
        program: String,
        /// Virtual seconds.
        at_s: f64,
    },
    /// A program that repeats its work, and has none.
    #[error("program '{program}': a repetition of it takes no time")]
    Nothing {
        /// Which.
        program: String,
    },
    /// There were more events than allowed.
    #[error("more than {events} events by {at_s:.3} s of virtual time")]
    Events {
        /// The limit.
        events: u64,
        /// Virtual seconds.
        at_s: f64,
    },
}

/// What a run is watched by.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    pub fault: Option<Fault>,
    pub events_max: u64,
    instant_ns: u64,
    /// Steps and events at that instant.
    instant: u32,
    chain: u32,
}

impl Default for Watch {
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
    /// A run ends with [`Fault::Events`] after so many events.
    pub fn limit_events(&mut self, events_max: u64) {
        self.watch.events_max = events_max;
    }

    /// Why the run cannot go on, if it cannot. It stays so.
    pub fn fault(&self) -> Option<&Fault> {
        self.watch.fault.as_ref()
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.now_ns as f64 / 1e9
    }

    fn name_of(&self, program: usize) -> String {
        self.jobs[program].script.name.clone()
    }

    /// The first fault is the one that is told.
    pub(crate) fn fail(&mut self, fault: impl FnOnce(&Self) -> Fault) {
        if self.watch.fault.is_none() {
            self.watch.fault = Some(fault(self));
        }
    }

    /// Counts a step or an event; whether it was one too many at this instant.
    fn is_one_too_many(&mut self) -> bool {
        let watch = &mut self.watch;
        if watch.instant_ns != self.now_ns {
            (watch.instant_ns, watch.instant) = (self.now_ns, 0);
        }
        watch.instant += 1;
        watch.instant > INSTANT_MAX
    }

    /// Counts a step of a thread; whether that is the end of the run.
    pub(crate) fn is_storm(&mut self, id: ThreadId) -> bool {
        if !self.is_one_too_many() {
            return false;
        }
        self.fail(|engine| {
            let thread = &engine.threads[id];
            Fault::Storm {
                program: engine.name_of(thread.program),
                role: thread.role,
                step: thread.step,
                at_s: engine.seconds(),
            }
        });
        true
    }

    /// Counts an event; whether that is the end of the run.
    pub(crate) fn is_event_too_many(&mut self, events: u64) -> bool {
        let over = events > self.watch.events_max;
        if over || self.is_one_too_many() {
            self.fail(|engine| Fault::Events {
                events: if over { events - 1 } else { INSTANT_MAX.into() },
                at_s: engine.seconds(),
            });
        }
        self.watch.fault.is_some()
    }

    /// A thread is woken by another one's step; whether that is the end of the
    /// run. Call [`Engine::chain_ends`] when it has taken its own steps.
    pub(crate) fn is_chain_too_long(&mut self, id: ThreadId) -> bool {
        self.watch.chain += 1;
        if self.watch.chain <= CHAIN_MAX {
            return false;
        }
        self.fail(|engine| Fault::Chain {
            program: engine.name_of(engine.threads[id].program),
            at_s: engine.seconds(),
        });
        true
    }

    pub(crate) fn chain_ends(&mut self) {
        self.watch.chain -= 1;
    }

    /// A program is about to begin again; whether it has work at all.
    pub(crate) fn took_time(&mut self, program: usize) -> bool {
        if self.now_ns > self.jobs[program].began_ns {
            return true;
        }
        self.fail(|engine| Fault::Nothing {
            program: engine.name_of(program),
        });
        false
    }

    /// Looks for programs whose threads all wait for ever.
    pub(crate) fn look_for_deadlocks(&mut self) {
        for program in 0..self.jobs.len() {
            let job = &self.jobs[program];
            let stuck = |&id: &ThreadId| self.is_stuck(id);
            if job.gone || !job.threads.iter().all(stuck) {
                continue;
            }
            let waits = |&&id: &&ThreadId| !self.threads[id].over;
            let Some(&first) = job.threads.iter().find(waits) else {
                continue;
            };
            self.fail(|engine| Fault::Deadlock {
                program: engine.name_of(program),
                at_s: engine.seconds(),
                who: engine.waits_for(first),
            });
            return;
        }
    }

    /// Whether a thread can go on by nothing but what another one of its
    /// program does.
    fn is_stuck(&self, id: ThreadId) -> bool {
        let thread = &self.threads[id];
        let waits = thread.doing == Doing::Waiting && thread.nap == 0;
        thread.over || thread.spins_at.is_some() || waits
    }

    fn waits_for(&self, id: ThreadId) -> String {
        let thread = &self.threads[id];
        let steps = &self.jobs[thread.program].script.roles[thread.role].steps;
        let (step, op) = match steps.get(thread.step) {
            Some(op @ (Op::Lock(_) | Op::Put(_) | Op::Take(_))) => (thread.step, Some(op)),
            // A barrier has been passed by whoever waits at it.
            _ => {
                let before = thread.step.saturating_sub(1);
                (before, steps.get(before))
            }
        };
        let what = match op {
            Some(Op::Lock(lock)) => format!("for lock {lock}"),
            Some(Op::Put(queue)) => format!("for a place in queue {queue}"),
            Some(Op::Take(queue)) => format!("for an item in queue {queue}"),
            Some(Op::Barrier(barrier)) => format!("at barrier {barrier}"),
            _ => "for ever".to_owned(),
        };
        format!("role {}, step {step} waits {what}", thread.role)
    }
}
