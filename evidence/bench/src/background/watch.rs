// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a foreground with active phases and pauses beside a background, and records the
//! background's work in each millisecond. `reaction` and `idle` evaluate the records.
//!
//! The recorded figure is completed work, not the time for which the background is not frozen:
//! - network: bytes that arrived in the remote namespace;
//! - disk: requests that bypass the page cache, at the time when they were issued;
//! - CPU: units of 20 microseconds of computing.
//!
//! A foreground is ended 60 s after its wanted time. After the foreground, a wait of 200 ms lets
//! sent data arrive. A background that ends on its own is an error.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::actors::{Background, foreground};
use super::experiments::{DiskSetup, Task};
use super::fixture::BackgroundFixture;
use super::jobs::{Job, LoadCommand};
use super::load::{ActivePhase, read_bins, read_counter, read_phases};
use super::treatments::{BackgroundMethod, RegulatorFixture};

/// The resource that foreground and background share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// All CPUs
    Cpu,
    /// This disk
    Disk,
    /// The network
    Net,
}

impl Resource {
    /// Name of the resource.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Disk => "disk",
            Self::Net => "network",
        }
    }

    /// The load generator that uses the resource.
    pub fn task(self) -> Task {
        match self {
            Self::Cpu => Task::CpuHog,
            Self::Disk => Task::Disk,
            Self::Net => Task::Net,
        }
    }
}

/// A foreground that is active for the first half of each period.
#[derive(Debug, Clone, Copy)]
pub struct HalfLoad {
    /// Length of a period in ms: active time and pause.
    pub period_ms: f64,
    /// Length of the run in seconds.
    pub seconds: f64,
}

/// Recorded work of a run of foreground and background.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Start and end of each active phase of the foreground, in ms since the first bin.
    pub phases: Vec<(f64, f64)>,
    /// Units of work of the foreground.
    pub fg_units: u64,
    /// The background's units of work in each millisecond (bins).
    pub bins: Vec<u32>,
}

impl Trace {
    /// Returns the background's units of work from `from_ms` to `to_ms`.
    pub fn units(&self, from_ms: f64, to_ms: f64) -> f64 {
        units(&self.bins, from_ms, to_ms)
    }
}

/// Returns the units of work from `from_ms` to `to_ms`. The first and the last bin count in
/// proportion to their part within the span.
pub fn units(bins: &[u32], from_ms: f64, to_ms: f64) -> f64 {
    let last = (to_ms.ceil().max(0.0) as usize).min(bins.len());
    let first = (from_ms.max(0.0) as usize).min(last);
    let part = |i: usize| {
        let (low, high) = (from_ms.max(i as f64), to_ms.min(i as f64 + 1.0));
        f64::from(bins[i]) * (high - low).max(0.0)
    };
    (first..last).map(part).sum()
}

/// Runs a background alone for the time `lead` and then beside the foreground. Without a
/// foreground, the background runs alone for the same total time.
pub struct Watcher<'a> {
    /// The set-up.
    pub fixture: &'a mut BackgroundFixture,
    /// Daemon, cgroup and folder of the treatments.
    pub regulator: &'a mut RegulatorFixture,
    /// Time for which the background runs before the foreground starts.
    pub lead: Duration,
}

