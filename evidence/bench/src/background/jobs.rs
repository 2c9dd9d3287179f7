// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the command line of a task for its role: the foreground, or one of several background
//! programs. A job also names the file in which the command counts its work.
//!
//! Only background programs have a counter file, and only for the tasks `Disk`, `Net`, `CpuHog`,
//! `Boinc` and `Fsck`. The counter file of `Net` is written by the server in the far network
//! namespace. The background programs of `Scp` and `Iperf` count nothing here.
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
            Task::CpuHog | Task::Boinc => self.cpu_job(task, kind, counter.as_deref())?,
            Task::Scp | Task::Iperf => self.transfer_job(task, kind)?,
            _ => self.real_job(task, kind, place, counter.as_deref())?,
        };
        let counter = match (task, kind) {
            (Task::Net, JobKind::Bg(number)) => Some(
                self.running_network()?
                    .arrived(&format!("bg{number}"), "counter"),
            ),
            (Task::CpuHog | Task::Boinc | Task::Disk | Task::Fsck, JobKind::Bg(_)) => counter,
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
        Ok(self.running_network()?.near(load.words))
    }

    fn cpu_job(&self, task: Task, kind: JobKind, counter: Option<&Path>) -> Result<Vec<String>> {
        let cpus = std::thread::available_parallelism()?.get();
        let mut load = LoadCommand::new("cpu")?.kind(kind, counter);
        load.pair("--threads", cpus);
        if task == Task::Boinc {
            load.pair(
                "--checkpoint",
                self.path(&format!("checkpoint{}", kind.number())).display(),
            );
        }
        Ok(load.words)
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
                let mut load = LoadCommand::new("repeat")?;
                load.words.push("--".to_owned());
                load.words.extend(copy);
                load.words
            }
        };
        Ok(words)
    }

    fn real_job(
        &self,
        task: Task,
        kind: JobKind,
        place: Option<DiskSetup>,
        counter: Option<&Path>,
    ) -> Result<Vec<String>> {
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
            Task::Gromacs => self.gromacs_job(kind)?,
            Task::Fsck => self.fsck_job(kind, place()?, counter)?,
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

    fn fsck_job(
        &self,
        kind: JobKind,
        place: DiskSetup,
        counter: Option<&Path>,
    ) -> Result<Vec<String>> {
        let disk = self.disk.get(&place).context("no disk")?;
        let checked = match place.is_slow() {
            true => disk.device.clone(),
            false => disk.dir.join("image"),
        };
        let checked = checked.display().to_string();
        let mut load = LoadCommand::new("repeat")?.kind(kind, counter);
        load.pair("--cold", &checked);
        load.words.extend(own(&["--", "e2fsck", "-fn", &checked]));
        Ok(load.words)
    }
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
