// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an engine is told, and how it fails.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use usher_act::{ActConfig, ActError};
use usher_control::RecordError;
use usher_model::{CpuSet, ProcessTree, ProgramId, ProgramKey, Regulation, Topology};

use usher_policy::Policy;
use usher_probe::{ProbeError, Roots};
use usher_store::StoreError;

use super::softly::SoftSeats;
use crate::launch::{LaunchError, OWN_FAILURE};

/// What an [`crate::engine::Engine`] works with.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The machine as it is planned for.
    pub topology: Topology,
    /// Where to act.
    pub act: ActConfig,
    /// Where the kernel's file systems are.
    pub roots: Roots,
    /// What is remembered of programs, and where.
    pub profiles: ProfileUse,
    /// Where to record what the loop sees and decides, for a replay.
    pub record: Option<PathBuf>,
    /// Names of always-on services, besides the usual ones: what they use is
    /// not foreground's.
    pub ignore: Vec<String>,
    /// A scheduler that may keep seats, where the policy lets it.
    pub soft: Option<Arc<dyn SoftSeats>>,
    /// The process that undoes everything when this one dies.
    pub keeper: Option<KeeperCommand>,
    /// How to plan the machine anew when CPUs come online that `topology` does
    /// not contain; `None`: such CPUs are not used.
    pub remake: Option<Remake>,
    /// An eventfd that is written to when the loop has ended, for whatever
    /// reason, and everything is undone.
    pub ended: Option<Arc<OwnedFd>>,
    /// Programs that one user other than root may have managed at a time.
    pub programs_per_user: usize,
    /// Entries of the log of who sat where that are kept; the oldest go when
    /// there are more.
    pub log_entries_max: usize,
}

impl EngineConfig {
    /// The usual places, nothing remembered, recorded or kept.
    pub fn new(topology: Topology, act: ActConfig) -> Self {
        Self {
            topology,
            act,
            roots: Roots::default(),
            profiles: ProfileUse::default(),
            record: None,
            ignore: Vec::new(),
            soft: None,
            keeper: None,
            remake: None,
            ended: None,
            programs_per_user: 256,
            log_entries_max: 100_000,
        }
    }
}

/// Reads the machine again and makes a policy for it.
#[derive(Clone)]
pub struct Remake(Arc<MakePlan>);

type MakePlan = dyn Fn() -> Result<(Topology, Box<dyn Policy + Send>), String> + Send + Sync;

impl Remake {
    /// That function, which states in a sentence why it failed.
    pub fn new(
        make: impl Fn() -> Result<(Topology, Box<dyn Policy + Send>), String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }

    pub(super) fn make(&self) -> Result<(Topology, Box<dyn Policy + Send>), String> {
        (self.0)()
    }
}

impl std::fmt::Debug for Remake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Remake")
    }
}

/// The use made of the profile store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileUse {
    /// The store's file; `None`: in memory, forgotten at the end.
    pub store: Option<PathBuf>,
    /// Whether programs are planned by what earlier runs taught.
    pub recall: bool,
    /// Whether this run teaches.
    pub learn: bool,
}

impl Default for ProfileUse {
    fn default() -> Self {
        Self {
            store: None,
            recall: true,
            learn: true,
        }
    }
}

/// How to start a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperCommand {
    /// The program, this one as a rule.
    pub exe: PathBuf,
    /// Its arguments before those that the keeper needs: `keeper`.
    pub subcommand: Vec<OsString>,
    /// What the keeper executes when this process died in disorder and all is
    /// undone; empty: nothing.
    pub respawn: Vec<OsString>,
}

