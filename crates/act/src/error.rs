// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong when the machine is changed.

use std::io;
use std::path::PathBuf;

use usher_model::{CpuSet, ProgramId};

/// Why something was not done. The machine is then as it was before, unless
/// the error says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// A file could not be read, written, made or removed.
    #[error("{doing} {path}: {source}")]
    File {
        /// What was being done, such as `writing`.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A process could not be acted on.
    #[error("{doing} process {pid}: {source}")]
    Process {
        /// What was being done, such as `moving`.
        doing: &'static str,
        /// To which process or thread.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no such process, or the number has gone to another one.
    #[error("process {pid} is gone: give the number of a running process")]
    Gone {
        /// Its number.
        pid: i32,
    },
    /// A process that must not be taken in.
    #[error("process {pid} cannot be managed: {reason}")]
    Refused {
        /// Its number.
        pid: i32,
        /// Why.
        reason: &'static str,
    },
    /// None of the CPUs asked for can be used by the program.
    #[error(
        "program {program} cannot be seated on CPUs {wanted}: it may run on CPUs {allowed} only, those that are online and allowed to it"
    )]
    NoCpus {
        /// Which program.
        program: ProgramId,
        /// What was asked for.
        wanted: CpuSet,
        /// What it could use.
        allowed: CpuSet,
    },
    /// The program has not been taken in, or was let go.
    #[error("program {0} is not managed here")]
    Unknown(ProgramId),
    /// The program has been taken in already.
    #[error("program {0} is managed already")]
    Taken(ProgramId),
    /// A program that has no cgroup to be stopped in as a whole.
    #[error("program {0} forks faster than its processes can be stopped: it goes on")]
    Storm(ProgramId),
    /// A process of the tree belongs to a program that was taken in.
    #[error("process {pid} is managed already, in program {program}")]
    Managed {
        /// Its number.
        pid: i32,
        /// In which program.
        program: ProgramId,
    },
    /// A line of a journal makes no sense; the others were undone.
    #[error("line {line} of journal {path} is corrupt and was left out: {reason}")]
    Corrupt {
        /// Which journal.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// Something of a program could not be taken back in time.
    #[error("undoing program {program}: {what}")]
    Left {
        /// Which program.
        program: ProgramId,
        /// What is left, and where.
        what: String,
    },
    /// systemd refused, or could not be reached.
    #[error("asking systemd for scope {unit}: {reason}")]
    Systemd {
        /// The scope.
        unit: String,
        /// What the bus said.
        reason: String,
    },
    /// The keeper could not be started, or gave up.
    #[error("starting the keeper {exe}: {reason}")]
    Keeper {
        /// The program that was started.
        exe: PathBuf,
        /// What happened.
        reason: String,
    },
}

/// Shorthand for an [`ActError::File`].
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
