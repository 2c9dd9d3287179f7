// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of the background programs, as `usher status` and `usher explain` show it.

use serde::{Deserialize, Serialize};

use crate::metering::Resource;
use crate::program::{ProgramId, Regulation};

/// Measured use of a resource that both foreground and background work want, with the threshold
/// that it was compared with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contention {
    /// The contended resource.
    pub resource: Resource,
    /// Background use in the window: nanoseconds of CPU time; requests (`usher`) or synchronous
    /// sectors (`eii`, `ipd`); calls.
    pub background: u64,
    /// Foreground use in the same unit. For the CPUs under `usher`: nanoseconds for which
    /// foreground threads waited.
    pub foreground: u64,
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// `eii` and `ipd`: the background share of a resource below which background work stops.
    /// `usher`: nanoseconds without a foreground request after which background work continues; 0
    /// for the CPUs.
    pub threshold: f64,
}

/// State of one background program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundState {
    /// The program.
    pub program: ProgramId,
    /// How the program is regulated.
    pub regulation: Regulation,
    /// Whether the program may run.
    pub running: bool,
    /// Time of the last change between running and stopped, on the observations' clock.
    pub since_ns: u64,
    /// The contention for which the program was last stopped; `None` if it was never stopped.
    pub reason: Option<Contention>,
    /// The contention in `reason`, as a sentence for people.
    pub reason_text: Option<String>,
    /// Share of the last 10 s in which the program was allowed to run, 0..1.
    pub share: f64,
    /// Total number of stops.
    pub stops: u64,
}
