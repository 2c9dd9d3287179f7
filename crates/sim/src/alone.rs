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

/// Virtual seconds that a program takes alone, on these CPUs or on all; `None`
/// if it has not ended after an hour, or never will.
pub fn alone_seconds(
    machine: &Machine,
    kernel: &Kernel,
    script: Arc<Script>,
    cpus: Option<&CpuSet>,
    seed: u64,
) -> Option<f64> {
    let mut engine = Engine::new(machine.clone(), kernel.clone(), seed);
    let program = engine.arrive(script, false);
    engine.seat(program, cpus);
    engine.run(FOREVER_NS).ok()?;
    engine.take_news().into_iter().find_map(|news| match news {
        News::Repeated { seconds, .. } => Some(seconds),
        News::Ended(_) => None,
    })
}
