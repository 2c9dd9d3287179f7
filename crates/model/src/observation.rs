// SPDX-License-Identifier: MIT OR Apache-2.0
//! The input of a policy: the state of the machine and its programs at one moment, with progress
//! figures by source and the confidence in each source. All types of this module are plain values.
//! Times are in nanoseconds, confidences are fractions, 0..=1; the numbers of events and programs
//! are not limited.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::{Event, FailedAction};
use crate::cpuset::CpuSet;
use crate::metering::Metering;
use crate::program::ProgramId;

/// Sources of progress figures, in order from the best source to the worst.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ProgressSource {
    /// The program counts its own work on the heartbeat page.
    Heartbeat,
    /// Completed repetitions of the whole program. A repetition is a run of the command.
    Repetition,
    /// OpenMP's tool interface: useful CPU time of the threads, without waiting.
    Ompt,
    /// Instructions retired, from the PMU.
    Instructions,
    /// Bytes that the whole process tree has read and written. Used only for programs whose bytes
    /// were proportional to time in an earlier run.
    Bytes,
    /// CPU time minus steal time. CPU time shows how much the program wants to run, but includes
    /// the time of spinning threads. No plan is therefore based on CPU time.
    CpuTime,
}

impl ProgressSource {
    /// Returns whether a plan may be based on this source.
    pub fn may_plan(self) -> bool {
        self != Self::CpuTime
    }

    /// Confidence in the source, 0..1, before its figures have been checked against wall time.
    /// `spins`: whether threads of the program busy-wait.
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
            Self::Bytes => 0.7,
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
            Self::Bytes => "bytes",
            Self::CpuTime => "cpu-time",
        })
    }
}

/// CPU time of a program, and the time that its threads waited for CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemandReading {
    /// Time of the reading, in nanoseconds.
    pub at_ns: u64,
    /// CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// Time that runnable threads waited for a CPU, summed over all threads, in nanoseconds.
    pub delay_ns: u64,
    /// Whether no thread has ended since the previous reading. Otherwise, the last wait of the
    /// ended thread is missing.
    pub is_complete: bool,
}

/// Progress since the program arrived.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Units of work done; never decreases while the source stays the same.
    pub total: f64,
    /// Source of the figure.
    pub source: ProgressSource,
    /// Confidence in the source for this program, 0..1.
    pub confidence: f64,
}

/// Least confidence at which a plan may be based on a progress figure.
pub const PLAN_CONFIDENCE_MIN: f64 = 0.5;

impl Progress {
    /// Returns whether a plan may be based on this figure: its source must count work done, and the
    /// confidence must be at least [`PLAN_CONFIDENCE_MIN`].
    pub fn may_plan(&self) -> bool {
        self.source.may_plan() && self.confidence >= PLAN_CONFIDENCE_MIN
    }
}

/// Sample of one program. Totals count from the program's arrival.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramSample {
    /// The program.
    pub id: ProgramId,
    /// CPU time of the whole process tree in nanoseconds, including ended processes.
    pub cpu_ns: u64,
    /// Time in nanoseconds during which at least one runnable thread waited for a CPU (PSI's
    /// `some`); `None` where the kernel does not report it.
    pub wait_ns: Option<u64>,
    /// Number of threads in the process tree.
    pub threads: u32,
    /// Number of threads seen busy-waiting; 0 where none were seen or the number is unknown.
    pub spinners: u32,
    /// Whether the threads wait in a runtime (GNU OpenMP, MPI) that decides only at its start
    /// whether waiting threads spin. The runtime decides by the number of CPUs at its start. A
    /// program with such a runtime slows down severely when it is later restricted to fewer CPUs.
    /// `None`: not known yet.
    #[serde(default)]
    pub active_wait: Option<bool>,
    /// The best progress figure available.
    pub progress: Option<Progress>,
    /// Whether the program was stopped by its user (`SIGSTOP`) at any time since the last sample.
    /// If true, the progress since the last sample is not that of a running program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// Input of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Monotonic time in nanoseconds, with an arbitrary origin.
    pub at_ns: u64,
    /// CPUs that are online and that Usher is allowed to use.
    pub usable: CpuSet,
    /// Events since the last observation, in order.
    pub events: Vec<Event>,
    /// Actions of the last decision that failed.
    pub failed: Vec<FailedAction>,
    /// Samples of the managed programs, by rising id. The list lacks programs with a late or lost
    /// sample. With [`crate::SampleScope::Meter`], the list is empty.
    pub programs: Vec<ProgramSample>,
    /// The meter's figures; `None` if no background work is regulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metering: Option<Metering>,
}
