// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random loads: threads that alternately use CPU time and sleep. A seed determines the number of
//! threads, the demanded share of the CPUs (50 to 100 %), and the times and affinity of each thread.

use oorandom::Rand64;

use crate::common::rig::Shape;

const US: u64 = 1_000;

/// A thread of the load.
#[derive(Debug, Clone, Copy)]
pub struct LoadThread {
    /// Address space; 0: a kernel thread.
    pub mm: u64,
    /// Bitmask of the allowed CPUs.
    pub cpus: u64,
    pub weight: u32,
    /// Mean CPU time between two sleeps, and mean sleep.
    burst_ns: u64,
    rest_ns: u64,
    /// Time of the first wake-up, after the start of the load.
    pub starts_ns: u64,
    /// Number of bursts after which the thread forks another thread and ends.
    pub bursts: u32,
}

impl LoadThread {
    pub fn burst_ns(&self, random: &mut Rand64) -> u64 {
        around(self.burst_ns, random)
    }

    pub fn rest_ns(&self, random: &mut Rand64) -> u64 {
        around(self.rest_ns, random)
    }
}

/// Draws a time between half and three halves of the mean.
fn around(mean_ns: u64, random: &mut Rand64) -> u64 {
    random.rand_range(mean_ns / 2..mean_ns * 3 / 2 + 2).max(1)
}

/// Draws the threads of a load: one to three per CPU.
pub fn draw(random: &mut Rand64, shape: Shape) -> Vec<LoadThread> {
    let cpus = shape.cpus() as u64;
    let share = 0.5 + 0.5 * random.rand_float();
    let count = random.rand_range(cpus..3 * cpus + 1);
    let duty = (share * cpus as f64 / count as f64).min(1.0);
    (0..count)
        .map(|_| thread(random, shape, count, duty))
        .collect()
}

/// Draws a thread that uses the share `duty` of a CPU.
fn thread(random: &mut Rand64, shape: Shape, count: u64, duty: f64) -> LoadThread {
    let cpus = allowed(random, shape);
    // About half of the threads with one CPU are kernel threads, which have short bursts
    // and use little CPU time.
    let is_kernel = cpus.count_ones() == 1 && random.rand_range(0..2) == 1;
    let burst_ns = match is_kernel {
        true => random.rand_range(20 * US..500 * US),
        false => random.rand_range(500 * US..8_000 * US),
    };
    let duty = if is_kernel { duty / 20.0 } else { duty };
    let rest_ns = burst_ns as f64 * (1.0 - duty) / duty;
    let weights = [100, 100, 100, 100, 15, 1_024];
    LoadThread {
        mm: match is_kernel {
            true => 0,
            false => 1 + random.rand_range(0..1 + count / 3),
        },
        cpus,
        weight: weights[random.rand_range(0..weights.len() as u64) as usize],
        burst_ns,
        rest_ns: (rest_ns as u64).max(20 * US),
        starts_ns: random.rand_range(0..20_000 * US),
        bursts: match random.rand_range(0..4) {
            0 => random.rand_range(1..20) as u32,
            _ => u32::MAX,
        },
    }
}

/// Draws the allowed CPUs: mostly all CPUs, else those of an LLC, about half of the CPUs, or one
/// CPU.
fn allowed(random: &mut Rand64, shape: Shape) -> u64 {
    let all = u64::MAX >> (64 - shape.cpus());
    let one = random.rand_range(0..shape.cpus() as u64) as usize;
    match random.rand_range(0..20) {
        0..12 => all,
        12..16 => (0..shape.cpus())
            .filter(|&cpu| shape.llc_of(cpu) == shape.llc_of(one))
            .fold(0, |cpus, cpu| cpus | 1 << cpu),
        16..19 => (random.rand_u64() & all) | 1 << one,
        _ => 1 << one,
    }
}
