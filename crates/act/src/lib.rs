// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate that changes the machine: it restricts, stops, continues and demotes whole process
//! trees, and records the undo of each change in a journal.
//!
//! Only this crate and `scx` change the machine. An [`Actuator`] acts for one Usher process: it
//! admits programs ([`Actuator::prepare`], [`Actuator::admit`]), acts on them ([`Actuator::act`])
//! and releases them ([`Actuator::depart`]). The actuator writes each change to its journal before
//! it makes the change. If the Usher process dies, its [`keeper`] or the next start of Usher
//! ([`undo_stale`]) undoes the changes in the journal. `src/journal/README.md` describes the
//! protocol.
//!
//! A seat is an affinity mask of every thread. Attached programs stay in their cgroup; launched
//! programs get a cgroup of their own if every limit stays in force there (`docs/seats.md`).
//!
//! Usher does not move memory: when a seat changes to another NUMA node, the program's pages stay
//! on the node on which the kernel allocated them. A program that is launched through
//! [`Actuator::prepare`] is seated before it touches its first page; its pages are therefore
//! allocated on the NUMA node of its first seat.

mod actuator;
mod autogroup;
mod backlog;
mod cgroups;
mod config;
mod environment;
mod error;
mod files;
mod instance;
pub mod journal;
pub mod keeper;
mod limits;
mod mask;
mod membership;
mod mounts;
mod new_threads;
mod own_masks;
mod prepared;
mod priority;
mod procs;
mod release;
mod scan;
mod stale;
mod systemd;
mod tree;
mod undo;
mod unmanaged;

pub use actuator::{Actuator, CopyPlacement, NoOwnCgroup, describe};
pub use cgroups::kill_all;
pub use config::{ActConfig, ActDescription, CgroupPlacement, WorkClass, YieldMethod};
pub use error::ActError;
pub use mask::PinnedCpus;
pub use prepared::{ForkResult, HomeDirs, PreparedHome};
pub use stale::{StaleJournal, stale_journals};
pub use undo::{
    UndoOutcome, UndoReport, thaw_launched, undo_orphaned, undo_program, undo_stale, was_killed,
};
pub use unmanaged::lower_launched;
