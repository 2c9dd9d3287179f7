// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Usher does to the machine: it narrows, stops, continues and demotes
//! whole process trees, each action with its undo in a journal.
//!
//! This is the only crate that changes the machine. An
//! [`Actuator`] is one Usher process's hands: it takes programs in
//! ([`Actuator::prepare`], [`Actuator::admit`]), acts on them
//! ([`Actuator::act`]) and lets them go ([`Actuator::depart`]). Whatever it
//! does stands in its journal before it is done, so that its [`keeper`], or
//! the next Usher to start ([`undo_stale`]), can take it back when it dies.
//! The protocol is described in `src/journal/README.md`.
//!
//! A seat is an affinity mask of every thread. Attached programs stay in their
//! cgroup; launched ones get a cgroup of their own where every limit stays in
//! force (`docs/seats.md`).
//!
//! Memory: pages lie where they were first touched and are not moved when
//! seats change NUMA node; a program that is launched through
//! [`Actuator::prepare`] is seated before it touches its first page, so that
//! first touch is local.

mod actuator;
mod autogroup;
mod backlog;
mod cgroups;
mod config;
mod error;
mod family;
mod files;
pub mod journal;
pub mod keeper;
mod limits;
mod mask;
mod mounts;
mod newborn;
mod prepared;
mod priority;
mod procs;
mod release;
mod scan;
mod site;
mod systemd;
mod tree;
mod undo;

pub use actuator::{Actuator, InPlace, PinnedCpus, describe};
pub use cgroups::kill_all;
pub use config::{ActConfig, Description, Placement, Work, Yielding};
pub use error::ActError;
pub use prepared::{Forked, PreparedHome};
pub use undo::{Rescue, UndoReport, rescue, thaw_launched, undo_program, undo_stale};
