// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the scalability curve of a program that runs alone.
//!
//! The program runs from start to end at each core count of [`default_counts`] or of the options.
//! The seat of a run fills one last-level-cache domain after another, as the planner would seat the
//! program ([`seat_of`]).
//!
//! 1. A pass runs the program once at each count. Passes alternate between ascending and descending
//!    order, so that a disturbance of the machine does not affect only one count.
//! 2. A point of the curve is the median of the runs at its count.
//! 3. After a pass, the measurement ends when one of three conditions holds. The relative standard
//!    error of every point is at most 2 %, from the second pass on. Three passes are complete. The
//!    next pass would exceed the time limit, if it took as long as the last pass.
//!
//! [`crate::quiet`] detects other programs that disturb the measurement: it waits before the first
//! run, and a disturbed run is discarded and repeated. A disturbed measurement that was forced is
//! not stored.
//!
//! The numbers in step 3 are the defaults of [`ProfileOptions`]. The first pass always runs. A run
//! that fails, or that takes longer than 900 s by default, ends the measurement with an error. A
//! machine with at most 8 cores has one count per core. A larger machine has the powers of two and,
//! with at most 16 domains, one count per domain.

mod seats;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use usher_model::{CpuSet, Curve, CurvePoint, ProgramKey, ProgressSource, Topology};
use usher_store::{MachineKey, MeasuredPoint, Measurement, Store, StoreError};

use crate::engine::{AdoptOptions, Engine, EngineConfig, ProfileUse};
use crate::launch::{LaunchSpec, OWN_FAILURE};
use crate::measured::{MeasuredProcess, RunAlone, RunError};
use crate::quiet::{LoadGuard, LoadRule};

pub(crate) use seats::SeatAsBound;
pub use seats::{default_counts, seat_of};

/// The reason for which a curve was not measured. When this error is returned, all actions have
/// been undone, and all started programs have ended.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The profile store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The curve is invalid.
    #[error("the measured curve of '{name}' is invalid: {source}")]
    Curve {
        /// The program.
        name: String,
        /// The cause.
        source: usher_model::CurveError,
    },
    /// Other programs ran beside a forced measurement.
    #[error("the profile was not stored, because the measurement was disturbed: {0}")]
    Disturbed(String),
    /// A core count is out of range.
    #[error("the number of cores must be from 1 to {most}, not {given}")]
    Cores {
        /// The given count.
        given: u32,
        /// The machine's number of cores.
        most: u32,
    },
}

impl ProfileError {
    /// Returns the exit status of Usher for this error.
    pub fn code(&self) -> u8 {
        match self {
            Self::Run(error) => error.code(),
            _ => OWN_FAILURE,
        }
    }
}

/// The program to measure.
#[derive(Debug, Clone)]
pub struct ProfileTarget {
    /// Display name of the program.
    pub name: String,
    /// Launch options of the program.
    pub spec: LaunchSpec,
    /// Exit statuses that mean success.
    pub ok_exit_codes: Vec<u8>,
}

/// The options of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileOptions {
    /// The core counts to measure; `None` for [`default_counts`].
    pub counts: Option<Vec<u32>>,
    /// Maximum number of runs at each count.
    pub repeats: u32,
    /// Relative standard error at which a point is precise enough, from the second run on.
    pub precision: f64,
    /// Time limit of the measurement in seconds. A pass that would exceed the limit is not started,
    /// except the first.
    pub seconds_max: Option<f64>,
    /// Time limit of a run in seconds; a longer run ends the measurement with an error.
    pub timeout_seconds: f64,
    /// The rule by which other programs on the machine are detected.
    pub load: LoadRule,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            counts: None,
            repeats: 3,
            precision: 0.02,
            seconds_max: None,
            timeout_seconds: 900.0,
            load: LoadRule::default(),
        }
    }
}

/// A completed run.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileRun {
    /// Number of cores of the run.
    pub cores: u32,
    /// CPUs of the run.
    pub cpus: CpuSet,
    /// Number of the run among the runs at this core count, from 1.
    pub repetition: u32,
    /// Maximum number of runs.
    pub repeats: u32,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Mean number of CPUs in use: CPU time divided by wall time.
    pub busy_cpus: f64,
}

