// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the test of paper 3b: four programs that compute (loops), on two cores with two
//! hardware threads each.
//!
//! Two loops of 2 s and two of 10 s start together; the result is the time until all have ended. If
//! the two long loops share a core to the end, they need about twice as long as on two cores. A
//! scheduler that prefers idle cores moves a long loop when the short loops have ended. The test
//! runs once for each seed, which determines the order in which the loops start.
//!
//! A run has no limit of virtual time, because the loops always end; with a fault, its result is
//! NaN.

use std::sync::Arc;

use oorandom::Rand32;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_model::Topology;

use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::machine::{Costs, Machine};
use crate::script::{BarrierWait, Memory, Op, Script, ThreadKind};

/// Minimum, maximum and mean time until all loops have ended, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompletionTimes {
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Mean.
    pub mean: f64,
}

/// Throughput of two loops on one core, relative to one loop. The loops use the same execution
/// units all the time, and slow each other slightly. The paper's minimum and maximum imply 0.87 and
/// 1.01.
pub const LOOPS_SMT: f64 = 0.97;

/// Duration of the four loops when alone, in seconds.
pub const LOOPS: [f64; 4] = [2.0, 2.0, 10.0, 10.0];

/// Runs the test under a kernel, once per seed.
pub fn test(topology: &Topology, kernel: &Kernel, seeds: u64) -> CompletionTimes {
    let mut times = CompletionTimes {
        min: f64::INFINITY,
        max: 0.0,
        mean: 0.0,
    };
    for seed in 0..seeds {
        let seconds = once(topology, kernel, seed);
        times.min = times.min.min(seconds);
        times.max = times.max.max(seconds);
        times.mean += (seconds - times.mean) / (seed + 1) as f64;
    }
    times
}

/// Returns a kernel without SMT awareness, a kernel with SMT awareness, and a kernel with Usher's
/// scheduler.
pub fn kernels() -> [Kernel; 3] {
    let smt_unaware = Kernel {
        smt_aware: false,
        ..Kernel::default()
    };
    [smt_unaware, Kernel::default(), Kernel::usher()]
}

fn once(topology: &Topology, kernel: &Kernel, seed: u64) -> f64 {
    let machine = Machine::new(topology.clone(), Costs::default());
    let mut engine = Engine::new(machine, kernel.clone(), seed);
    let mut order = LOOPS.to_vec();
    // The seeds are spread, because generators with neighbouring seeds start with similar values.
    let far = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    shuffle(&mut order, &mut Rand32::new(far));
    for seconds in order {
        let steps = vec![Op::Work {
            ns: seconds * 1e9,
            spread: 0.0,
        }];
        let script = Script {
            name: format!("loop with {seconds} s of work"),
            roles: vec![ThreadKind { threads: 1, steps }],
            pools: vec![],
            queues: vec![],
            wait: BarrierWait::Block,
            adaptive_spin: false,
            memory: Memory {
                smt: LOOPS_SMT,
                ..Memory::default()
            },
        };
        engine.arrive(Arc::new(script), false);
        // The shell starts the loops one after another, 1 ms apart.
        if engine.run(engine.now_ns() + 1_000_000).is_err() {
            return f64::NAN;
        }
    }
    let mut ended = 0;
    while ended < LOOPS.len() {
        if engine.run(u64::MAX / 2).is_err() {
            return f64::NAN;
        }
        let events = engine.take_sim_events();
        ended += events
            .iter()
            .filter(|event| matches!(event, crate::engine::SimEvent::Ended(_)))
            .count();
    }
    engine.now_ns() as f64 / 1e9
}

fn shuffle<T>(items: &mut [T], random: &mut Rand32) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.rand_range(0..last as u32 + 1) as usize);
    }
}
