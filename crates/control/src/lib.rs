// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop: observe, decide, act, wait.
//!
//! One loop, many worlds. [`Loop`] runs a [`usher_policy::Policy`] against a [`World`]; the
//! daemon, the daemonless command line, the simulator and a replayed record
//! are worlds, and the loop cannot tell them apart.

mod record;
mod run;

pub use record::{Record, RecordError, Recorder, Step, replay};
pub use run::{Loop, Turn, World};
