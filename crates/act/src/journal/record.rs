// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types of the lines of a journal, which serde converts to and from JSON. The first line is a
//! [`JournalHeader`]. Each further line is a [`Record`], which describes how to undo one change and
//! is written before this change. Usher writes version 2 of the format. Usher also reads and undoes
//! version 1, which has more kinds of lines.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, Demotion, ProcessId, ProgramId};

/// The version of the format in which journals are written. Usher also reads and undoes journals of
/// version 1. Version 1 has additional lines for cpusets, for directories of the instance itself
/// and for enabled controllers, which Usher does not make any more.
pub const VERSION: u32 = 2;

/// The first line: identifies the instance and the format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalHeader {
    /// The version of the format.
    pub version: u32,
    /// The identifier of the boot in which the journal was begun.
    pub boot: String,
    /// The Usher process that writes the journal.
    pub owner: ProcessId,
    /// Inode of the PID namespace to which the journal's pids belong.
    pub pid_namespace: u64,
}

/// The purpose of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirKind {
    /// A directory of cgroup v2, by which processes are found and frozen. A directory of a version
    /// 1 journal may also restrict CPUs.
    V2,
    /// A transient systemd scope that Usher requested, or (version 1) a directory in such a scope.
    /// Surviving processes stay there, because their former cgroup belongs to systemd.
    Scope,
    /// The cgroup v2 in which an attached program was found, if the cgroup contains no other
    /// processes. The undo thaws this cgroup only if a `freeze` line is recorded.
    Unit,
    /// A directory of cgroup v1 with the cpuset controller. Only version 1 made such directories.
    CpusetV1,
    /// A directory of cgroup v1 with the cpu controller, for programs that yield by `cpu.idle`.
    CpuV1,
}

impl DirKind {
    /// Returns whether the directory serves to find and freeze processes.
    pub fn is_v2(self) -> bool {
        matches!(self, Self::V2 | Self::Scope | Self::Unit)
    }

    /// Returns whether Usher moves processes into a directory of this kind, and the undo moves them
    /// out.
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
    /// The CPUs that the program could use before the directory restricted them; empty if this
    /// directory does not restrict CPUs.
    pub wide: CpuSet,
}

/// A thread. The start time distinguishes the thread from a later thread with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadId {
    /// The pid of the thread's process.
    pub pid: i32,
    /// Number of the thread.
    pub tid: i32,
    /// Start time of the thread, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ThreadId {
    /// Returns the range of keys of all threads that ever had this thread number in this process.
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
    /// The process's directory in cgroup v2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v2: Option<PathBuf>,
    /// The process's directory in the v1 hierarchy with the cpuset controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpuset: Option<PathBuf>,
    /// The process's directory in the v1 hierarchy with the cpu controller.
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
    /// Real-time priority of the thread; 0 if its policy has no real-time priority.
    #[serde(default)]
    pub realtime: u32,
    /// Whether the thread's children start without real-time priorities.
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
    /// The first line of the journal.
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
    /// A directory is about to be made for a program, or an existing directory is about to be used
    /// as the program's home.
    Dir {
        program: ProgramId,
        #[serde(flatten)]
        dir: Dir,
    },
    /// A process is about to be moved into the program's cgroups or, without cgroups, only recorded
    /// as a member. The former cgroups of the process are `from`.
    Member {
        program: ProgramId,
        process: ProcessId,
        from: CgroupPaths,
    },
    /// Threads of the program are about to get this affinity mask.
    Mask { program: ProgramId, cpus: CpuSet },
    /// A thread is about to get a mask of Usher's for the first time; its present mask is recorded.
    Thread {
        program: ProgramId,
        thread: ThreadId,
        before: CpuSet,
    },
    /// The program itself gave a thread this mask, which replaces the recorded former mask of the
    /// thread.
    Own {
        program: ProgramId,
        thread: ThreadId,
        mask: CpuSet,
    },
    /// `before` is the mask that threads which were created with a mask of Usher's would have
    /// without Usher. If there is no such line, the mask of the first `thread` line is used
    /// instead.
    Unbound { program: ProgramId, before: CpuSet },
    /// A second process tree is about to join the program. Threads of this tree that were created
    /// with a mask of Usher's would have the mask `before` without Usher, instead of the mask of
    /// an `unbound` line.
    Joined {
        program: ProgramId,
        process: ProcessId,
        before: CpuSet,
    },
    /// All threads of the program have their own masks again.
    Unmask { program: ProgramId },
    /// A process is about to be sent `SIGSTOP`.
    Stop {
        program: ProgramId,
        process: ProcessId,
    },
    /// The cgroup that the program was found in is about to be frozen.
    Freeze { program: ProgramId },
    /// All processes of the program that Usher had stopped or frozen (lines `Stop` and `Freeze`)
    /// run again.
    Continue { program: ProgramId },
    /// Threads of the program are about to be demoted to this degree.
    Demote { program: ProgramId, to: Demotion },
    /// A thread is about to be demoted; its present priority is recorded.
    Priority {
        program: ProgramId,
        thread: ThreadId,
        before: Priority,
    },
    /// Nice values of the program's threads are about to be changed, and this instance lacks the
    /// privileges to restore them. The undo restores the nice values if it has these privileges.
    Permanent { program: ProgramId },
    /// The priority that threads which were created while the program was demoted would have
    /// without Usher. This line is written only when the journal is rewritten. Without this line,
    /// the priority of the first `priority` line is used instead.
    Inborn {
        program: ProgramId,
        before: Priority,
    },
    /// A session's autogroup is about to get the nice value 19; its present nice value is recorded.
    Autogroup {
        program: ProgramId,
        /// The kernel's number of the autogroup, which is unique within a boot.
        autogroup: u64,
        session: i32,
        nice: i32,
    },
    /// A directory of the program was removed before the program departed.
    Gone { program: ProgramId, dir: PathBuf },
    /// The program has departed, and none of its changes remains to be undone.
    Close { program: ProgramId },
}
