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

use crate::failure::{self, Outcome};
use crate::output::Output;

use super::GOES_ON;
use super::record::{self, NONE_RUNS, Record, State};

/// Ends the scheduler; the kernel's own goes on
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched stop")]
pub struct Args {}

/// After how long it is said for whom this waits.
const PATIENCE: Duration = Duration::from_secs(2);

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
    end(&process, record.pid, limit(record.state), |line| {
        failure::complain(line);
    })?;
    out.answer(&json!({ "stopped": record.pid }), || GOES_ON.to_owned())?;
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

/// Tells the process to end, and waits until it has; `say` gets a line where that takes long.
fn end(
    process: &impl AsFd,
    pid: i32,
    within: Duration,
    say: impl FnOnce(&str),
) -> anyhow::Result<()> {
    pidfd_send_signal(process, Signal::TERM).with_context(|| format!("ending process {pid}"))?;
    // One that is stopped hears nothing before it goes on; one that is gone need not.
    let _ = pidfd_send_signal(process, Signal::CONT);
    let at_first = PATIENCE.min(within);
    if has_ended(process, at_first)? {
        return Ok(());
    }
    let most = within.as_secs();
    say(&format!(
        "waiting for the scheduler's process {pid} to end, for {most} s at most"
    ));
    ensure!(
        has_ended(process, within - at_first)?,
        "process {pid} has not ended within {most} s: SIGKILL ends it safely, and the kernel's \
         own scheduler goes on"
    );
    Ok(())
}

/// Whether it has, now or within that time.
fn has_ended(process: &impl AsFd, within: Duration) -> anyhow::Result<bool> {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec::try_from(within).ok();
    let ended = poll(&mut ends, limit.as_ref()).context("waiting for the scheduler's end")?;
    Ok(ended != 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// A process that does as the script says, once that has printed a line.
    fn child(script: &str) -> (Child, OwnedFd) {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).stdin(Stdio::piped());
        let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
        let said = child.stdout.as_mut().unwrap();
        BufReader::new(said).read_line(&mut String::new()).unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        (child, process)
    }

    #[test]
    fn one_that_is_stopped_ends_too() {
        let (mut child, process) = child("echo; exec cat");
        pidfd_send_signal(&process, Signal::STOP).unwrap();
        end(&process, 12, Duration::from_secs(30), |_| {}).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(end(&process, 12, Duration::ZERO, |_| {}).is_err());
    }

    #[test]
    fn who_waits_for_one_that_lingers_says_so_once() {
        let (mut child, process) = child("trap '' TERM; echo; exec cat");
        let mut said = Vec::new();
        end(&process, 12, Duration::from_secs(30), |line| {
            said.push(line.to_owned());
            // It reads until then.
            drop(child.stdin.take());
        })
        .unwrap();
        let line = "waiting for the scheduler's process 12 to end, for 30 s at most";
        assert_eq!(said, [line]);
        child.wait().unwrap();
    }

    #[test]
    fn one_that_does_not_end_is_named() {
        let (mut child, process) = child("trap '' TERM; echo; exec cat");
        let told = end(&process, 12, Duration::from_millis(1), |_| {});
        let told = told.unwrap_err().to_string();
        assert!(told.starts_with("process 12 has not ended within 0 s: SIGKILL"));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
