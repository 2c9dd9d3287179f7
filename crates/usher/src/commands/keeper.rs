// SPDX-License-Identifier: GPL-2.0-only
//! `usher keeper`, a hidden command that the daemon starts. The process waits for the daemon's
//! death, undoes the daemon's actions, and then executes the next daemon, unless systemd does.
//! `usher_act::keeper` implements these steps.

use std::ffi::OsString;

use anyhow::Context;
use usher_act::keeper::{self, KeeperTask};

use crate::failure::Outcome;

/// Watches a daemon, and undoes its actions when it dies
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Arguments that the daemon passes to its keeper
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    task: Vec<OsString>,
}

/// Runs the keeper until the daemon has ended and its actions are undone.
pub fn run(args: &Args) -> Outcome {
    let task = KeeperTask::from_args(args.task.iter().cloned())
        .context("starting the daemon's keeper process")?;
    keeper::run(&task).context("waiting for the daemon's end")?;
    Ok(0)
}
