// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error type of `usher-act`. Unless an error states otherwise, a failed change leaves the
//! machine in its former state.

use std::io;
use std::path::PathBuf;

use usher_model::{CpuSet, ProgramId, without_error_number};

/// The reason for which a change of the machine failed. Unless the variant states otherwise, the
/// machine is in its former state.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// A file could not be read, written, made or removed.
    #[error("{doing} {path}: {}", message_of(source))]
    File {
        /// The operation, such as `writing`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file or directory in the runtime directory could not be made or written.
    #[error("{doing} {path}: {}; {}", message_of(source), runtime_remedy(source))]
    RuntimeDir {
        /// The operation, such as `writing`.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// An operation on a process failed.
    #[error("{doing} process {pid}: {}", message_of(source))]
    Process {
        /// The operation, such as `moving`.
        doing: &'static str,
        /// The process or thread.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process does not exist any more, or its pid has been reused.
    #[error("process {pid} does not exist: give the pid of a running process")]
    Gone {
        /// Pid of the process.
        pid: i32,
    },
    /// Usher must not admit this process.
    #[error("process {pid} cannot be managed: {reason}")]
    Refused {
        /// Pid of the process.
        pid: i32,
        /// The reason.
        reason: &'static str,
    },
    /// A released program contained the process, and threads of it may still inherit values that
    /// Usher set. The caller should retry.
    #[error(
        "process {pid} cannot be managed yet: the process is still being released from another \
         managed program; try again"
    )]
    Departing {
        /// Pid of the process.
        pid: i32,
    },
    /// The program can use none of the requested CPUs.
    #[error(
        "program {program} cannot get a seat on CPUs {wanted}: its affinity masks and cgroups \
         allow only the online CPUs {allowed}"
    )]
    NoCpus {
        /// The program.
        program: ProgramId,
        /// The requested CPUs.
        wanted: CpuSet,
        /// The CPUs that the program can use.
        allowed: CpuSet,
    },
    /// The program was not admitted, or was released.
    #[error("Usher does not manage a program with the number {0}")]
    Unknown(ProgramId),
    /// The program is admitted already.
    #[error("Usher already manages a program with the number {0}")]
    Taken(ProgramId),
    /// A program without a cgroup forks faster than its processes can be stopped.
    #[error("program {0} keeps running, because it forks faster than Usher can stop its processes")]
    Storm(ProgramId),
    /// A process of the tree belongs to an admitted program.
    #[error("process {pid} already belongs to the managed program {program}")]
    Managed {
        /// Pid of the process.
        pid: i32,
        /// The program to which the process belongs.
        program: ProgramId,
    },
    /// The largest number of process trees has joined the program.
    #[error(
        "{trees} process trees have joined program {program}, which is the largest number: attach \
         the process without a group, or with another group"
    )]
    TooManyTrees {
        /// The program.
        program: ProgramId,
        /// The number of trees.
        trees: usize,
    },
    /// A line of a journal is invalid; the other lines are undone.
    #[error(
        "line {line} of the journal {path} is damaged: a change that it records is not undone, \
         and all other changes are; restart programs that keep too few CPUs or a low priority"
    )]
    DamagedLine {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A journal names a path that the undo must not change; all other changes are undone.
    #[error(
        "the journal {journal} names {path}, which Usher does not change, because {reason}; all \
         other changes are undone"
    )]
    ForeignPath {
        /// The journal.
        journal: PathBuf,
        /// The path that the journal names.
        path: PathBuf,
        /// Why the path is not changed.
        reason: String,
    },
    /// Changes of a program could not be undone in time.
    #[error("undoing program {program}: {what}")]
    NotUndone {
        /// The program.
        program: ProgramId,
        /// The remaining changes, with the affected paths or threads.
        what: String,
    },
    /// The mounted procfs shows other processes than those that this process can signal.
    #[error(
        "the procfs at {} belongs to another PID namespace: mount the procfs of this namespace, for \
         example by 'unshare --mount-proc'",
        root.display()
    )]
    ForeignProc {
        /// The directory of the procfs.
        root: PathBuf,
    },
    /// systemd refused a request, or could not be reached.
    #[error("requesting the scope {unit} from systemd: {reason}")]
    Systemd {
        /// The scope.
        unit: String,
        /// The error from the bus.
        reason: String,
    },
    /// The keeper could not be started, or ended before it was ready.
    #[error("starting the keeper process {exe}: {reason}")]
    Keeper {
        /// The executable of the keeper.
        exe: PathBuf,
        /// The cause of the failure.
        reason: String,
    },
}

impl ActError {
    /// Returns whether the error means that changes remain which a later attempt may undo.
    pub fn is_not_undone(&self) -> bool {
        matches!(self, Self::NotUndone { .. })
    }

    /// Returns whether the error is a part of a journal that no attempt can undo, while the rest of
    /// the journal is undone.
    pub(crate) fn is_ignored_record(&self) -> bool {
        matches!(self, Self::DamagedLine { .. } | Self::ForeignPath { .. })
    }
}

/// Returns the text of an error without Rust's " (os error 28)".
pub(crate) fn message_of(error: &io::Error) -> String {
    without_error_number(&error.to_string())
}

/// Returns what a user can do when Usher cannot make or write files in its runtime directory.
fn runtime_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space on this file system, or set USHER_RUNTIME_DIR or --runtime-dir to a \
             directory on another file system"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "set USHER_RUNTIME_DIR or --runtime-dir to a directory that only this user can write to"
        }
        _ => "set USHER_RUNTIME_DIR or --runtime-dir to another directory",
    }
}

/// Makes an [`ActError::RuntimeDir`].
pub(crate) fn runtime_error(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> ActError {
    let path = path.into();
    move |source| ActError::RuntimeDir {
        doing,
        path,
        source,
    }
}

/// Makes an [`ActError::File`].
pub(crate) fn file_error(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> ActError {
    let path = path.into();
    move |source| ActError::File {
        doing,
        path,
        source,
    }
}

/// Combines the errors of a change of one program into one error.
pub(crate) fn join(program: ProgramId, mut errors: Vec<ActError>) -> ActError {
    match errors.len() {
        1 => errors.remove(0),
        _ => ActError::NotUndone {
            program,
            what: errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "),
        },
    }
}
