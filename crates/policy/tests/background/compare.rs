// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the foreground of a world twice: beside background programs, and alone. Returns the
//! slowdown of the foreground, and the throughput of background work relative to the throughput
//! under a perfect arbiter.

use usher_model::{Decision, Observation};
use usher_policy::Policy;

use crate::world::{TICK_NS, World, regulated};

/// Result of a run beside a foreground with pauses.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Additional run time of the foreground, divided by its run time alone.
    pub delay: f64,
    /// Throughput of background work, divided by the throughput under a perfect arbiter.
    pub idle_used: f64,
    pub stops_per_s: f64,
    pub samples_per_s: f64,
}

/// Runs the foreground for `ns` beside background programs, and alone.
pub fn compare(make: impl Fn() -> World, ns: u64) -> Outcome {
    let mut alone = make().without_background();
    let mut idle = Idle;
    alone.run(&mut idle, ns);
    let (total, alone_ns) = (alone.foreground[0].total, alone.foreground[0].worked_ns);
    let mut both = make();
    let mut policy = regulated(both.cpus);
    while both.foreground[0].total + TICK_NS.min(total / 10_000) < total {
        both.tick(&mut policy);
    }
    let both_ns = both.foreground[0].worked_ns;
    let resource = both.background.values().next().unwrap().resource;
    let (unit_ns, capacity) = match alone.service_ns.get(&resource) {
        Some(&service_ns) => (service_ns, 1),
        None => (
            u64::from(alone.foreground[0].threads),
            u64::from(alone.cpus),
        ),
    };
    let free_ns = (alone_ns * capacity).saturating_sub(total * unit_ns);
    let work_ns: u64 = both.background.values().map(|b| b.work_ns).sum();
    let stops: u64 = both.background.values().map(|b| b.stops).sum();
    let seconds = both_ns as f64 / 1e9;
    Outcome {
        delay: both_ns as f64 / alone_ns as f64 - 1.0,
        idle_used: work_ns as f64 / free_ns.max(1) as f64,
        stops_per_s: stops as f64 / seconds,
        samples_per_s: both.samples as f64 / seconds,
    }
}

/// A policy that does nothing.
struct Idle;

impl Policy for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn decide(&mut self, _: &Observation) -> Decision {
        Decision::default()
    }
}
