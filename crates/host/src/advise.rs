// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures configurations of copies of a program, until the best one is known (`usher advise`).
//!
//! `usher_policy::advise` decides which configuration runs next, and when the measurement ends. This
//! module makes the runs.
//!
//! 1. All copies of a run are launched and wait before their `exec`. Each copy is bound to the seat
//!    that `usher run --copies` would give it.
//! 2. The copies start at the same time. The throughput of the run is the sum of the reciprocals of
//!    their durations: the rate of a queue that keeps all copies busy.
//! 3. A run is aborted when its throughput can no longer reach [`NextRun::floor`]. Copies that have
//!    not ended count as if they ended now. All copies of an aborted run are killed.
//! 4. [`crate::quiet`] detects other programs. A disturbed run is discarded and repeated.
//!
//! A copy that fails in a run of several copies excludes the configuration. A program that fails
//! alone, in the warm-up run, ends the measurement with an error, as does a warm-up run of less
//! than [`SECONDS_MIN`]. A run of N copies that exceeds N times the time limit ends the measurement
//! with an error, too. The checks of step 3 and of the time limit happen at least every 200 ms.
//! After [`AdviseOptions::seconds_max`], no further run starts.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use usher_model::Topology;
use usher_policy::advise::candidates::{CopyConfig, MachineSize};
use usher_policy::advise::{Advice, ConfigSamples, NextRun, RunOutcome, Selection};

use crate::engine::{AdoptOptions, Engine, EngineConfig, ProfileUse};
use crate::launch::{LaunchSpec, Repetition};
use crate::measured::{MeasuredProcess, RunCondition, RunError, file_tail, wait_readable};
use crate::profile::SeatAsBound;
use crate::quiet::{LoadGuard, LoadRule};

/// Minimum duration of a run of one copy. Below it, the start of a copy determines the result.
pub const SECONDS_MIN: f64 = 0.1;

/// The program to measure.
pub struct AdviseTarget<'a> {
    /// Name of the program in messages.
    pub name: String,
    /// Environment and streams of each copy. The command is replaced by that of `command`.
    pub spec: LaunchSpec,
    /// Returns the command of a copy, by the number of its CPUs and its number, from 1.
    pub command: &'a dyn Fn(u32, u32) -> Vec<OsString>,
}

/// The options of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct AdviseOptions {
    /// Time limit of a run of one copy in seconds. The limit of a run of N copies is N times as
    /// long. A longer run ends the measurement with an error.
    pub timeout_seconds: f64,
    /// No run starts after this time in seconds; `None`: no limit.
    pub seconds_max: Option<f64>,
    /// The rule by which other programs on the machine are detected.
    pub load: LoadRule,
    /// Measure only these configurations, each this number of times, without a selection.
    pub sweep: Option<u32>,
}

impl Default for AdviseOptions {
    fn default() -> Self {
        Self {
            timeout_seconds: 900.0,
            seconds_max: None,
            load: LoadRule::default(),
            sweep: None,
        }
    }
}

/// A run of all copies of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct CopiesRun {
    /// Seconds of each copy that ended, in the order of the copies.
    pub seconds: Vec<f64>,
    /// CPU time of these copies, divided by the duration of the run.
    pub busy_cpus: f64,
    /// The result for the selection.
    pub outcome: RunOutcome,
    /// Exit and standard error of the first copy that failed.
    pub failure: Option<String>,
}

impl CopiesRun {
    /// Returns how much longer the slowest copy ran than the fastest, relative to the fastest.
    pub fn spread(&self) -> f64 {
        let longest = self.seconds.iter().copied().fold(0.0, f64::max);
        let shortest = self.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        match shortest > 0.0 && shortest.is_finite() {
            true => longest / shortest - 1.0,
            false => 0.0,
        }
    }
}

/// Progress of a measurement, for display.
pub enum AdviseEvent<'a> {
    /// A run begins.
    Begins(&'a NextRun),
    /// A run has ended, and counts.
    Run(&'a NextRun, &'a CopiesRun),
    /// Other programs disturb the measurement; a line for the user.
    Busy(&'a str),
}

/// A completed measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredAdvice {
    /// The choice.
    pub advice: Advice,
    /// The samples of each configuration that was run.
    pub samples: Vec<ConfigSamples>,
    /// The counted runs, in the order in which they were made.
    pub runs: Vec<(CopyConfig, CopiesRun)>,
    /// Mean number of busy CPUs of one copy alone on all cores.
    pub busy_cpus_alone: f64,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// How other programs disturbed the measurement; `None` if it was undisturbed.
    pub disturbance: Option<String>,
}

