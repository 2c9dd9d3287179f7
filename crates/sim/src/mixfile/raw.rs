// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of a sim file, as serde deserialises them: the structs list the permitted keys and
//! their defaults. Module `check` then checks and resolves the values.
//!
//! Defaults of the protocol: the schedulers `linux`, `equal`, `casas` and `usher`, 3 repetitions, 1
//! round, seed 1, 3,600 virtual seconds, 500,000,000 events, slices of 30 s and four jobs on a core
//! under Slurm's schedulers. Unknown keys are errors.

use serde::Deserialize;
use toml::Spanned;

use crate::campaign::Scheduler;
use crate::parsec::ParsecTraits;
use crate::script::{BarrierWait, Memory, ThreadKind};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMix {
    pub title: Option<String>,
    #[serde(default)]
    pub description: String,
    pub machine: RawMachine,
    pub kernel: Option<Spanned<toml::Table>>,
    pub protocol: Option<Spanned<RawProtocol>>,
    #[serde(default)]
    pub program: Vec<Spanned<RawProgram>>,
    pub arrivals: Option<Spanned<RawArrivals>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMachine {
    pub from: Spanned<String>,
    pub preset: Option<Spanned<String>>,
    pub costs: Option<Spanned<toml::Table>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawProtocol {
    pub policies: Vec<Scheduler>,
    pub repetitions: u32,
    pub rounds: u32,
    pub seed: u64,
    pub max_seconds: f64,
    pub events_max: u64,
    pub gang_slice_s: f64,
    pub jobs_per_core: u32,
}

impl Default for RawProtocol {
    fn default() -> Self {
        use Scheduler::{Casas, Equal, Linux, Usher};
        Self {
            policies: vec![Linux, Equal, Casas, Usher],
            repetitions: 3,
            rounds: 1,
            seed: 1,
            max_seconds: 3_600.0,
            events_max: 500_000_000,
            gang_slice_s: 30.0,
            jobs_per_core: 4,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawProgram {
    pub name: Option<String>,
    pub parsec: Option<String>,
    pub traits: Option<ParsecTraits>,
    pub script: Option<RawScript>,
    pub threads: Option<u32>,
    pub seconds: Option<f64>,
    pub cpus: Option<u32>,
    #[serde(default = "one")]
    pub weight: f64,
    #[serde(default = "yes")]
    pub known: bool,
    #[serde(default = "yes")]
    pub repeats: bool,
    #[serde(default = "once")]
    pub copies: u32,
    #[serde(default)]
    pub at: f64,
}

/// A script without its name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScript {
    pub roles: Vec<ThreadKind>,
    #[serde(default)]
    pub pools: Vec<u32>,
    #[serde(default)]
    pub queues: Vec<u32>,
    #[serde(default = "block")]
    pub wait: BarrierWait,
    #[serde(default)]
    pub adaptive_spin: bool,
    #[serde(default)]
    pub memory: Memory,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawArrivals {
    pub rate_per_s: f64,
    pub programs: Option<Vec<String>>,
    pub count: Option<u32>,
    pub seconds: Option<f64>,
    pub lifetime_s: Option<f64>,
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

fn once() -> u32 {
    1
}

fn block() -> BarrierWait {
    BarrierWait::Block
}
