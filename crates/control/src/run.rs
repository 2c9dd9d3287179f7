// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loop itself and what it is plugged into.

use usher_model::{Action, Decision, FailedAction, Observation};
use usher_policy::Policy;

/// The machine as the loop sees it: something to look at, something to act
/// on, and time.
pub trait World {
    /// What is seen now. `failed` are the actions of the last decision that
    /// could not be carried out; they go into the observation.
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation;

    /// Carries out one action.
    ///
    /// # Errors
    /// A sentence that says what could not be done and why; the machine is
    /// then as it was before.
    fn act(&mut self, action: &Action) -> Result<(), String>;

    /// Is told every decision, after its actions were tried.
    fn decided(&mut self, observation: &Observation, decision: &Decision);

    /// Waits until something happens, or for that many nanoseconds.
    /// Returns false when the loop is to end.
    fn wait(&mut self, at_most_ns: Option<u64>) -> bool;
}

/// What one turn of the loop did.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// What was seen.
    pub observation: Observation,
    /// What was decided.
    pub decision: Decision,
}

/// A policy at work on a world.
#[derive(Debug)]
pub struct Loop<P, W> {
    policy: P,
    world: W,
    failed: Vec<FailedAction>,
}

impl<P: Policy, W: World> Loop<P, W> {
    /// A loop that has not looked yet.
    pub fn new(policy: P, world: W) -> Self {
        Self {
            policy,
            world,
            failed: Vec::new(),
        }
    }

    /// The world, to plug things in or to ask it.
    pub fn world(&mut self) -> &mut W {
        &mut self.world
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Goes on with another policy, which knows nothing of the past.
    pub fn replace_policy(&mut self, policy: P) {
        self.policy = policy;
        self.failed.clear();
    }

    /// Looks, decides and acts once. An action that fails does not keep the
    /// others from being tried; the policy hears of it at the next turn.
    pub fn turn(&mut self) -> Turn {
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
        Turn {
            observation,
            decision,
        }
    }

    /// Turns until the world says that it is over.
    pub fn run(&mut self) {
        loop {
            let turn = self.turn();
            let soon = (!self.failed.is_empty()).then_some(RETRY_NS);
            let wait = [turn.decision.wake_after_ns, soon]
                .into_iter()
                .flatten()
                .min();
            if !self.world.wait(wait) {
                return;
            }
        }
    }

    /// Takes the loop apart.
    pub fn into_parts(self) -> (P, W) {
        (self.policy, self.world)
    }
}

/// How soon a policy hears of an action that failed.
const RETRY_NS: u64 = 10_000_000;
