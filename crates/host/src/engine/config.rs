// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of an engine, the options of a program that it takes over, and the errors with
//! which the engine rejects requests. This file contains only data and defaults; the engine itself
//! is in `engine/mod.rs`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use serde::{Deserialize, Serialize};
use usher_act::{ActConfig, ActError};
use usher_control::RecordError;
use usher_model::{CpuSet, ProcessTree, ProgramId, ProgramKey, Regulation, Topology};

use usher_policy::Policy;
use usher_probe::{ProbeError, Roots};
use usher_store::StoreError;

use super::log::LogEntry;
use super::soft_seats::SoftSeats;
use crate::launch::{LaunchError, OWN_FAILURE};

/// Configuration of an [`crate::engine::Engine`].
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The machine for which the policy plans.
    pub topology: Topology,
    /// Configuration of the actuator.
    pub act: ActConfig,
    /// The roots of the kernel's file systems.
    pub roots: Roots,
    /// The use of the profile store.
    pub profiles: ProfileUse,
    /// CPUs that unmanaged programs may use beside a repetition that yields a profile sample;
    /// `None` for the default of [`crate::quiet`].
    pub other_cpus_max: Option<f64>,
    /// The file in which observations and decisions are recorded for a replay.
    pub record: Option<PathBuf>,
    /// Names of always-on services, in addition to the default list. The use of CPUs and devices by
    /// these services does not count as foreground.
    pub ignore: Vec<String>,
    /// A sched_ext scheduler that implements soft seats, if the policy permits soft seats.
    pub soft: Option<Arc<dyn SoftSeats>>,
    /// How to start the keeper, which undoes all changes when this process dies.
    pub keeper: Option<KeeperCommand>,
    /// Makes a new topology and policy when CPUs come online that `topology` does not contain. If
    /// this is `None`, such CPUs are not used.
    pub policy_factory: Option<PolicyFactory>,
    /// An eventfd to which the engine writes when the loop has ended for any reason and all changes
    /// are undone.
    pub ended: Option<Arc<OwnedFd>>,
    /// Whether copies that a launcher inside a program starts are recognised and get parts of the
    /// program's seat.
    pub places_copies: bool,
    /// Maximum number of managed programs per user other than root.
    pub programs_per_user: usize,
    /// Maximum number of entries of the placement log; the oldest entries are dropped.
    pub log_entries_max: usize,
    /// The channel that receives each entry of the placement log. An entry is lost if the channel is
    /// full.
    pub changes: Option<SyncSender<LogEntry>>,
}

impl EngineConfig {
    /// Creates a configuration with the default paths, without profile store, recording and keeper.
    pub fn new(topology: Topology, act: ActConfig) -> Self {
        Self {
            topology,
            act,
            roots: Roots::default(),
            profiles: ProfileUse::default(),
            other_cpus_max: None,
            record: None,
            ignore: Vec::new(),
            soft: None,
            keeper: None,
            policy_factory: None,
            ended: None,
            places_copies: false,
            programs_per_user: 256,
            log_entries_max: 100_000,
            changes: None,
        }
    }
}

/// Reads the machine again and makes a policy for it.
#[derive(Clone)]
pub struct PolicyFactory(Arc<MakePlan>);

type MakePlan = dyn Fn() -> Result<(Topology, Box<dyn Policy + Send>), String> + Send + Sync;

impl PolicyFactory {
    /// Wraps a function that returns an error message on failure.
    pub fn new(
        make: impl Fn() -> Result<(Topology, Box<dyn Policy + Send>), String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }

    pub(super) fn make(&self) -> Result<(Topology, Box<dyn Policy + Send>), String> {
        (self.0)()
    }
}

impl std::fmt::Debug for PolicyFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PolicyFactory")
    }
}

/// The process of a program that is about to be managed, for a [`ProgramReview`].
#[derive(Debug, Clone, Copy)]
pub struct ReviewedProcess<'a> {
    /// Pid of the process.
    pub pid: i32,
    /// Real user id of the process.
    pub uid: u32,
    /// The executable that the process is about to run; `None` if the process runs its program
    /// already, or if the executable cannot be determined.
    pub executable: Option<&'a Path>,
    /// Whether the process waits before its `exec`.
    pub held: bool,
}

/// Changes the options of a program before it is managed, or rejects the program. The review runs
/// in the thread that makes the request, after the owner of the process was checked.
#[derive(Clone)]
pub struct ProgramReview(Arc<Review>);

