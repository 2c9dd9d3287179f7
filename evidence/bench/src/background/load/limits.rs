// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options that all load generators have: the end of the load, its duty cycle, and its record
//! files. `clap` parses the options from the command line of `usher-bench load`.

use std::path::PathBuf;

/// Default length of a period of activity and sleep, in ms.
pub const PERIOD_MS: f64 = 100.0;

/// Amount of work of a load generator, the share of the time for which it is active, and its record
/// files.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadLimits {
    /// End after this many units of work; without this option and --seconds, the load never ends
    #[arg(long)]
    pub work: Option<u64>,
    /// End after this time in seconds
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Be active for this share of the time, in %
    #[arg(long, default_value_t = 100.0, value_parser = usage)]
    pub usage: f64,
    /// Alternate between activity and sleep with this period in ms
    #[arg(long, default_value_t = PERIOD_MS, value_parser = usage_period)]
    pub period_ms: f64,
    /// End each active phase after this number of units, not after a fixed time; the sleep is as
    /// long as without this option
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub burst: Option<u64>,
    /// Write the number of finished units to this file, as 8 bytes in little-endian order
    #[arg(long, value_name = "FILE")]
    pub counter: Option<PathBuf>,
    /// Write the number of units started in each millisecond to this file, as 4 bytes each
    #[arg(long, value_name = "FILE")]
    pub bins: Option<PathBuf>,
    /// Value of the monotonic clock at the first millisecond, in ns
    #[arg(long, default_value_t = 0)]
    pub epoch_ns: u64,
    /// Write the start and the end of each active phase to this file
    #[arg(long, value_name = "FILE")]
    pub phases: Option<PathBuf>,
}

fn usage(text: &str) -> Result<f64, String> {
    let percent: f64 = text
        .parse()
        .map_err(|_| "the value must be a number".to_owned())?;
    match percent > 0.0 && percent <= 100.0 {
        true => Ok(percent),
        false => Err("the usage degree must be greater than 0 and at most 100 %".to_owned()),
    }
}

fn usage_period(text: &str) -> Result<f64, String> {
    let ms: f64 = text
        .parse()
        .map_err(|_| "the value must be a number".to_owned())?;
    match (1.0..=100_000.0).contains(&ms) {
        true => Ok(ms),
        false => Err("the period must be from 1 to 100000 ms".to_owned()),
    }
}
