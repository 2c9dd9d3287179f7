// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libusher_tasks`: the task runtime for C and C++.
//!
//! `include/usher_tasks.h` and the headers that it includes specify the functions that this crate
//! implements. Three rules apply to each function:
//!
//! - No panic unwinds into the caller ([`error::boundary`]).
//! - A pointer may be null. If it is not null, the caller guarantees that it is valid.
//! - Because tasks may call the function while the runtime or graph is in use, it accesses runtimes
//!   and graphs by shared references. A runtime or graph is borrowed mutably or freed only while
//!   none of its tasks can run.
//!
//! The modules: [`error`] (error codes, and the text of the last error), [`current_task`] (the task
//! that this thread runs), [`waits`] (deadlock detection between runtimes), [`options`],
//! [`runtime`], [`submit`] (tasks without tokens), [`depend`] (tasks ordered by data), [`slot`] (waits for single tasks), [`fork`]
//! (join and scopes), [`loops`] (parallel loops), [`report`], [`graph`], [`monitoring`] (traces,
//! counters), [`color`].

#![allow(
    clippy::missing_safety_doc,
    reason = "the C header states the guarantees that a caller must give"
)]

pub mod color;
pub mod current_task;
pub mod depend;
pub mod error;
pub mod fork;
pub mod graph;
pub mod loops;
pub mod monitoring;
pub mod options;
pub mod report;
pub mod runtime;
pub mod slot;
pub mod submit;
pub mod version;
pub mod waits;
