// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop of Usher: observe, decide, act, wait, and repeat.
//!
//! [`ControlLoop`] runs a [`usher_policy::Policy`] against a [`World`]. The daemon, and commands
//! that plan without a daemon, implement [`World`] for the real machine. The simulator and tests
//! implement [`World`] for a model of a machine. [`replay`] passes the recorded observations of a
//! run to a policy again and compares the decisions.

mod record;
mod record_check;
mod run;

pub use record::{RecordError, RecordHead, RecordReader, RecordStep, Recorder, replay};
pub use run::{ControlLoop, Iteration, World};
