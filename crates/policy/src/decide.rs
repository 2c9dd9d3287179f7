// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of a policy ([`Policy`]), which receives observations and returns decisions. A
//! policy accesses neither the machine nor the clock: the state of the machine and the time are in
//! the observations.

use usher_model::{Decision, Observation};

/// A policy. Its decisions depend only on the observations that it has received: the same
/// observations in the same order give the same decisions.
pub trait Policy {
    /// The policy's name on the command line.
    fn name(&self) -> &'static str;

    /// Decides what to do after an observation.
    fn decide(&mut self, observation: &Observation) -> Decision;
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        (**self).decide(observation)
    }
}
