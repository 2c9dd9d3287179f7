// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts and ends schedulers in the guest, and counts context switches and wake-ups during a
//! measurement (`usher sched stats`).
//!
//! A sched_ext scheduler runs as long as the process that has loaded it. This module starts that
//! process, and ends it by SIGINT. If a scheduler violates the rules of sched_ext, the kernel ends
//! the scheduler and continues with EEVDF; [`RunningScheduler::check`] then returns an error, and
//! the measurement does not count.
//!
//! A scheduler must start within 120 s, and the counter must begin within 120 s; the state of a
//! baseline or a peer is read every 20 ms. After SIGINT, a scheduler or the counter must end within
//! 60 s. A process that exceeds a limit is killed by SIGKILL, and the kernel then unloads its
//! scheduler.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::baseline::{self, Baseline};
use crate::processes::end_within;
use crate::sched::messages::SwitchCounts;
use crate::sched::schedulers::ComparedScheduler;

const SCHED_EXT: &str = "/sys/kernel/sched_ext";
const BASE_SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";
/// Switch of cache-aware load balancing. The file exists on kernels with CONFIG_SCHED_CACHE.
const CACHE_AWARE: &str = "/sys/kernel/debug/sched/llc_balancing/enabled";
/// Time limit for the start of a scheduler or of the counter, which includes the time in which the
/// kernel verifies the BPF programs.
const BEGINS_WITHIN: Duration = Duration::from_secs(120);
/// Time limit for the end of a scheduler or of the counter after the request to end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A scheduler that runs until the value is dropped.
#[derive(Debug)]
pub struct RunningScheduler {
    how: StartedScheduler,
}

#[derive(Debug)]
enum StartedScheduler {
    Kernels,
    /// EEVDF with another setting, whose previous value is restored at the end.
    Setting {
        file: &'static str,
        before: String,
    },
    /// The process that has loaded the scheduler: `usher sched start --foreground`, a baseline, or
    /// a peer.
    Child(Child),
}

impl RunningScheduler {
    /// Starts a scheduler, and returns when the kernel runs it.
    ///
    /// # Errors
    /// The scheduler cannot be started. EEVDF continues to run.
    pub fn start(scheduler: &ComparedScheduler, usher: &Path) -> Result<Self> {
        let how = match scheduler {
            ComparedScheduler::Eevdf => StartedScheduler::Kernels,
            ComparedScheduler::EevdfSlice { ms } => {
                setting(BASE_SLICE, &(ms * 1_000_000).to_string())?
            }
            ComparedScheduler::EevdfCacheOff => setting(CACHE_AWARE, "0")?,
            ComparedScheduler::Peer(peer) => {
                let mut command = Command::new(&peer.program);
                command.args(&peer.options);
                StartedScheduler::Child(begin(&peer.name, command.stderr(Stdio::null()))?)
            }
            ComparedScheduler::FifoMinimal => start_baseline(scheduler, Baseline::MinimalFifo)?,
            ComparedScheduler::O1Plain => start_baseline(scheduler, Baseline::O1Plain)?,
            ComparedScheduler::O1Aggregate => start_baseline(scheduler, Baseline::O1Aggregate)?,
            ComparedScheduler::Usher | ComparedScheduler::Fifo => {
                let options = scheduler.options().unwrap_or_default();
                StartedScheduler::Child(start_usher(usher, options)?)
            }
        };
        Ok(Self { how })
    }

    /// Checks that the scheduler still runs.
    ///
    /// # Errors
    /// The kernel has ended the scheduler.
    pub fn check(&self) -> Result<()> {
        let is_ext = matches!(self.how, StartedScheduler::Child(_));
        let state = kernel_state("state");
        ensure!(
            !is_ext || state == "enabled",
            "the kernel ended the scheduler: {}",
            last_kernel_message()
        );
        Ok(())
    }
}

impl Drop for RunningScheduler {
    fn drop(&mut self) {
        match &mut self.how {
            StartedScheduler::Kernels => {}
            StartedScheduler::Setting { file, before } => {
                let _ = fs::write(file, before);
            }
            StartedScheduler::Child(child) => end(child),
        }
    }
}