/// Measures a program until the best configuration is known.
///
/// # Errors
/// The program cannot be run, fails alone, ends within [`SECONDS_MIN`] or exceeds the time limit;
/// the machine is busy; `cancel` was set.
pub fn advise(
    config: EngineConfig,
    target: &AdviseTarget<'_>,
    options: &AdviseOptions,
    cancel: &AtomicBool,
    on_event: &mut dyn FnMut(AdviseEvent<'_>),
) -> Result<MeasuredAdvice, RunError> {
    let began = Instant::now();
    let topology = config.topology.clone();
    let profiles = ProfileUse::none();
    let config = EngineConfig { profiles, ..config };
    let guard = LoadGuard::new(options.load, &config.roots, topology.cpus.len());
    let engine = Engine::start(config, Box::new(SeatAsBound))?;
    let scratch = tempfile::tempdir().map_err(|source| RunError::System {
        doing: "making a temporary directory for the programs' standard error streams",
        source,
    })?;
    let candidates = MachineSize::of(&topology).candidates();
    let mut selection = match options.sweep {
        Some(runs) => Selection::sweep(candidates, runs as usize),
        None => Selection::new(candidates),
    };
    let mut session = AdviseSession {
        engine: &engine,
        topology: &topology,
        target,
        options,
        cancel,
        scratch: scratch.path(),
        guard,
    };
    let (mut runs, mut busy_cpus_alone) = (Vec::new(), 0.0);
    let is_late = || {
        let spent = began.elapsed().as_secs_f64();
        options.seconds_max.is_some_and(|most| spent > most)
    };
    session.wait_until_quiet(on_event)?;
    while let Some(trial) = selection.next_run() {
        if is_late() && selection.advice().is_some() {
            break;
        }
        on_event(AdviseEvent::Begins(&trial));
        let run = session.undisturbed_run(&trial, on_event)?;
        if trial.is_warm_up {
            busy_cpus_alone = run.busy_cpus;
        }
        selection.record(&trial, run.outcome);
        on_event(AdviseEvent::Run(&trial, &run));
        if !trial.is_warm_up {
            runs.push((trial.config, run));
        }
    }
    // Without a completed run, one copy alone has failed after its warm-up run succeeded.
    let advice = selection.advice().ok_or_else(|| RunError::Unsteady {
        name: target.name.clone(),
        reason: runs.iter().find_map(|(_, run)| run.failure.clone()),
    })?;
    Ok(MeasuredAdvice {
        advice,
        samples: selection.samples().to_vec(),
        runs,
        busy_cpus_alone,
        seconds: began.elapsed().as_secs_f64(),
        disturbance: session.guard.disturbance().map(str::to_owned),
    })
}

/// A measurement in progress.
struct AdviseSession<'a> {
    engine: &'a Engine,
    topology: &'a Topology,
    target: &'a AdviseTarget<'a>,
    options: &'a AdviseOptions,
    cancel: &'a AtomicBool,
    scratch: &'a Path,
    guard: LoadGuard,
}

