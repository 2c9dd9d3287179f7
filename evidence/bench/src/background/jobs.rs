// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the command line of a task for its role: the foreground, or one of several background
//! programs. A job also names the file in which the command counts its work.
//!
//! Only background programs of the tasks `Disk` and `Net` have a counter file. The counter file of
//! `Net` is written by the server in the remote network namespace. The work of other background
//! programs is measured by their CPU time and their bytes.
//!
//! This module starts no program, with one exception: without an input file given by the user, the
//! task `Gromacs` generates its input. No command line contains a time limit. Background programs
//! run until they are ended; iperf ends after 3,600 s.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::experiments::{DiskSetup, Task};
use super::fixture::BackgroundFixture;
use super::rig::inputs;
use super::rig::network::Network;

/// Runs the words after `$0` again and again, until a run ends with an exit status of 125 or more,
/// which means that the command could not run. `e2fsck` ends with status 4 on a file system in use.
const REPEAT: &str = r#"while :; do "$@"; [ $? -lt 125 ] || exit; done"#;

/// Like [`REPEAT`], and drops the file `$0` from the page cache before each run.
const REPEAT_COLD: &str = r#"while :; do
    dd if="$0" iflag=nocache count=0 status=none || exit
    "$@"; [ $? -lt 125 ] || exit
done"#;

/// Runs the words after `$0`, and writes a checkpoint of 256 KiB to the file `$0` every five
/// seconds, each time until it is on the disk.
const CHECKPOINTS: &str = r#""$@" &
while sleep 5; do
    dd if=/dev/zero of="$0" bs=256k count=1 conv=fsync status=none || exit
done"#;

/// Role of a task: the foreground, or one of the background programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// The foreground, with its amount of work if the task has an adjustable amount.
    Fg(Option<WorkAmount>),
    /// The background program with this number, counted from 1.
    Bg(u32),
}

/// An amount of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkAmount {
    /// Total number of units. The load generator of the task defines the unit.
    pub units: u64,
    /// Units of work between two pauses; `None`: the pauses begin at fixed times.
    pub burst: Option<u64>,
}

impl JobKind {
    fn number(self) -> u32 {
        match self {
            Self::Fg(_) => 0,
            Self::Bg(number) => number,
        }
    }
}

/// A command line, and the file in which the command counts its work.
#[derive(Debug, Clone)]
pub struct Job {
    /// The words of the command line.
    pub words: Vec<String>,
    /// The counter file; `None`: the command does not count its work.
    pub counter: Option<PathBuf>,
}

impl BackgroundFixture {
    /// Returns the command of a task. The fixture must have prepared the task's inputs.
    ///
    /// - `place` is the disk of the tasks `Disk`, `Grep` and `Fsck`. Other tasks ignore it.
    /// - `usage` is the activity of the load generators of `Disk` and `Net`, in per cent of the
    ///   time: greater than 0, at most 100. Other tasks ignore it. The load generator checks the
    ///   range, not this function.
    ///
    /// # Errors
    ///
    /// An input of the task (disk, network, source files) is missing, or the task is not available
    /// in this role.
    pub fn job(
        &self,
        task: Task,
        kind: JobKind,
        place: Option<DiskSetup>,
        usage: f64,
    ) -> Result<Job> {
        let counter = matches!(kind, JobKind::Bg(_))
            .then(|| self.path(&format!("bg{}.counter", kind.number())));
        let words = match task {
            Task::Disk => self.disk_job(kind, place, usage, counter.as_deref())?,
            Task::Net => self.net_job(kind, usage)?,
            Task::Scp | Task::Iperf => self.transfer_job(task, kind)?,
            _ => self.real_job(task, kind, place)?,
        };
        let counter = match (task, kind) {
            (Task::Net, JobKind::Bg(number)) => Some(
                self.running_network()?
                    .arrived(&format!("bg{number}"), "counter"),
            ),
            (Task::Disk, JobKind::Bg(_)) => counter,
            _ => None,
        };
        Ok(Job { words, counter })
    }

