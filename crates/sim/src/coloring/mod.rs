// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paper 3a, simulated: a Linux 2.4 scheduler on 1 to 8 CPUs of 2001, with task
//! structures at the start of 8 KB-aligned blocks, and coloured.
//!
//! Every figure from here is simulated. What is simulated is the machine and the
//! work ([`machine::Machine`], with the source of each figure); the scheduler's
//! decisions ([`kernel`]) and the workloads ([`workload`]) are code that also runs
//! on this machine (`usher bench coloring`), the caches are `usher-cache`'s, the
//! colours `usher-tasks`'.

pub mod engine;
pub mod kernel;
pub mod machine;
pub mod memory;
pub mod model;
pub mod published;
pub mod workload;

use serde::Serialize;
use usher_cache::GeometryError;
use usher_tasks::color::ColorError;

use engine::{Counts, Engine};
use machine::{Colors, Load, Machine};
use model::Model;
use workload::Workload;

/// What cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// No such cache.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// No such colours.
    #[error(transparent)]
    Colors(#[from] ColorError),
    /// More than there is.
    #[error("{blocks} blocks are needed, and the memory has {all}")]
    Memory {
        /// Needed.
        blocks: usize,
        /// There.
        all: usize,
    },
    /// Nobody to run anything.
    #[error("a machine without a CPU")]
    NoCpu,
}

/// What to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Setting {
    /// Which workload.
    pub load: Load,
    /// On how many CPUs.
    pub cpus: usize,
    /// Where structures stand.
    pub colors: Colors,
    /// Messages or requests before anything is counted.
    pub warm: u64,
    /// Messages or requests that are counted.
    pub measured: u64,
    /// Of places and lengths.
    pub seed: u64,
}

/// What came of it. Simulated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Outcome {
    /// Of what.
    pub setting: Setting,
    /// Messages or requests a second.
    pub throughput: f64,
    /// Misses a request of the walks to the second level.
    pub walk_miss_ratio: f64,
    /// Misses of the tasks' own operations.
    pub work_miss_ratio: f64,
    /// Structures a decision.
    pub queue_length: f64,
    /// Decisions a second.
    pub decisions: f64,
    /// Share of the times that the lock was asked for and found taken.
    pub contention: f64,
    /// Mean time that it was held.
    pub hold_us: f64,
    /// Share of the CPUs' time that was spun away.
    pub spinning: f64,
    /// Share of it spent under the lock.
    pub holding: f64,
    /// Share of it in operations.
    pub working: f64,
}

/// Simulates one setting.
///
/// # Errors
/// Where there is no such machine.
pub fn simulate(machine: &Machine, setting: &Setting) -> Result<Outcome, SimulationError> {
    simulate_workload(machine, setting, setting.load.workload().as_ref())
}

/// Simulates one setting with tasks of the caller's, at their start.
///
/// # Errors
/// Where there is no such machine.
pub fn simulate_workload(
    machine: &Machine,
    setting: &Setting,
    workload: &dyn Workload,
) -> Result<Outcome, SimulationError> {
    if setting.cpus == 0 {
        return Err(SimulationError::NoCpu);
    }
    let tasks = workload.tasks();
    let model = Model::new(machine, setting.cpus, tasks, setting.colors, setting.seed)?;
    let mut engine = Engine::new(*machine, workload, model, setting.cpus);
    let warm = engine.run_until_completed(setting.warm);
    let counts = engine.run_until_completed(setting.warm + setting.measured) - warm;
    Ok(outcome(machine, setting, &counts))
}

fn outcome(machine: &Machine, setting: &Setting, counts: &Counts) -> Outcome {
    let seconds = counts.cycles as f64 / (machine.clock_mhz as f64 * 1e6);
    let cpu_cycles = (counts.cycles.max(1) * setting.cpus as u64) as f64;
    // Nothing completed where nothing was to be measured.
    let seconds = seconds.max(f64::MIN_POSITIVE);
    let per = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    Outcome {
        setting: *setting,
        throughput: counts.completed as f64 / seconds,
        walk_miss_ratio: counts.walk.miss_ratio(),
        work_miss_ratio: counts.work.miss_ratio(),
        queue_length: per(counts.visits, counts.decisions),
        decisions: counts.decisions as f64 / seconds,
        contention: per(counts.contended, counts.acquisitions),
        hold_us: per(counts.held, counts.acquisitions) / machine.clock_mhz as f64,
        spinning: counts.spun as f64 / cpu_cycles,
        holding: counts.held as f64 / cpu_cycles,
        working: counts.worked as f64 / cpu_cycles,
    }
}

/// Throughput of the second over that of the first, in per cent more.
pub fn gain_percent(plain: &Outcome, colored: &Outcome) -> f64 {
    100.0 * (colored.throughput / plain.throughput - 1.0)
}
