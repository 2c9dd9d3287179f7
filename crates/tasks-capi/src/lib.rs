// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libusher_tasks`: the task runtime for C and C++.
//!
//! `include/usher_tasks.h` specifies each function for its callers; this crate implements it. Three
//! rules hold for every function:
//!
//! - No panic leaves the function ([`error::boundary`]).
//! - Pointers may be null. Apart from that, the caller guarantees that handles are valid.
//! - The function uses shared references only, because a task may call it. Nothing is borrowed
//!   mutably or freed while a task of the same runtime or graph may run.
//!
//! The modules: [`error`] (error codes, and the text of the last error), [`current_task`] (the task
//! that this thread runs), [`waits`] (deadlock detection between runtimes), [`options`],
//! [`runtime`], [`report`], [`graph`], [`monitoring`] (traces, counters), [`color`].

#![allow(
    clippy::missing_safety_doc,
    reason = "the C header states the guarantees that a caller must give"
)]

pub mod color;
pub mod current_task;
pub mod error;
pub mod graph;
pub mod monitoring;
pub mod options;
pub mod report;
pub mod runtime;
pub mod version;
pub mod waits;
