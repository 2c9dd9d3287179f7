// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched stop`.

use std::path::Path;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;
use usher_scx::State;

use crate::failure::Outcome;
use crate::output::Output;

use super::record;

/// Ends the scheduler; the kernel's own goes on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched stop")]
pub struct Args {}

const WAIT: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// Ends it, also one that is starting, and waits until its process is gone.
pub fn run(dir: &Path, out: Output) -> Outcome {
    let living = record::read(dir)?.filter(|record| record.state != record::State::Ended);
    let Some(record) = living else {
        if let State::Enabled { name } = super::kernel().state()? {
            bail!(
                "the scheduler '{name}' is loaded, and is not one that 'usher sched start' holds"
            );
        }
        bail!("no scheduler of Usher's runs");
    };
    let process = record::process_of(dir, &record)?;
    pidfd_send_signal(&process, Signal::TERM)
        .with_context(|| format!("ending process {}", record.pid))?;
    let mut ends = [PollFd::new(&process, PollFlags::IN)];
    let ended = poll(&mut ends, Some(&WAIT)).context("waiting for the scheduler's end")?;
    if ended == 0 {
        bail!("process {} does not end", record.pid);
    }
    out.answer(&json!({ "stopped": record.pid }), || {
        "the kernel's own scheduler goes on\n".to_owned()
    })?;
    Ok(0)
}
