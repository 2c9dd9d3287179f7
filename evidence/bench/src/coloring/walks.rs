// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures how long a walk over a run queue takes on this machine, with task structures at the
//! start of their blocks (plain) and coloured. Blocks and their order are the same in all variants.
//!
//! 1. In each round, each variant is measured. The order of the variants alternates between rounds.
//! 2. A measurement has eight spells. A spell consists of consecutive walks that visit at least
//!    25,000 structures in total. Two walks before each spell fill the caches.
//! 3. The shortest spell counts, because interference by other programs only makes a spell longer.
//!
//! One thread is measured in CPU time. Several threads that walk alternately under one lock are
//! measured in wall time.

use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use usher_coloring::kernel::WalkResult;
use usher_coloring::machine::Colors;
use usher_report::stats::{self, Estimate, Statistic};

use super::lock::{LockStats, SpinLock};
use super::region::{Pages, Region, View, walk_queue};

/// Numbers of structures on the queue.
pub const LENGTHS: [usize; 8] = [64, 128, 256, 512, 1024, 2400, 4096, 8192];
/// Positions of the structures in their blocks, in the order of the results.
pub const VARIANTS: [Colors; 3] = [Colors::Plain, Colors::MODULO, Colors::DEFAULT];
/// Minimum number of structures that a spell visits. With this number, a spell is shorter than a
/// slice of the kernel's scheduler.
const VISITS: usize = 25_000;
/// Number of spells of each variant in a round.
const SPELLS: usize = 8;
/// Seed of the random samples for bootstrap intervals.
const SEED: u64 = 1;

/// Times of the walks over one queue, with one kind of pages and one number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WalkTimes {
    /// Number of structures on the queue.
    pub structures: usize,
    /// Kind of pages that was requested.
    pub pages: Pages,
    /// Number of threads. Only one thread walks at a time.
    pub threads: usize,
    /// Share of the region's bytes that are in huge pages.
    pub huge_share: f64,
    /// Times of each round, in the order of [`VARIANTS`].
    pub rounds: Vec<[VariantTime; 3]>,
}

/// Result of one variant in one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct VariantTime {
    /// Time per structure visited: CPU time with one thread, wall time with several.
    pub ns_a_visit: f64,
    /// Use of the lock by all threads in all spells.
    pub lock: LockStats,
}

impl WalkTimes {
    /// Median time of a visit of a structure with this variant, in ns.
    pub fn ns(&self, variant: usize) -> f64 {
        let all: Vec<f64> = self.rounds.iter().map(|r| r[variant].ns_a_visit).collect();
        stats::median(&all).unwrap_or(f64::NAN)
    }

    /// Returns the gain of a variant: the median over the rounds of (time of the plain walk / time
    /// of the variant's walk).
    pub fn gain(&self, variant: usize) -> Option<Estimate> {
        let ratio = |round: &[VariantTime; 3]| round[0].ns_a_visit / round[variant].ns_a_visit;
        let ratios: Vec<f64> = self.rounds.iter().map(ratio).collect();
        stats::estimate(&ratios, Statistic::Median, SEED)
    }

    /// Mean time of a wait for the lock with this variant, in us.
    pub fn wait_us(&self, variant: usize) -> f64 {
        let tallies = self.rounds.iter().map(|r| r[variant].lock);
        let all = tallies.fold(LockStats::default(), LockStats::and);
        all.waited_ns as f64 / 1e3 / all.acquisitions.max(1) as f64
    }

    /// Mean time for which the lock was held with this variant, in us.
    pub fn hold_us(&self, variant: usize) -> f64 {
        let tallies = self.rounds.iter().map(|r| r[variant].lock);
        let all = tallies.fold(LockStats::default(), LockStats::and);
        all.held_ns as f64 / 1e3 / all.acquisitions.max(1) as f64
    }
}

