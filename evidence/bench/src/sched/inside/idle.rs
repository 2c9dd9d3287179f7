// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the idle time of the guest's CPUs, and waits until the guest is quiet after boot. A guest
//! is quiet if its CPUs are busy for at most 5 % of an observation of 250 ms. The wait ends after
//! 60 observations (15 s) in any case. An error in reading `/proc/uptime` is returned.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Length of an observation of the guest after boot.
const OBSERVATION: Duration = Duration::from_millis(250);
/// Maximum number of observations.
const OBSERVATIONS_MAX: usize = 60;
/// A guest is quiet if its CPUs are busy for at most this share of an observation.
const BUSY_SHARE_MAX: f64 = 0.05;

/// Waits until the CPUs are mostly idle, because the kernel still executes work for a time after
/// boot. After 60 observations the function returns in any case, because the remaining work affects
/// all schedulers equally.
pub fn settle() -> Result<()> {
    let cpus = thread::available_parallelism()
        .context("counting CPUs")?
        .get();
    for _ in 0..OBSERVATIONS_MAX {
        let (begun, before_ns) = (Instant::now(), idle_ns()?);
        thread::sleep(OBSERVATION);
        let rested_ns = idle_ns()? - before_ns;
        let all_ns = begun.elapsed().as_nanos() as f64 * cpus as f64;
        if rested_ns >= (1.0 - BUSY_SHARE_MAX) * all_ns {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the idle time since boot in nanoseconds, summed over all CPUs (`/proc/uptime`).
pub fn idle_ns() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime").context("reading /proc/uptime")?;
    let idle = text.split_whitespace().nth(1);
    let idle = idle.and_then(|seconds| seconds.parse::<f64>().ok());
    idle.map(|seconds| seconds * 1e9)
        .context("/proc/uptime has no idle time")
}
