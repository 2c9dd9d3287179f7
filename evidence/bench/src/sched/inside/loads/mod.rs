// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loads of the parts `latency`, `conservation` and `peers`, as they run in the guest:
//!
//! - `c_project`: a C project for `make -j`; `rt_tests`: hackbench and cyclictest;
//! - `wakeup`: message threads and workers; `requests`: clients and a server; `threads`: programs
//!   with spinning threads and with nested pools;
//! - `random_load`, `conservation`: random threads, and the counter of idle time beside them;
//! - `burn`: work in CPU time.
//!
//! Programs are started once and run under all schedulers. Each program has worked once before the
//! first measurement. The number of the round is the seed of all random times.

pub mod burn;
mod c_project;
pub mod conservation;
mod random_load;
mod requests;
mod rt_tests;
pub mod threads;
mod wakeup;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;

use super::programs::{self, Program};
use super::running::SwitchCounter;
use crate::sched::messages::Sample;
use crate::sched::sample_names::{
    CPU_MS, DEMAND, EPISODES, IDLE_MS, LONGEST_MS, MAX_MS, MEAN_MS, MEASURE, UNSERVED_MS,
};
use crate::sched::workloads::{OtherWork, Probe, Workload};
use burn::TimeRange;
use c_project::{CProject, RepeatedBuild};
use conservation::ConservationCounter;
use random_load::RandomLoad;
use requests::ClientLoad;
use threads::{COMMAND, LoadKind};
use wakeup::WakeupLoad;

/// CPU times of the short and of the long loops of [`Workload::Pairs`], and the number of
/// repetitions.
const SHORT_MS: u64 = 20;
const LONG_MS: u64 = 100;
const REPETITIONS: usize = 3;
/// Number of programs of [`Workload::Spin`].
const SPINNING: usize = 2;
/// Number of wake-ups of each thread of cyclictest per millisecond.
const CYCLES_A_MS: u64 = 1;
/// Threads that start programs, per CPU, in a fork storm.
const STORM_A_CPU: usize = 2;

/// The programs of the loads, which are started when a load needs them first.
#[derive(Debug, Default)]
pub struct LoadPrograms {
    project: Option<CProject>,
    spinning: Vec<Program>,
    pools: Option<Program>,
    loops: Vec<Program>,
    server: Option<Server>,
    counter: Option<ConservationCounter>,
}

/// The server process, and the folder of its socket.
#[derive(Debug)]
struct Server {
    _program: Program,
    socket: PathBuf,
    _folder: TempDir,
}

/// Returns the number of CPUs that this process may use.
fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn program(kind: LoadKind, options: &[&str]) -> Result<Program> {
    let exe = std::env::current_exe().context("finding the executable of usher-bench")?;
    Program::start(Command::new(exe).args([COMMAND, kind.name()]).args(options))
}

fn server() -> Result<Server> {
    let folder = tempfile::tempdir().context("making a folder for a socket")?;
    let socket = folder.path().join("socket");
    let path = socket.display().to_string();
    Ok(Server {
        _program: program(LoadKind::Serve, &["--socket", &path])?,
        socket,
        _folder: folder,
    })
}

impl LoadPrograms {
    /// Starts the programs of a workload, and lets them work once.
    pub fn prepare(&mut self, workload: Workload) -> Result<()> {
        let threads = cpus().to_string();
        match workload {
            Workload::Make => return self.prepare_project(),
            Workload::Hackbench => return rt_tests::hackbench().map(drop),
            Workload::Wakeup => {}
            Workload::Requests => {
                if self.server.is_none() {
                    self.server = Some(server()?);
                }
            }
            Workload::Pairs => {
                while self.loops.len() < cpus() {
                    self.loops.push(program(LoadKind::Burn, &[])?);
                }
            }
            Workload::Spin => {
                while self.spinning.len() < SPINNING {
                    let options = ["--threads", &threads];
                    self.spinning.push(program(LoadKind::Spin, &options)?);
                }
            }
            Workload::Pools => {
                if self.pools.is_none() {
                    let options = ["--threads", &threads];
                    self.pools = Some(program(LoadKind::Pools, &options)?);
                }
            }
        }
        Ok(())
    }

