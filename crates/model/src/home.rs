// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a managed program lives: how to find all of its processes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::program::ProgramId;

/// A process, told from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// The number.
    pub pid: i32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

/// The home that `act` makes for a program and `probe` reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// Whose.
    pub program: ProgramId,
    /// The first process of the tree.
    pub root: ProcessId,
    /// The cgroup v2 directory that holds the whole tree and nothing else;
    /// `None` where there is no cgroup v2 and the tree is followed by pids.
    pub cgroup: Option<PathBuf>,
}
