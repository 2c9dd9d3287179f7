// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes of the machine: Usher restricts, stops, continues and demotes whole process trees. Each
//! change has its undo in a journal.
//!
//! Besides `scx`, this is the only crate that changes the machine. An [`Actuator`] acts for one
//! Usher process: it admits programs ([`Actuator::prepare`], [`Actuator::admit`]), acts on them
//! ([`Actuator::act`]) and releases them ([`Actuator::depart`]). Each change is written to its
//! journal first, so that its [`keeper`], or the next Usher to start ([`undo_stale`]), can undo it
//! if the process dies.
//! `src/journal/README.md` describes the protocol.
//!
//! A seat is an affinity mask of every thread. Attached programs stay in their cgroup; launched
//! programs get a cgroup of their own if every limit stays in force there (`docs/seats.md`).
//!
//! Memory: pages stay where they were first touched and are not moved when a seat changes its NUMA
//! node. A program that is launched through [`Actuator::prepare`] is seated before it touches its
//! first page, so first touch is local.

mod actuator;
mod autogroup;
mod backlog;
mod cgroups;
mod config;
mod environment;
mod error;
mod files;
pub mod journal;
pub mod keeper;
mod limits;
mod mask;
mod membership;
mod mounts;
mod new_threads;
mod prepared;
mod priority;
mod procs;
mod release;
mod scan;
mod systemd;
mod tree;
mod undo;

pub use actuator::{Actuator, NoOwnCgroup, describe};
pub use cgroups::kill_all;
pub use config::{ActConfig, ActDescription, CgroupPlacement, WorkClass, YieldMethod};
pub use error::ActError;
pub use mask::PinnedCpus;
pub use prepared::{ForkResult, PreparedHome};
pub use undo::{UndoOutcome, UndoReport, thaw_launched, undo_orphaned, undo_program, undo_stale};