    /// Prepares a measurement of latencies.
    pub fn prepare_latency(&mut self, probe: Probe) -> Result<()> {
        if probe == Probe::Cyclictest {
            rt_tests::cyclictest(1, 1)?;
        }
        self.prepare_project()
    }

    fn prepare_project(&mut self) -> Result<()> {
        if self.project.is_none() {
            let project = CProject::generate()?;
            project.build(1)?;
            self.project = Some(project);
        }
        Ok(())
    }

    fn project(&self) -> Result<&CProject> {
        self.project.as_ref().context("there is no C project")
    }

    /// Measures a workload of the part `peers`, and adds its measure to the sample.
    pub fn measure(&mut self, workload: Workload, sample: &mut Sample, usher: &Path) -> Result<()> {
        let seed = sample.round as u64;
        let begun = Instant::now();
        let elapsed_ms = || begun.elapsed().as_secs_f64() * 1e3;
        let measure = match workload {
            Workload::Make => {
                self.project()?.build(2 * cpus())?;
                elapsed_ms()
            }
            Workload::Hackbench => rt_tests::hackbench()?,
            Workload::Wakeup => percentile(&full_load(seed).run())?,
            Workload::Requests => {
                let server = self.server.as_ref().context("there is no server")?;
                percentile(&clients(seed).run(&server.socket)?)?
            }
            Workload::Pairs => self.pairs(usher)?,
            Workload::Spin => {
                let lines = vec![seed.to_string(); self.spinning.len()];
                programs::run(&mut self.spinning, &lines)?;
                elapsed_ms()
            }
            Workload::Pools => {
                let pools = self.pools.as_mut().context("there are no pools")?;
                pools.run(&seed.to_string())?;
                elapsed_ms()
            }
        };
        sample.figures.insert(MEASURE.to_owned(), measure);
        Ok(())
    }

    /// Runs one loop per CPU, half of them short and half of them long. Returns the time in
    /// milliseconds in which two loops shared a core while another core was idle.
    fn pairs(&mut self, usher: &Path) -> Result<f64> {
        let counter = SwitchCounter::start(usher)?;
        for repetition in 0..REPETITIONS {
            let line = |at: usize| {
                if is_short(at, repetition) {
                    SHORT_MS
                } else {
                    LONG_MS
                }
            };
            let lines: Vec<String> = (0..self.loops.len())
                .map(|at| line(at).to_string())
                .collect();
            programs::run(&mut self.loops, &lines)?;
        }
        Ok(counter.finish()?.needless_ns as f64 / 1e6)
    }

    /// Measures latencies beside other work, and adds them to the sample.
    pub fn latency(
        &self,
        probe: Probe,
        beside: OtherWork,
        time: Duration,
        sample: &mut Sample,
    ) -> Result<()> {
        let seed = sample.round as u64;
        let measure = || probed(probe, time, seed);
        let measured = match beside {
            OtherWork::Make => beside_make(self.project()?, measure)?,
            OtherWork::ForkStorm => programs::beside_a_storm(STORM_A_CPU * cpus(), measure)?.0,
        };
        sample.late_ms = measured.late_ms;
        sample.figures.extend(measured.figures);
        Ok(())
    }

    /// Loads the counter of idle time.
    pub fn prepare_conservation(&mut self) -> Result<()> {
        if self.counter.is_none() {
            self.counter = Some(ConservationCounter::load(cpus())?);
        }
        Ok(())
    }

    /// Runs the random load of the sample's round, and adds the idle times to the sample.
    pub fn conserve(&mut self, time: Duration, sample: &mut Sample) -> Result<()> {
        let load = RandomLoad::draw(sample.round as u64, cpus());
        let counter = self.counter.as_mut().context("there is no counter")?;
        let running = counter.start()?;
        let (before, begun) = (running.read()?, Instant::now());
        load.run(time);
        let (after, took) = (running.read()?, begun.elapsed());
        let ms = |ns: u64| ns as f64 / 1e6;
        let figures = [
            (DEMAND, load.share),
            (CPU_MS, took.as_secs_f64() * 1e3 * cpus() as f64),
            (UNSERVED_MS, ms(after.unserved_ns - before.unserved_ns)),
            (IDLE_MS, ms(after.idle_ns - before.idle_ns)),
            (LONGEST_MS, ms(after.longest_ns)),
            (EPISODES, (after.episodes - before.episodes) as f64),
        ];
        let figures = figures.map(|(name, value)| (name.to_owned(), value));
        sample.figures.extend(figures);
        Ok(())
    }
}

