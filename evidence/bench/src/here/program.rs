// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs for the generated mixes, which run on any machine. Each thread executes a fixed number
//! of steps of about 1 ms. There are three patterns: independent computing, computing with a
//! spinning barrier after each step, and streaming through 32 MiB of memory per thread.
//!
//! A program has 1 to 65,536 threads and ends after the last step of all threads. The number of
//! steps is fixed, so that all policies execute the same work; the duration depends on the CPUs.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use clap::ValueEnum;

/// Rounds of the arithmetic loop in one step: about 1 ms at 3 GHz.
const ROUNDS_PER_STEP: u64 = 250_000;
/// Size of the memory that each thread of the pattern `memory` streams through; larger than the
/// thread's part of usual last-level caches.
const STREAM_BYTES: usize = 32 << 20;
/// Bytes that a thread of the pattern `memory` streams through in one step: about 1 ms at 8 GB/s.
const BYTES_PER_STEP: usize = 8 << 20;

/// The dependence of a program's threads on one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkPattern {
    /// Threads compute independently; each further CPU adds progress.
    Compute,
    /// Threads spin at a barrier after each step, as OpenMP and MPI programs do.
    Barriers,
    /// Threads stream through memory; the memory bandwidth limits progress.
    Memory,
}

/// Options of a program.
#[derive(Debug, Clone, clap::Args)]
pub struct ProgramArgs {
    /// Choose how the threads depend on one another
    #[arg(value_enum)]
    pub kind: WorkPattern,
    /// Run this many threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub threads: u32,
    /// Execute this many steps of about 1 ms in each thread
    #[arg(long, default_value_t = 500)]
    pub steps: u32,
}

/// Runs the program to its end.
pub fn run(args: &ProgramArgs) -> Result<()> {
    let barrier = SpinBarrier::new(args.threads as usize);
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| work(args.kind, args.steps, &barrier));
        }
    });
    Ok(())
}

fn work(kind: WorkPattern, steps: u32, barrier: &SpinBarrier) {
    match kind {
        WorkPattern::Compute => (0..steps).for_each(|_| compute()),
        WorkPattern::Barriers => (0..steps).for_each(|_| {
            compute();
            barrier.wait();
        }),
        WorkPattern::Memory => stream(steps),
    }
}

fn compute() {
    let mut x = 1.0_f64;
    for _ in 0..ROUNDS_PER_STEP {
        x = black_box(x * 1.000_000_1 + 1e-9);
    }
}

fn stream(steps: u32) {
    let mut words = vec![1_u64; STREAM_BYTES / size_of::<u64>()];
    let chunk = BYTES_PER_STEP / size_of::<u64>();
    let chunks = words.len() / chunk;
    for step in 0..steps as usize {
        let from = step % chunks * chunk;
        for word in &mut words[from..from + chunk] {
            *word = word.wrapping_mul(3);
        }
        black_box(&mut words);
    }
}

/// A barrier at which waiting threads spin and never sleep.
///
/// The count of arrivals is never reset. With `n` threads, the thread with the arrival number `k`
/// (counted from 0) waits until the count is `(k / n + 1) * n`.
struct SpinBarrier {
    threads: usize,
    arrivals: AtomicUsize,
}

impl SpinBarrier {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            arrivals: AtomicUsize::new(0),
        }
    }

    fn wait(&self) {
        let arrival = self.arrivals.fetch_add(1, Ordering::AcqRel);
        let generation_end = (arrival / self.threads + 1) * self.threads;
        while self.arrivals.load(Ordering::Acquire) < generation_end {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_passes_the_barrier_before_all_have_arrived() {
        const THREADS: usize = 3;
        let barrier = SpinBarrier::new(THREADS);
        let steps_begun = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for step in 1..=50 {
                        steps_begun.fetch_add(1, Ordering::SeqCst);
                        barrier.wait();
                        assert!(steps_begun.load(Ordering::SeqCst) >= step * THREADS);
                    }
                });
            }
        });
    }

    #[test]
    fn every_kind_of_program_ends() {
        for &kind in WorkPattern::value_variants() {
            let args = ProgramArgs {
                kind,
                threads: 2,
                steps: 2,
            };
            run(&args).unwrap();
        }
    }
}
