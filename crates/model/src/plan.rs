// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of a policy: the plan with all seats and loans, the actions to take now, notes with
//! the reasons, and the time and scope of the next sample. Plain values without behaviour.

use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::background_state::BackgroundState;
use crate::cpuset::CpuSet;
use crate::program::ProgramId;
use crate::topology::DomainId;

/// How a program gets CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeatMode {
    /// On CPUs of its own.
    Seated,
    /// Left to the kernel, together with all other shared programs.
    Shared,
    /// On all listed CPUs, in turn with other programs, which are stopped meanwhile.
    InTurn,
}

/// Placement of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seat {
    /// The program.
    pub program: ProgramId,
    /// The program's own CPUs when seated; when shared or in turn, the CPUs that it shares.
    pub cpus: CpuSet,
    /// Domains of `cpus`.
    pub domains: Vec<DomainId>,
    /// Seated, shared or in turn.
    pub mode: SeatMode,
    /// Predicted normalised turnaround time; `None` without data for a prediction.
    pub ntt: Option<f64>,
}

/// CPUs of one program that another program may use until the owner needs them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loan {
    /// Owner of the CPUs; `None` for CPUs outside all seats.
    pub owner: Option<ProgramId>,
    /// The program that uses the CPUs now.
    pub borrower: ProgramId,
    /// The lent CPUs.
    pub cpus: CpuSet,
}

/// Placement of all programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// One entry per program, by rising id.
    pub seats: Vec<Seat>,
    /// Current loans.
    pub loans: Vec<Loan>,
    /// Predicted ANTT; `None` where a program's curve is unknown.
    pub antt: Option<f64>,
    /// Predicted ANTT if everything is left to the kernel.
    pub antt_time_sharing: Option<f64>,
    /// Whether the policy leaves all programs to the kernel because seats would gain too little.
    pub abstains: bool,
}

/// A sentence for people about a decision, printed by `usher explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The program concerned; `None`: all programs.
    pub program: Option<ProgramId>,
    /// The sentence.
    pub text: String,
}

/// What the next sample must cover, unless an event happens first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleScope {
    /// Everything.
    #[default]
    All,
    /// The meter alone: sampling every program costs more.
    Meter,
}

impl SampleScope {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// Response to one observation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Actions to take now, in order.
    pub actions: Vec<Action>,
    /// The complete plan, if it has changed.
    pub plan: Option<Plan>,
    /// Notes with new reasons.
    pub notes: Vec<Note>,
    /// Nanoseconds until the policy needs the next sample; `None`: only after an event.
    pub wake_after_ns: Option<u64>,
    /// What the next sample must cover.
    #[serde(default, skip_serializing_if = "SampleScope::is_all")]
    pub scope: SampleScope,
    /// States of the background programs, by rising id; `None` if no state has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_states: Option<Vec<BackgroundState>>,
    /// Whether a scheduler may enforce the seats as soft seats, which lends idle CPUs of a seat and
    /// returns them at once. False while a program is measured on its seat. `None`: unchanged since
    /// the last decision; the initial value is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_seats: Option<bool>,
}

impl Decision {
    /// Returns whether `recorded` equals this decision. Records from before the field `soft_seats`
    /// existed do not contain that field; it is then ignored.
    pub fn is_recorded_as(&self, recorded: &Self) -> bool {
        let soft_seats = self.soft_seats.filter(|_| recorded.soft_seats.is_some());
        let comparable = Self {
            soft_seats,
            ..self.clone()
        };
        comparable == *recorded
    }
}
