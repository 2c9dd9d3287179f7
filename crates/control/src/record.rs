// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes, reads and replays the record of a control loop.
//!
//! A record is a file of JSON lines: a head with the policy's name and the topology, and then one
//! [`RecordStep`] per iteration of the loop. [`replay`] reads a record line by line:
//!
//! 1. Check that the line is consistent with the previous lines (`record_check.rs`).
//! 2. Pass the observation to a policy without history.
//! 3. Compare the policy's decision with the recorded decision, and return an error at the first
//!    difference.
//!
//! A replay detects policies with decisions that depend on a clock, a file or a hash order.
//!
//! Bounds: reading and replaying keep one line in memory at a time; neither the length of a line
//! nor the length of a record is limited. Each line is written and flushed at once, without
//! `fsync`. An invalid line ends the replay with an error that names the line. An incomplete last
//! line ends the replay with [`RecordError::CutShort`], after all lines before it were replayed.

use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};
use usher_model::{Decision, Observation, Topology};
use usher_policy::Policy;

use crate::record_check::RecordCheck;

/// The first line of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordHead {
    /// Name of the policy that decided.
    pub policy: String,
    /// The machine for which the policy planned.
    pub topology: Topology,
}

/// One iteration: the observation and the decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordStep {
    /// The observation.
    pub observation: Observation,
    /// The decision.
    pub decision: Decision,
}

/// Reason for which a record could not be read, or a replay found a different decision.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Reading or writing failed.
    #[error("the record cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// A line cannot be parsed.
    #[error("line {line} of the record is not a valid {what}: {reason}")]
    Malformed {
        /// Line number, from 1.
        line: usize,
        /// The expected content.
        what: &'static str,
        /// The parser's error.
        reason: String,
    },
    /// The record has no head.
    #[error("the record is empty: it has no line that describes the machine and the policy")]
    Empty,
    /// The last line has no line end, because the writing process was killed while it wrote the
    /// line.
    #[error(
        "the last line of the record is incomplete; the {steps} steps before it were replayed \
         without a difference"
    )]
    CutShort {
        /// Number of steps that were replayed without a difference.
        steps: usize,
    },
    /// A line contradicts the topology in the head, or contradicts an earlier line.
    #[error(
        "line {line} of the record contradicts earlier lines: {what}; was the line recorded on \
         another machine?"
    )]
    Foreign {
        /// Line number, from 1.
        line: usize,
        /// The contradiction.
        what: String,
    },
    /// The decision of the replayed policy differs from the recorded decision.
    #[error(
        "step {step} of the record does not replay: the decision of the policy differs from the \
         recorded decision"
    )]
    Differs {
        /// Step number, from 0.
        step: usize,
        /// The recorded decision and the decision of the replayed policy.
        decisions: Box<(Decision, Decision)>,
    },
}

/// Writes a record while a loop runs.
#[derive(Debug)]
pub struct Recorder<W> {
    out: W,
}

impl<W: Write> Recorder<W> {
    /// Starts a record: writes its head.
    ///
    /// # Errors
    /// The head cannot be written.
    pub fn new(mut out: W, head: &RecordHead) -> Result<Self, RecordError> {
        write_line(&mut out, head)?;
        Ok(Self { out })
    }

    /// Adds an iteration to the record.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn step(
        &mut self,
        observation: &Observation,
        decision: &Decision,
    ) -> Result<(), RecordError> {
        let step = RecordStep {
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

/// Reads a record and checks each line against the previous lines.
#[derive(Debug)]
pub struct RecordReader<R> {
    input: R,
    head: RecordHead,
    check: RecordCheck,
    steps: usize,
}

impl<R: BufRead> RecordReader<R> {
    /// Reads and checks the head of a record.
    ///
    /// # Errors
    /// The record has no head, or the topology in the head is inconsistent.
    pub fn new(mut input: R) -> Result<Self, RecordError> {
        let text = next_line(&mut input)?.ok_or(RecordError::Empty)?;
        let head = parse::<RecordHead>(0, &text, "record head")?;
        let check = RecordCheck::new(&head.topology)
            .map_err(|what| RecordError::Foreign { line: 1, what })?;
        Ok(Self {
            input,
            head,
            check,
            steps: 0,
        })
    }

    /// The head.
    pub fn head(&self) -> &RecordHead {
        &self.head
    }

    /// Reads the next step; `None` after the last step.
    ///
    /// # Errors
    /// The line is not a step, is incomplete, or contradicts an earlier line.
    pub fn step(&mut self) -> Result<Option<RecordStep>, RecordError> {
        let Some(text) = next_line(&mut self.input)? else {
            return Ok(None);
        };
        let steps = self.steps;
        let step: RecordStep = match parse(steps + 1, &text, "step") {
            Err(_) if !text.ends_with(b"\n") => return Err(RecordError::CutShort { steps }),
            step => step?,
        };
        let line = steps + 2;
        let checked = self.check.step(&step);
        checked.map_err(|what| RecordError::Foreign { line, what })?;
        self.steps += 1;
        Ok(Some(step))
    }
}

/// Replays a record with a policy that the caller makes for the head of the record. Returns the
/// number of steps with equal decisions.
///
/// # Errors
/// The record cannot be read, or a decision of the policy differs. If the last line is incomplete,
/// the error is returned only after all other lines have been replayed.
pub fn replay<P: Policy>(
    input: impl BufRead,
    policy: impl FnOnce(&RecordHead) -> P,
) -> Result<usize, RecordError> {
    let mut reader = RecordReader::new(input)?;
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

/// Maximum length of a line in bytes; longer than any observation.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Reads the next line, including its line end if it has one; `None` after the last line.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut limited = input.take(LINE_BYTES_MAX + 1);
    let length = limited.read_until(b'\n', &mut line)?;
    if length as u64 > LINE_BYTES_MAX {
        let reason = format!("a line has more than the maximum of {LINE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok((length > 0).then_some(line))
}

fn parse<T: for<'a> Deserialize<'a>>(
    line: usize,
    text: &[u8],
    what: &'static str,
) -> Result<T, RecordError> {
    serde_json::from_slice(text.trim_ascii_end()).map_err(|error| RecordError::Malformed {
        line: line + 1,
        what,
        // The parser counts lines from the start of this line.
        reason: error
            .to_string()
            .replace(" at line 1 column ", " at column "),
    })
}