impl Watcher<'_> {
    /// Sets up the network or the files that the load generators of a resource need.
    pub fn prepare(&mut self, resource: Resource) -> Result<()> {
        let place = (resource == Resource::Disk).then_some(DiskSetup::Deadline);
        self.fixture.prepare(resource.task(), place, 1)
    }

    /// Measures the rate of the background alone, in units per millisecond.
    pub fn alone(&mut self, resource: Resource, seconds: f64) -> Result<f64> {
        self.regulator.prepare(BackgroundMethod::Alone)?;
        let job = self.job(resource, 1, "")?;
        let background = Background::start(std::slice::from_ref(&job), self.regulator.runtime())?;
        std::thread::sleep(self.lead);
        let from_ms = self.now_ms();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let to_ms = self.now_ms();
        background.end()?;
        Ok(units(&self.bins(resource)?, from_ms, to_ms) / (to_ms - from_ms))
    }

    /// Runs the foreground in phases beside a background under a treatment. With
    /// [`BackgroundMethod::Alone`], the foreground runs alone.
    pub fn watch(
        &mut self,
        resource: Resource,
        treatment: BackgroundMethod,
        half: HalfLoad,
    ) -> Result<Trace> {
        self.regulator.prepare(treatment)?;
        let phases = self.fixture.path("fg.phases");
        let counter = self.fixture.path("fg.counter");
        let mut options = format!(
            "--usage 50 --period-ms {} --seconds {}",
            half.period_ms, half.seconds
        );
        options += &format!(
            " --phases {} --counter {}",
            phases.display(),
            counter.display()
        );
        let fg = self.job(resource, 0, &options)?;
        let background = self.background(resource, treatment)?;
        std::thread::sleep(self.lead);
        let at_most = Duration::from_secs_f64(half.seconds + 60.0);
        foreground(&fg.words, true, at_most)?;
        // Data sent in the last phase may still arrive during this time.
        std::thread::sleep(Duration::from_millis(200));
        let beside = background.is_some();
        if let Some(mut background) = background {
            background.must_run()?;
            background.end()?;
        }
        let phases = read_phases(&phases)?;
        let mut phases: Vec<_> = phases.iter().map(|phase| self.in_ms(phase)).collect();
        if resource == Resource::Net {
            // At the end of a phase, a part of the sent data has not yet arrived.
            let arrived = read_bins(&self.fixture.network()?.arrived("fg", "bins"))?;
            until_last_unit(&mut phases, &arrived);
        }
        Ok(Trace {
            phases,
            fg_units: numbered(&counter)
                .iter()
                .map(|path| read_counter(path))
                .sum(),
            bins: if beside { self.bins(resource)? } else { vec![] },
        })
    }

    fn background(
        &mut self,
        resource: Resource,
        treatment: BackgroundMethod,
    ) -> Result<Option<Background>> {
        if treatment == BackgroundMethod::Alone {
            return Ok(None);
        }
        let job = self.job(resource, 1, "")?;
        let words = self.regulator.wrap(treatment, 1, job.words)?;
        let job = Job { words, ..job };
        Ok(Some(Background::start(&[job], self.regulator.runtime())?))
    }

    fn now_ms(&self) -> f64 {
        (super::load::monotonic_ns() - self.fixture.epoch_ns) as f64 / 1e6
    }

    fn in_ms(&self, phase: &ActivePhase) -> (f64, f64) {
        let ms = |ns: u64| ns.saturating_sub(self.fixture.epoch_ns) as f64 / 1e6;
        (ms(phase.start_ns), ms(phase.end_ns))
    }

    /// Returns the load generator of the foreground (`number` 0) or of the background (1), which
    /// records its units in each millisecond.
    fn job(&mut self, resource: Resource, number: u32, options: &str) -> Result<Job> {
        let kind = match resource {
            Resource::Cpu => "cpu",
            Resource::Disk => "disk",
            Resource::Net => "net",
        };
        let mut load = LoadCommand::new(kind)?;
        load.words
            .extend(options.split_whitespace().map(str::to_owned));
        if number == 1 && resource != Resource::Net {
            load.pair("--bins", self.fixture.path("bg.bins").display());
            load.pair("--epoch-ns", self.fixture.epoch_ns);
        }
        match resource {
            Resource::Cpu => load.pair("--threads", std::thread::available_parallelism()?),
            Resource::Disk => {
                let file = self
                    .fixture
                    .disk(DiskSetup::Deadline)?
                    .dir
                    .join(format!("file{number}"));
                load.pair("--file", file.display());
                load.words.push("--direct".to_owned());
            }
            Resource::Net => {
                load.pair("--to", self.fixture.network()?.sink());
                load.pair("--name", if number == 0 { "fg" } else { "bg1" });
                load.words = self.fixture.network()?.in_local_ns(load.words);
            }
        }
        Ok(Job {
            words: load.words,
            counter: None,
        })
    }

    /// Returns the background's units of work in each millisecond, summed over its threads.
    fn bins(&mut self, resource: Resource) -> Result<Vec<u32>> {
        let path = match resource {
            Resource::Net => self.fixture.network()?.arrived("bg1", "bins"),
            _ => self.fixture.path("bg.bins"),
        };
        let mut sum: Vec<u32> = vec![];
        for path in numbered(&path) {
            let bins = read_bins(&path).context("the progress of the background")?;
            sum.resize(sum.len().max(bins.len()), 0);
            sum.iter_mut().zip(bins).for_each(|(all, one)| *all += one);
        }
        Ok(sum)
    }
}

/// Moves the end of each phase to the last unit of work before the next phase begins.
fn until_last_unit(phases: &mut [(f64, f64)], bins: &[u32]) {
    for i in 0..phases.len() {
        let next = phases.get(i + 1).map_or(f64::INFINITY, |next| next.0);
        let (first, end) = (phases[i].1 as usize, (next as usize).min(bins.len()));
        if let Some(last) = (first..end).rev().find(|&bin| bins[bin] > 0) {
            phases[i].1 = (last as f64 + 1.0).min(next);
        }
    }
}

/// Returns the record files of all threads. The file names of all threads except the first end in a
/// number.
fn numbered(path: &Path) -> Vec<PathBuf> {
    let more = (1..).map(|i| PathBuf::from(format!("{}.{i}", path.display())));
    std::iter::once(path.to_owned())
        .chain(more.take_while(|path| path.exists()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_its_last_unit_has_arrived() {
        let mut bins = vec![0; 100];
        (10..25).chain(50..64).for_each(|i| bins[i] = 1);
        let mut phases = [(10.2, 20.5), (50.0, 60.0), (90.0, 95.0)];
        until_last_unit(&mut phases, &bins);
        assert_eq!(phases, [(10.2, 25.0), (50.0, 64.0), (90.0, 95.0)]);
    }

    #[test]
    fn bins_at_the_ends_count_in_proportion() {
        let bins = [10, 20, 30];
        assert_eq!(units(&bins, 0.0, 3.0), 60.0);
        assert_eq!(units(&bins, 0.5, 2.5), 5.0 + 20.0 + 15.0);
        assert_eq!(units(&bins, 1.25, 1.75), 10.0);
        assert_eq!(units(&bins, 2.0, 9.0), 30.0);
        assert_eq!(units(&bins, 5.0, 9.0), 0.0);
    }
}
