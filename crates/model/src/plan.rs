// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a policy answers: who sits where, what to do now, and why.

use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::cpuset::CpuSet;
use crate::program::ProgramId;
use crate::standing::Standing;
use crate::topology::DomainId;

/// How a program gets its CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// On CPUs of its own.
    Seated,
    /// Left to the kernel, with the others that are.
    Shared,
    /// On all CPUs listed, one program after another: the others are stopped
    /// meanwhile.
    InTurn,
}

/// One program's place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seat {
    /// Whose.
    pub program: ProgramId,
    /// Its own CPUs when seated; when shared or in turn, those that it shares.
    pub cpus: CpuSet,
    /// Domains that those CPUs lie in.
    pub domains: Vec<DomainId>,
    /// Seated, shared or in turn.
    pub mode: Mode,
    /// Predicted normalised turnaround time; `None` where nothing is known
    /// to predict it from.
    pub ntt: Option<f64>,
}

/// CPUs of one program that another may use until they are wanted back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loan {
    /// Whose seats they are; `None` when nobody owns them.
    pub owner: Option<ProgramId>,
    /// Who uses them now.
    pub borrower: ProgramId,
    /// Which CPUs.
    pub cpus: CpuSet,
}

/// Who sits where.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// One entry a program, by rising id.
    pub seats: Vec<Seat>,
    /// What is lent at the moment.
    pub loans: Vec<Loan>,
    /// Predicted ANTT; `None` where a program's curve is unknown.
    pub antt: Option<f64>,
    /// What leaving everything to the kernel is predicted to give.
    pub antt_time_sharing: Option<f64>,
    /// Whether the programs are left to the kernel on purpose.
    pub abstains: bool,
}

/// A sentence for people about a decision: `usher explain` prints them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Whom it is about; `None`: all.
    pub program: Option<ProgramId>,
    /// The sentence.
    pub text: String,
}

/// What the next look is to cover, where nothing happens until then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Look {
    /// Everything.
    #[default]
    All,
    /// The meter alone: a look at every program costs more.
    Meter,
}

impl Look {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// The answer to one observation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What to do now, in order.
    pub actions: Vec<Action>,
    /// The plan as it stands, when it has changed.
    pub plan: Option<Plan>,
    /// Why, when there is something new to say.
    pub notes: Vec<Note>,
    /// Nanoseconds until the policy wants to look again; `None`: only when
    /// something happens.
    pub wake_after_ns: Option<u64>,
    /// What that look is to cover.
    #[serde(default, skip_serializing_if = "Look::is_all")]
    pub look: Look,
    /// How the background programs stand, by rising id, when that has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standings: Option<Vec<Standing>>,
    /// Whether a scheduler may keep the seats, which lends what is idle and takes it
    /// back at once: not while somebody is measured on a seat. `None`: as before;
    /// at first not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softly: Option<bool>,
}

impl Decision {
    /// Whether a record holds this decision. Records that are older than seats kept
    /// softly tell nothing of these.
    pub fn is_recorded_as(&self, recorded: &Self) -> bool {
        let softly = self.softly.filter(|_| recorded.softly.is_some());
        let told = Self {
            softly,
            ..self.clone()
        };
        told == *recorded
    }
}
