// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop: observe, decide, act, wait.
//!
//! One loop, many worlds. [`Loop`] runs a [`usher_policy::Policy`] against a [`World`]; the
//! daemon and the commands that plan in their own process plug the real machine
//! in, a test one that is not there, and the loop cannot tell them apart. A
//! record of a run is fed to a policy again by [`replay`].

mod fit;
mod record;
mod run;

pub use record::{Reader, Record, RecordError, Recorder, Step, replay};
pub use run::{Loop, Turn, World};
