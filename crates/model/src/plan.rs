// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of a policy: the plan with all seats and loans, the actions to take now, notes with
//! the reasons, and the time and scope of the next sample. All types of this module are plain
//! values. An NTT or ANTT is at least 1 if the program is no faster than alone; values are not
//! checked here.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::abstention::Abstention;
use crate::action::Action;
use crate::background_state::BackgroundState;
use crate::cpuset::CpuSet;
use crate::program::ProgramId;
use crate::topology::DomainId;

/// Way in which a program gets CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SeatMode {
    /// The program runs on CPUs that no other seated program owns.
    Seated,
    /// The kernel distributes the CPU time of the shared CPUs among all shared programs.
    Shared,
    /// The program runs alone on all CPUs of `Seat::cpus` for a time, while the programs that it
    /// takes turns with are stopped.
    InTurn,
}

/// Placement of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Seat {
    /// The program.
    pub program: ProgramId,
    /// The program's own CPUs if the program is seated; otherwise the CPUs that it shares with
    /// other programs.
    pub cpus: CpuSet,
    /// LLC domains with a CPU in `cpus`.
    pub domains: Vec<DomainId>,
    /// Seated, shared or in turn.
    pub mode: SeatMode,
    /// Predicted NTT (normalised turnaround time); `None` if data for a prediction is missing.
    pub ntt: Option<f64>,
}

/// CPUs of one program that another program may use until the owner needs them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Loan {
    /// Owner of the CPUs; `None` for CPUs outside all seats.
    pub owner: Option<ProgramId>,
    /// The program that uses the CPUs now.
    pub borrower: ProgramId,
    /// The lent CPUs.
    pub cpus: CpuSet,
}

/// Placement of all programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// One entry per program, by rising id.
    pub seats: Vec<Seat>,
    /// Current loans.
    pub loans: Vec<Loan>,
    /// Predicted ANTT; `None` where a program's curve is unknown.
    pub antt: Option<f64>,
    /// Predicted ANTT without any seat, if the kernel distributes all CPU time.
    pub antt_time_sharing: Option<f64>,
    /// Whether the policy leaves all programs to the kernel because seats would gain too little.
    pub abstains: bool,
    /// The cause for which the policy abstains; `None` if it does not abstain, or states no cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abstention: Option<Abstention>,
    /// If the seats serve to measure programs on fewer cores (deliberate variation): the greatest
    /// fraction of time that each program loses by its seat. Empty in all other plans.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub varied: BTreeMap<ProgramId, f64>,
}

/// A sentence for people about a decision, printed by `usher explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// The program concerned; `None`: all programs.
    pub program: Option<ProgramId>,
    /// The sentence.
    pub text: String,
    /// What the sentence is about.
    #[serde(default)]
    pub topic: NoteTopic,
}

impl Note {
    /// Returns a note about a decision.
    pub fn new(program: Option<ProgramId>, text: String) -> Self {
        Self {
            program,
            text,
            topic: NoteTopic::default(),
        }
    }
}

/// The subject of a note.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NoteTopic {
    /// A decision and its cause.
    #[default]
    Decision,
    /// The size of a fixed seat. The note is true until the next note with this topic about the same
    /// program.
    FixedSeat,
}

/// Scope of the next sample, if no event happens before the sample is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SampleScope {
    /// All programs and the meter.
    #[default]
    All,
    /// Only the meter, because sampling every program is more expensive.
    Meter,
}

impl SampleScope {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// Response to one observation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decision {
    /// Actions to take now, in order.
    pub actions: Vec<Action>,
    /// The complete plan, if the plan has changed.
    pub plan: Option<Plan>,
    /// Notes with reasons that are new in this decision.
    pub notes: Vec<Note>,
    /// Nanoseconds until the policy needs the next sample; `None`: the policy waits for the next
    /// event.
    pub wake_after_ns: Option<u64>,
    /// Scope of the next sample.
    #[serde(default, skip_serializing_if = "SampleScope::is_all")]
    pub scope: SampleScope,
    /// States of the background programs, by rising id; `None` if no state has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_states: Option<Vec<BackgroundState>>,
    /// Whether the sched_ext scheduler may implement the seats as soft seats, which lend idle CPUs
    /// and reclaim them at once. False while a program is measured on its seat. `None`: unchanged
    /// since the last decision; the initial value is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_seats: Option<bool>,
}

impl Decision {
    /// Returns whether `recorded` equals this decision. If `recorded` lacks the field `soft_seats`
    /// or the cause of an abstention, because an older version recorded it, this field is not
    /// compared.
    pub fn is_recorded_as(&self, recorded: &Self) -> bool {
        let soft_seats = self.soft_seats.filter(|_| recorded.soft_seats.is_some());
        let mut comparable = Self {
            soft_seats,
            ..self.clone()
        };
        let states_cause = |plan: &Plan| plan.abstention.is_some();
        if let Some(plan) = &mut comparable.plan
            && !recorded.plan.as_ref().is_some_and(states_cause)
        {
            plan.abstention = None;
        }
        comparable == *recorded
    }
}
