// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulation of paper 3a: a Linux 2.4 scheduler on 1 to 8 CPUs of 2001, with task structures at
//! the start of 8 KB-aligned blocks, or coloured.
//!
//! All results are simulated: the machine and the work are models ([`machine::SmpMachine`], with
//! the source of each figure). The scheduler's decisions ([`kernel`]) and the workloads
//! ([`workload`]) are code that also runs on the host (`usher-bench coloring`). The caches are
//! those of `usher-cache`, the colours those of `usher-tasks`.

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

use engine::{RunCounts, SmpEngine};
use machine::{Colors, SmpMachine, WorkloadKind};
use model::TaskStructures;
use workload::Workload;

/// Reason why a setting cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// The cache geometry is invalid.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The colours are invalid.
    #[error(transparent)]
    Colors(#[from] ColorError),
    /// The memory is too small.
    #[error("the structures need {blocks} blocks, but the memory has only {all} blocks")]
    CoherentCaches {
        /// Needed blocks.
        blocks: usize,
        /// Existing blocks.
        all: usize,
    },
    /// The machine has no CPUs.
    #[error("the simulated machine must have at least one CPU")]
    NoCpu,
}

/// Parameters of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulationSetting {
    /// The workload.
    pub load: WorkloadKind,
    /// Number of CPUs.
    pub cpus: usize,
    /// Placement of the task structures.
    pub colors: Colors,
    /// Messages or requests before counting starts.
    pub warm: u64,
    /// Messages or requests that are counted.
    pub measured: u64,
    /// Seed of addresses and lengths.
    pub seed: u64,
}

/// Simulated results.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulationResult {
    /// The parameters.
    pub setting: SimulationSetting,
    /// Messages or requests per second.
    pub throughput: f64,
    /// Second-level miss ratio of walks.
    pub walk_miss_ratio: f64,
    /// Second-level miss ratio of operations.
    pub work_miss_ratio: f64,
    /// Structures per decision.
    pub queue_length: f64,
    /// Decisions per second.
    pub decisions: f64,
    /// Share of lock requests that found the lock taken.
    pub contention: f64,
    /// Mean time for which the lock was held.
    pub hold_us: f64,
    /// Share of the CPUs' time spent spinning.
    pub spinning: f64,
    /// Share of the CPUs' time spent under the lock.
    pub holding: f64,
    /// Share of the CPUs' time spent in operations.
    pub working: f64,
}

/// Simulates one setting.
///
/// # Errors
/// The machine is invalid.
pub fn simulate(
    machine: &SmpMachine,
    setting: &SimulationSetting,
) -> Result<SimulationResult, SimulationError> {
    simulate_workload(machine, setting, setting.load.workload().as_ref())
}

/// Simulates one setting with the caller's workload in its initial state.
///
/// # Errors
/// The machine is invalid.
pub fn simulate_workload(
    machine: &SmpMachine,
    setting: &SimulationSetting,
    workload: &dyn Workload,
) -> Result<SimulationResult, SimulationError> {
    if setting.cpus == 0 {
        return Err(SimulationError::NoCpu);
    }
    let tasks = workload.tasks();
    let model = TaskStructures::new(machine, setting.cpus, tasks, setting.colors, setting.seed)?;
    let mut engine = SmpEngine::new(*machine, workload, model, setting.cpus);
    let warm = engine.run_until_completed(setting.warm);
    let counts = engine.run_until_completed(setting.warm + setting.measured) - warm;
    Ok(outcome(machine, setting, &counts))
}

fn outcome(
    machine: &SmpMachine,
    setting: &SimulationSetting,
    counts: &RunCounts,
) -> SimulationResult {
    let seconds = counts.cycles as f64 / (machine.clock_mhz as f64 * 1e6);
    let cpu_cycles = (counts.cycles.max(1) * setting.cpus as u64) as f64;
    // The time is 0 if nothing was to be measured.
    let seconds = seconds.max(f64::MIN_POSITIVE);
    let per = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    SimulationResult {
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

/// Gain of the second throughput over the first, in per cent.
pub fn gain_percent(plain: &SimulationResult, colored: &SimulationResult) -> f64 {
    100.0 * (colored.throughput / plain.throughput - 1.0)
}
