// SPDX-License-Identifier: MIT OR Apache-2.0
//! A random load of the part `conservation`: threads that alternately use CPU time and sleep. The
//! seed determines the number of threads, the demanded share of the CPUs (50 to 100 %), and the
//! times of each thread.

use std::thread;
use std::time::{Duration, Instant};

use oorandom::Rand64;

use super::burn::{TimeRange, burn, random};

/// Range of the mean CPU time of a thread between two sleeps.
const BURST: TimeRange = TimeRange {
    from_us: 500,
    to_us: 8_000,
};

/// The times of one thread.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ThreadTimes {
    burst: TimeRange,
    rest: TimeRange,
}

/// A load for a number of CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomLoad {
    threads: Vec<ThreadTimes>,
    /// Demanded share of the CPUs, from 0.5 to 1.
    pub share: f64,
    seed: u64,
}

impl RandomLoad {
    /// Draws the load of a seed: one to three threads per CPU.
    pub fn draw(seed: u64, cpus: usize) -> Self {
        let mut random = random(seed, usize::MAX);
        let share = 0.5 + 0.5 * random.rand_float();
        let cpus = cpus.max(1) as u64;
        let count = random.rand_range(cpus..3 * cpus + 1);
        let duty = (share * cpus as f64 / count as f64).min(1.0);
        Self {
            threads: (0..count).map(|_| times(&mut random, duty)).collect(),
            share,
            seed,
        }
    }

    /// Runs all threads for the given time.
    pub fn run(&self, time: Duration) {
        let end = Instant::now() + time;
        thread::scope(|scope| {
            for (at, times) in self.threads.iter().enumerate() {
                scope.spawn(move || {
                    let mut random = random(self.seed, at);
                    while Instant::now() < end {
                        burn(times.burst.draw(&mut random));
                        thread::sleep(times.rest.draw(&mut random));
                    }
                });
            }
        });
    }
}

/// Draws the times of a thread that uses the share `duty` of a CPU.
fn times(random: &mut Rand64, duty: f64) -> ThreadTimes {
    let burst = BURST.draw(random);
    let rest = burst.mul_f64((1.0 - duty) / duty);
    ThreadTimes {
        burst: TimeRange::around(burst),
        rest: TimeRange::around(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_demand_half_to_all_of_the_cpus() {
        for seed in 0..200 {
            let load = RandomLoad::draw(seed, 8);
            assert_eq!(load, RandomLoad::draw(seed, 8));
            assert!((0.5..=1.0).contains(&load.share), "{}", load.share);
            assert!((8..=24).contains(&load.threads.len()));
            let middle = |range: TimeRange| (range.from_us + range.to_us) as f64 / 2.0;
            let duties = load.threads.iter().map(|times| {
                let burst = middle(times.burst);
                burst / (burst + middle(times.rest))
            });
            let demanded = duties.sum::<f64>() / 8.0;
            assert!((demanded - load.share).abs() < 0.01, "{demanded} {load:?}");
        }
        assert_ne!(RandomLoad::draw(1, 8), RandomLoad::draw(2, 8));
    }

    #[test]
    fn a_load_ends() {
        RandomLoad::draw(1, 1).run(Duration::from_millis(1));
    }
}
