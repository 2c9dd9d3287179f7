// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hidden command `usher-bench worker`, a load to which Usher gives a seat in benchmarks. Its
//! threads compute and sleep alternately, and it prints the time of each change between computing
//! and sleeping.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Arguments of a worker.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// Run this many threads
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Compute for this time in ms, then sleep for --sleep-ms, alternately
    #[arg(long, default_value_t = 50)]
    pub busy_ms: u64,
    /// Sleep for this time in ms after each --busy-ms; 0: never
    #[arg(long, default_value_t = 0)]
    pub sleep_ms: u64,
    /// End after this time in seconds
    #[arg(long, default_value_t = 30.0)]
    pub seconds: f64,
}

/// Computes and sleeps alternately. Prints the start of each phase as `busy NS` or `idle NS`, in
/// nanoseconds of CLOCK_MONOTONIC.
pub fn run(args: &WorkerArgs) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    let keep_running = Arc::new(AtomicBool::new(true));
    while Instant::now() < end {
        print_time("busy")?;
        let until = Instant::now() + Duration::from_millis(args.busy_ms);
        let until = if args.sleep_ms == 0 {
            end
        } else {
            until.min(end)
        };
        std::thread::scope(|scope| {
            for _ in 0..args.threads {
                scope.spawn(|| compute(until, &keep_running));
            }
        });
        print_time("idle")?;
        std::thread::sleep(Duration::from_millis(args.sleep_ms));
    }
    Ok(())
}

fn compute(until: Instant, keep_running: &AtomicBool) {
    let mut x = 1.0_f64;
    while Instant::now() < until && keep_running.load(Ordering::Relaxed) {
        for _ in 0..10_000 {
            x = std::hint::black_box(x * 1.000_000_1 + 1e-9);
        }
    }
}

fn print_time(what: &str) -> Result<()> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what} {}", now.tv_sec * 1_000_000_000 + now.tv_nsec)?;
    Ok(out.flush()?)
}
