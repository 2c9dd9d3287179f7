// SPDX-License-Identifier: MIT OR Apache-2.0
//! Idle time of the guest's CPUs, and the wait until the guest is quiet after boot.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Length of an observation of the guest after boot.
const OBSERVATION: Duration = Duration::from_millis(250);
/// Upper limit of these observations.
const OBSERVATIONS_MAX: usize = 60;
/// A guest is quiet if its CPUs are busy for at most this share of an observation.
const BUSY_SHARE_MAX: f64 = 0.05;

/// Waits until the CPUs are idle, because the kernel still works for a time after boot. Gives up
/// after 60 observations: the rest of that work disturbs all schedulers equally.
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

/// Idle time of all CPUs since boot, summed, in nanoseconds (`/proc/uptime`).
pub fn idle_ns() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime").context("reading /proc/uptime")?;
    let idle = text.split_whitespace().nth(1);
    let idle = idle.and_then(|seconds| seconds.parse::<f64>().ok());
    idle.map(|seconds| seconds * 1e9)
        .context("/proc/uptime has no idle time")
}
