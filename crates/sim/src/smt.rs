// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paper 3b's test: four loops on two cores with two hardware threads each.
//!
//! Two loops of 2 s and two of 10 s are started at once; what counts is when
//! all have ended. If the two long ones come to lie on one core and nobody
//! moves them, that takes the time of both; a scheduler that prefers idle
//! cores moves one over when the short ones have ended.

use std::sync::Arc;

use oorandom::Rand32;
use serde::{Deserialize, Serialize};
use usher_model::Topology;

use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::machine::{Costs, Machine};
use crate::script::{Memory, Op, Role, Script, Wait};

/// Least, most and mean seconds until all loops have ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
    /// Mean.
    pub mean: f64,
}

/// Throughput of two CPU loops on one core, relative to one: they use the same
/// execution units all the time and get a little into each other's way. The
/// paper's least and most time imply 0.87 and 1.01.
pub const LOOPS_SMT: f64 = 0.97;

/// Seconds of the four loops, alone.
pub const LOOPS: [f64; 4] = [2.0, 2.0, 10.0, 10.0];

/// The test over so many seeds under a kernel.
pub fn test(topology: &Topology, kernel: &Kernel, seeds: u64) -> Spread {
    let mut spread = Spread {
        min: f64::INFINITY,
        max: 0.0,
        mean: 0.0,
    };
    for seed in 0..seeds {
        let seconds = once(topology, kernel, seed);
        spread.min = spread.min.min(seconds);
        spread.max = spread.max.max(seconds);
        spread.mean += (seconds - spread.mean) / (seed + 1) as f64;
    }
    spread
}

/// A kernel that does not know cores from hardware threads, one that does, and the latter
/// under Usher's scheduler.
pub fn kernels() -> [Kernel; 3] {
    let blind = Kernel {
        smt_aware: false,
        ..Kernel::default()
    };
    [blind, Kernel::default(), Kernel::usher()]
}

fn once(topology: &Topology, kernel: &Kernel, seed: u64) -> f64 {
    let machine = Machine::new(topology.clone(), Costs::default());
    let mut engine = Engine::new(machine, kernel.clone(), seed);
    let mut order = LOOPS.to_vec();
    // Generators with neighbouring seeds begin alike.
    let far = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    shuffle(&mut order, &mut Rand32::new(far));
    for seconds in order {
        let steps = vec![Op::Work {
            ns: seconds * 1e9,
            spread: 0.0,
        }];
        let script = Script {
            name: format!("loop of {seconds} s"),
            roles: vec![Role { threads: 1, steps }],
            pools: vec![],
            queues: vec![],
            wait: Wait::Block,
            settles: false,
            memory: Memory {
                smt: LOOPS_SMT,
                ..Memory::default()
            },
        };
        engine.arrive(Arc::new(script), false);
        // They are started one after another from a shell.
        if engine.run(engine.now_ns() + 1_000_000).is_err() {
            return f64::NAN;
        }
    }
    let mut ended = 0;
    while ended < LOOPS.len() {
        if engine.run(u64::MAX / 2).is_err() {
            return f64::NAN;
        }
        let news = engine.take_news();
        ended += news
            .iter()
            .filter(|news| matches!(news, crate::engine::News::Ended(_)))
            .count();
    }
    engine.now_ns() as f64 / 1e9
}

fn shuffle<T>(items: &mut [T], random: &mut Rand32) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.rand_range(0..last as u32 + 1) as usize);
    }
}
