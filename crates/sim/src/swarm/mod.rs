// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deterministic simulation testing: from one seed come a machine, programs,
//! a policy and what goes wrong; independent checks watch what comes of it.
//!
//! *Swarm testing* (Groce and others, ISSTA 2012): each seed switches some kinds
//! of faults on and the others off, so that rare combinations come up. Faults
//! come in through the traits of the loop: the policy and the loop that run are
//! the ones that ship, and know nothing of this. What they do to programs goes
//! through hands that keep the real journal (module [`crate::hands`]); a killed
//! daemon's doings are undone from that and nothing else.

mod case;
mod checks;
mod faults;
mod idle;
mod log;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod mutants;
mod work;

use std::io::Write;

use usher_control::{ControlLoop, RecordHead, Recorder};
use usher_policy::Policy;

pub use self::case::{Case, Faults, MACHINES, RUN_NS, policy};
use self::faults::Faulty;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, policy {policy}, at {:.6} s: {what}", *at_ns as f64 / 1e9)]
pub struct Broken {
    /// The seed that shows it again.
    pub seed: u64,
    /// The policy.
    pub policy: &'static str,
    /// When, in virtual nanoseconds.
    pub at_ns: u64,
    /// What.
    pub what: String,
    /// What was done last before that, one line each.
    pub last: Vec<String>,
}

/// What came of a case in which nothing was broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Passed {
    /// Decisions.
    pub decisions: u64,
    /// Actions that were tried.
    pub actions: u64,
    /// Of these, the ones that failed or were said to.
    pub failed: u64,
    /// Daemons that were killed.
    pub deaths: u64,
    /// Events of the simulation.
    pub events: u64,
}

impl Passed {
    /// Counts another case in.
    pub fn add(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.actions += other.actions;
        self.failed += other.failed;
        self.deaths += other.deaths;
        self.events += other.events;
    }
}

/// Where the record of a daemon's life goes: the first is number 1.
pub type Sink<'a> = &'a mut dyn FnMut(usize) -> std::io::Result<Box<dyn Write>>;

impl Case {
    /// Runs it and checks.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn run(&self) -> Result<Passed, Broken> {
        self.run_with(&mut || self.policy(), None)
    }

    /// The same, and each daemon's life is recorded.
    ///
    /// # Errors
    /// The first invariant that is broken, or why nothing could be recorded.
    pub fn run_recorded(&self, sink: Sink) -> Result<Passed, Broken> {
        self.run_with(&mut || self.policy(), Some(sink))
    }

    /// The same with a policy from elsewhere, to which the checks of the one
    /// that the case names apply; a new one for each daemon.
    ///
    /// # Errors
    /// As [`Self::run_recorded`].
    pub fn run_with<P: Policy>(
        &self,
        policy: &mut dyn FnMut() -> Option<P>,
        mut sink: Option<Sink>,
    ) -> Result<Passed, Broken> {
        let mut world = Faulty::new(self);
        for life in 1.. {
            let Some(policy) = policy() else {
                let what = format!("there is no policy '{}'", self.policy);
                return Err(world.broken(what));
            };
            if let Some(sink) = &mut sink {
                let recorder = self.recorder(life, sink);
                world.record(recorder.map_err(|what| world.broken(what))?);
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

    fn recorder(&self, life: usize, sink: &mut Sink) -> Result<Recorder<Box<dyn Write>>, String> {
        let head = RecordHead {
            policy: self.policy.to_owned(),
            topology: self.topology.clone(),
        };
        let out = sink(life).map_err(|error| format!("opening the record: {error}"))?;
        Recorder::new(out, &head).map_err(|error| error.to_string())
    }
}
