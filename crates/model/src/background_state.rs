// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of the background programs, as `usher status` and `usher explain` show it.
//! The types are plain values. Shares are fractions, 0..=1; times are in nanoseconds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metering::Resource;
use crate::program::{ProgramId, Regulation};

/// Measured use of a resource for which foreground and background work contend, and the threshold
/// that decided on contention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contention {
    /// The contended resource.
    pub resource: Resource,
    /// Background use in the window. Unit for the CPUs: nanoseconds of CPU time. Unit for a disk:
    /// requests (`usher`) or synchronous sectors (`eii`, `ipd`). Unit for an interface: calls and
    /// packets (`usher`) or sending calls (`eii`, `ipd`).
    pub background: u64,
    /// Foreground use in the window, in the unit of `background`. Exception: for the CPUs under
    /// `usher`, the nanoseconds for which foreground threads waited.
    pub foreground: u64,
    /// Length of the window in which the use was measured, in nanoseconds.
    pub window_ns: u64,
    /// `eii` and `ipd`: the background share of a resource below which background work stops.
    /// `usher`: nanoseconds without a foreground request to the device after which background work
    /// continues; 0 for the CPUs, which have no such threshold.
    pub threshold: f64,
}

/// State of one background program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackgroundState {
    /// The program.
    pub program: ProgramId,
    /// How the program is regulated.
    pub regulation: Regulation,
    /// Whether the program may run.
    pub running: bool,
    /// Time of the last change between running and stopped, on the clock of `Observation::at_ns`.
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
