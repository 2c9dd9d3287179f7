// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines of a journal: each says how to take back what is about to be
//! done.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Demotion, ProcessId, ProgramId};

use crate::mounts::Places;
use crate::priority::Priority;

/// The format of the journal that is written. Version 1 is read and undone,
/// too: it also notes cpusets, an instance's own directories and enabled
/// controllers, none of which are made any more.
pub const VERSION: u32 = 2;

/// Whose journal it is: the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The format that it is written in.
    pub version: u32,
    /// The boot that it was written in.
    pub boot: String,
    /// The Usher process that writes it.
    pub owner: ProcessId,
    /// Inode of the pid namespace that its numbers belong to.
    pub pid_namespace: u64,
}

/// What a directory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirKind {
    /// cgroup v2: finds and freezes. One of version 1 may narrow.
    V2,
    /// A transient systemd scope of ours, or a directory in one (version 1):
    /// survivors stay there, as where they came from belongs to systemd.
    Scope,
    /// The cgroup v2 that an attached program was found in, where it holds
    /// nothing else. Undo thaws it, and only where a `freeze` line is noted.
    Unit,
    /// cgroup v1 with the cpuset controller: of version 1.
    CpusetV1,
    /// cgroup v1 with the cpu controller: only for what gives way to others.
    CpuV1,
}

impl DirKind {
    /// Whether it finds and freezes.
    pub fn is_v2(self) -> bool {
        matches!(self, Self::V2 | Self::Scope | Self::Unit)
    }

    /// Whether processes are moved into it by writing, and out of it by undo.
    pub fn is_entered(self) -> bool {
        matches!(self, Self::V2 | Self::CpusetV1 | Self::CpuV1)
    }
}

/// A directory made for one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dir {
    /// Where it is.
    pub dir: PathBuf,
    /// What it is for.
    pub kind: DirKind,
    /// CPUs that the program could use before; empty where this directory
    /// does not narrow.
    pub wide: CpuSet,
}

/// A thread, told from a later one with the same number by its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadId {
    /// Its process.
    pub pid: i32,
    /// Its own number.
    pub tid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ThreadId {
    /// Every thread that ever had this number in this process.
    pub(crate) fn range(pid: i32, tid: i32) -> std::ops::RangeInclusive<Self> {
        let at = |start_ticks| Self {
            pid,
            tid,
            start_ticks,
        };
        at(0)..=at(u64::MAX)
    }
}

/// A line.
#[allow(missing_docs, reason = "each says what its fields are for")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Record {
    /// The journal begins.
    Open(Head),
    /// A directory of the whole instance is about to be made (version 1).
    Base { dir: PathBuf },
    /// The cpuset controller is about to be enabled for this directory's
    /// children (version 1).
    Enable { dir: PathBuf },
    /// A program comes in; processes born in it go here when it is let go.
    Begin { program: ProgramId, from: Places },
    /// A directory is about to be made for a program, or used as its own.
    Dir {
        program: ProgramId,
        #[serde(flatten)]
        dir: Dir,
    },
    /// A process is about to be moved (or, without cgroups, followed).
    Member {
        program: ProgramId,
        process: ProcessId,
        from: Places,
    },
    /// Threads of the program are about to get this affinity mask.
    Mask { program: ProgramId, cpus: CpuSet },
    /// A thread that has this mask is about to get one of ours.
    Thread {
        program: ProgramId,
        thread: ThreadId,
        before: CpuSet,
    },
    /// The program itself gave a thread this mask, whatever the thread had before.
    Own {
        program: ProgramId,
        thread: ThreadId,
        mask: CpuSet,
    },
    /// Threads born with one of our masks would have this one without us. Without
    /// it the first `thread` line says so.
    Unbound { program: ProgramId, before: CpuSet },
    /// All threads of the program have their own masks again.
    Unmask { program: ProgramId },
    /// A process is about to be sent `SIGSTOP`.
    Stop {
        program: ProgramId,
        process: ProcessId,
    },
    /// The cgroup that the program was found in is about to be frozen.
    Freeze { program: ProgramId },
    /// All processes of the program that were stopped or frozen by these lines
    /// go on.
    Continue { program: ProgramId },
    /// Threads of the program are about to be demoted so far.
    Demote { program: ProgramId, to: Demotion },
    /// A thread with this priority is about to be demoted.
    Priority {
        program: ProgramId,
        thread: ThreadId,
        before: Priority,
    },
    /// Nice values of the program's threads are about to be lowered for good:
    /// this instance may not raise them again. Undo restores them where it may.
    Permanent { program: ProgramId },
    /// Threads born demoted would have this priority without us. Only
    /// rewriting writes it; else the first `priority` line says so.
    Inborn {
        program: ProgramId,
        before: Priority,
    },
    /// A session's autogroup that has this nice value is about to get 19.
    Autogroup {
        program: ProgramId,
        /// The kernel's number of it, which no other one gets in this boot.
        autogroup: u64,
        session: i32,
        nice: i32,
    },
    /// A directory of the program was removed before the program was let go.
    Gone { program: ProgramId, dir: PathBuf },
    /// The program has been let go; nothing of it is left to undo.
    Close { program: ProgramId },
}
