// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deterministic simulation testing of the control loop: a seed determines the machine, the
//! programs, the policy and the faults, and independent checkers test invariants.
//!
//! The method is *swarm testing* (Groce and others, ISSTA 2012): each seed enables a random subset
//! of the kinds of faults, so that rare combinations occur.
//!
//! 1. A seed is converted to a case (module `case`).
//! 2. The shipped control loop and policy run on a simulated machine, for 6 virtual seconds. Faults
//!    are injected through the traits of the control loop (module `faults`).
//! 3. Actions go through a simulated actuator, which writes a journal in the real format (module
//!    [`crate::actuator`]). After a daemon's death, its actions are undone by the journal alone,
//!    and a new daemon starts.
//! 4. The invariants are checked at least every 20 ms (modules `checks` and `idle`). The first
//!    violation ends the run, and is reported with the seed and the last actions.
//!
//! The number of daemons in a run is not limited; after the end of the run, a further death only
//! leads to the undo. A failure to write a record counts as a violation.

mod case;
mod checks;
mod faults;
mod idle;
mod log;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod mutation_tests;
mod work;

use std::io::Write;

use usher_control::{ControlLoop, RecordHead, Recorder};
use usher_policy::Policy;

pub use self::case::{FaultProbabilities, FuzzCase, MACHINES, RUN_NS, policy};
use self::faults::FaultyWorld;

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, policy {policy}, at {:.6} s: {what}", *at_ns as f64 / 1e9)]
pub struct Violation {
    /// The seed that reproduces the violation.
    pub seed: u64,
    /// Name of the policy.
    pub policy: &'static str,
    /// Time of the violation in virtual nanoseconds.
    pub at_ns: u64,
    /// Description of the violation.
    pub what: String,
    /// The last log entries before the violation, one entry per line.
    pub last: Vec<String>,
}

/// Statistics of fuzz cases without a violation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FuzzStats {
    /// Number of decisions of the policy.
    pub decisions: u64,
    /// Number of attempted actions.
    pub actions: u64,
    /// Number of actions that failed or reported failure.
    pub failed: u64,
    /// Number of killed daemons.
    pub daemons_killed: u64,
    /// Number of simulated events.
    pub events: u64,
}

impl FuzzStats {
    /// Adds the statistics of another case.
    pub fn add(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.actions += other.actions;
        self.failed += other.failed;
        self.daemons_killed += other.daemons_killed;
        self.events += other.events;
    }
}

/// Opens the output for the record of the n-th daemon of a run, counted from 1.
pub type RecordSink<'a> = &'a mut dyn FnMut(usize) -> std::io::Result<Box<dyn Write>>;

impl FuzzCase {
    /// Runs the case and checks the invariants.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(&self) -> Result<FuzzStats, Violation> {
        self.run_with(&mut || self.policy(), None)
    }

    /// Runs the case, and records each daemon separately.
    ///
    /// # Errors
    /// The first violation, or a failure to write the record.
    pub fn run_recorded(&self, sink: RecordSink) -> Result<FuzzStats, Violation> {
        self.run_with(&mut || self.policy(), Some(sink))
    }

    /// Runs the case with another policy; each daemon gets a new instance of it. The limits of the
    /// checks are those for the policy that the case names.
    ///
    /// # Errors
    /// As [`Self::run_recorded`].
    pub fn run_with<P: Policy>(
        &self,
        policy: &mut dyn FnMut() -> Option<P>,
        mut sink: Option<RecordSink>,
    ) -> Result<FuzzStats, Violation> {
        let mut world = FaultyWorld::new(self);
        for life in 1.. {
            let Some(policy) = policy() else {
                let what = format!("unknown policy '{}'", self.policy);
                return Err(world.violation(what));
            };
            if let Some(sink) = &mut sink {
                let recorder = self.recorder(life, sink);
                world.record(recorder.map_err(|what| world.violation(what))?);
            }
            let mut control = ControlLoop::new(policy, world);
            control.run();
            (_, world) = control.into_parts();
            if !world.daemon_is_dead() {
                break;
            }
            world.restart();
        }
        world.finish()
    }

    fn recorder(
        &self,
        life: usize,
        sink: &mut RecordSink,
    ) -> Result<Recorder<Box<dyn Write>>, String> {
        let head = RecordHead {
            policy: self.policy.to_owned(),
            topology: self.topology.clone(),
        };
        let out = sink(life).map_err(|error| format!("opening the record: {error}"))?;
        Recorder::new(out, &head).map_err(|error| error.to_string())
    }
}
