// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifies all processes of a managed program: the root process with its start time, and, with
//! cgroup v2, the cgroup of the tree. Crate `act` creates a [`ProcessTree`], and crate `probe`
//! reads it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::program::ProgramId;

/// A process by pid and start time. The start time distinguishes the process from a later process
/// with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// The pid.
    pub pid: i32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

/// The process tree of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTree {
    /// The program that the tree belongs to.
    pub program: ProgramId,
    /// The root process of the tree.
    pub root: ProcessId,
    /// The cgroup v2 directory that contains the whole tree and nothing else; `None` without cgroup
    /// v2, where the processes of the tree are found by their parent pids.
    pub cgroup: Option<PathBuf>,
}