    fn running_network(&self) -> Result<&Network> {
        self.network.as_ref().context("no network")
    }

    fn disk_job(
        &self,
        kind: JobKind,
        place: Option<DiskSetup>,
        usage: f64,
        counter: Option<&Path>,
    ) -> Result<Vec<String>> {
        let disk = place
            .and_then(|place| self.disk.get(&place))
            .context("no disk")?;
        let mut load = LoadCommand::new("disk")?.usage(usage).kind(kind, counter);
        load.pair(
            "--file",
            disk.dir.join(format!("file{}", kind.number())).display(),
        );
        Ok(load.words)
    }

    fn net_job(&self, kind: JobKind, usage: f64) -> Result<Vec<String>> {
        let name = match kind {
            JobKind::Fg(_) => "fg".to_owned(),
            JobKind::Bg(number) => format!("bg{number}"),
        };
        let mut load = LoadCommand::new("net")?.usage(usage).kind(kind, None);
        load.pair("--to", self.running_network()?.sink());
        load.pair("--name", name);
        Ok(self.running_network()?.in_local_ns(load.words))
    }

    fn transfer_job(&self, task: Task, kind: JobKind) -> Result<Vec<String>> {
        let network = self.running_network()?;
        let number = kind.number();
        let words = match (task, kind) {
            (Task::Iperf, JobKind::Fg(_)) => {
                let bytes = f64::from(self.size.rate_mbit) * 1e6 / 8.0 * self.size.fg_seconds;
                network.iperf(0, &["-n", &format!("{bytes:.0}")])
            }
            (Task::Iperf, JobKind::Bg(_)) => network.iperf(number as u16, &["-t", "3600"]),
            (_, JobKind::Fg(_)) => network.scp(&self.path("sent"), "received0"),
            (_, JobKind::Bg(_)) => {
                let copy = network.scp(&self.path("sent-long"), &format!("received{number}"));
                shell(REPEAT, "sh", copy)
            }
        };
        Ok(words)
    }

    fn real_job(&self, task: Task, kind: JobKind, place: Option<DiskSetup>) -> Result<Vec<String>> {
        let fftw =
            |sizes: &[&str]| own(&[&["fftw-wisdom", "-n", "-o", "/dev/null"], sizes].concat());
        let place = || place.context("no disk");
        Ok(match task {
            Task::FftwWisdom if self.size.quick => fftw(&["cof1024"]),
            Task::FftwWisdom => fftw(&["cof16384", "rof8192"]),
            Task::Make => {
                let zlib = self.zlib.as_ref().context("no sources")?;
                let zlib = zlib.display().to_string();
                own(&["make", "-s", "-C", &zlib, "-j", &cpus()?, "libz.a"])
            }
            Task::Grep => {
                let tree = self.trees.get(&place()?).context("no tree")?;
                let pattern = "spin_(un)?lock_irq[a-z]+.*flags";
                own(&[
                    "pcre2grep",
                    "-r",
                    "-c",
                    pattern,
                    &tree.display().to_string(),
                ])
            }
            Task::CpuHog => compute()?,
            Task::Boinc => {
                let checkpoint = self.path(&format!("checkpoint{}", kind.number()));
                shell(CHECKPOINTS, &checkpoint.display().to_string(), compute()?)
            }
            Task::Gromacs => self.gromacs_job(kind)?,
            Task::Fsck => self.fsck_job(place()?)?,
            _ => anyhow::bail!("{} is not an executable program", task.name()),
        })
    }

    fn gromacs_job(&self, kind: JobKind) -> Result<Vec<String>> {
        let tpr = match &self.size.tpr {
            Some(given) => given.clone(),
            None => inputs::water(&self.path("gromacs"))?,
        };
        let tpr = tpr.display().to_string();
        let output = self.path(&format!("gmx{}", kind.number()));
        let output = output.display().to_string();
        let run = [
            "gmx",
            "-quiet",
            "-nobackup",
            "mdrun",
            "-s",
            &tpr,
            "-deffnm",
            &output,
        ];
        let threads = [
            "-ntmpi",
            "1",
            "-ntomp",
            &cpus()?,
            "-pin",
            "off",
            "-nsteps",
            "-1",
        ];
        Ok(own(&[&run[..], &threads].concat()))
    }

