// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program alone on a machine.

use std::sync::Arc;

use usher_model::CpuSet;

use crate::engine::{Engine, News};
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::script::Script;

/// No program takes longer: a virtual hour.
const FOREVER_NS: u64 = 3_600_000_000_000;

/// What a program does in one repetition, alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alone {
    /// Virtual seconds that it takes.
    pub seconds: f64,
    /// Work that it does in them, in nanoseconds of a core that it has to itself.
    pub work_ns: f64,
    /// CPUs that it keeps busy, on average.
    pub busy_cpus: f64,
}

/// Runs a program once alone, on these CPUs or on all; `None` if it has not
/// ended after an hour, or never will.
pub fn alone(
    machine: &Machine,
    kernel: &Kernel,
    script: Arc<Script>,
    cpus: Option<&CpuSet>,
    seed: u64,
) -> Option<Alone> {
    let mut engine = Engine::new(machine.clone(), kernel.clone(), seed);
    let program = engine.arrive(script, false);
    engine.seat(program, cpus);
    engine.run(FOREVER_NS).ok()?;
    let news = engine.take_news();
    let seconds = news.into_iter().find_map(|news| match news {
        News::Repeated { seconds, .. } => Some(seconds),
        News::Ended(_) => None,
    })?;
    Some(Alone {
        seconds,
        work_ns: engine.work_ns(program),
        busy_cpus: engine.cpu_ns(program) / 1e9 / seconds,
    })
}

/// The seconds of [`alone`].
pub fn alone_seconds(
    machine: &Machine,
    kernel: &Kernel,
    script: Arc<Script>,
    cpus: Option<&CpuSet>,
    seed: u64,
) -> Option<f64> {
    alone(machine, kernel, script, cpus, seed).map(|alone| alone.seconds)
}
