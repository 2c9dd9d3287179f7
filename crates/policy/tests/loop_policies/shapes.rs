// SPDX-License-Identifier: MIT OR Apache-2.0
//! Speed curves of different kinds of programs, and the least ANTT possible with them.

use usher_model::Topology;

use crate::world::{World, machine};

pub fn perfect(cores: f64) -> f64 {
    cores
}

/// A program that gains little beyond six cores: the red class of paper 1.
pub fn poor(cores: f64) -> f64 {
    cores.min(6.0) + (cores - 6.0).max(0.0) * 0.05
}

/// A program that gains 30 % of each core beyond twelve cores: the yellow class of paper 1.
pub fn medium(cores: f64) -> f64 {
    cores.min(12.0) + (cores - 12.0).max(0.0) * 0.3
}

/// A program that gains little from a second core, because of barriers, spinning or a memory bus.
pub fn bus_bound(cores: f64) -> f64 {
    cores.min(1.0) + 0.2 * (cores - 1.0).max(0.0)
}

/// A program that collapses on one core.
pub fn busy_waits(cores: f64) -> f64 {
    if cores < 2.0 { 0.2 * cores } else { cores }
}

pub fn paper_machine() -> Topology {
    machine(8, 6)
}

/// The least ANTT over all allocations of whole domains, by enumeration.
pub fn least_antt(speeds: &[fn(f64) -> f64], domains: usize, cores_each: usize) -> f64 {
    fn go(speeds: &[fn(f64) -> f64], left: usize, each: usize, best: f64) -> f64 {
        let Some((speed, rest)) = speeds.split_first() else {
            return 0.0;
        };
        (1..=left - rest.len())
            .map(|d| speed(best) / speed((d * each) as f64) + go(rest, left - d, each, best))
            .fold(f64::INFINITY, f64::min)
    }
    go(speeds, domains, cores_each, (domains * cores_each) as f64) / speeds.len() as f64
}

pub fn antt_of(world: &World, speeds: &[fn(f64) -> f64], cores: f64) -> f64 {
    let ntt = |(i, speed): (usize, &fn(f64) -> f64)| {
        speed(cores) / speed(world.mask(i as u64 + 1).len() as f64)
    };
    speeds.iter().enumerate().map(ntt).sum::<f64>() / speeds.len() as f64
}
