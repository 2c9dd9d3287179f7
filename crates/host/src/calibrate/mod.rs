// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the errors of the sources of progress on this machine, for `usher doctor --calibrate`.
//!
//! 1. Calibration programs ([`CalibrationProgram`]) run alone on 1 core, on half of the cores and on
//!    all cores, for one second each ([`CalibrationOptions`]), in two passes.
//! 2. During a run, CPU time, bytes, instructions and heartbeats are sampled every 200 ms, each by
//!    the probe that measures managed programs.
//! 3. The program reports its true progress with times ([`WorkTrace`]). The work between the first
//!    and the last sample is compared with the units of each source in the same time.
//! 4. [`source_errors`] computes the errors: how much the speed-ups of a source differ from the true
//!    speed-ups.
//!
//! While the machine is busy, [`crate::quiet`] postpones the measurement, as for profiles. The work
//! and the units are counted in the same run and time. Another program therefore slows both equally,
//! but changes the CPU time that the work needs.
//!
//! **Limits.** The programs are short and regular. The errors show what the machine and the kernel
//! contribute, such as a hypervisor that counts instructions wrongly. Whether a source fits a program
//! is learnt for each program: from whole runs, and for bytes from their course during a run. OMPT
//! needs LLVM's OpenMP runtime and is not calibrated. With one core there is no speed-up.

mod error;
mod program;
mod trace;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use usher_heartbeat::Page;
use usher_model::{CpuSet, ProcessTree, ProgressSource, Topology};
use usher_probe::{MachineProbe, ProbeConfig, ProbeError, ProgramProbe, Roots};
use usher_store::{Calibration, MachineKey, Store, StoreError};

pub use error::{SourceReading, source_errors};
pub use program::{CalibrationProgram, run_calibration_program};
pub use trace::WorkTrace;

use crate::engine::{AdoptOptions, Engine, EngineConfig, ProfileUse, now_ns};
use crate::kernel::kernel_release;
use crate::launch::{LaunchSpec, OWN_FAILURE, Stream};
use crate::measured::{MeasuredProcess, RunAlone, RunError};
use crate::profile::{SeatAsBound, seat_of};
use crate::quiet::{LoadGuard, LoadRule};

/// Number of passes over all programs and numbers of cores.
const PASSES: u32 = 2;
/// Upper limit of the time of a run, beyond its planned time.
const GRACE: Duration = Duration::from_secs(30);

/// The reason why a machine was not calibrated. All actions have been undone, and all started
/// programs have ended.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The profile store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no speed-up to compare.
    #[error(
        "the sources of progress cannot be calibrated on 1 core: a calibration compares speed-ups, \
         which need at least 2 usable cores"
    )]
    OneCore,
    /// No source was compared on two numbers of cores.
    #[error(
        "the sources of progress were not calibrated, because the calibration programs got too \
         little CPU time: try again when the machine is quiet"
    )]
    TooFewSamples,
    /// Other programs ran beside a forced measurement.
    #[error("the calibration was not stored, because the measurement was disturbed: {0}")]
    Disturbed(String),
}

impl CalibrateError {
    /// Returns the exit status of Usher for this error.
    pub fn code(&self) -> u8 {
        match self {
            Self::Run(error) => error.code(),
            _ => OWN_FAILURE,
        }
    }
}

/// The options of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationOptions {
    /// The command that runs a calibration program: the name of the program, the number of threads
    /// and the time in milliseconds are added ([`run_calibration_program`]).
    pub command: Vec<OsString>,
    /// Time of a run.
    pub run_time: Duration,
    /// The rule by which other programs on the machine are detected.
    pub load: LoadRule,
}

/// Progress of a calibration, for display.
#[derive(Debug)]
pub enum CalibrationEvent<'a> {
    /// A run of this program on this number of cores begins.
    Begins(CalibrationProgram, u32),
    /// A run has ended, and counts.
    Ended,
    /// Other programs disturb the measurement; a line for the user.
    Busy(&'a str),
}

/// A measured calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredCalibration {
    /// The errors, with time and kernel.
    pub calibration: Calibration,
    /// How other programs disturbed the measurement; `None` if it was undisturbed.
    pub disturbance: Option<String>,
}