/// Measures the walks over one queue with all variants, in `rounds` rounds.
pub fn measure(
    structures: usize,
    pages: Pages,
    threads: usize,
    rounds: usize,
) -> Result<WalkTimes> {
    let region = Region::new(structures, pages)?;
    let mut walk = WalkTimes {
        structures,
        pages,
        threads,
        huge_share: region.huge_bytes(Path::new("/proc"))? as f64 / region.bytes() as f64,
        rounds: Vec::with_capacity(rounds),
    };
    for round in 0..rounds {
        let mut timed = [VariantTime::default(); 3];
        for turn in 0..VARIANTS.len() {
            let variant = if round % 2 == 0 {
                turn
            } else {
                VARIANTS.len() - 1 - turn
            };
            let places = region.places(structures, VARIANTS[variant])?;
            let mut view = View::new(&region, &places);
            view.fill(None, threads, structures as u64);
            timed[variant] = time(view, structures, threads)?;
        }
        walk.rounds.push(timed);
    }
    Ok(walk)
}

/// Measures one variant: the shortest spell counts.
fn time(view: View<'_>, structures: usize, threads: usize) -> Result<VariantTime> {
    let mut all = VariantTime {
        ns_a_visit: f64::INFINITY,
        lock: LockStats::default(),
    };
    for _ in 0..SPELLS {
        let timed = match threads {
            1 => alone(view, structures),
            _ => in_turn(view, structures, threads)?,
        };
        all.ns_a_visit = all.ns_a_visit.min(timed.ns_a_visit);
        all.lock = all.lock.and(timed.lock);
    }
    Ok(all)
}

/// Number of walks in a spell.
fn walks_of(structures: usize, threads: usize) -> usize {
    VISITS.div_ceil(structures * threads).max(3)
}

/// Measures a spell of one thread, in CPU time.
fn alone(mut view: View<'_>, structures: usize) -> VariantTime {
    (0..2).for_each(|_| once(&mut view, 0));
    let walks = walks_of(structures, 1);
    let start = cpu_ns();
    (0..walks).for_each(|_| once(&mut view, 0));
    VariantTime {
        ns_a_visit: (cpu_ns() - start) as f64 / (walks * structures) as f64,
        lock: LockStats::default(),
    }
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Measures a spell of several threads under one lock, in wall time.
fn in_turn(view: View<'_>, structures: usize, threads: usize) -> Result<VariantTime> {
    let walks = walks_of(structures, threads);
    let (lock, barrier) = (&SpinLock::default(), &Barrier::new(threads));
    let work = move |cpu: u32| {
        let (mut view, mut tally) = (view, LockStats::default());
        for _ in 0..2 {
            lock.with(&mut LockStats::default(), || once(&mut view, cpu));
        }
        barrier.wait();
        let start = Instant::now();
        for _ in 0..walks {
            lock.with(&mut tally, || once(&mut view, cpu));
        }
        (start, Instant::now(), tally)
    };
    let spans = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|cpu| scope.spawn(move || work(cpu as u32)))
            .collect();
        let joined = handles.into_iter().map(|handle| handle.join().ok());
        joined.collect::<Option<Vec<_>>>()
    });
    let spans = spans.context("a walking thread panicked")?;
    let start = spans.iter().map(|span| span.0).min().context("no thread")?;
    let end = spans.iter().map(|span| span.1).max().context("no thread")?;
    let visits = (walks * threads * structures) as f64;
    Ok(VariantTime {
        ns_a_visit: (end - start).as_nanos() as f64 / visits,
        lock: spans
            .iter()
            .fold(LockStats::default(), |sum, span| sum.and(span.2)),
    })
}

fn once(view: &mut View<'_>, cpu: u32) {
    black_box(walk_queue(view, cpu, 1, WalkResult::NONE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_times_every_variant() {
        for threads in [1, 2] {
            let walk = measure(64, Pages::Small, threads, 3).unwrap();
            assert_eq!(walk.rounds.len(), 3);
            let timed = || walk.rounds.iter().flatten();
            assert!(timed().all(|timed| timed.ns_a_visit > 0.0));
            let locked = timed().all(|timed| timed.lock.acquisitions > 0);
            assert_eq!(locked, threads == 2);
            assert!(walk.gain(2).is_some() && walk.huge_share == 0.0);
        }
    }
}
