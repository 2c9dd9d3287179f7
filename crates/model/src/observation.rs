// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is seen of the machine and its programs at one moment.

use serde::{Deserialize, Serialize};

use crate::action::{Event, FailedAction};
use crate::cpuset::CpuSet;
use crate::metering::Metering;
use crate::program::ProgramId;

/// Where a figure of progress comes from, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgressSource {
    /// The program counts its own work on the heartbeat page.
    Heartbeat,
    /// Completed repetitions of the whole program.
    Repetition,
    /// OpenMP's tool interface: useful CPU time of the threads, waiting taken off.
    Ompt,
    /// Instructions retired, from the PMU.
    Instructions,
    /// CPU time less steal. A demand signal: it counts a spinner's turns as
    /// progress and so never justifies taking seats away.
    CpuTime,
}

impl ProgressSource {
    /// Whether a plan may rest on it.
    pub fn may_plan(self) -> bool {
        self != Self::CpuTime
    }

    /// How far the source is trusted before it has been checked against wall
    /// time, 0..1.
    pub fn confidence(self, spins: bool) -> f64 {
        match self {
            Self::Heartbeat | Self::Repetition => 1.0,
            Self::Ompt => 0.8,
            Self::Instructions => {
                if spins {
                    0.2
                } else {
                    0.7
                }
            }
            Self::CpuTime => 0.1,
        }
    }
}

impl std::fmt::Display for ProgressSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Heartbeat => "heartbeat",
            Self::Repetition => "repetitions",
            Self::Ompt => "ompt",
            Self::Instructions => "instructions",
            Self::CpuTime => "cpu-time",
        })
    }
}

/// Progress since the program arrived.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Units of work done; never falls while the source stays the same.
    pub total: f64,
    /// Where the figure comes from.
    pub source: ProgressSource,
    /// How far it is trusted for this program, 0..1.
    pub confidence: f64,
}

/// A figure that is trusted less than this is no ground for a plan.
pub const PLAN_CONFIDENCE_MIN: f64 = 0.5;

impl Progress {
    /// Whether a plan may rest on it: its source is one of work done, and it is
    /// trusted for this program.
    pub fn may_plan(&self) -> bool {
        self.source.may_plan() && self.confidence >= PLAN_CONFIDENCE_MIN
    }
}

/// One program at one moment. Totals count from its arrival.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramSample {
    /// Which program.
    pub id: ProgramId,
    /// CPU time of the whole tree in nanoseconds, finished members included.
    pub cpu_ns: u64,
    /// Time in nanoseconds during which at least one runnable thread waited
    /// for a CPU (PSI's `some`); `None` where the kernel does not tell.
    pub wait_ns: Option<u64>,
    /// Threads of the tree.
    pub threads: u32,
    /// Threads seen busy-waiting; 0 where none were, or where it is not known.
    pub spinners: u32,
    /// Whether its threads wait in a runtime (GNU OpenMP, MPI) that settles
    /// when it starts, by the CPUs that it finds then, whether to spin: the
    /// program collapses when it is narrowed below those later. `None`: not
    /// known yet.
    #[serde(default)]
    pub active_wait: Option<bool>,
    /// The best progress figure there is.
    pub progress: Option<Progress>,
    /// Whether its user stopped it (`SIGSTOP`) at some time since the last
    /// sample: its rate since then is not that of a running program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// Everything that a policy is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Monotonic time in nanoseconds, from any origin.
    pub at_ns: u64,
    /// CPUs that are online and may be used.
    pub usable: CpuSet,
    /// What has happened since the last observation, in order.
    pub events: Vec<Event>,
    /// Actions of the last decision that could not be carried out.
    pub failed: Vec<FailedAction>,
    /// The managed programs, by rising id; late or lost ones are missing, and
    /// all are where only the meter was asked for ([`crate::Look::Meter`]).
    pub programs: Vec<ProgramSample>,
    /// Who used what; `None` where there is no background work to regulate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metering: Option<Metering>,
}