/// Progress of a measurement, for display.
#[derive(Debug)]
pub enum ProfileEvent<'a> {
    /// A run has ended, and counts.
    Run(&'a ProfileRun),
    /// Other programs disturb the measurement; a line for the user.
    Busy(&'a str),
}

/// The runs at one core count.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfilePoint {
    /// The CPUs of the seat.
    pub cpus: CpuSet,
    /// The number of cores, by capacity.
    pub cores: f64,
    /// Wall-clock seconds of each run.
    pub seconds: Vec<f64>,
    /// CPU time divided by wall time of each run.
    pub busy_cpus: Vec<f64>,
}

/// A measured curve.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredProfile {
    /// Runs per second as a function of the number of cores.
    pub curve: Curve,
    /// Points of the curve, by ascending number of cores.
    pub points: Vec<ProfilePoint>,
    /// The program's key in the profile store, if it could be derived.
    pub key: Option<ProgramKey>,
    /// Number of busy-waiting threads.
    pub spinners: u32,
    /// Whether these threads belong to a runtime that decided at its start to busy-wait; `None` if
    /// no run was long enough to detect this.
    pub active_wait: Option<bool>,
    /// How other programs disturbed the measurement; `None` if it was undisturbed.
    pub disturbance: Option<String>,
}

/// Measures a program's curve. The profile store of `config` is not used; [`store_curve`] stores a
/// curve.
///
/// # Errors
/// The program cannot be run, fails or hangs; a count is out of range; `cancel` was set.
pub fn profile(
    config: EngineConfig,
    target: &ProfileTarget,
    options: &ProfileOptions,
    cancel: &AtomicBool,
    on_event: &mut dyn FnMut(ProfileEvent<'_>),
) -> Result<MeasuredProfile, ProfileError> {
    let topology = config.topology.clone();
    let counts = counts(&topology, options)?;
    let profiles = ProfileUse::none();
    let config = EngineConfig { profiles, ..config };
    let guard = LoadGuard::new(options.load, &config.roots, topology.cpus.len());
    let engine = Engine::start(config, Box::new(SeatAsBound)).map_err(RunError::from)?;
    let scratch = tempfile::tempdir().map_err(|source| RunError::System {
        doing: "making a temporary directory for the programs' standard error streams",
        source,
    })?;
    let mut session = ProfileSession {
        engine: &engine,
        target,
        options,
        cancel,
        stderr: &scratch.path().join("stderr"),
        key: None,
        spinners: 0,
        active_wait: None,
        guard,
    };
    let mut points: Vec<_> = (counts.iter())
        .map(|&n| ProfilePoint::new(&topology, n))
        .collect();
    session.measure(&counts, &mut points, on_event)?;
    let curve = points.iter().map(ProfilePoint::summary).collect();
    let curve = Curve::new(curve).map_err(|source| ProfileError::Curve {
        name: target.name.clone(),
        source,
    })?;
    Ok(MeasuredProfile {
        curve,
        points,
        key: session.key,
        spinners: session.spinners,
        active_wait: session.active_wait,
        disturbance: session.guard.disturbance().map(str::to_owned),
    })
}

/// Adds a measured curve to the profile store.
///
/// # Errors
/// The measurement was disturbed, or the store cannot be opened or written. If the program has no
/// key, its curve is not stored, which is no error.
pub fn store_curve(
    store: &Path,
    topology: &Topology,
    name: &str,
    measured: &MeasuredProfile,
) -> Result<(), ProfileError> {
    if let Some(reason) = &measured.disturbance {
        return Err(ProfileError::Disturbed(reason.clone()));
    }
    let Some(key) = &measured.key else {
        return Ok(());
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let points = measured.curve.points().iter();
    let measurement = Measurement {
        name: name.to_owned(),
        at_s: since_1970.map_or(0, |age| age.as_secs() as i64),
        points: points
            .map(|&point| MeasuredPoint {
                point,
                source: ProgressSource::Repetition,
            })
            .collect(),
        spinners: Some(measured.spinners),
        active_wait: measured.active_wait,
        ..Measurement::default()
    };
    // A damaged store is renamed, and a new store is created.
    let (mut store, warning) = Store::open_or_memory(store)?;
    if let Some(warning) = warning.filter(|warning| warning.in_memory) {
        return Err(warning.error.into());
    }
    Ok(store.merge(key, &MachineKey::of(topology), &measurement)?)
}

fn counts(topology: &Topology, options: &ProfileOptions) -> Result<Vec<u32>, ProfileError> {
    let given = options.counts.clone();
    let counts: BTreeSet<u32> = given
        .unwrap_or_else(|| default_counts(topology))
        .into_iter()
        .collect();
    let most = topology.cores.len() as u32;
    match counts.iter().find(|&&n| n == 0 || n > most) {
        Some(&given) => Err(ProfileError::Cores { given, most }),
        None => Ok(counts.into_iter().collect()),
    }
}

impl ProfilePoint {
    fn new(topology: &Topology, cores: u32) -> Self {
        let cpus = seat_of(topology, cores);
        Self {
            cores: topology.capacity_of(&cpus),
            cpus,
            seconds: Vec::new(),
            busy_cpus: Vec::new(),
        }
    }

    fn summary(&self) -> CurvePoint {
        CurvePoint {
            cores: self.cores,
            rate: 1.0 / median(&self.seconds),
            relative_error: self.relative_error(),
            busy_cpus: Some(median(&self.busy_cpus)),
        }
    }

    /// Returns the standard error of the mean, relative to the mean. With few runs, the standard
    /// error of the median is hardly larger.
    fn relative_error(&self) -> f64 {
        let n = self.seconds.len() as f64;
        if n < 2.0 {
            return CurvePoint::SINGLE_RUN_ERROR;
        }
        let mean = self.seconds.iter().sum::<f64>() / n;
        let squares = self.seconds.iter().map(|s| (s - mean) * (s - mean));
        (squares.sum::<f64>() / (n - 1.0) / n).sqrt() / mean
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    (at(sorted.len().saturating_sub(1) / 2) + at(sorted.len() / 2)) / 2.0
}

/// A measurement in progress.
struct ProfileSession<'a> {
    engine: &'a Engine,
    target: &'a ProfileTarget,
    options: &'a ProfileOptions,
    cancel: &'a AtomicBool,
    stderr: &'a Path,
    key: Option<ProgramKey>,
    spinners: u32,
    active_wait: Option<bool>,
    guard: LoadGuard,
}

impl ProfileSession<'_> {
    fn measure(
        &mut self,
        counts: &[u32],
        points: &mut [ProfilePoint],
        on_event: &mut dyn FnMut(ProfileEvent<'_>),
    ) -> Result<(), RunError> {
        let mut on_busy = |text: &str| on_event(ProfileEvent::Busy(text));
        self.guard.wait_until_quiet(self.cancel, &mut on_busy)?;
        let began = Instant::now();
        for pass in 0..self.options.repeats.max(1) {
            let pass_began = Instant::now();
            for step in 0..points.len() {
                let at = if pass % 2 == 0 {
                    step
                } else {
                    points.len() - 1 - step
                };
                let cpus = points[at].cpus.clone();
                let run = self.undisturbed_run(counts[at], pass + 1, &cpus, on_event)?;
                points[at].seconds.push(run.seconds);
                points[at].busy_cpus.push(run.busy_cpus);
                on_event(ProfileEvent::Run(&run));
            }
            let spent = began.elapsed() + pass_began.elapsed();
            let too_long = |most: f64| spent.as_secs_f64() > most;
            let precise = |p: &ProfilePoint| p.relative_error() <= self.options.precision;
            let enough = pass > 0 && points.iter().all(precise);
            if enough || self.options.seconds_max.is_some_and(too_long) {
                break;
            }
        }
        Ok(())
    }

    /// Runs the program until a run is undisturbed, or is forced to count.
    fn undisturbed_run(
        &mut self,
        cores: u32,
        repetition: u32,
        cpus: &CpuSet,
        on_event: &mut dyn FnMut(ProfileEvent<'_>),
    ) -> Result<ProfileRun, RunError> {
        loop {
            let (run, disturbance) = self.run_once(cores, repetition, cpus)?;
            let Some(reason) = disturbance else {
                return Ok(run);
            };
            let text = format!("a run was discarded and is repeated, because {reason}");
            on_event(ProfileEvent::Busy(&text));
            let mut on_busy = |text: &str| on_event(ProfileEvent::Busy(text));
            self.guard.wait_until_quiet(self.cancel, &mut on_busy)?;
        }
    }

    /// Launches the program on these CPUs without starting it.
    fn launch(&mut self, cpus: &CpuSet) -> Result<MeasuredProcess, RunError> {
        let spec = &self.target.spec;
        let mut adopt = AdoptOptions::new(&spec.argv).named(&self.target.name);
        adopt.cwd = spec.cwd.clone();
        adopt.env = (spec.env.iter())
            .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
            .collect();
        adopt.bound_to = Some(cpus.clone());
        let spec = LaunchSpec {
            new_session: true,
            ..spec.clone()
        };
        let process = MeasuredProcess::launch(Some(self.engine), spec, adopt, self.stderr)?;
        if self.key.is_none() {
            self.key = process.adopted().and_then(|adopted| adopted.key.clone());
        }
        Ok(process)
    }

    /// Runs the program once. The second value states why the run must be repeated, if it must.
    fn run_once(
        &mut self,
        cores: u32,
        repetition: u32,
        cpus: &CpuSet,
    ) -> Result<(ProfileRun, Option<String>), RunError> {
        let mut process = self.launch(cpus)?;
        let before = self.guard.begin()?;
        process.start()?;
        let (mut spinners, mut active_wait) = (0, None);
        let read_waits = || {
            let programs = self.engine.status().map(|status| status.programs);
            for program in programs.into_iter().flatten() {
                spinners = program.spinners.max(spinners);
                active_wait = program.active_wait.max(active_wait);
            }
        };
        let run = RunAlone {
            name: &self.target.name,
            timeout: Duration::from_secs_f64(self.options.timeout_seconds),
            ok_exit_codes: &self.target.ok_exit_codes,
            cancel: self.cancel,
        };
        let ended = process.complete_alone(&run, read_waits);
        self.spinners = self.spinners.max(spinners);
        self.active_wait = self.active_wait.max(active_wait);
        let ended = ended?;
        // The check precedes the end of `process`, which kills remaining processes of the program.
        let disturbance = self.guard.end(before.as_ref())?;
        let run = ProfileRun {
            cores,
            cpus: cpus.clone(),
            repetition,
            repeats: self.options.repeats,
            seconds: ended.seconds(),
            busy_cpus: ended.exit.cpu_seconds / ended.seconds(),
        };
        Ok((run, disturbance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(seconds: &[f64]) -> ProfilePoint {
        ProfilePoint {
            cpus: CpuSet::single(0),
            cores: 1.0,
            seconds: seconds.to_vec(),
            busy_cpus: vec![1.0; seconds.len()],
        }
    }

    #[test]
    fn a_point_is_the_median_with_its_error() {
        assert_eq!(point(&[4.0]).summary().rate, 0.25);
        assert_eq!(point(&[4.0]).relative_error(), CurvePoint::SINGLE_RUN_ERROR);
        assert_eq!(point(&[1.0, 9.0, 2.0]).summary().rate, 0.5);
        assert_eq!(point(&[1.0, 3.0]).summary().rate, 0.5);
        assert_eq!(point(&[2.0, 2.0, 2.0]).relative_error(), 0.0);
        // For the values 1 and 3, the standard deviation is sqrt(2). The standard error is this
        // value divided by sqrt(2), and the mean is 2.
        assert!((point(&[1.0, 3.0]).relative_error() - 0.5).abs() < 1e-12);
    }
}
