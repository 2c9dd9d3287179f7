// SPDX-License-Identifier: MIT OR Apache-2.0
//! How background programs stand: what `usher status` and `usher explain` show.

use serde::{Deserialize, Serialize};

use crate::metering::Resource;
use crate::program::{ProgramId, Regulation};

/// What a background program gives way to: the figures and what they were
/// held against.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contention {
    /// What is wanted by both.
    pub resource: Resource,
    /// What background work used of it in the window: nanoseconds of CPU time;
    /// requests (`usher`) or synchronous sectors (`eii`, `ipd`); calls.
    pub background: u64,
    /// What foreground work used of it, in the same unit; under `usher`, of the
    /// CPUs: nanoseconds for which it waited.
    pub foreground: u64,
    /// How long that took, in nanoseconds.
    pub window_ns: u64,
    /// `eii` and `ipd`: background work's share below which it stops. `usher`:
    /// nanoseconds of quiet after which it goes on; of the CPUs: 0.
    pub threshold: f64,
}

/// How one background program stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Which.
    pub program: ProgramId,
    /// How it is regulated.
    pub regulation: Regulation,
    /// Whether it may run.
    pub running: bool,
    /// Since when, on the observations' clock.
    pub since_ns: u64,
    /// What it was last stopped for; `None`: it never was.
    pub cause: Option<Contention>,
    /// The same in words.
    pub why: Option<String>,
    /// Share of the last 10 s for which it might run, 0..1.
    pub share: f64,
    /// How often it was stopped so far.
    pub stops: u64,
}
