// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that Usher seats: a program is a whole process tree.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::curve::Curve;

/// A managed program, numbered in the order of arrival; never used twice by
/// one daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProgramId(pub u64);

impl fmt::Display for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What makes two runs "the same program" for the profile store: what is
/// executed (its build id, or a hash of it) and the shape of its arguments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProgramKey {
    /// `build-id:…` or `hash:…` of the executable file.
    pub executable: String,
    /// Options verbatim, operands by kind and size.
    pub arguments: String,
}

/// How background work is kept out of the way of foreground work.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Regulation {
    /// Usher's own: within milliseconds, resource by resource, on a budget of
    /// delay.
    #[default]
    Usher,
    /// Paper 2's exponentially increasing interval.
    Eii,
    /// Paper 2's idle-period detection.
    Ipd,
}

impl Regulation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Usher, Self::Eii, Self::Ipd];

    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usher => "usher",
            Self::Eii => "eii",
            Self::Ipd => "ipd",
        }
    }
}

/// What is known of a program as it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Its number.
    pub id: ProgramId,
    /// Its name, for people: `--name`, else the command's file name.
    pub name: String,
    /// Weight of its NTT in the mean; 1 unless told, > 0.
    pub weight: f64,
    /// A curve from the profile store, with the bytes/s and bytes below.
    pub profile: Option<Curve>,
    /// Threads that busy-wait for one another, where that is known: on fewer
    /// cores than this the program collapses. 0: not known to spin.
    pub spinners: u32,
    /// Whether it waits actively ([`ProgramSample::active_wait`]), where
    /// earlier runs showed.
    ///
    /// [`ProgramSample::active_wait`]: crate::ProgramSample::active_wait
    #[serde(default)]
    pub active_wait: Option<bool>,
    /// Whether it ran already when it was taken in: the number of CPUs that it
    /// found at its start is past changing.
    #[serde(default)]
    pub ran_before: bool,
    /// Whether it can be stopped and continued without anybody seeing it, its
    /// parent included.
    #[serde(default)]
    pub stops_unseen: bool,
    /// LLC bytes that it uses when alone, where known.
    pub llc_bytes: Option<u64>,
    /// Memory bandwidth in GB/s that it uses when alone, where known.
    pub bandwidth_gbps: Option<f64>,
    /// Background work, and how it is regulated; `None`: foreground, which is
    /// seated.
    #[serde(default)]
    pub background: Option<Regulation>,
    /// CPUs that the program (or who started it) has bound itself to; it is
    /// seated within them or left alone. `None`: not bound.
    pub bound_to: Option<CpuSet>,
    /// CPUs that threads of the program chose by affinity masks of their own. The
    /// program gets no seat then: a seat may not contain them, and the program
    /// places its threads itself. `None`: no thread did.
    #[serde(default)]
    pub pinned_to: Option<CpuSet>,
    /// CPUs' worth of time that its cgroups allow it, > 0: more cores than this
    /// do not make it faster. `None`: no quota.
    #[serde(default)]
    pub cpu_quota: Option<f64>,
}

impl Program {
    /// CPUs that the planner assigns to the program: those that it pinned threads to,
    /// else those that it is bound to. Unpinned threads of a pinned program may run
    /// elsewhere.
    pub fn confined_to(&self) -> Option<&CpuSet> {
        self.pinned_to.as_ref().or(self.bound_to.as_ref())
    }
}

/// A program that has just come under management.
pub type Arrival = Program;
