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

use crate::fit::Fit;

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
    /// Its last line has no end: who wrote it was killed meanwhile.
    #[error("the last line of the record is cut short; the {steps} steps before it replay")]
    CutShort {
        /// How many steps were decided the same way.
        steps: usize,
    },
    /// A line that cannot come from the machine that the head describes, or
    /// from one run.
    #[error("line {line} of the record does not fit the rest: {what}; is it of another machine?")]
    Foreign {
        /// Which line, from 1.
        line: usize,
        /// What does not fit.
        what: String,
    },
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

/// Reads a record, and checks as it goes that each line fits those before.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    head: Record,
    fit: Fit,
    steps: usize,
}

impl<R: BufRead> Reader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// There is none, or its topology makes no sense.
    pub fn new(mut input: R) -> Result<Self, RecordError> {
        let text = next_line(&mut input)?.ok_or(RecordError::Empty)?;
        let head = parse::<Record>(0, &text, "record head")?;
        let fit =
            Fit::new(&head.topology).map_err(|what| RecordError::Foreign { line: 1, what })?;
        Ok(Self {
            input,
            head,
            fit,
            steps: 0,
        })
    }

    /// The head.
    pub fn head(&self) -> &Record {
        &self.head
    }

    /// The next step; `None` after the last.
    ///
    /// # Errors
    /// The line is not a step, is cut short, or does not fit.
    pub fn step(&mut self) -> Result<Option<Step>, RecordError> {
        let Some(text) = next_line(&mut self.input)? else {
            return Ok(None);
        };
        let steps = self.steps;
        let step: Step = match parse(steps + 1, &text, "step") {
            Err(_) if !text.ends_with(b"\n") => return Err(RecordError::CutShort { steps }),
            step => step?,
        };
        let line = steps + 2;
        let fits = self.fit.step(&step);
        fits.map_err(|what| RecordError::Foreign { line, what })?;
        self.steps += 1;
        Ok(Some(step))
    }
}

/// Replays a record with a policy made for its head; returns how many steps
/// were decided the same way.
///
/// # Errors
/// The record cannot be read, or the policy decides otherwise; the last line is
/// cut short, where all before it replays.
pub fn replay<P: Policy>(
    input: impl BufRead,
    policy: impl FnOnce(&Record) -> P,
) -> Result<usize, RecordError> {
    let mut reader = Reader::new(input)?;
    let mut policy = policy(reader.head());
    let mut steps = 0;
    while let Some(recorded) = reader.step()? {
        let decision = policy.decide(&recorded.observation);
        if !decision.is_recorded_as(&recorded.decision) {
            let decisions = Box::new((recorded.decision, decision));
            return Err(RecordError::Differs {
                step: steps,
                decisions,
            });
        }
        steps += 1;
    }
    Ok(steps)
}

/// The next line with its end, as far as it has one; `None` after the last.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let length = input.read_until(b'\n', &mut line)?;
    Ok((length > 0).then_some(line))
}

fn parse<T: for<'a> Deserialize<'a>>(
    line: usize,
    text: &[u8],
    what: &'static str,
) -> Result<T, RecordError> {
    serde_json::from_slice(text).map_err(|source| RecordError::Malformed {
        line: line + 1,
        what,
        source,
    })
}
