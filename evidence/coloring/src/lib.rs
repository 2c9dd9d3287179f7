// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the experiments of paper 3a: the scheduler of Linux 2.4 on a machine of 2001 with 1 to
//! 8 CPUs. The task structures are at the start of blocks that are aligned to 8 KB, or coloured
//! (shifted by a hash of the block's address).
//!
//! 1. [`machine::SmpMachine`] contains the figures of the machine, each with its source.
//! 2. [`engine`] runs the tasks of a workload ([`workload`]: chat or web server) on simulated CPUs,
//!    with the scheduler's decisions of [`kernel`].
//! 3. [`model`] places the task structures at addresses; [`memory`] simulates the second-level
//!    caches and counts misses.
//! 4. [`simulate`] returns throughput, misses and lock times; [`published`] contains the figures of
//!    the paper.
//!
//! `usher-bench coloring` also runs `kernel` and `workload` in the memory of the host. The caches
//! are those of `usher-cache`, and the colours are those of `usher-tasks`. All results of this
//! crate are simulated.

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

/// Reason for which a setting cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// The cache geometry is invalid.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The number of colours is invalid.
    #[error(transparent)]
    Colors(#[from] ColorError),
    /// The memory has too few blocks for the structures and the data.
    #[error("the structures need {blocks} blocks, but the memory has only {all} blocks")]
    CoherentCaches {
        /// Number of needed blocks.
        blocks: usize,
        /// Number of blocks in the memory.
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
    /// Positions of the task structures in their blocks.
    pub colors: Colors,
    /// Number of messages or requests before the counted period.
    pub warm: u64,
    /// Number of messages or requests in the counted period.
    pub measured: u64,
    /// Seed of the random addresses and lengths of operations.
    pub seed: u64,
}

/// Results of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulationResult {
    /// Parameters of the simulation.
    pub setting: SimulationSetting,
    /// Messages or requests per second.
    pub throughput: f64,
    /// Second-level misses / second-level requests of walks.
    pub walk_miss_ratio: f64,
    /// Second-level misses / second-level requests of operations.
    pub work_miss_ratio: f64,
    /// Mean number of structures that a decision visits.
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
/// The machine or the setting is invalid.
pub fn simulate(
    machine: &SmpMachine,
    setting: &SimulationSetting,
) -> Result<SimulationResult, SimulationError> {
    simulate_workload(machine, setting, setting.load.workload().as_ref())
}

/// Simulates one setting with a given workload, which must be in its initial state.
///
/// # Errors
/// The machine or the setting is invalid.
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
    // The time is 0 if the counted period is empty. The minimum avoids a division by 0.
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

/// Returns by how much the throughput of `colored` is above that of `plain`, in per cent.
pub fn gain_percent(plain: &SimulationResult, colored: &SimulationResult) -> f64 {
    100.0 * (colored.throughput / plain.throughput - 1.0)
}