fn kernel_state(name: &str) -> String {
    let text = fs::read_to_string(Path::new(SCHED_EXT).join(name));
    text.unwrap_or_default().trim().to_owned()
}

/// Returns the kernel's last message about a sched_ext scheduler.
fn last_kernel_message() -> String {
    let log = Command::new("dmesg").output();
    let log = log.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let log = log.unwrap_or_default();
    let line = log.lines().rfind(|line| line.contains("sched_ext"));
    line.unwrap_or("no reason given").to_owned()
}

fn setting(file: &'static str, value: &str) -> Result<StartedScheduler> {
    let before = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    fs::write(file, value).with_context(|| format!("writing {file}"))?;
    Ok(StartedScheduler::Setting {
        file,
        before: before.trim().to_owned(),
    })
}

fn start_baseline(scheduler: &ComparedScheduler, baseline: Baseline) -> Result<StartedScheduler> {
    let own = std::env::current_exe().context("finding the path of this program")?;
    let mut command = Command::new(own);
    command.args([baseline::COMMAND, baseline.argument()]);
    Ok(StartedScheduler::Child(begin(
        &scheduler.label(),
        &mut command,
    )?))
}

/// Starts Usher's scheduler without a daemon, because the daemon's control loop would use CPU time
/// during the measurement. Returns when the kernel runs the scheduler.
fn start_usher(usher: &Path, options: &[&str]) -> Result<Child> {
    let words = [&["sched", "start", "--foreground"], options].concat();
    let mut child = Command::new(usher)
        .args(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {}", usher.display()))?;
    let mut stdout = child.stdout.take().context("usher has no output")?;
    let line = first_line(&mut child, &mut stdout, BEGINS_WITHIN);
    if line.context("waiting for the scheduler")?.is_empty() {
        if end_within(&mut child, ENDS_WITHIN)?.is_none() {
            kill(&mut child);
        }
        let output = child.wait_with_output().context("waiting for usher")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let line = stderr.trim().lines().next_back();
        bail!("usher {}: {}", words.join(" "), line.unwrap_or("it failed"));
    }
    Ok(child)
}

/// Starts a program that loads a scheduler, and waits until the kernel runs the scheduler.
fn begin(name: &str, program: &mut Command) -> Result<Child> {
    let mut child = program
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let deadline = Instant::now() + BEGINS_WITHIN;
    while kernel_state("state") != "enabled" {
        if let Some(status) = child
            .try_wait()
            .with_context(|| format!("waiting for the start of the scheduler {name}"))?
        {
            bail!("{name} ended: {status}");
        }
        if Instant::now() > deadline {
            end(&mut child);
            bail!("the scheduler {name} did not start within {BEGINS_WITHIN:?}");
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(child)
}

/// Sends SIGINT to the process, and waits until the process ends. After [`ENDS_WITHIN`], the
/// process is killed.
fn end(child: &mut Child) {
    if let Ok(None) = child.try_wait()
        && let Some(pid) = Pid::from_raw(child.id().cast_signed())
    {
        let _ = kill_process(pid, Signal::INT);
    }
    if !matches!(end_within(child, ENDS_WITHIN), Ok(Some(_))) {
        kill(child);
    }
}

/// Kills the process by SIGKILL and reaps it.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads the first line of a child's output, without its line feed; empty if the output ends
/// before. Reads no byte after the line.
///
/// # Errors
/// The line is not complete after `limit`; the child is then killed.
fn first_line(
    child: &mut Child,
    output: &mut (impl Read + AsFd),
    limit: Duration,
) -> Result<String> {
    let deadline = Instant::now() + limit;
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("computing the time limit")?;
        let ready = poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&timeout));
        if ready == Err(Errno::INTR) {
            continue;
        }
        if ready? == 0 {
            kill(child);
            bail!("the process wrote no line within {limit:?}");
        }
        let mut byte = [0];
        match output.read(&mut byte)? {
            1 if byte != *b"\n" => line.push(byte[0]),
            _ => return Ok(String::from_utf8_lossy(&line).into_owned()),
        }
    }
}

