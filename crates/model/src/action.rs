// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that happen to programs (arrival, departure, repetition, new limits), and the actions
//! that Usher takes on programs (seat, release, freeze, thaw, demote). Plain values without
//! behaviour.

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::program::{Arrival, ProgramId};

/// An event that a policy reacts to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A program is managed from now on.
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
    /// A program's CPU quota, or the CPUs that its threads pinned themselves to, have changed.
    Limited {
        /// The program.
        program: ProgramId,
        /// Quota in CPUs' worth of time; `None`: there is no quota any more.
        cpu_quota: Option<f64>,
        /// The new value of [`Program::pinned_to`].
        ///
        /// [`Program::pinned_to`]: crate::Program::pinned_to
        #[serde(default)]
        pinned_to: Option<CpuSet>,
    },
    /// Seats have become forbidden or allowed on this machine.
    Seating {
        /// The reason for which no seat may be given, such as another daemon that plans this
        /// machine; `None`: seats may be given.
        forbidden: Option<String>,
    },
}

/// An action on one program. `act` records how to undo it before it acts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Restrict the program to these CPUs.
    Seat {
        /// The program.
        program: ProgramId,
        /// Owned and borrowed CPUs together; never empty.
        cpus: CpuSet,
    },
    /// Lift the restriction: the program may use every CPU that it could use before.
    Release {
        /// The program.
        program: ProgramId,
    },
    /// Stop the whole process tree without its parent noticing.
    Freeze {
        /// The program.
        program: ProgramId,
    },
    /// Continue a frozen process tree.
    Thaw {
        /// The program.
        program: ProgramId,
    },
    /// Lower the priorities of the whole process tree until the program is released. A demotion
    /// that is weaker than the present demotion changes nothing.
    Demote {
        /// The program.
        program: ProgramId,
        /// The new level.
        to: Demotion,
    },
}

/// Degree to which a program's priorities are lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demotion {
    /// Nice 19 for all threads. The autogroup gets nice 19 too if the session consists of the
    /// program alone. This is what paper 2's client does.
    Nice,
    /// The strongest demotion: nice 19, `SCHED_IDLE`, the idle I/O class, and `cpu.idle` on a
    /// cgroup of its own. Where that cgroup is not available, the autogroup is set as with `Nice`.
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