/// Whether the loop with the number `at` is short. The repetitions differ in which loops are short,
/// because the order of the starts determines which loops share a core.
fn is_short(at: usize, repetition: usize) -> bool {
    (at >> repetition).is_multiple_of(2)
}

/// Returns the 99th percentile of latencies in milliseconds.
fn percentile(all_ms: &[f64]) -> Result<f64> {
    usher_report::stats::quantile(all_ms, 0.99).context("nothing was measured")
}

/// The load of [`Workload::Wakeup`]: two workers per CPU, which demand all CPUs.
fn full_load(seed: u64) -> WakeupLoad {
    WakeupLoad {
        messengers: 2,
        workers: cpus(),
        rest: TimeRange {
            from_us: 50,
            to_us: 150,
        },
        work: TimeRange {
            from_us: 1_000,
            to_us: 3_000,
        },
        time: Duration::from_millis(250),
        seed,
    }
}

/// The load of [`Workload::Requests`]: the clients demand about the CPU time that there is.
fn clients(seed: u64) -> ClientLoad {
    ClientLoad {
        clients: 3 * cpus(),
        work: TimeRange {
            from_us: 200,
            to_us: 2_200,
        },
        rest: TimeRange {
            from_us: 500,
            to_us: 3_500,
        },
        time: Duration::from_millis(250),
        seed,
    }
}

/// The workers of a measurement of latencies: one per CPU, which together demand about a tenth of
/// the CPUs.
fn interactive(seed: u64, time: Duration) -> WakeupLoad {
    WakeupLoad {
        messengers: 1,
        workers: cpus(),
        rest: TimeRange {
            from_us: 2_000,
            to_us: 6_000,
        },
        work: TimeRange {
            from_us: 200,
            to_us: 600,
        },
        time,
        seed,
    }
}

/// Latencies of a probe, or figures of its latencies.
#[derive(Debug, Default)]
struct ProbeResult {
    late_ms: Vec<f64>,
    figures: Vec<(String, f64)>,
}

fn probed(probe: Probe, time: Duration, seed: u64) -> Result<ProbeResult> {
    match probe {
        Probe::Wakeup => Ok(ProbeResult {
            late_ms: interactive(seed, time).run(),
            figures: vec![],
        }),
        Probe::Cyclictest => {
            let cycles = CYCLES_A_MS * time.as_millis() as u64;
            let latency = rt_tests::cyclictest(cpus(), cycles as usize)?;
            let figures = [(MEAN_MS, latency.mean_ms), (MAX_MS, latency.max_ms)];
            Ok(ProbeResult {
                late_ms: vec![],
                figures: figures.map(|(name, ms)| (name.to_owned(), ms)).to_vec(),
            })
        }
    }
}

/// Executes `work` while the project is built again and again. The last build is killed.
fn beside_make<T>(project: &CProject, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let builds = RepeatedBuild::new(project, 2 * cpus());
    thread::scope(|scope| {
        let running = scope.spawn(|| builds.run());
        let done = work();
        builds.end();
        running.join().map_err(|_| anyhow!("a thread panicked"))??;
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_loops_are_short_in_each_repetition() {
        let of = |repetition| {
            (0..8)
                .map(|at| is_short(at, repetition))
                .collect::<Vec<_>>()
        };
        for repetition in 0..REPETITIONS {
            assert_eq!(of(repetition).iter().filter(|short| **short).count(), 4);
            let others = (0..repetition).filter(|other| of(*other) == of(repetition));
            assert_eq!(others.count(), 0, "repetition {repetition} is new");
        }
    }

    #[test]
    fn a_workload_that_was_not_prepared_is_an_error() {
        let mut programs = LoadPrograms::default();
        let mut sample = crate::sched::medians::tests::sample(
            crate::sched::schedulers::ComparedScheduler::Usher,
            "x",
            1,
            [0, 0],
        );
        for workload in [Workload::Make, Workload::Requests, Workload::Pools] {
            let measured = programs.measure(workload, &mut sample, Path::new("false"));
            assert!(measured.is_err(), "{workload:?}");
        }
        assert!(percentile(&[]).is_err());
    }
}
