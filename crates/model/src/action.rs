// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens to programs, and what Usher does about it.

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::program::{Arrival, ProgramId};

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A program has come under management.
    Arrived(Box<Arrival>),
    /// Its last process has ended, or it was let go.
    Departed(ProgramId),
    /// A program completed one repetition of its work in so many seconds.
    Repeated {
        /// Which.
        program: ProgramId,
        /// Wall-clock seconds of the repetition.
        seconds: f64,
    },
    /// The CPU quota of a program's cgroups has changed, or the CPUs that its
    /// threads chose.
    Limited {
        /// Which.
        program: ProgramId,
        /// CPUs' worth of time; `None`: no quota any more.
        cpu_quota: Option<f64>,
        /// [`Program::pinned_to`] from now on.
        ///
        /// [`Program::pinned_to`]: crate::Program::pinned_to
        #[serde(default)]
        pinned_to: Option<CpuSet>,
    },
    /// Whether seats may be given on this machine has changed.
    Seating {
        /// The reason for which no seat may be given, such as another daemon
        /// that plans this machine; `None`: seats may be given.
        forbidden: Option<String>,
    },
}

/// Something to do. Each has an undo, which `act` records before it acts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Let the program run on these CPUs only.
    Seat {
        /// Which.
        program: ProgramId,
        /// Owned and borrowed CPUs together; never empty.
        cpus: CpuSet,
    },
    /// Take the narrowing back: the program may run wherever it could before.
    Release {
        /// Which.
        program: ProgramId,
    },
    /// Stop the whole tree, unseen by its parent.
    Freeze {
        /// Which.
        program: ProgramId,
    },
    /// Let a frozen tree go on.
    Thaw {
        /// Which.
        program: ProgramId,
    },
    /// Make the whole tree give way to everybody else, as far as priorities do,
    /// until it is let go. Less than it was demoted before changes nothing.
    Demote {
        /// Which.
        program: ProgramId,
        /// How far.
        to: Demotion,
    },
}

/// How far a program's priorities are lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demotion {
    /// Nice 19, for its autogroup too where the session is all its own: what
    /// paper 2's client does.
    Nice,
    /// All there is: nice 19, `SCHED_IDLE`, the idle class for disks, and
    /// `cpu.idle` on a cgroup of its own; where that cannot be had, its
    /// autogroup as with `Nice`.
    Idle,
}

impl Action {
    /// The program that it is done to.
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
    /// What was to be done.
    pub action: Action,
    /// Why it was not.
    pub error: String,
}
