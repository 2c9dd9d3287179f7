// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed programs: a program is a whole process tree with an identifier and the properties that
//! the policy knows when the program arrives. The module also contains the key of the profile
//! store.
//!
//! The types are plain values. Weights and quotas are positive, but not checked here.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::curve::Curve;

/// Identifier of a managed program. Numbers rise in the order of arrival; a daemon never uses a
/// number twice.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct ProgramId(pub u64);

impl fmt::Display for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Key of the profile store: two runs with the same executable (its build id, or a hash) and the
/// same shape of arguments are the same program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProgramKey {
    /// `build-id:…` or `hash:…` of the executable file.
    pub executable: String,
    /// The arguments: options verbatim, and the kind and size of each operand.
    pub arguments: String,
}

/// Method that keeps background work from slowing foreground work.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Regulation {
    /// Usher's own method: it reacts within milliseconds, treats each resource separately and
    /// spends a delay budget.
    #[default]
    Usher,
    /// Paper 2's exponentially increasing interval.
    Eii,
    /// Paper 2's idle-period detection.
    Ipd,
}

impl Regulation {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Usher, Self::Eii, Self::Ipd];

    /// The method's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usher => "usher",
            Self::Eii => "eii",
            Self::Ipd => "ipd",
        }
    }
}

/// How well a stored profile matches a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileMatch {
    /// The profile is of the same executable and the same arguments.
    #[default]
    Exact,
    /// The profile is of the same executable with other arguments. Its rates have another unit, and
    /// its shape is less certain.
    OtherArguments,
}

/// Properties of a program that are known when it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Identifier.
    pub id: ProgramId,
    /// Name for people: `--name`, else the command's file name.
    pub name: String,
    /// Weight of the program's NTT in the mean, > 0; 1 by default.
    pub weight: f64,
    /// Curve from the profile store, together with `llc_bytes` and `bandwidth_gbps`.
    pub profile: Option<Curve>,
    /// Whether the profile is of this program, or of other arguments.
    #[serde(default)]
    pub profile_match: ProfileMatch,
    /// Number of threads known to busy-wait for one another. On fewer cores than this number, the
    /// program slows down disproportionately. 0: no thread is known to busy-wait.
    pub spinners: u32,
    /// The value of [`ProgramSample::active_wait`] in earlier runs of the program; `None`: unknown.
    ///
    /// [`ProgramSample::active_wait`]: crate::ProgramSample::active_wait
    #[serde(default)]
    pub active_wait: Option<bool>,
    /// Whether the program was already running when Usher attached to it. If true, the program read
    /// the number of CPUs at its start, before Usher could restrict the program to a seat.
    #[serde(default)]
    pub ran_before: bool,
    /// Whether the program can be stopped and continued without any other process noticing, not
    /// even the program's parent.
    #[serde(default)]
    pub stops_unseen: bool,
    /// LLC bytes that the program uses when alone, where known.
    pub llc_bytes: Option<u64>,
    /// Memory bandwidth in GB/s that the program uses when alone, where known.
    pub bandwidth_gbps: Option<f64>,
    /// Regulation of the program as background work; `None`: the program is foreground work and
    /// gets a seat.
    #[serde(default)]
    pub background: Option<Regulation>,
    /// CPUs to which the program, or the process that started it, has bound the whole program. The
    /// program gets a seat within these CPUs, or no seat. `None`: not bound.
    pub bound_to: Option<CpuSet>,
    /// CPUs that threads of the program pinned themselves to by affinity masks. A program with
    /// pinned threads gets no seat, because a seat might exclude the CPUs that its threads are
    /// pinned to. `None`: no thread is pinned.
    #[serde(default)]
    pub pinned_to: Option<CpuSet>,
    /// CPU quota of the program's cgroups in CPUs (1.5 permits 1.5 s of CPU time per second), > 0.
    /// More cores than the quota do not make the program faster. `None`: no quota.
    #[serde(default)]
    pub cpu_quota: Option<f64>,
    /// Number of physical cores of the program's seat, at least 1, if its user has fixed it. The
    /// seat then needs no profile, and never changes its size. `None`: the policy chooses the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// How much the policy may slow down this run in order to measure the program on fewer cores;
    /// `None` before the first ordinary run, so that this run is not slowed down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation: Option<VariationBudget>,
}

/// The time that a run may lose to deliberate variation of its seat, with what is known about the
/// program's ordinary runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VariationBudget {
    /// Time that the run may lose, in seconds; 0 if earlier runs have used up the time.
    pub seconds: f64,
    /// Duration of an ordinary run, in seconds.
    pub usual_seconds: f64,
    /// CPUs that the program uses in an ordinary run if no other program uses the machine.
    pub usual_cpus: f64,
    /// Duration of an ordinary run relative to its estimated duration without waits for CPUs, at
    /// least 1; 1 if unknown.
    #[serde(default = "no_slowdown")]
    pub usual_slowdown: f64,
}

fn no_slowdown() -> f64 {
    1.0
}

impl Program {
    /// Returns whether the store has a profile of exactly this program.
    pub fn has_own_profile(&self) -> bool {
        self.profile.is_some() && self.profile_match == ProfileMatch::Exact
    }

    /// Returns the CPUs that the planner assigns to the program: the CPUs that its threads are
    /// pinned to, else the CPUs that the program is bound to. Unpinned threads of a pinned program
    /// may run elsewhere.
    pub fn confined_to(&self) -> Option<&CpuSet> {
        self.pinned_to.as_ref().or(self.bound_to.as_ref())
    }
}

/// A program that Usher has just begun to manage.
pub type Arrival = Program;

/// The numbers of CPUs of the copies that launchers inside a program started in an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCopies {
    /// Number of CPUs of the smallest copy, at least 1.
    pub cpus_per_copy: u32,
    /// Number of CPUs of the whole program at that time.
    pub program_cpus: u32,
}
