// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop, and the trait [`World`] of the machine that it controls.
//!
//! 1. Observe the world. The observation contains the actions that failed in the last iteration.
//! 2. Let the policy decide.
//! 3. Carry out the actions one by one. If an action fails, the loop still carries out the
//!    remaining actions. The loop itself does not repeat a failed action.
//! 4. Wait for an event of the world, at most for the time that the policy has requested, and at
//!    most 10 ms (`RETRY_NS`) after a failed action. If the policy has requested no time, the wait
//!    has no limit.
//!
//! The loop ends when the wait of the world reports the end. Observations, decisions and actions
//! have no time limit. The same loop runs on real and on simulated machines.

use usher_model::{Action, Decision, FailedAction, Observation};
use usher_policy::Policy;

/// The machine that the loop controls: it can be observed and changed, and it has a clock.
pub trait World {
    /// Returns the present state of the machine. `failed` are the failed actions of the last
    /// decision, which become a part of the observation.
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation;

    /// Carries out one action.
    ///
    /// # Errors
    /// A sentence with the reason of the failure. After an error, the machine is unchanged.
    fn act(&mut self, action: &Action) -> Result<(), String>;

    /// Receives every decision after the loop has tried its actions.
    fn decided(&mut self, observation: &Observation, decision: &Decision);

    /// Waits for an event, for at most `at_most_ns` nanoseconds, or without a limit if it is
    /// `None`. Returns false if the loop must end.
    fn wait(&mut self, at_most_ns: Option<u64>) -> bool;
}

/// Result of one iteration of the loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Iteration {
    /// The observation.
    pub observation: Observation,
    /// The decision.
    pub decision: Decision,
}

/// A policy together with the world that it controls.
#[derive(Debug)]
pub struct ControlLoop<P, W> {
    policy: P,
    world: W,
    failed: Vec<FailedAction>,
}

impl<P: Policy, W: World> ControlLoop<P, W> {
    /// Creates a loop that has made no observation yet.
    pub fn new(policy: P, world: W) -> Self {
        Self {
            policy,
            world,
            failed: Vec::new(),
        }
    }

    /// The world.
    pub fn world(&mut self) -> &mut W {
        &mut self.world
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Continues with another policy, which has no history.
    pub fn replace_policy(&mut self, policy: P) {
        self.policy = policy;
        self.failed.clear();
    }

    /// Observes, decides and acts once. If an action fails, the remaining actions are still tried,
    /// and the policy receives the failure with the next observation.
    pub fn iterate(&mut self) -> Iteration {
        let observation = self.world.observe(std::mem::take(&mut self.failed));
        let decision = self.policy.decide(&observation);
        for action in &decision.actions {
            if let Err(error) = self.world.act(action) {
                self.failed.push(FailedAction {
                    action: action.clone(),
                    error,
                });
            }
        }
        self.world.decided(&observation, &decision);
        Iteration {
            observation,
            decision,
        }
    }

    /// Runs iterations until the world ends the loop.
    pub fn run(&mut self) {
        loop {
            let iteration = self.iterate();
            let soon = (!self.failed.is_empty()).then_some(RETRY_NS);
            let wait = [iteration.decision.wake_after_ns, soon]
                .into_iter()
                .flatten()
                .min();
            if !self.world.wait(wait) {
                return;
            }
        }
    }

    /// Returns the policy and the world.
    pub fn into_parts(self) -> (P, W) {
        (self.policy, self.world)
    }
}

/// Upper limit, in nanoseconds, of the wait after a failed action. The policy receives the failure
/// with the observation after the wait.
const RETRY_NS: u64 = 10_000_000;