    fn fsck_job(&self, place: DiskSetup) -> Result<Vec<String>> {
        let disk = self.disk.get(&place).context("no disk")?;
        let checked = match place.is_slow() {
            true => disk.device.clone(),
            false => disk.dir.join("image"),
        };
        let checked = checked.display().to_string();
        let check = own(&["e2fsck", "-fn", &checked]);
        Ok(shell(REPEAT_COLD, &checked, check))
    }
}

/// Returns the command line of `stress-ng` that computes on every CPU until it is ended. Without
/// `--keep-name`, `stress-ng` overwrites its environment, by which the benchmark finds processes.
pub fn compute() -> Result<Vec<String>> {
    let load = [
        "stress-ng",
        "--quiet",
        "--keep-name",
        "--cpu-method",
        "int64",
    ];
    Ok(own(&[&load[..], &["--cpu", &cpus()?]].concat()))
}

/// Returns the command line of a shell that runs a script with `$0` and the words `command`.
fn shell(script: &str, zero: &str, command: Vec<String>) -> Vec<String> {
    let mut words = own(&["sh", "-c", script, zero]);
    words.extend(command);
    words
}

fn own(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn cpus() -> Result<String> {
    Ok(std::thread::available_parallelism()?.get().to_string())
}

/// Builder of the command line of a load generator.
pub struct LoadCommand {
    /// The words of the command line.
    pub words: Vec<String>,
}

impl LoadCommand {
    /// Begins the command line `usher-bench load KIND`. Fails if the path of this executable file
    /// is unknown.
    pub fn new(kind: &str) -> Result<Self> {
        let bench = std::env::current_exe()?.display().to_string();
        Ok(Self {
            words: vec![bench, "load".to_owned(), kind.to_owned()],
        })
    }

    /// Appends an option with its value.
    pub fn pair(&mut self, option: &str, value: impl std::fmt::Display) {
        self.words.extend([option.to_owned(), value.to_string()]);
    }

    fn usage(mut self, usage: f64) -> Self {
        self.pair("--usage", usage);
        self
    }

    fn kind(mut self, kind: JobKind, counter: Option<&Path>) -> Self {
        if let JobKind::Fg(Some(work)) = kind {
            self.pair("--work", work.units);
            if let Some(burst) = work.burst {
                self.pair("--burst", burst);
            }
        }
        if let Some(counter) = counter {
            self.pair("--counter", counter.display());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn run(words: &[String]) -> std::process::ExitStatus {
        Command::new(&words[0]).args(&words[1..]).status().unwrap()
    }

    #[test]
    fn a_repeated_command_ends_when_it_cannot_run() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let at = runs.display().to_string();
        // Status 4 is repeated; the third run ends with status 125.
        let once = format!("echo x >>{at}; [ $(wc -l <{at}) -lt 3 ] && exit 4; exit 125");
        let command = own(&["sh", "-c", &once]);
        let file = dir.path().join("cold");
        std::fs::write(&file, "data").unwrap();
        let cold = file.display().to_string();
        for (script, zero) in [(REPEAT, "sh"), (REPEAT_COLD, &cold)] {
            run(&shell(script, zero, command.clone()));
            assert_eq!(std::fs::read_to_string(&runs).unwrap(), "x\nx\nx\n");
            std::fs::remove_file(&runs).unwrap();
        }
    }

    #[test]
    fn a_missing_cold_file_ends_the_repetition() {
        let missing = "/nonexistent/usher-bench".to_owned();
        assert!(!run(&shell(REPEAT_COLD, &missing, own(&["true"]))).success());
    }
}