type Review =
    dyn Fn(&ReviewedProcess<'_>, &mut AdoptOptions) -> Result<Option<String>, String> + Send + Sync;

impl ProgramReview {
    /// Wraps a function. It returns the reason of its changes for `usher explain`, if it changed
    /// the options, or the reason for the rejection as an error.
    pub fn new(
        review: impl Fn(&ReviewedProcess<'_>, &mut AdoptOptions) -> Result<Option<String>, String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(review))
    }

    pub(super) fn apply(
        &self,
        process: &ReviewedProcess<'_>,
        adopt: &mut AdoptOptions,
    ) -> Result<Option<String>, String> {
        (self.0)(process, adopt)
    }
}

impl std::fmt::Debug for ProgramReview {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProgramReview")
    }
}

/// How an engine uses the profile store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileUse {
    /// The store's file. If this is `None`, the store is in memory and is discarded at the end.
    pub store: Option<PathBuf>,
    /// Whether plans use profiles of earlier runs.
    pub recall: bool,
    /// Whether this run adds measurements.
    pub learn: bool,
    /// Whether runs beside other programs add measurements, from which the effect of the waits for
    /// CPUs is removed.
    pub correct: bool,
    /// Whether the policy may vary the seats of known programs in order to measure them.
    pub vary: bool,
}

impl ProfileUse {
    /// Returns a use in which no profile is read and no measurement is added.
    pub fn none() -> Self {
        Self {
            recall: false,
            learn: false,
            ..Self::default()
        }
    }
}

impl Default for ProfileUse {
    fn default() -> Self {
        Self {
            store: None,
            recall: true,
            learn: true,
            correct: false,
            vary: false,
        }
    }
}

/// How to start a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperCommand {
    /// The executable, usually that of this process.
    pub exe: PathBuf,
    /// The subcommand, such as `keeper`, which precedes the keeper's own arguments.
    pub subcommand: Vec<OsString>,
    /// The command that the keeper executes after its undo if this process died without cleaning
    /// up. If this is empty, the keeper executes no command.
    pub respawn: Vec<OsString>,
}

/// The options of a program to be managed.
#[derive(Debug, Clone)]
pub struct AdoptOptions {
    /// Display name of the program. If this is `None`, the command's file name is used.
    pub name: Option<String>,
    /// Command line of the program; may be empty.
    pub argv: Vec<OsString>,
    /// Working directory of the program; operands are relative to it.
    pub cwd: Option<PathBuf>,
    /// Environment variables of the program in addition to its launcher's.
    pub env: BTreeMap<OsString, OsString>,
    /// Weight of its NTT in the mean, 0.001 to 1000.
    pub weight: f64,
    /// Number of physical cores of its seat, at least 1; `None`: the policy chooses the number.
    /// Background programs have no seat.
    pub cores: Option<u32>,
    /// Heartbeat page of the program.
    pub heartbeat: Option<PathBuf>,
    /// The regulation of a background program. `None` for a foreground program, which gets a seat.
    pub background: Option<Regulation>,
    /// CPUs to which the seats of the program are restricted, in addition to its affinity mask. The
    /// set must not be empty, and all its CPUs must be online.
    pub bound_to: Option<CpuSet>,
    /// The group of processes that are one program, such as the tasks of a step of a batch system.
    /// If an attached program of the same user and group is managed, the process joins it.
    pub group: Option<String>,
    /// The job of a batch system to which the program belongs, with its step.
    pub job: Option<String>,
    /// Whether a process that waits before its `exec` stays in its cgroup.
    pub in_place: bool,
    /// Whether the process must belong to the requesting user, even if this user is root.
    pub is_of_user: bool,
    /// Key of the program in the profile store. If this is `None`, the key is derived from the
    /// command.
    pub key: Option<ProgramKey>,
    /// The variables that set the number of threads of the program; `None`: its launcher sets none.
    pub hints: Option<HintRequest>,
    /// Changes these options, or rejects the program, when its executable is known.
    pub review: Option<ProgramReview>,
}

/// Variables such as `OMP_NUM_THREADS` that a launcher sets for a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HintRequest {
    /// The launcher requests the number of threads for a program that has not executed its file
    /// yet.
    Choose {
        /// Variables that the launcher can set: the user has not set them.
        variables: Vec<String>,
        /// Whether the variables are set even if no copies of the program are known.
        always: bool,
        /// CPUs that the program may use by its affinity mask and CPU quotas, without its seat.
        cpus: u32,
    },
    /// The variables were set when the program was launched.
    Given(ThreadHints),
}

/// The variables that set the number of threads of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadHints {
    /// The value of the variables, at least 1.
    pub threads: u32,
    /// The names of the variables.
    pub variables: Vec<String>,
    /// Whether the value is the number of CPUs of a copy in an earlier run, instead of the number
    /// of CPUs of the program.
    pub from_copies: bool,
}