/// Returns the numbers of cores on which the programs run.
pub fn calibration_counts(topology: &Topology) -> Vec<u32> {
    let all = topology.cores.len() as u32;
    let counts: BTreeSet<u32> = [1, all / 2, all].into_iter().filter(|&n| n > 0).collect();
    counts.into_iter().collect()
}

/// Returns the number of runs of a calibration.
pub fn calibration_runs(topology: &Topology) -> u32 {
    let counts = calibration_counts(topology).len() as u32;
    PASSES * counts * CalibrationProgram::ALL.len() as u32
}

/// Measures the errors of the sources of progress. [`store_calibration`] stores them.
///
/// # Errors
/// The machine has one core or is busy; a program cannot be run, or fails; `cancel` was set.
pub fn calibrate(
    config: EngineConfig,
    options: &CalibrationOptions,
    cancel: &AtomicBool,
    on_event: &mut dyn FnMut(CalibrationEvent<'_>),
) -> Result<MeasuredCalibration, CalibrateError> {
    let topology = config.topology.clone();
    let counts = calibration_counts(&topology);
    if counts.len() < 2 {
        return Err(CalibrateError::OneCore);
    }
    let config = EngineConfig {
        profiles: ProfileUse::none(),
        ..config
    };
    let (roots, cpus) = (config.roots.clone(), topology.cpus.len());
    let scratch = tempfile::tempdir().map_err(|source| RunError::System {
        doing: "making a temporary directory for the calibration programs",
        source,
    })?;
    let mut session = CalibrationSession {
        engine: Engine::start(config, Box::new(SeatAsBound)).map_err(RunError::from)?,
        guard: LoadGuard::new(options.load, &roots, cpus),
        roots,
        options,
        cancel,
        scratch: scratch.path(),
    };
    let errors = source_errors(&session.readings(&topology, &counts, on_event)?);
    if errors.is_empty() {
        return Err(CalibrateError::TooFewSamples);
    }
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(MeasuredCalibration {
        calibration: Calibration {
            at_s: since_1970.map_or(0, |age| age.as_secs() as i64),
            kernel: kernel_release(),
            errors,
        },
        disturbance: session.guard.disturbance().map(str::to_owned),
    })
}

/// Stores a calibration for this kind of machine, in place of an earlier one.
///
/// # Errors
/// The measurement was disturbed, or the store cannot be opened or written.
pub fn store_calibration(
    store: &Path,
    topology: &Topology,
    measured: &MeasuredCalibration,
) -> Result<(), CalibrateError> {
    if let Some(reason) = &measured.disturbance {
        return Err(CalibrateError::Disturbed(reason.clone()));
    }
    // A damaged store is renamed, and a new store is created.
    let (mut store, warning) = Store::open_or_memory(store)?;
    if let Some(warning) = warning.filter(|warning| warning.in_memory) {
        return Err(warning.error.into());
    }
    Ok(store.set_calibration(&MachineKey::of(topology), &measured.calibration)?)
}

/// A calibration in progress.
struct CalibrationSession<'a> {
    engine: Engine,
    guard: LoadGuard,
    roots: Roots,
    options: &'a CalibrationOptions,
    cancel: &'a AtomicBool,
    scratch: &'a Path,
}

