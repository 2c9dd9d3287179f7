// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load generator `load cpu`: computes on one or more threads, which divide the amount of work
//! among themselves. A unit of work is dependent integer arithmetic of about 20 us. There are 1 to
//! 4096 threads. An error of a thread is returned after all threads have ended.
//!
//! The parts `reaction` and `idle` need this generator, because `stress-ng` reports its work only at
//! its end, and not for each millisecond. Where the work need not be recorded, `stress-ng` computes.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::Result;

use super::duty_cycle::{Summary, drive, print, stop_flag};
use super::limits::LoadLimits;

/// Arguments of `load cpu`.
#[derive(Debug, Clone, clap::Args)]
pub struct CpuArgs {
    /// Amount of work; a unit is about 20 microseconds of arithmetic
    #[command(flatten)]
    pub limits: LoadLimits,
    /// Run this many threads, which share the work; each writes its own numbered files
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub threads: u64,
}

/// Runs the load generator.
pub fn run(args: &CpuArgs) -> Result<()> {
    print(&compute(args, &*stop_flag()?)?)
}

/// Computes until the limit of work or time is reached, or until `stop` is set.
pub fn compute(args: &CpuArgs, stop: &AtomicBool) -> Result<Summary> {
    let one = |i: u64| {
        let limits = share(&args.limits, i, args.threads);
        let mut done = 0_u64;
        drive(&limits, stop, || {
            black_box(arithmetic(black_box(done)));
            done += 1;
            Ok(Some(1))
        })
    };
    let summaries: Vec<Result<Summary>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|i| scope.spawn(move || one(i)))
            .collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|result| {
                result.unwrap_or_else(|_| anyhow::bail!("a thread that computes has panicked"))
            })
            .collect()
    });
    let mut all = Summary {
        work: 0,
        seconds: 0.0,
    };
    for summary in summaries {
        let summary = summary?;
        all.work += summary.work;
        all.seconds = all.seconds.max(summary.seconds);
    }
    Ok(all)
}

/// Returns the limits of thread `i`: its part of the work and its record files. From the second
/// thread on, the names of the files end in `.i`.
fn share(limits: &LoadLimits, i: u64, threads: u64) -> LoadLimits {
    let numbered = |path: &PathBuf| match i {
        0 => path.clone(),
        _ => PathBuf::from(format!("{}.{i}", path.display())),
    };
    let part = |all: u64| all / threads + u64::from(i < all % threads);
    LoadLimits {
        work: limits.work.map(part),
        burst: limits.burst.map(|all| part(all).max(1)),
        counter: limits.counter.as_ref().map(numbered),
        bins: limits.bins.as_ref().map(numbered),
        phases: limits.phases.as_ref().map(numbered),
        ..limits.clone()
    }
}

/// One unit of work: dependent integer arithmetic of about 20 us.
fn arithmetic(seed: u64) -> u64 {
    let mut x = seed | 1;
    for _ in 0..8_000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_divide_the_work_and_have_files_of_their_own() {
        let limits = LoadLimits {
            work: Some(10),
            seconds: None,
            usage: 100.0,
            period_ms: 100.0,
            burst: None,
            counter: Some("c".into()),
            bins: None,
            epoch_ns: 0,
            phases: None,
        };
        let parts: Vec<_> = (0..3).map(|i| share(&limits, i, 3)).collect();
        let work: Vec<_> = parts.iter().map(|p| p.work.unwrap()).collect();
        assert_eq!(work, [4, 3, 3]);
        let files: Vec<_> = parts.iter().map(|p| p.counter.clone().unwrap()).collect();
        assert_eq!(files, ["c", "c.1", "c.2"].map(PathBuf::from));
    }
}
