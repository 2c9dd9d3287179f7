// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recorded run, played back to the loop: a world that shows what was seen
//! then, and checks that the loop does what it did then.
//!
//! [`usher_control::replay`] feeds a policy; here the whole loop runs, so that
//! it is tried too what it does with actions that failed, and that it asks for
//! each in its order.

use std::io::BufRead;

use usher_control::{ControlLoop, RecordError, RecordHead, RecordReader, RecordStep, World};
use usher_model::{Action, Decision, FailedAction, Observation};
use usher_policy::Policy;

/// Why a record does not play back.
#[derive(Debug, thiserror::Error)]
pub enum PlaybackError {
    /// It cannot be read, or its lines do not fit one another.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// No policy has that name.
    #[error("the record's policy '{0}' is not known")]
    Policy(String),
    /// It holds no step.
    #[error("the record holds no step")]
    Empty,
    /// The loop does something else.
    #[error("line {line} of the record plays back otherwise: {what}")]
    Differs {
        /// Which line, from 1.
        line: usize,
        /// What is done now, and what was then.
        what: String,
    },
}

/// The world of a record.
struct Playback<R> {
    reader: RecordReader<R>,
    now: RecordStep,
    next: Option<RecordStep>,
    /// Actions of this turn that were asked for.
    acted: usize,
    turns: usize,
    error: Option<PlaybackError>,
}

impl<R: BufRead> Playback<R> {
    fn differs(&mut self, what: String) {
        let line = self.turns + 2;
        self.error
            .get_or_insert(PlaybackError::Differs { line, what });
    }
}

impl<R: BufRead> World for Playback<R> {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        if failed != self.now.observation.failed {
            let then = &self.now.observation.failed;
            self.differs(format!("{failed:?} failed, and {then:?} then"));
        }
        self.acted = 0;
        self.now.observation.clone()
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        let then = self.now.decision.actions.get(self.acted);
        if then != Some(action) {
            let what = format!("{action:?} is done, and {then:?} then");
            self.differs(what);
        }
        self.acted += 1;
        let failed = self.next.iter().flat_map(|next| &next.observation.failed);
        let mut failed = failed.filter(|failed| failed.action == *action);
        failed
            .next()
            .map_or(Ok(()), |failed| Err(failed.error.clone()))
    }

    fn decided(&mut self, _: &Observation, decision: &Decision) {
        if !decision.is_recorded_as(&self.now.decision) {
            let then = &self.now.decision;
            self.differs(format!("{decision:?}, and {then:?} then"));
        }
    }

    fn wait(&mut self, _: Option<u64>) -> bool {
        self.turns += 1;
        let Some(next) = self.next.take().filter(|_| self.error.is_none()) else {
            return false;
        };
        self.now = next;
        match self.reader.step() {
            Ok(step) => self.next = step,
            Err(error) => self.error = Some(error.into()),
        }
        true
    }
}

/// Plays a record back with the policy of its head; returns how many turns did
/// as they did then.
///
/// # Errors
/// The record cannot be read, its lines do not fit one another, or the loop
/// does something else than it did.
pub fn play_back(input: impl BufRead) -> Result<usize, PlaybackError> {
    let by_name = |head: &RecordHead| usher_policy::by_name(&head.policy, &head.topology);
    play_back_with(input, by_name)
}

/// The same with a policy from elsewhere.
///
/// # Errors
/// As [`play_back`].
pub fn play_back_with<P: Policy>(
    input: impl BufRead,
    policy: impl FnOnce(&RecordHead) -> Option<P>,
) -> Result<usize, PlaybackError> {
    let mut reader = RecordReader::new(input)?;
    let name = || PlaybackError::Policy(reader.head().policy.clone());
    let policy = policy(reader.head()).ok_or_else(name)?;
    let now = reader.step()?.ok_or(PlaybackError::Empty)?;
    let next = reader.step()?;
    let world = Playback {
        reader,
        now,
        next,
        acted: 0,
        turns: 0,
        error: None,
    };
    let mut control = ControlLoop::new(policy, world);
    control.run();
    let (_, world) = control.into_parts();
    world.error.map_or(Ok(world.turns), Err)
}