impl CalibrationSession<'_> {
    /// Waits until the machine is quiet, and runs each program on these numbers of cores in each
    /// pass.
    fn readings(
        &mut self,
        topology: &Topology,
        counts: &[u32],
        on_event: &mut dyn FnMut(CalibrationEvent<'_>),
    ) -> Result<Vec<SourceReading>, RunError> {
        let mut on_busy = |text: &str| on_event(CalibrationEvent::Busy(text));
        self.guard.wait_until_quiet(self.cancel, &mut on_busy)?;
        let mut readings = Vec::new();
        for _ in 0..PASSES {
            for program in CalibrationProgram::ALL {
                for &cores in counts {
                    let cpus = seat_of(topology, cores);
                    on_event(CalibrationEvent::Begins(program, cores));
                    readings.extend(self.undisturbed_run(program, cores, &cpus, on_event)?);
                    on_event(CalibrationEvent::Ended);
                }
            }
        }
        Ok(readings)
    }

    /// Runs a program until a run is undisturbed, or is forced to count.
    fn undisturbed_run(
        &mut self,
        program: CalibrationProgram,
        cores: u32,
        cpus: &CpuSet,
        on_event: &mut dyn FnMut(CalibrationEvent<'_>),
    ) -> Result<Vec<SourceReading>, RunError> {
        loop {
            let (run, disturbance) = self.run_once(program, cpus)?;
            let Some(reason) = disturbance else {
                return Ok(run.readings(program, cores));
            };
            let text = format!("a run was discarded and is repeated, because {reason}");
            on_event(CalibrationEvent::Busy(&text));
            let mut on_busy = |text: &str| on_event(CalibrationEvent::Busy(text));
            self.guard.wait_until_quiet(self.cancel, &mut on_busy)?;
        }
    }

    /// Runs a program once. The second value is the reason to repeat the run; `None` if the run
    /// counts.
    fn run_once(
        &mut self,
        program: CalibrationProgram,
        cpus: &CpuSet,
    ) -> Result<(CalibrationRun, Option<String>), RunError> {
        let file = |name: &str| self.scratch.join(name);
        let (output, stderr, page) = (file("work"), file("stderr"), file("page"));
        let page_error = |error: usher_heartbeat::PageError| RunError::System {
            doing: "creating the heartbeat page of a calibration program",
            source: std::io::Error::other(error.to_string()),
        };
        let heartbeat = Page::create(&page).map_err(page_error)?;
        let spec = self.spec(program, cpus, &output, &page);
        let mut adopt = AdoptOptions::new(&spec.argv).named(program.name());
        adopt.bound_to = Some(cpus.clone());
        let mut process = MeasuredProcess::launch(Some(&self.engine), spec, adopt, &stderr)?;
        let home = process.adopted().map(|adopted| adopted.home.clone());
        let home = home.ok_or(RunError::Cancelled)?;
        let before = self.guard.begin()?;
        let mut sampler = SourceSampler::open(&home, &self.roots, page).map_err(|error| {
            let source = std::io::Error::other(error.to_string());
            let doing = "observing a calibration program";
            RunError::System { doing, source }
        })?;
        process.start()?;
        let mut samples = Vec::new();
        let run = RunAlone {
            name: program.name(),
            timeout: self.options.run_time + GRACE,
            ok_exit_codes: &[0],
            cancel: self.cancel,
        };
        process.complete_alone(&run, || samples.extend(sampler.sample()))?;
        let disturbance = self.guard.end(before.as_ref())?;
        // The next run creates a page at the same path.
        heartbeat.remove().map_err(page_error)?;
        let text = std::fs::read_to_string(&output).map_err(|source| RunError::System {
            doing: "reading the progress of a calibration program",
            source,
        })?;
        let trace = WorkTrace::parse(&text);
        Ok((CalibrationRun { samples, trace }, disturbance))
    }

    fn spec(
        &self,
        program: CalibrationProgram,
        cpus: &CpuSet,
        output: &Path,
        page: &Path,
    ) -> LaunchSpec {
        let run_ms = self.options.run_time.as_millis();
        let words = [
            program.name().to_owned(),
            cpus.len().to_string(),
            run_ms.to_string(),
        ];
        let argv = self.options.command.iter().cloned();
        LaunchSpec {
            stdin: Stream::Null,
            stdout: Stream::File(output.to_owned()),
            env: [(usher_heartbeat::ENVIRONMENT.into(), Some(page.into()))].into(),
            new_session: true,
            ..LaunchSpec::new(argv.chain(words.map(OsString::from)))
        }
    }
}

/// Totals of the sources at one time.
#[derive(Debug, Clone, PartialEq)]
struct SourceSample {
    at_ns: u64,
    totals: Vec<(ProgressSource, f64)>,
}

/// The samples of one run, and the true progress; `None` if the program reported none.
#[derive(Debug)]
struct CalibrationRun {
    samples: Vec<SourceSample>,
    trace: Option<WorkTrace>,
}

impl CalibrationRun {
    /// Compares the sources with the work between the first and the last sample for which the work
    /// is known.
    fn readings(&self, program: CalibrationProgram, cores: u32) -> Vec<SourceReading> {
        let Some(trace) = &self.trace else {
            return Vec::new();
        };
        let known = |sample: &SourceSample| Some((trace.work_at(sample.at_ns)?, sample.clone()));
        let known: Vec<_> = self.samples.iter().filter_map(known).collect();
        let [(first_work, first), .., (last_work, last)] = known.as_slice() else {
            return Vec::new();
        };
        let totals = |sample: &SourceSample, source| {
            let mut totals = sample.totals.iter();
            totals.find(|total| total.0 == source).map(|total| total.1)
        };
        let reading = |&(source, first_units): &(ProgressSource, f64)| {
            Some(SourceReading {
                program,
                cores,
                source,
                work: last_work - first_work,
                units: totals(last, source)? - first_units,
            })
        };
        first.totals.iter().filter_map(reading).collect()
    }
}

/// Samples all sources of one program. A [`ProgramProbe`] reports the best source only, so each
/// source has a probe of its own.
struct SourceSampler {
    machine: MachineProbe,
    /// CPU time and bytes.
    bytes: ProgramProbe,
    /// The probes of heartbeats and, with a PMU, of instructions.
    others: Vec<(ProgressSource, ProgramProbe)>,
}

impl SourceSampler {
    fn open(home: &ProcessTree, roots: &Roots, page: PathBuf) -> Result<Self, ProbeError> {
        let config = ProbeConfig {
            proc_root: roots.proc.clone(),
            ..ProbeConfig::default()
        };
        let mut bytes = ProgramProbe::open(home, config.clone())?;
        bytes.count_bytes(true);
        let mut others = Vec::new();
        let mut instructions = ProgramProbe::open(home, config.clone())?;
        // The call fails on a machine without a PMU, which `usher doctor` reports.
        if instructions.count_instructions().is_ok() {
            others.push((ProgressSource::Instructions, instructions));
        }
        let heartbeat = Some(page);
        let beats = ProgramProbe::open(
            home,
            ProbeConfig {
                heartbeat,
                ..config
            },
        )?;
        others.push((ProgressSource::Heartbeat, beats));
        Ok(Self {
            machine: MachineProbe::new(roots),
            bytes,
            others,
        })
    }

    /// Samples the sources; `None` if the program cannot be read any more.
    fn sample(&mut self) -> Option<SourceSample> {
        let steal = self
            .machine
            .sample()
            .map_or(0.0, |sample| sample.steal_in_cpu_time);
        let at_ns = now_ns();
        let cpu_ns = self.bytes.sample(at_ns, steal).ok()?.cpu_ns as f64;
        let bytes = self.bytes.bytes().unwrap_or(0) as f64;
        let mut totals = vec![
            (ProgressSource::CpuTime, cpu_ns),
            (ProgressSource::Bytes, bytes),
        ];
        for (source, probe) in &mut self.others {
            let progress = probe.sample(at_ns, steal).ok()?.progress;
            let found = progress.filter(|progress| progress.source == *source);
            totals.extend(found.map(|progress| (*source, progress.total)));
        }
        Some(SourceSample { at_ns, totals })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ns: u64, units: f64) -> SourceSample {
        SourceSample {
            at_ns,
            totals: vec![(ProgressSource::Heartbeat, units)],
        }
    }

    #[test]
    fn units_are_compared_with_the_work_of_the_same_time() {
        let run = CalibrationRun {
            // The first and the last sample are outside the trace.
            samples: vec![
                sample(50, 0.0),
                sample(150, 7.0),
                sample(180, 0.0),
                sample(300, 27.0),
                sample(900, 99.0),
            ],
            trace: WorkTrace::parse("100 0\n200 10\n400 20\n"),
        };
        let readings = run.readings(CalibrationProgram::Compute, 2);
        assert_eq!(readings.len(), 1);
        assert_eq!((readings[0].work, readings[0].units), (10.0, 20.0));
    }

    #[test]
    fn a_run_with_one_sample_gives_no_reading() {
        for (samples, text) in [
            (vec![sample(150, 1.0)], "100 0\n200 1\n"),
            (Vec::new(), "100 0\n"),
            (vec![sample(1, 0.0), sample(2, 1.0)], "x\n"),
        ] {
            let trace = WorkTrace::parse(text);
            let run = CalibrationRun { samples, trace };
            assert_eq!(run.readings(CalibrationProgram::Compute, 2), []);
        }
    }
}