/// A program to be managed.
#[derive(Debug, Clone)]
pub struct Adopt {
    /// Its name for people; `None`: the command's file name.
    pub name: Option<String>,
    /// Its command line, as far as it is known.
    pub argv: Vec<OsString>,
    /// Its working directory, which its operands are relative to.
    pub cwd: Option<PathBuf>,
    /// Variables that it is given besides its launcher's.
    pub env: BTreeMap<OsString, OsString>,
    /// Weight of its NTT in the mean, > 0.
    pub weight: f64,
    /// Its heartbeat page.
    pub heartbeat: Option<PathBuf>,
    /// Background work, and how it is regulated; `None`: it is seated.
    pub background: Option<Regulation>,
    /// CPUs to seat it within, besides what its affinity allows.
    pub bound_to: Option<CpuSet>,
    /// What it is for the profile store; `None`: found out from the command.
    pub key: Option<ProgramKey>,
}

impl Adopt {
    /// A program of weight 1 of which the command is known.
    pub fn new(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            name: None,
            argv: argv.into_iter().map(Into::into).collect(),
            cwd: None,
            env: BTreeMap::new(),
            weight: 1.0,
            heartbeat: None,
            background: None,
            bound_to: None,
            key: None,
        }
    }

    /// With this name.
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

/// A program that has come under management.
#[derive(Debug, Clone, PartialEq)]
pub struct Adopted {
    /// Its number.
    pub id: ProgramId,
    /// Where it lives.
    pub home: ProcessTree,
    /// What it is for the profile store, where that could be found out.
    pub key: Option<ProgramKey>,
    /// The CPUs that it was seated on; `None`: left to the kernel.
    pub seat: Option<CpuSet>,
    /// What could not be done for it, one sentence each.
    pub warnings: Vec<String>,
}

/// Why an engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The machine could not be changed.
    #[error(transparent)]
    Act(#[from] ActError),
    /// The program cannot be watched.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// There is no memory for a profile store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A program could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// There is no such process.
    #[error("process {pid}: there is no such process; give the number of a running one")]
    Gone {
        /// Its number.
        pid: i32,
    },
    /// The process is somebody else's.
    #[error(
        "process {pid} belongs to user {owner}, not to user {asking}: only root manages other users' programs"
    )]
    NotYours {
        /// Its number.
        pid: i32,
        /// Whose it is.
        owner: u32,
        /// Who asked.
        asking: u32,
    },
    /// A thread of the kernel's.
    #[error("process {pid} is a kernel thread: only programs are managed")]
    KernelThread {
        /// Its number.
        pid: i32,
    },
    /// It, or an ancestor of it, is managed.
    #[error("process {pid} is managed already, as program {id}")]
    Managed {
        /// Its number.
        pid: i32,
        /// As which program.
        id: ProgramId,
    },
    /// Usher itself, or what it was started by.
    #[error("process {pid} cannot be managed: it is {what}")]
    Own {
        /// Its number.
        pid: i32,
        /// What it is.
        what: &'static str,
    },
    /// No managed program has this number.
    #[error("program {0} is not managed here: 'usher status' lists those that are")]
    Unknown(ProgramId),
    /// A weight out of range.
    #[error("the weight of '{name}' must be a number from 0.001 to 1000, not {weight}")]
    Weight {
        /// Of which program.
        name: String,
        /// What was given.
        weight: f64,
    },
    /// The heartbeat page cannot be used.
    #[error("the heartbeat page '{}' cannot be used: {reason}", path.display())]
    Heartbeat {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// One user has as many programs managed as one user may have.
    #[error(
        "user {uid} has {limit} programs managed, which is the quota 'programs per user'; detach one ('usher detach') or wait until one has ended"
    )]
    TooMany {
        /// Who.
        uid: u32,
        /// How many are allowed.
        limit: usize,
    },
    /// A file of `/proc` or `/sys` that could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The record could not be begun.
    #[error("recording to {}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RecordError,
    },
    /// A descriptor or a thread could not be had.
    #[error("starting the control loop: {0}")]
    Start(std::io::Error),
    /// The engine has been stopped.
    #[error("the engine has been stopped")]
    Stopped,
}

impl EngineError {
    /// The exit status that says so: 126 and 127 for programs that cannot be
    /// executed or found, 125 otherwise.
    pub fn code(&self) -> u8 {
        match self {
            Self::Launch(error) => error.code(),
            _ => OWN_FAILURE,
        }
    }
}
