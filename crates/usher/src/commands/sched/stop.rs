// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched stop`: unloads the scheduler, after which the kernel's own scheduler runs all
//! threads.
//!
//! 1. Find the process that holds the scheduler; the command also works while the scheduler starts.
//! 2. Request the stop, with the time limit of `remote` (60 s).
//! 3. A daemon that was started only for the scheduler ends after the stop. The command waits for
//!    this end for at most 20 s ([`EXIT_WITHIN`]).
//!
//! If the process still runs after this time, or no scheduler was loaded, the command fails with
//! exit status 125.

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use usher_scx::Kernel;

use crate::answers::StoppedDaemon;
use crate::daemon::scheduler::{ENDING, kernel};
use crate::failure::Outcome;
use crate::output::Output;

use super::remote::{self, Found, NONE_RUNS, TAKES_OVER};

/// Stops Usher's scheduler; the kernel's own scheduler takes over
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched stop")]
pub struct Args {}

/// Upper limit of the time until a daemon that is no longer needed ends. The time is short, because
/// such a daemon manages no programs that it would have to release.
const EXIT_WITHIN: Duration = ENDING;

/// Stops the scheduler, even while it starts, and waits until it is unloaded. A daemon that was
/// started for the scheduler ends, and a scheduler without a daemon ends with its process.
pub fn run(dir: &Path, out: Output) -> Outcome {
    let Some(mut client) = Found::at(dir)?.client else {
        return Err(none_here(&kernel(), dir));
    };
    let process = client.process()?;
    let stopped = client.stop(|| remote::has_ended(&process, EXIT_WITHIN))?;
    let pid = client.pid();
    ensure!(
        !stopped.exits || remote::has_ended(&process, EXIT_WITHIN)?,
        "process {pid} has not ended within {} s: end it by SIGKILL, after which the kernel's \
         own scheduler runs",
        EXIT_WITHIN.as_secs()
    );
    if !stopped.was_loaded {
        return Err(none_here(&kernel(), dir));
    }
    out.answer(&StoppedDaemon { stopped: pid }, || TAKES_OVER.to_owned())?;
    Ok(0)
}

/// Returns why there is nothing to stop.
fn none_here(kernel: &Kernel, dir: &Path) -> anyhow::Error {
    if let Some(unknown) = remote::unknown(kernel, dir) {
        return anyhow!(unknown);
    }
    match kernel.state() {
        Ok(usher_scx::State::Enabled { name }) => {
            anyhow!("{NONE_RUNS}; another scheduler runs, '{name}'")
        }
        Ok(_) => anyhow!(NONE_RUNS),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_the_scheduler_that_runs_instead() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let line = || none_here(&Kernel::at(sys.path()), dir.path()).to_string();
        assert!(line().starts_with("this kernel has no sched_ext"));
        let ext = sys.path().join("kernel/sched_ext");
        fs::create_dir_all(ext.join("root")).unwrap();
        fs::write(ext.join("state"), "disabled\n").unwrap();
        assert_eq!(line(), NONE_RUNS);
        fs::write(ext.join("state"), "enabled\n").unwrap();
        fs::write(ext.join("root/ops"), "bpfland\n").unwrap();
        assert_eq!(
            line(),
            format!("{NONE_RUNS}; another scheduler runs, 'bpfland'")
        );
    }
}
