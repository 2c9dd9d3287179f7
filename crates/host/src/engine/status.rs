// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an engine tells of itself.

use serde::{Deserialize, Serialize};
use usher_act::Description;
use usher_model::{
    BackgroundState, CpuSet, Curve, Note, Plan, ProgramId, Progress, Regulation, SeatMode,
};

/// The state of an engine at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The policy's name.
    pub policy: String,
    /// What is acted with, and why with nothing better.
    pub acting: Description,
    /// Seats are kept by a scheduler now, and not by that.
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
    /// Who sits where, as last planned.
    pub plan: Plan,
    /// The managed programs, by rising number.
    pub programs: Vec<ProgramStatus>,
    /// What the policy said and what still holds, oldest first; the last few
    /// hundred sentences.
    pub notes: Vec<TimedNote>,
    /// What does not work as it should: the store, the record, the keeper.
    pub warnings: Vec<String>,
}

/// A sentence of the policy's and when it was said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedNote {
    /// Seconds since the engine started.
    pub at_seconds: f64,
    /// What was said.
    #[serde(flatten)]
    pub note: Note,
    /// Whether it holds for as long as the program is managed, whatever is planned.
    #[serde(default)]
    pub lasting: bool,
}

/// A managed program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramStatus {
    /// Its number.
    pub id: ProgramId,
    /// Its name.
    pub name: String,
    /// Its oldest living process: the root of its tree, as long as that lives.
    pub pid: i32,
    /// The user it belongs to.
    pub uid: u32,
    /// Its command line.
    pub command: String,
    /// Weight of its NTT in the mean.
    pub weight: f64,
    /// Seconds since it came under management.
    pub seconds: f64,
    /// CPUs that it is kept to; `None`: wherever it could run before.
    pub cpus: Option<CpuSet>,
    /// It is at home there, and a guest elsewhere: the scheduler keeps the seat.
    pub soft: bool,
    /// Those of `cpus` that it borrows.
    pub borrowed: CpuSet,
    /// CPUs of its own that others use for now.
    pub lent: CpuSet,
    /// Indices of the last-level-cache domains of its seat.
    pub domains: Vec<usize>,
    /// `None` until the policy has said where it sits.
    pub mode: Option<SeatMode>,
    /// Whether it is stopped for the moment.
    pub frozen: bool,
    /// Whether its user has stopped it (`SIGSTOP`); Usher does not continue it.
    #[serde(default)]
    pub stopped_by_user: bool,
    /// The NTT that the plan predicts for it.
    pub ntt: Option<f64>,
    /// Threads of the whole tree.
    pub threads: u32,
    /// Threads seen busy-waiting.
    pub spinners: u32,
    /// Whether they wait in a runtime that settled at its start how to; `None`:
    /// not known.
    pub active_wait: Option<bool>,
    /// CPU time of the whole tree in seconds.
    pub cpu_seconds: f64,
    /// Mean CPUs in use since the last look but one.
    pub busy_cpus: f64,
    /// Its progress, with the source's name and how far it is trusted.
    pub progress: Option<Progress>,
    /// Progress a second since it came under management.
    pub progress_per_second: Option<f64>,
    /// What earlier runs taught of it.
    pub profile: Option<Curve>,
    /// CPUs that it bound itself to, or was bound to.
    pub bound_to: Option<CpuSet>,
    /// CPUs that its threads were pinned to by the program itself, which has no
    /// seat therefore.
    #[serde(default)]
    pub pinned_to: Option<CpuSet>,
    /// CPUs' worth of time that its cgroups allow it.
    #[serde(default)]
    pub cpu_quota: Option<f64>,
    /// How it is regulated, where it is background work.
    pub background: Option<BackgroundStatus>,
}

/// How background work is regulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundStatus {
    /// By which policy.
    pub regulation: Regulation,
    /// State of its regulation; `None` before the first decision.
    pub state: Option<BackgroundState>,
    /// Seconds for which it has been running or stopped.
    pub since_seconds: f64,
    /// What it was last stopped for, by the machine's name for it.
    pub resource: Option<String>,
    /// Who in the foreground uses that most, while it is stopped.
    pub user: Option<String>,
    /// Priorities that could not be lowered, and why.
    pub lacking: Vec<String>,
}
