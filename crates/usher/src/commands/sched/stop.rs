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

use super::TAKES_OVER;
use super::record::{self, NONE_RUNS, Phase, SchedulerRecord};

/// Stops the scheduler; the kernel's own takes over
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher sched stop")]
pub struct Args {}

/// Time after which the process that causes the wait is reported.
const NOTICE_AFTER: Duration = Duration::from_secs(2);

/// Returns the time limit for the end of the scheduler's process.
fn limit(state: Phase) -> Duration {
    match state {
        Phase::Running | Phase::Ended => super::hold::ENDING,
        // It handles no signal while the kernel verifies its programs.
        Phase::Starting | Phase::Restarting => 2 * super::hold::ENDING,
    }
}

/// Stops the scheduler, even while it starts, and waits until its process is gone.
pub fn run(dir: &Path, out: Output) -> Outcome {
    let last = record::read(dir)?;
    let living = last.as_ref().filter(|last| last.state != Phase::Ended);
    let Some(record) = living else {
        return Err(none_here(&super::kernel(), dir, last.as_ref()));
    };
    let process = record::process_of(dir, record)?;
    end(&process, record.pid, limit(record.state), |line| {
        failure::print_error(line);
    })?;
    out.answer(&json!({ "stopped": record.pid }), || TAKES_OVER.to_owned())?;
    Ok(0)
}

/// Returns why there is nothing to stop.
fn none_here(kernel: &Kernel, dir: &Path, ended: Option<&SchedulerRecord>) -> anyhow::Error {
    if let Some(unknown) = record::unknown(kernel, dir, ended) {
        return anyhow!(unknown);
    }
    match kernel.state() {
        Ok(usher_scx::State::Enabled { name }) => {
            anyhow!("{NONE_RUNS}; the scheduler '{name}' runs")
        }
        Ok(_) => anyhow!(NONE_RUNS),
        Err(error) => error.into(),
    }
}

/// Signals the process, and waits until it has ended; `report` gets a line if that takes long.
fn end(
    process: &impl AsFd,
    pid: i32,
    within: Duration,
    report: impl FnOnce(&str),
) -> anyhow::Result<()> {
    pidfd_send_signal(process, Signal::TERM).with_context(|| format!("ending process {pid}"))?;
    // A stopped process handles the signal only after it continues. If the process is gone, this is
    // not needed.
    let _ = pidfd_send_signal(process, Signal::CONT);
    let at_first = NOTICE_AFTER.min(within);
    if has_ended(process, at_first)? {
        return Ok(());
    }
    let most = within.as_secs();
    report(&format!(
        "waiting for the scheduler's process {pid} to end, for {most} s at most"
    ));
    ensure!(
        has_ended(process, within - at_first)?,
        "process {pid} has not ended within {most} s: SIGKILL ends it safely, and the kernel's \
         own scheduler takes over"
    );
    Ok(())
}

/// Returns whether it has ended, now or within that time.
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

    /// Starts a process that runs the script, once the script has printed a line.
    fn child(script: &str) -> (Child, OwnedFd) {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).stdin(Stdio::piped());
        let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
        let message = child.stdout.as_mut().unwrap();
        BufReader::new(message)
            .read_line(&mut String::new())
            .unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        (child, process)
    }

    #[test]
    fn a_stopped_process_ends_too() {
        let (mut child, process) = child("echo; exec cat");
        pidfd_send_signal(&process, Signal::STOP).unwrap();
        end(&process, 12, Duration::from_secs(30), |_| {}).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(end(&process, 12, Duration::ZERO, |_| {}).is_err());
    }

    #[test]
    fn reports_a_slow_end_once() {
        let (mut child, process) = child("trap '' TERM; echo; exec cat");
        let mut message = Vec::new();
        end(&process, 12, Duration::from_secs(30), |line| {
            message.push(line.to_owned());
            // It reads until then.
            drop(child.stdin.take());
        })
        .unwrap();
        let line = "waiting for the scheduler's process 12 to end, for 30 s at most";
        assert_eq!(message, [line]);
        child.wait().unwrap();
    }

    #[test]
    fn stop_names_a_process_that_does_not_end() {
        let (mut child, process) = child("trap '' TERM; echo; exec cat");
        let actual = end(&process, 12, Duration::from_millis(1), |_| {});
        let actual = actual.unwrap_err().to_string();
        assert!(actual.starts_with("process 12 has not ended within 0 s: SIGKILL"));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
