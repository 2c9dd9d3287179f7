// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plays a recorded run back to the control loop, by a world that returns the recorded observations
//! and compares the loop's actions with the recorded actions. A playback reads the record line by
//! line, and ends at the first difference.
//!
//! [`usher_control::replay`] replays only a policy. This module runs the whole control loop, and
//! thereby also tests how the loop handles failed actions and in which order it acts.
//!
//! Two steps of the record are in memory at a time. The loop finishes the iteration in which it
//! differs. Errors: an unreadable or inconsistent record, an unknown policy, an empty record, a
//! difference.

use std::io::BufRead;

use usher_control::{ControlLoop, RecordError, RecordHead, RecordReader, RecordStep, World};
use usher_model::{Action, Decision, FailedAction, Observation};
use usher_policy::Policy;

/// Reason why a record does not play back.
#[derive(Debug, thiserror::Error)]
pub enum PlaybackError {
    /// The record cannot be read, or its lines are inconsistent.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The named policy does not exist.
    #[error("the record was made by the policy '{0}', which is unknown")]
    Policy(String),
    /// The record contains no step.
    #[error("the record contains no step of the control loop")]
    Empty,
    /// The loop behaves differently from the record.
    #[error("the playback differs from line {line} of the record: {what}")]
    Differs {
        /// Number of the line in the record, counted from 1.
        line: usize,
        /// The present and the recorded behaviour.
        what: String,
    },
}

/// The world of a record.
struct PlaybackWorld<R> {
    reader: RecordReader<R>,
    now: RecordStep,
    next: Option<RecordStep>,
    /// Number of actions that the loop has requested in the current iteration.
    acted: usize,
    iterations: usize,
    error: Option<PlaybackError>,
}

impl<R: BufRead> PlaybackWorld<R> {
    fn differs(&mut self, what: String) {
        let line = self.iterations + 2;
        self.error
            .get_or_insert(PlaybackError::Differs { line, what });
    }
}

impl<R: BufRead> World for PlaybackWorld<R> {
    fn observe(&mut self, failed: Vec<FailedAction>) -> Observation {
        if failed != self.now.observation.failed {
            let then = &self.now.observation.failed;
            self.differs(format!(
                "failed actions of the playback: {failed:?}; recorded: {then:?}"
            ));
        }
        self.acted = 0;
        self.now.observation.clone()
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        let then = self.now.decision.actions.get(self.acted);
        if then != Some(action) {
            let what = format!("action of the playback: {action:?}; recorded: {then:?}");
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
            self.differs(format!(
                "decision of the playback: {decision:?}; recorded: {then:?}"
            ));
        }
    }

    fn wait(&mut self, _: Option<u64>) -> bool {
        self.iterations += 1;
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

/// Plays a record back with the policy that it names. Returns the number of identical iterations.
///
/// # Errors
/// The record cannot be read, its lines are inconsistent, or the loop behaves differently.
pub fn play_back(input: impl BufRead) -> Result<usize, PlaybackError> {
    let by_name = |head: &RecordHead| usher_policy::by_name(&head.policy, &head.topology);
    play_back_with(input, by_name)
}

/// Plays a record back with the given policy.
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
    let world = PlaybackWorld {
        reader,
        now,
        next,
        acted: 0,
        iterations: 0,
        error: None,
    };
    let mut control = ControlLoop::new(policy, world);
    control.run();
    let (_, world) = control.into_parts();
    world.error.map_or(Ok(world.iterations), Err)
}
