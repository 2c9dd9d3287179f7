// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop's real world: launching, registering and measuring
//! programs.
//!
//! - [`launch`]: programs held short of `exec`, repeated, waited for;
//! - [`engine`]: the control loop on this machine, on a thread of its own;
//! - [`profile`]: a program's curve, measured alone;
//! - [`rights`]: reading files with a user's rights;
//! - [`mix`]: mixes of programs under several policies.

pub mod engine;
pub mod launch;
mod measured;
pub mod mix;
pub mod profile;
pub mod rights;

pub use measured::{RunCondition, RunError};
