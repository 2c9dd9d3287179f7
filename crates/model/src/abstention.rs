// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cause for which a policy leaves all programs to the kernel. The policy states the cause as
//! data; the daemon formats it, together with a remedy, from the state at the time of the request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::program::ProgramId;

/// The cause for which no program has a seat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Abstention {
    /// These programs, by rising id, have no profile and report no progress that a plan may be
    /// based on.
    Unmeasured(Vec<ProgramId>),
    /// Actions on this program have failed too often.
    FailedActions(ProgramId),
    /// The planner rejected the programs, for this reason.
    Rejected(String),
    /// The best plan gives all CPUs to every program.
    Unrestricted,
    /// Seats are predicted to gain too little.
    SmallGain {
        /// Predicted ANTT with the best seats.
        antt_seats: f64,
        /// ANTT if all programs share all CPUs.
        antt_sharing: f64,
        /// Relative gain that seats must have.
        required: f64,
    },
    /// Seats were compared with shared CPUs, and were no better.
    Compared,
    /// The progress of the programs without seats is being measured.
    Measuring,
}