/// Counts the context switches and wake-ups under any scheduler by `usher sched stats -- CMD`,
/// where CMD runs until its standard input ends.
#[derive(Debug)]
pub struct SwitchCounter {
    counts: Child,
    _output: ChildStderr,
}

const COUNTING: &str = "counting";

impl SwitchCounter {
    /// Starts to count.
    pub fn start(usher: &Path) -> Result<Self> {
        let last = format!("echo {COUNTING} >&2; exec cat >/dev/null");
        let mut counts = Command::new(usher)
            .args(["sched", "stats", "--json", "--", "sh", "-c", &last])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("running {}", usher.display()))?;
        let mut stderr = counts
            .stderr
            .take()
            .context("'usher sched stats' was started without a pipe for its output")?;
        let line = first_line(&mut counts, &mut stderr, BEGINS_WITHIN)
            .context("waiting for 'usher sched stats'")?;
        if line.trim() != COUNTING {
            kill(&mut counts);
            let reason = match line.trim() {
                "" => "the command did not start to count",
                reason => reason,
            };
            bail!("usher sched stats: {reason}");
        }
        Ok(Self {
            counts,
            _output: stderr,
        })
    }

    /// Stops counting, and returns the counts.
    pub fn finish(mut self) -> Result<SwitchCounts> {
        drop(self.counts.stdin.take());
        // The counts are shorter than the buffer of a pipe, so that the command ends although this
        // process has not read them yet.
        if end_within(&mut self.counts, ENDS_WITHIN)?.is_none() {
            kill(&mut self.counts);
            bail!("'usher sched stats' did not end within {ENDS_WITHIN:?}");
        }
        let output = self.counts.wait_with_output().context("counting")?;
        counted(&output.stdout)
    }
}

fn counted(answer: &[u8]) -> Result<SwitchCounts> {
    let answer: serde_json::Value =
        serde_json::from_slice(answer).context("reading the counts of 'usher sched stats'")?;
    serde_json::from_value(answer["counted"].clone())
        .context("reading the counts of 'usher sched stats'")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Returns the path of a script that stands in for `usher` and counts nothing. The script is
    /// part of the sources. If a test wrote it, a child of another thread could have the file open
    /// for writing, and executing the script would fail.
    fn stand_in() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sched/inside/stand-in.sh")
    }

    #[test]
    fn the_counter_counts_until_its_input_ends() {
        let meter = SwitchCounter::start(&stand_in()).unwrap();
        let counted = meter.finish().unwrap();
        assert_eq!((counted.switches, counted.needless_ns), (5, 1));
    }

    #[test]
    fn failures_of_usher_are_reported() {
        let why = RunningScheduler::start(&ComparedScheduler::Fifo, &stand_in()).unwrap_err();
        assert_eq!(
            why.to_string(),
            "usher sched start --foreground --fifo: usher: no BTF"
        );
        let why = SwitchCounter::start(Path::new("false")).unwrap_err();
        assert_eq!(
            why.to_string(),
            "usher sched stats: the command did not start to count"
        );
    }

    #[test]
    fn a_process_that_writes_no_line_in_time_is_killed() {
        let mut cat = Command::new("cat");
        let cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cat.spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let error = first_line(&mut child, &mut output, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.to_string(), "the process wrote no line within 10ms");
        assert!(child.try_wait().unwrap().is_some(), "the child is reaped");
    }

    #[test]
    fn only_the_first_line_is_read() {
        let mut echo = Command::new("printf");
        let echo = echo.args(["one\ntwo\n"]).stdout(Stdio::piped());
        let mut child = echo.spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let minute = Duration::from_secs(60);
        let lines = [(); 3].map(|()| first_line(&mut child, &mut output, minute).unwrap());
        assert_eq!(lines, ["one", "two", ""]);
        child.wait().unwrap();
    }

    #[test]
    fn output_without_counts_is_an_error() {
        assert!(counted(b"{}").is_err());
        assert!(counted(b"no").is_err());
    }
}
