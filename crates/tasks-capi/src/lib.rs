// SPDX-License-Identifier: MIT OR Apache-2.0
//! `libusher_tasks`: the task runtime for C and C++.
//!
//! What each function promises stands in `include/usher_tasks.h`, for those who
//! call it; this crate keeps it. Three rules hold for every function:
//!
//! - No panic leaves it ([`error::boundary`]).
//! - A pointer may be null. Other than that, handles are the caller's promise.
//! - A task calls back in through shared references alone: nothing is borrowed for
//!   writing, and nothing freed, while a task of the same runtime or graph may run.
//!
//! The modules: [`error`] (codes, and the last one in words), [`here`] (which task
//! this thread runs), [`waits`] (runtimes that wait for one another), [`options`],
//! [`runtime`], [`report`], [`graph`], [`seen`] (traces, counters), [`color`].

#![allow(
    clippy::missing_safety_doc,
    reason = "the header is where a caller finds what to promise"
)]

pub mod color;
pub mod error;
pub mod graph;
pub mod here;
pub mod options;
pub mod report;
pub mod runtime;
pub mod seen;
pub mod version;
pub mod waits;
