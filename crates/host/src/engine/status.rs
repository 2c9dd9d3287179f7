// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reported state of an engine at one moment: the machine, the plan, each program with its seat
//! and progress, and notes. This file contains only data types, which `usher status` and the tests
//! read.

use serde::{Deserialize, Serialize};
use usher_act::ActDescription;
use usher_model::{
    BackgroundState, CpuSet, Curve, Note, Plan, ProfileMatch, ProgramId, Progress, Regulation,
    SeatMode,
};
use usher_policy::copies::GroupReport;

use super::config::ThreadHints;

/// The state of an engine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The policy's name.
    pub policy: String,
    /// The mechanisms of the actuator, with the reasons for which better mechanisms are
    /// unavailable.
    pub acting: ActDescription,
    /// Whether a sched_ext scheduler implements the seats, instead of affinity masks.
    pub kept_by_scheduler: bool,
    /// The reason for which this daemon gives no seats; `None` if it gives seats.
    #[serde(default)]
    pub seating_forbidden: Option<String>,
    /// Pid of the keeper, if there is a keeper.
    pub keeper_pid: Option<i32>,
    /// The machine's name.
    pub machine: String,
    /// CPUs that are online and may be used.
    pub usable: CpuSet,
    /// Seconds since the engine started.
    pub uptime_seconds: f64,
    /// Number of decisions of the policy.
    pub decisions: u64,
    /// Actions that could not be carried out.
    pub failed_actions: u64,
    /// CPU time of the loop's thread in seconds.
    pub loop_cpu_seconds: f64,
    /// The current plan.
    pub plan: Plan,
    /// The managed programs, by ascending number.
    pub programs: Vec<ProgramStatus>,
    /// Notes of the policy that still hold, oldest first; at most 400.
    pub notes: Vec<TimedNote>,
    /// Problems of the profile store, the record, the keeper, programs and other parts; at most
    /// 100. Equal warnings about several programs are one text with the number of programs.
    pub warnings: Vec<String>,
}

/// A note of the policy and its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedNote {
    /// Seconds since the engine started.
    pub at_seconds: f64,
    /// The note.
    #[serde(flatten)]
    pub note: Note,
    /// Whether the note holds until the program departs, independently of the plan.
    #[serde(default)]
    pub lasting: bool,
}

/// A managed program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramStatus {
    /// Number of the program.
    pub id: ProgramId,
    /// Name of the program.
    pub name: String,
    /// Oldest living process of the program: the root of its tree while the root lives.
    pub pid: i32,
    /// The user to which the program belongs.
    pub uid: u32,
    /// The job of a batch system to which the program belongs, with its step.
    #[serde(default)]
    pub job: Option<String>,
    /// Command line of the program.
    pub command: String,
    /// Weight of its NTT in the mean.
    pub weight: f64,
    /// Number of cores of its seat, if fixed.
    #[serde(default)]
    pub cores: Option<u32>,
    /// Whether the program ran already when it came under management.
    #[serde(default)]
    pub was_running: bool,
    /// Seconds since the program came under management.
    pub seconds: f64,
    /// The CPUs of the program's seat; `None` if the program has no seat.
    pub cpus: Option<CpuSet>,
    /// Whether the seat is a soft seat: the program prefers its CPUs, but may run on other CPUs.
    pub soft: bool,
    /// The part of `cpus` that the program borrows.
    pub borrowed: CpuSet,
    /// The program's own CPUs that other programs use at present.
    pub lent: CpuSet,
    /// Indices of the last-level-cache domains of the seat.
    pub domains: Vec<usize>,
    /// How the program gets its CPUs; `None` until the policy has decided about the program.
    pub mode: Option<SeatMode>,
    /// Whether Usher has frozen the program.
    pub frozen: bool,
    /// Whether the user has stopped the program (`SIGSTOP`). Usher does not continue such a
    /// program.
    #[serde(default)]
    pub stopped_by_user: bool,
    /// NTT of the program, as the plan predicts it.
    pub ntt: Option<f64>,
    /// Number of threads of the whole process tree.
    pub threads: u32,
    /// Number of threads that were observed to busy-wait.
    pub spinners: u32,
    /// Whether these threads belong to a runtime that decided at its start to busy-wait; `None` if
    /// unknown.
    pub active_wait: Option<bool>,
    /// CPU time of the whole tree in seconds.
    pub cpu_seconds: f64,
    /// Mean number of CPUs in use over the last sampling interval.
    pub busy_cpus: f64,
    /// Progress of the program, with the source's name and the confidence in the source.
    pub progress: Option<Progress>,
    /// Progress per second over the last 10 s, or since the program's arrival if it is younger.
    pub progress_per_second: Option<f64>,
    /// Curve of the program from earlier runs.
    pub profile: Option<Curve>,
    /// Whether the profile is of this program, or of other arguments.
    #[serde(default)]
    pub profile_match: ProfileMatch,
    /// The CPUs to which the program's affinity mask or its launcher restricts the program; `None`
    /// if it may use all CPUs.
    pub bound_to: Option<CpuSet>,
    /// The CPUs to which the program pinned its threads. Such a program has no seat.
    #[serde(default)]
    pub pinned_to: Option<CpuSet>,
    /// The CPU quota of the program's cgroups, as CPU time per wall time.
    #[serde(default)]
    pub cpu_quota: Option<f64>,
    /// Regulation of the program, if it is background work.
    pub background: Option<BackgroundStatus>,
    /// The copies that launchers inside the program started.
    #[serde(default)]
    pub copies: Vec<GroupReport>,
    /// The variables that set the number of threads, if the program's launcher has set any.
    #[serde(default)]
    pub hints: Option<ThreadHints>,
    /// Number of children of these launchers that are no copies, and run as a part of their
    /// launcher.
    #[serde(default)]
    pub unrecognised_workers: usize,
}

/// The state of the regulation of a background program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundStatus {
    /// The policy.
    pub regulation: Regulation,
    /// State of the program; `None` before the first decision.
    pub state: Option<BackgroundState>,
    /// Seconds since the state of the program last changed.
    pub since_seconds: f64,
    /// The resource because of which the program was last stopped, with the machine's name of the
    /// device.
    pub resource: Option<String>,
    /// The foreground process that uses this resource most, while the program is stopped.
    pub user: Option<String>,
    /// The priorities that could not be lowered, with the reasons.
    pub lacking: Vec<String>,
}
