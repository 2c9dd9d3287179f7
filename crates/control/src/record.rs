// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording what a loop saw and decided, and deciding it again.
//!
//! A record is JSON lines: a head with the policy's name and the topology,
//! then one [`Step`] a turn. Replaying feeds the observations to a fresh
//! policy and compares its decisions: a policy that reads a clock, a file or
//! a hash order is found out.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use usher_model::{Decision, Observation, Topology};
use usher_policy::Policy;

/// The first line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The policy that decided.
    pub policy: String,
    /// The machine that it decided for.
    pub topology: Topology,
}

/// One turn: what was seen and what was decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What was seen.
    pub observation: Observation,
    /// What was decided.
    pub decision: Decision,
}

/// Why a record could not be read or does not replay.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It could not be read or written.
    #[error("reading or writing the record: {0}")]
    Io(#[from] io::Error),
    /// A line is not what it should be.
    #[error("line {line} of the record is not a {what}")]
    Malformed {
        /// Which line, from 1.
        line: usize,
        /// What was expected.
        what: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// It has no head.
    #[error("the record is empty")]
    Empty,
    /// The policy decided otherwise this time.
    #[error("step {step} of the record does not replay: the policy decided otherwise")]
    Differs {
        /// Which step, from 0.
        step: usize,
        /// What was decided when it was recorded, and now.
        decisions: Box<(Decision, Decision)>,
    },
}

/// Writes a record as a loop runs.
#[derive(Debug)]
pub struct Recorder<W> {
    out: W,
}

impl<W: Write> Recorder<W> {
    /// Starts a record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut out: W, head: &Record) -> Result<Self, RecordError> {
        write_line(&mut out, head)?;
        Ok(Self { out })
    }

    /// Adds a turn.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn step(
        &mut self,
        observation: &Observation,
        decision: &Decision,
    ) -> Result<(), RecordError> {
        let step = Step {
            observation: observation.clone(),
            decision: decision.clone(),
        };
        write_line(&mut self.out, &step)
    }
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> Result<(), RecordError> {
    serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Replays a record with a policy made for its head; returns how many steps
/// were decided the same way.
///
/// # Errors
/// The record cannot be read, or the policy decides otherwise.
pub fn replay<P: Policy>(
    input: impl BufRead,
    policy: impl FnOnce(&Record) -> P,
) -> Result<usize, RecordError> {
    let mut lines = input.lines().enumerate();
    let (_, head) = lines.next().ok_or(RecordError::Empty)?;
    let head = parse::<Record>(0, &head?, "record head")?;
    let mut policy = policy(&head);
    let mut steps = 0;
    for (line, text) in lines {
        let recorded: Step = parse(line, &text?, "step")?;
        let decision = policy.decide(&recorded.observation);
        if decision != recorded.decision {
            let decisions = Box::new((recorded.decision, decision));
            return Err(RecordError::Differs {
                step: line - 1,
                decisions,
            });
        }
        steps += 1;
    }
    Ok(steps)
}

fn parse<T: for<'a> Deserialize<'a>>(
    line: usize,
    text: &str,
    what: &'static str,
) -> Result<T, RecordError> {
    serde_json::from_str(text).map_err(|source| RecordError::Malformed {
        line: line + 1,
        what,
        source,
    })
}
