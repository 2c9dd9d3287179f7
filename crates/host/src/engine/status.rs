// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reported state of an engine at one moment: the machine, the plan, each program with its seat
//! and progress, and notes. Only data; `usher status` and the tests read it.

use serde::{Deserialize, Serialize};
use usher_act::ActDescription;
use usher_model::{
    BackgroundState, CpuSet, Curve, Note, Plan, ProgramId, Progress, Regulation, SeatMode,
};

/// The state of an engine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The policy's name.
    pub policy: String,
    /// The means of acting, and why better means are unavailable.
    pub acting: ActDescription,
    /// Whether a scheduler keeps the seats instead.
    pub kept_by_scheduler: bool,
    /// The reason for which this daemon gives no seats; `None`: it may.
    #[serde(default)]
    pub seating_forbidden: Option<String>,
    /// The keeper's process, where there is one.
    pub keeper_pid: Option<i32>,
    /// The machine's name.
    pub machine: String,
    /// CPUs that are online and may be used.
    pub usable: CpuSet,
    /// Seconds since the engine started.
    pub uptime_seconds: f64,
    /// Turns of the loop.
    pub decisions: u64,
    /// Actions that could not be carried out.
    pub failed_actions: u64,
    /// CPU time of the loop's thread in seconds.
    pub loop_cpu_seconds: f64,
    /// The current plan.
    pub plan: Plan,
    /// The managed programs, by ascending number.
    pub programs: Vec<ProgramStatus>,
    /// Notes of the policy that still hold, oldest first; at most a few hundred.
    pub notes: Vec<TimedNote>,
    /// Problems of the store, the record, the keeper and others.
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
    /// Whether it holds while the program is managed, whatever the plan.
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
    /// The user it belongs to.
    pub uid: u32,
    /// Command line of the program.
    pub command: String,
    /// Weight of its NTT in the mean.
    pub weight: f64,
    /// Seconds since it came under management.
    pub seconds: f64,
    /// CPUs that it is restricted to; `None`: not restricted.
    pub cpus: Option<CpuSet>,
    /// The scheduler keeps the seat: the CPUs are preferred, others are permitted.
    pub soft: bool,
    /// The part of `cpus` that the program borrows.
    pub borrowed: CpuSet,
    /// Own CPUs that other programs use for now.
    pub lent: CpuSet,
    /// Indices of the last-level-cache domains of its seat.
    pub domains: Vec<usize>,
    /// `None` until the policy has decided about it.
    pub mode: Option<SeatMode>,
    /// Whether Usher has frozen it.
    pub frozen: bool,
    /// Whether its user has stopped it (`SIGSTOP`); Usher does not continue it.
    #[serde(default)]
    pub stopped_by_user: bool,
    /// NTT of the program, as the plan predicts it.
    pub ntt: Option<f64>,
    /// Threads of the whole tree.
    pub threads: u32,
    /// Threads seen busy-waiting.
    pub spinners: u32,
    /// Whether these threads use a runtime that fixed its way of waiting at its start; `None`:
    /// unknown.
    pub active_wait: Option<bool>,
    /// CPU time of the whole tree in seconds.
    pub cpu_seconds: f64,
    /// Mean number of CPUs in use over the last sampling interval.
    pub busy_cpus: f64,
    /// Progress of the program, with the source's name and the confidence in the source.
    pub progress: Option<Progress>,
    /// Progress per second since it came under management.
    pub progress_per_second: Option<f64>,
    /// Curve of the program from earlier runs.
    pub profile: Option<Curve>,
    /// CPUs that its affinity mask or its launcher restricts it to; `None`: all.
    pub bound_to: Option<CpuSet>,
    /// CPUs that the program pinned its threads to; such a program has no seat.
    #[serde(default)]
    pub pinned_to: Option<CpuSet>,
    /// CPU time per wall time that its cgroups allow.
    #[serde(default)]
    pub cpu_quota: Option<f64>,
    /// Regulation of the program, if it is background work.
    pub background: Option<BackgroundStatus>,
}

/// How background work is regulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundStatus {
    /// The policy.
    pub regulation: Regulation,
    /// State of the program; `None` before the first decision.
    pub state: Option<BackgroundState>,
    /// Seconds since its state last changed.
    pub since_seconds: f64,
    /// The resource that it was last stopped for, by the machine's name.
    pub resource: Option<String>,
    /// The foreground process that uses that resource most, while the program is stopped.
    pub user: Option<String>,
    /// Priorities that could not be lowered, and why.
    pub lacking: Vec<String>,
}
