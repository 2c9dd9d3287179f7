// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines of a journal. Each line records how to undo the change that follows it, and is written
//! before that change. Version 2 is written; version 1, which has more kinds of lines, is still
//! read and undone.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Demotion, ProcessId, ProgramId};

/// The format of the journal that is written. Version 1 is read and undone too: it also records
/// cpusets, directories of the instance itself and enabled controllers, none of which are made any
/// more.
pub const VERSION: u32 = 2;

/// The first line: identifies the instance and the format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalHeader {
    /// The version of the format.
    pub version: u32,
    /// The boot in which it is written.
    pub boot: String,
    /// The Usher process that writes it.
    pub owner: ProcessId,
    /// Inode of the PID namespace to which its pids belong.
    pub pid_namespace: u64,
}

/// The purpose of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirKind {
    /// cgroup v2, to find and freeze processes. A directory of version 1 may also restrict CPUs.
    V2,
    /// A transient systemd scope of Usher's, or a directory in one (version 1). Surviving processes
    /// stay there, because their former cgroup belongs to systemd.
    Scope,
    /// The cgroup v2 in which an attached program was found, if it holds no other processes. Undo
    /// thaws it only if a `freeze` line is recorded.
    Unit,
    /// cgroup v1 with the cpuset controller: of version 1.
    CpusetV1,
    /// cgroup v1 with the cpu controller, only for programs that yield by `cpu.idle`.
    CpuV1,
}

impl DirKind {
    /// Returns whether the directory serves to find and freeze processes.
    pub fn is_v2(self) -> bool {
        matches!(self, Self::V2 | Self::Scope | Self::Unit)
    }

    /// Returns whether processes are moved into it by writing, and out of it by undo.
    pub fn is_entered(self) -> bool {
        matches!(self, Self::V2 | Self::CpusetV1 | Self::CpuV1)
    }
}

/// A directory made for one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dir {
    /// Path of the directory.
    pub dir: PathBuf,
    /// Purpose of the directory.
    pub kind: DirKind,
    /// CPUs that the program could use before; empty if this directory does not restrict CPUs.
    pub wide: CpuSet,
}

/// A thread. The start time distinguishes it from a later thread with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadId {
    /// The pid of its process.
    pub pid: i32,
    /// Number of the thread.
    pub tid: i32,
    /// Start time of the thread, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ThreadId {
    /// Returns the range of all threads that ever had this number in this process.
    pub(crate) fn range(pid: i32, tid: i32) -> std::ops::RangeInclusive<Self> {
        let at = |start_ticks| Self {
            pid,
            tid,
            start_ticks,
        };
        at(0)..=at(u64::MAX)
    }
}

/// The directories of the cgroups that a process is in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// In cgroup v2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v2: Option<PathBuf>,
    /// In the v1 hierarchy with cpuset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<PathBuf>,
    /// In the v1 hierarchy with cpu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<PathBuf>,
}

impl CgroupPaths {
    /// Returns the directory in the hierarchy of this kind.
    pub(crate) fn of(&self, kind: DirKind) -> Option<&PathBuf> {
        match kind {
            DirKind::V2 | DirKind::Scope | DirKind::Unit => self.v2.as_ref(),
            DirKind::CpusetV1 => self.cpuset.as_ref(),
            DirKind::CpuV1 => self.cpu.as_ref(),
        }
    }

    /// Returns all directories.
    pub(crate) fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.v2, &self.cpuset, &self.cpu].into_iter().flatten()
    }
}

/// The values that determine a thread's share of CPUs and disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priority {
    /// Scheduling policy of the thread, by the kernel's number.
    pub policy: u32,
    /// Nice value of the thread, -20 to 19.
    pub nice: i32,
    /// Real-time priority of the thread; 0 if the policy has none.
    #[serde(default)]
    pub realtime: u32,
    /// Whether its children start without real-time priorities.
    #[serde(default)]
    pub reset_on_fork: bool,
    /// I/O priority of the thread as `ioprio_get(2)` returns it.
    pub io: i32,
}

/// A line of the journal.
#[allow(
    missing_docs,
    reason = "the comment of each variant documents its fields"
)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Record {
    /// The journal begins.
    Open(JournalHeader),
    /// A directory of the whole instance is about to be made (version 1).
    Base { dir: PathBuf },
    /// The cpuset controller is about to be enabled for this directory's
    /// children (version 1).
    Enable { dir: PathBuf },
    /// A program is about to be admitted. At release, processes created in its directories are
    /// moved to `from`.
    Begin {
        program: ProgramId,
        from: CgroupPaths,
    },
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
        from: CgroupPaths,
    },
    /// Threads of the program are about to get this affinity mask.
    Mask { program: ProgramId, cpus: CpuSet },
    /// A thread that has this mask is about to get one of Usher's.
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
    /// Threads created with one of Usher's masks would have the mask `before` without Usher. If
    /// there is no such line, the first `thread` line has that mask.
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
    /// All processes of the program that were stopped or frozen by these lines run again.
    Continue { program: ProgramId },
    /// Threads of the program are about to be demoted to this degree.
    Demote { program: ProgramId, to: Demotion },
    /// A thread with this priority is about to be demoted.
    Priority {
        program: ProgramId,
        thread: ThreadId,
        before: Priority,
    },
    /// Nice values of the program's threads are about to be lowered for good: this instance may not
    /// raise them again. Undo restores them if it has the privileges.
    Permanent { program: ProgramId },
    /// Threads created while demoted would have this priority without Usher. Written only when the
    /// journal is rewritten; otherwise the first `priority` line has that priority.
    Inborn {
        program: ProgramId,
        before: Priority,
    },
    /// A session's autogroup that has this nice value is about to get 19.
    Autogroup {
        program: ProgramId,
        /// The kernel's number of the autogroup, which is unique within a boot.
        autogroup: u64,
        session: i32,
        nice: i32,
    },
    /// A directory of the program was removed before the program departed.
    Gone { program: ProgramId, dir: PathBuf },
    /// The program has departed; nothing of it is left to undo.
    Close { program: ProgramId },
}
