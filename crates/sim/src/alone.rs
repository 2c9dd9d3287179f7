// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program once alone on a simulated machine, and returns its duration, its work and its
//! mean number of busy CPUs. NTTs and scalability curves refer to these values. A run is limited to
//! one virtual hour.
//!
//! The number of events is not limited. If the program has not ended after the virtual hour, or the
//! run ends with a fault (module `fault`), there is no result.

use std::sync::Arc;

use usher_model::CpuSet;

use crate::engine::{Engine, SimEvent};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::script::Script;

/// Upper limit of a program's duration: one virtual hour.
const DURATION_NS_MAX: u64 = 3_600_000_000_000;

/// Result of one repetition of a program that runs alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AloneResult {
    /// Duration in virtual seconds.
    pub seconds: f64,
    /// Work done, in nanoseconds of an undisturbed core.
    pub work_ns: f64,
    /// Mean number of busy CPUs.
    pub busy_cpus: f64,
}

/// Runs a program once alone, on these CPUs, or on all CPUs if `cpus` is `None`. Returns `None` if
/// the program has not ended after a virtual hour, or cannot end.
pub fn alone(
    machine: &Machine,
    kernel: &Kernel,
    script: Arc<Script>,
    cpus: Option<&CpuSet>,
    seed: u64,
) -> Option<AloneResult> {
    let mut engine = Engine::new(machine.clone(), kernel.clone(), seed);
    let program = engine.arrive(script, false);
    engine.seat(program, cpus);
    engine.run(DURATION_NS_MAX).ok()?;
    let events = engine.take_sim_events();
    let seconds = events.into_iter().find_map(|event| match event {
        SimEvent::Repeated { seconds, .. } => Some(seconds),
        SimEvent::Ended(_) => None,
    })?;
    Some(AloneResult {
        seconds,
        work_ns: engine.work_ns(program),
        busy_cpus: engine.cpu_ns(program) / 1e9 / seconds,
    })
}

/// Returns the duration measured by [`alone`].
pub fn alone_seconds(
    machine: &Machine,
    kernel: &Kernel,
    script: Arc<Script>,
    cpus: Option<&CpuSet>,
    seed: u64,
) -> Option<f64> {
    alone(machine, kernel, script, cpus, seed).map(|alone| alone.seconds)
}