impl AdviseSession<'_> {
    fn wait_until_quiet(
        &mut self,
        on_event: &mut dyn FnMut(AdviseEvent<'_>),
    ) -> Result<(), RunError> {
        let mut on_busy = |text: &str| on_event(AdviseEvent::Busy(text));
        self.guard.wait_until_quiet(self.cancel, &mut on_busy)
    }

    /// Repeats a run until no other program disturbs it. A forced measurement counts the first run.
    fn undisturbed_run(
        &mut self,
        trial: &NextRun,
        on_event: &mut dyn FnMut(AdviseEvent<'_>),
    ) -> Result<CopiesRun, RunError> {
        loop {
            let (run, disturbance) = self.run_once(trial)?;
            let Some(reason) = disturbance else {
                return Ok(run);
            };
            let text = format!("a run was discarded and is repeated, because {reason}");
            on_event(AdviseEvent::Busy(&text));
            self.wait_until_quiet(on_event)?;
        }
    }

    /// Launches all copies, which then wait for their start.
    fn launch(&self, config: CopyConfig) -> Result<Vec<MeasuredProcess>, RunError> {
        let seats = config.seats(self.topology);
        let copies = (1..=config.copies).zip(seats);
        let launched = copies.map(|(copy, seat)| {
            let spec = LaunchSpec {
                argv: (self.target.command)(config.cpus, copy),
                new_session: true,
                ..self.target.spec.clone()
            };
            let mut adopt = AdoptOptions::new(&spec.argv).named(&self.target.name);
            adopt.cwd = spec.cwd.clone();
            adopt.bound_to = Some(seat);
            let stderr = self.scratch.join(format!("stderr.{copy}"));
            MeasuredProcess::launch(Some(self.engine), spec, adopt, &stderr)
        });
        launched.collect()
    }

    /// Makes a run. The second value is the reason for a repetition; `None` if the run counts.
    fn run_once(&mut self, trial: &NextRun) -> Result<(CopiesRun, Option<String>), RunError> {
        let mut copies = self.launch(trial.config)?;
        let before = self.guard.begin()?;
        let began = Instant::now();
        for copy in &mut copies {
            copy.start()?;
        }
        let mut ended: Vec<Option<Repetition>> = vec![None; copies.len()];
        let mut failure = None;
        let mut is_capped = false;
        while ended.iter().any(Option::is_none) && failure.is_none() && !is_capped {
            let open = copies.iter().zip(&ended);
            let open = open.map(|(copy, end)| copy.report_fd().filter(|_| end.is_none()));
            let open: Vec<_> = open.collect();
            for at in wait_readable(&open, self.cancel)? {
                let end = copies[at].finish()?;
                ended[at] = Some(end);
                if !end.exit.success() {
                    let stderr = file_tail(&self.scratch.join(format!("stderr.{}", at + 1)));
                    self.check_alone(trial, end, &stderr)?;
                    failure.get_or_insert((end.exit, stderr));
                }
            }
            let seconds = began.elapsed().as_secs_f64();
            self.check_time(trial, seconds)?;
            is_capped = throughput_bound(&ended, seconds) < trial.floor;
        }
        // The check precedes the end of `copies`, which kills their remaining processes.
        let disturbance = self.guard.end(before.as_ref())?;
        let wall = began.elapsed().as_secs_f64();
        let ends: Vec<Repetition> = ended.iter().copied().flatten().collect();
        let cpu: f64 = ends.iter().map(|end| end.exit.cpu_seconds).sum();
        let rate = throughput_bound(&ended, wall);
        let run = CopiesRun {
            seconds: ends.iter().map(Repetition::seconds).collect(),
            busy_cpus: cpu / wall,
            outcome: match (&failure, is_capped) {
                (Some(_), _) => RunOutcome::Failed,
                (None, true) => RunOutcome::Capped(rate),
                (None, false) => RunOutcome::Completed(rate),
            },
            failure: failure.map(|(exit, stderr)| failure_text(&exit.to_string(), &stderr)),
        };
        self.check_duration(trial, &run)?;
        Ok((run, disturbance))
    }

    /// Rejects a program that fails when it runs alone.
    fn check_alone(&self, trial: &NextRun, end: Repetition, stderr: &str) -> Result<(), RunError> {
        match trial.is_warm_up {
            true => Err(RunError::Failed {
                name: self.target.name.clone(),
                exit: end.exit,
                condition: RunCondition::Alone,
                stderr: stderr.to_owned(),
            }),
            false => Ok(()),
        }
    }

    fn check_time(&self, trial: &NextRun, seconds: f64) -> Result<(), RunError> {
        // Copies on fewer cores take longer.
        let limit = self.options.timeout_seconds * f64::from(trial.config.copies);
        match seconds > limit {
            true => Err(RunError::TimedOut {
                name: self.target.name.clone(),
                condition: match trial.config.copies {
                    1 => RunCondition::Alone,
                    copies => RunCondition::Copies(copies),
                },
                seconds: limit,
            }),
            false => Ok(()),
        }
    }

    fn check_duration(&self, trial: &NextRun, run: &CopiesRun) -> Result<(), RunError> {
        match run.seconds.first() {
            Some(&seconds) if trial.is_warm_up && seconds < SECONDS_MIN => {
                Err(RunError::TooShort {
                    name: self.target.name.clone(),
                    seconds,
                })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the sum of the reciprocals of the durations. Copies that have not ended count as if they
/// ended after `seconds`, so that the sum is an upper bound.
fn throughput_bound(ended: &[Option<Repetition>], seconds: f64) -> f64 {
    let seconds = Duration::from_secs_f64(seconds).max(Duration::from_nanos(1));
    let of_end = |end: &Option<Repetition>| match end {
        Some(end) => end.seconds().max(1e-9),
        None => seconds.as_secs_f64(),
    };
    ended.iter().map(|end| 1.0 / of_end(end)).sum()
}

fn failure_text(exit: &str, stderr: &str) -> String {
    let words: Vec<&str> = stderr.split_whitespace().collect();
    match words.is_empty() {
        true => exit.to_owned(),
        false => format!("{exit} and this error: {}", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_topology::Source;

    fn machine(spec: &str) -> Topology {
        usher_topology::load(Source::Synthetic(spec.to_owned())).unwrap()
    }

    #[test]
    fn seats_are_disjoint_and_follow_caches() {
        let topology = machine("package:1 l3:2 core:4 pu:2");
        let size = MachineSize::of(&topology);
        let list = |copies| {
            let seats = size.divided(copies).seats(&topology);
            let text: Vec<String> = seats.iter().map(ToString::to_string).collect();
            text.join(" ")
        };
        assert_eq!(list(1), "0-15");
        assert_eq!(list(2), "0-7 8-15");
        assert_eq!(list(3), "0-3 4-7 8-11");
        let shared = size.divided(16).seats(&topology);
        let on = |cpu| shared.iter().filter(|seat| seat.contains(cpu)).count();
        assert!((0..16).all(|cpu| on(cpu) == 2), "two copies per core");
    }

    #[test]
    fn the_bound_falls_while_copies_run() {
        let bound = |seconds| throughput_bound(&[None, None], seconds);
        assert!((bound(0.5) - 4.0).abs() < 1e-9);
        assert!((bound(2.0) - 1.0).abs() < 1e-9);
    }
}
