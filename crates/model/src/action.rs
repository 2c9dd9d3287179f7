// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that happen to programs (arrival, departure, repetition, new limits), and the actions
//! that Usher takes on programs (seat, release, freeze, thaw, demote). All types of this module are
//! plain values without behaviour. Values are not checked here: a seat is never empty, and
//! durations and quotas are positive, because the senders ensure these ranges.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::program::{Arrival, ProgramId};

/// An event that a policy reacts to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Usher has begun to manage a program.
    Arrived(Box<Arrival>),
    /// The last process of the program has ended, or the program was released.
    Departed(ProgramId),
    /// A program completed one repetition of its work.
    Repeated {
        /// The program.
        program: ProgramId,
        /// Wall-clock seconds of the repetition.
        seconds: f64,
    },
    /// A program's CPU quota, the CPUs that its threads pinned themselves to, or the CPUs that the
    /// whole program is bound to, have changed.
    Limited {
        /// The program.
        program: ProgramId,
        /// The new CPU quota in CPUs (1.5 permits 1.5 s of CPU time per second); `None`: the quota
        /// was removed.
        cpu_quota: Option<f64>,
        /// The new value of [`Program::pinned_to`].
        ///
        /// [`Program::pinned_to`]: crate::Program::pinned_to
        #[serde(default)]
        pinned_to: Option<CpuSet>,
        /// The new value of [`Program::bound_to`]; `None`: unchanged.
        ///
        /// [`Program::bound_to`]: crate::Program::bound_to
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bound_to: Option<CpuSet>,
    },
    /// Seats are from now on forbidden, or allowed again, on this machine.
    Seating {
        /// The reason why no seat may be given, for example that another daemon gives seats on this
        /// machine; `None`: seats may be given.
        forbidden: Option<String>,
    },
}

/// An action on one program. Crate `act` records the undo of an action before it carries out the
/// action.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Restrict the program to these CPUs.
    Seat {
        /// The program.
        program: ProgramId,
        /// The CPUs of the program's own seat and the CPUs that it borrows; never empty.
        cpus: CpuSet,
    },
    /// Lift the restriction: the program may use every CPU that it could use before.
    Release {
        /// The program.
        program: ProgramId,
    },
    /// Stop all processes of the program without the parent of its first process noticing.
    Freeze {
        /// The program.
        program: ProgramId,
    },
    /// Continue all processes of a frozen program.
    Thaw {
        /// The program.
        program: ProgramId,
    },
    /// Lower the priorities of the whole process tree until the program is released. A demotion
    /// that is weaker than the present demotion changes nothing.
    Demote {
        /// The program.
        program: ProgramId,
        /// The new degree of demotion.
        to: Demotion,
    },
}

/// Degree to which a program's priorities are lowered.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Demotion {
    /// Nice 19 for all threads, as in paper 2's client. If the session consists of the program
    /// alone, the session's autogroup gets nice 19, too.
    Nice,
    /// The strongest demotion: nice 19, `SCHED_IDLE`, the idle I/O class, and `cpu.idle` on a
    /// cgroup that contains only the program. Without a cgroup that contains only the program, the
    /// autogroup gets nice 19 under the condition of `Nice`.
    Idle,
}

impl Action {
    /// The program that the action applies to.
    pub fn program(&self) -> ProgramId {
        match *self {
            Self::Seat { program, .. }
            | Self::Release { program }
            | Self::Freeze { program }
            | Self::Thaw { program }
            | Self::Demote { program, .. } => program,
        }
    }
}

/// An action that could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAction {
    /// The action that failed.
    pub action: Action,
    /// The error message.
    pub error: String,
}
