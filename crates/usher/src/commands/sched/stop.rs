// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched stop`.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;
use usher_scx::Kernel;

use crate::failure::Outcome;
use crate::output::Output;

use super::record::{self, NONE_RUNS, Record, State};

/// Ends the scheduler; the kernel's own goes on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched stop")]
pub struct Args {}

/// How long the scheduler's process may take to end.
fn limit(state: State) -> Duration {
    match state {
        State::Running | State::Ended => super::hold::ENDING,
        // It heeds nobody while the kernel looks its programs over.
        State::Starting | State::BeginningAnew => 2 * super::hold::ENDING,
    }
}

/// Ends it, also one that is starting, and waits until its process is gone.
pub fn run(dir: &Path, out: Output) -> Outcome {
    let last = record::read(dir)?;
    let living = last.as_ref().filter(|last| last.state != State::Ended);
    let Some(record) = living else {
        return Err(none_here(&super::kernel(), dir, last.as_ref()));
    };
    let process = record::process_of(dir, record)?;
    pidfd_send_signal(&process, Signal::TERM)
        .with_context(|| format!("ending process {}", record.pid))?;
    wait(&process, record.pid, limit(record.state))?;
    out.answer(&json!({ "stopped": record.pid }), || {
        "the kernel's own scheduler goes on\n".to_owned()
    })?;
    Ok(0)
}

/// Why there is nothing to be ended.
fn none_here(kernel: &Kernel, dir: &Path, ended: Option<&Record>) -> anyhow::Error {
    if let Some(unknown) = record::unknown(kernel, dir, ended) {
        return anyhow!(unknown);
    }
    match kernel.state() {
        Ok(usher_scx::State::Enabled { name }) => {
            anyhow!("{NONE_RUNS}, but the scheduler '{name}'")
        }
        Ok(_) => anyhow!(NONE_RUNS),
        Err(error) => error.into(),
    }
}

/// Until the process has ended.
fn wait(process: &impl AsFd, pid: i32, within: Duration) -> anyhow::Result<()> {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec::try_from(within).ok();
    let ended = poll(&mut ends, limit.as_ref()).context("waiting for the scheduler's end")?;
    ensure!(
        ended != 0,
        "process {pid} has not ended within {} s: SIGKILL ends it safely, and the kernel's own \
         scheduler goes on",
        within.as_secs()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn one_that_does_not_end_is_named() {
        let mut sleeper = Command::new("cat");
        let mut sleeper = sleeper.stdin(Stdio::piped()).spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&sleeper), PidfdFlags::empty()).unwrap();
        let told = wait(&process, 12, Duration::from_millis(1)).unwrap_err();
        let told = told.to_string();
        assert!(told.starts_with("process 12 has not ended within 0 s: SIGKILL"));
        drop(sleeper.stdin.take());
        wait(&process, 12, Duration::from_secs(30)).unwrap();
        sleeper.wait().unwrap();
    }
}
