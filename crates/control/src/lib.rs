// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop: observe, decide, act, wait.
//!
//! [`ControlLoop`] runs a [`usher_policy::Policy`] against a [`World`]. The daemon and the commands
//! that plan in their own process supply the real machine; simulator and tests supply a model. The
//! loop is the same for both. [`replay`] feeds the record of a run to a policy again.

mod record;
mod record_check;
mod run;

pub use record::{RecordError, RecordHead, RecordReader, RecordStep, Recorder, replay};
pub use run::{ControlLoop, Iteration, World};
