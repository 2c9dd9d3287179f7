// SPDX-License-Identifier: MIT OR Apache-2.0
//! Usher on the real machine: launches, manages and measures programs.
//!
//! - [`advise`]: measures how many copies of a program have the highest throughput;
//! - [`calibrate`]: measures the errors of the sources of progress;
//! - [`launch`]: launches programs that wait before their `exec` or are repeated, and waits for
//!   their end;
//! - [`engine`]: runs the control loop on this machine, in a thread of its own;
//! - [`profile`]: measures the curve of a program that runs alone;
//! - [`quiet`]: waits for a quiet machine, and detects disturbed measurements;
//! - [`rights`]: reads files with a user's rights;
//! - [`mix`]: measures mixes of programs under several policies.

pub mod advise;
pub mod calibrate;
pub mod engine;
mod kernel;
pub mod launch;
mod load_limits;
mod measured;
pub mod mix;
pub mod profile;
pub mod quiet;
pub mod rights;
pub mod text;

pub use kernel::kernel_release;
pub use measured::{RunCondition, RunError};
