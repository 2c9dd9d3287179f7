// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program that pins its threads once, under a daemon. A run fails if its exit status or a
//! message on standard error shows a failed pin, or if it takes longer than 60 s. After the last
//! run, remaining descendants of the benchmark have 5 s to end, and are then killed and counted.
//! A run over the limit is killed with its process group.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use usher_model::CpuSet;

use super::observer::Observer;
use super::pin_watch::PinWatch;
use super::programs::{PinningMethod, ProgramTimes, Programs};
use crate::processes::{end_within, usher};

/// Time limit of a run. A longer run is killed and counts as failed.
const RUN_MAX: Duration = Duration::from_secs(60);
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// Time limit for the end of a program after the end of its launcher.
const REST_MAX: Duration = Duration::from_secs(5);
/// Messages of the runtimes about a failed pin.
const COMPLAINTS: [&str; 6] = [
    "OMP: Error",
    "libgomp:",
    "set_cpubind",
    "not enough slots",
    "sched_setaffinity",
    "failed to set",
];

/// Outcome of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The reason why the run failed; `None`: it did not fail.
    pub failure: Option<String>,
    /// Whether a thread had another mask at its end than the mask that it had set.
    pub moved: bool,
    pub watch: Option<PinWatch>,
}

/// Runs programs under one daemon.
pub struct Runner<'a> {
    binary: &'a Path,
    dir: &'a Path,
    programs: &'a Programs,
    observer: &'a Observer,
    usable: CpuSet,
}

impl<'a> Runner<'a> {
    pub fn new(
        binary: &'a Path,
        dir: &'a Path,
        programs: &'a Programs,
        observer: &'a Observer,
        usable: CpuSet,
    ) -> Self {
        Self {
            binary,
            dir,
            programs,
            observer,
            usable,
        }
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// Starting the program or waiting for it fails.
    pub fn run(&self, kind: PinningMethod, turn: usize, length: ProgramTimes) -> Result<Outcome> {
        let name = format!("pinned-{turn}");
        let (words, settings) = self.programs.command(kind, turn, length);
        let (out, err) = (self.dir.join("run.out"), self.dir.join("run.err"));
        self.observer
            .watch(PinWatch::new(name.clone(), self.usable.clone()));
        let mut child = usher(self.binary, self.dir)
            .args(["run", "--name", &name, "--"])
            .args(words)
            .envs(settings)
            .current_dir(self.dir)
            .process_group(0)
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .spawn()
            .with_context(|| format!("starting {}", kind.name()))?;
        let status = end_within(&mut child, RUN_MAX)?;
        if status.is_none() {
            let group = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL)?;
            child.wait()?;
        }
        let stderr = String::from_utf8_lossy(&fs::read(&err)?).into_owned();
        let stdout = fs::read(&out)?;
        Ok(Outcome {
            failure: failure(status, &stderr),
            moved: String::from_utf8_lossy(&stdout).contains("moved"),
            watch: self.observer.take_observations(),
        })
    }
}

/// Returns the reason why a run failed, from its exit status and its messages; `None` if the run
/// succeeded.
fn failure(status: Option<ExitStatus>, stderr: &str) -> Option<String> {
    let complaint = stderr
        .lines()
        .find(|line| COMPLAINTS.iter().any(|text| line.contains(text)));
    let line = complaint.or(stderr.lines().next()).unwrap_or_default();
    match status {
        None => Some(format!(
            "the program did not end within {} s",
            RUN_MAX.as_secs()
        )),
        Some(status) if !status.success() => Some(match status.signal() {
            Some(signal) => format!("signal {signal}: {line}"),
            None => format!("exit status {}: {line}", status.code().unwrap_or(-1)),
        }),
        Some(_) => complaint.map(str::to_owned),
    }
}

/// Process numbers of all descendants of this process that still run.
pub fn descendants() -> Vec<i32> {
    let mut found = Vec::new();
    let mut level = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while !level.is_empty() {
        let mut below = Vec::new();
        for pid in level {
            for tid in super::observer::numbers(&format!("/proc/{pid}/task")) {
                let path = format!("/proc/{pid}/task/{tid}/children");
                let text = fs::read_to_string(path).unwrap_or_default();
                below.extend(text.split(' ').filter_map(|one| one.parse::<i32>().ok()));
            }
        }
        found.extend(below.iter().copied());
        level = below;
    }
    found.retain(|&pid| crate::processes::runs(pid));
    found
}

/// Waits until no program of the benchmark is left, and kills programs that do not end in time.
/// Returns the number of killed programs.
pub fn end_descendants() -> usize {
    let begun = Instant::now();
    while !descendants().is_empty() && begun.elapsed() < REST_MAX {
        std::thread::sleep(CHECK_EVERY);
    }
    let left = descendants();
    for &pid in &left {
        eprintln!("pinning: process {pid} did not end and was killed");
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            // The process may already have ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    left.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_error_message_is_a_failure_with_any_status() {
        let ok = Some(ExitStatus::from_raw(0));
        assert_eq!(failure(ok, ""), None);
        assert_eq!(failure(ok, "a warning\n"), None);
        let error = "x\nOMP: Error #100: Fatal system error detected.\n";
        let stdout = failure(ok, error).unwrap();
        assert!(stdout.contains("OMP: Error #100"), "{stdout}");
        let aborted = failure(Some(ExitStatus::from_raw(6)), error).unwrap();
        assert!(aborted.starts_with("signal 6: OMP"), "{aborted}");
        let missing = failure(Some(ExitStatus::from_raw(1 << 8)), "not enough slots").unwrap();
        assert!(missing.starts_with("exit status 1"), "{missing}");
        assert!(failure(None, "").is_some());
    }
}