impl AdoptOptions {
    /// Creates the options of a program with weight 1 and a known command.
    pub fn new(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            name: None,
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: BTreeMap::new(),
            weight: 1.0,
            cores: None,
            heartbeat: None,
            background: None,
            bound_to: None,
            group: None,
            job: None,
            in_place: false,
            is_of_user: false,
            key: None,
            hints: None,
            review: None,
        }
    }

    /// Sets the display name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    pub(super) fn display_name(&self) -> String {
        let file = self.argv.first().map(PathBuf::from);
        let file = file.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        self.name
            .clone()
            .or(file)
            .unwrap_or_else(|| "unnamed".to_owned())
    }
}

/// A program that is managed now.
#[derive(Debug, Clone, PartialEq)]
pub struct AdoptedProgram {
    /// Number of the program.
    pub id: ProgramId,
    /// Processes and cgroup of the program.
    pub home: ProcessTree,
    /// Key of the program in the profile store, if the key could be derived.
    pub key: Option<ProgramKey>,
    /// The CPUs of the program's seat; `None` if the program has no seat.
    pub seat: Option<CpuSet>,
    /// The problems of the program's admission, one sentence each.
    pub warnings: Vec<String>,
    /// The regulation of a background program.
    pub background: Option<Regulation>,
    /// The variables that the launcher sets for the program, if any.
    pub hints: Option<ThreadHints>,
    /// Whether the process has joined a program that was managed before.
    pub joined: bool,
}

/// The reason why an engine rejected a request.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The machine could not be changed.
    #[error(transparent)]
    Act(#[from] ActError),
    /// The program cannot be observed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The profile store cannot be opened, not even in memory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A program could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The process does not exist.
    #[error("process {pid} does not exist: give the pid of a running process")]
    Gone {
        /// Pid of the process.
        pid: i32,
    },
    /// The process has ended, and its parent has not read its exit status.
    #[error(
        "process {pid} has ended and remains as a zombie until its parent reads its exit status: \
         give the pid of a running process"
    )]
    Ended {
        /// Pid of the process.
        pid: i32,
    },
    /// The process belongs to another user.
    #[error(
        "process {pid} belongs to user {owner}, not to user {asking}: only root may manage the \
         programs of other users"
    )]
    NotYours {
        /// Pid of the process.
        pid: i32,
        /// Uid of the process's owner.
        owner: u32,
        /// The requesting user.
        asking: u32,
    },
    /// The process is a kernel thread.
    #[error("process {pid} is a kernel thread: Usher can manage only programs")]
    KernelThread {
        /// Pid of the kernel thread.
        pid: i32,
    },
    /// The process, or an ancestor of the process, is managed already.
    #[error("process {pid} already belongs to the managed program {id}")]
    Managed {
        /// Pid of the process.
        pid: i32,
        /// The managed program.
        id: ProgramId,
    },
    /// The process belongs to Usher itself.
    #[error("process {pid} cannot be managed, because it is {what}")]
    Own {
        /// Pid of the process.
        pid: i32,
        /// What the process does for Usher.
        what: &'static str,
    },
    /// A rule excludes the program.
    #[error("{reason}")]
    Ignored {
        /// The rule, as a sentence.
        reason: String,
    },
    /// No managed program has this number.
    #[error("the daemon manages no program {0}: 'usher status' lists the managed programs")]
    Unknown(ProgramId),
    /// The weight is out of range.
    #[error("the weight of '{name}' must be a number from 0.001 to 1000, not {weight}")]
    Weight {
        /// The program's name.
        name: String,
        /// The given weight.
        weight: f64,
    },
    /// The CPUs to which the program is to be bound are invalid.
    #[error("the process cannot be bound to the CPUs {cpus}: {reason}")]
    Bounds {
        /// The given CPUs.
        cpus: CpuSet,
        /// The cause, and the remedy.
        reason: String,
    },
    /// The heartbeat page cannot be used.
    #[error("the heartbeat page '{}' cannot be used: {reason}", path.display())]
    Heartbeat {
        /// Path of the page.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The user has reached the limit of managed programs.
    #[error(
        "user {uid} has {limit} managed programs, which is the quota 'programs per user'; detach \
         one of the programs ('usher detach') or wait until one has ended"
    )]
    TooMany {
        /// The user.
        uid: u32,
        /// The limit.
        limit: usize,
    },
    /// A file of `/proc` or `/sys` could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The record could not be started.
    #[error("recording observations and decisions to {}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: RecordError,
    },
    /// A descriptor or a thread could not be created.
    #[error("starting the control loop: {0}")]
    Start(std::io::Error),
    /// The engine has been stopped.
    #[error("the control loop has been stopped and accepts no more requests")]
    Stopped,
}

impl EngineError {
    /// Returns the exit status of Usher for this error: 126 for a program that cannot be executed,
    /// 127 for a program that is not found, otherwise 125.
    pub fn code(&self) -> u8 {
        match self {
            Self::Launch(error) => error.code(),
            _ => OWN_FAILURE,
        }
    }
}
