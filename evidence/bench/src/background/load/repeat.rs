// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load generator `load repeat`: runs a command repeatedly and counts the runs. With `--cold`, each
//! run begins by dropping the given file or device from the page cache.
//!
//! The end of a run is checked every 5 ms. A run has no time limit; on a request to end, its
//! process is killed and the run does not count. A run counts if its exit status is below 125. Any
//! other status, or a signal, ends the generator with an error.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::disk::forget;
use super::duty_cycle::{drive, print, stop_flag};
use super::limits::LoadLimits;

/// Arguments of `load repeat`.
#[derive(Debug, Clone, clap::Args)]
pub struct RepeatArgs {
    /// Amount of work; a unit is a run of the command
    #[command(flatten)]
    pub limits: LoadLimits,
    /// Drop this file or device from the page cache before each run
    #[arg(long, value_name = "FILE")]
    pub cold: Option<PathBuf>,
    /// Command to run, with its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Runs the load generator.
pub fn run(args: &RepeatArgs) -> Result<()> {
    let stop = stop_flag()?;
    let summary = drive(&args.limits, &stop, || {
        if let Some(path) = &args.cold {
            forget(&std::fs::File::open(path)?)?;
        }
        let mut child = Command::new(&args.command[0])
            .args(&args.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("running {}", args.command[0]))?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if stop.load(Ordering::Relaxed) {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        // A status below 125 counts as a run, because `e2fsck` exits with status 4 on a file system
        // in use. A status of 125 or more means that the command could not run; without an error,
        // it would be repeated without end.
        ensure!(
            status.code().is_some_and(|code| code < 125),
            "{} ended with {status}",
            args.command[0]
        );
        Ok(Some(1))
    })?;
    print(&summary)
}
