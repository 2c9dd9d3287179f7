// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every parser of what others may have written, as a target of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kernel;
mod machines;
mod own;
mod plans;
