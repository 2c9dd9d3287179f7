// SPDX-License-Identifier: GPL-2.0-only
//! `usher doctor --calibrate`: measures the errors of the sources of progress
//! (`usher_host::calibrate`) and stores them. The report of `usher doctor` contains the stored
//! errors, or the errors that were just measured but not stored.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use schemars::JsonSchema;
use serde::Serialize;
use usher_host::calibrate::{
    CalibrateError, CalibrationEvent, CalibrationOptions, MeasuredCalibration, calibrate,
    calibration_runs, store_calibration,
};
use usher_host::{RunError, kernel_release};
use usher_model::{ProgressSource, SOURCE_ERROR_MAX, Topology};
use usher_store::{Calibration, MachineKey, Store};

use crate::cli::options::{Global, LoadArgs};
use crate::commands::profile::{age, cores as cores_text};
use crate::failure;
use crate::measure::{self, Interruption};
use crate::progress::Progress;

/// Range of the time of a run in seconds. Shorter runs have fewer than two samples.
const RUN_SECONDS: std::ops::RangeInclusive<f64> = 0.6..=60.0;

/// The options of a calibration.
#[derive(Debug, clap::Args)]
pub struct CalibrateArgs {
    /// Measure the errors of the sources of progress on this machine, and store them in the profile
    /// store; takes about half a minute
    #[arg(long)]
    pub calibrate: bool,
    /// With --calibrate, run each calibration program for SECONDS; by default, 1
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = run_seconds)]
    run_seconds: Option<f64>,
    #[command(flatten)]
    load: LoadArgs,
}

fn run_seconds(text: &str) -> Result<f64, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| RUN_SECONDS.contains(seconds));
    let (min, max) = (RUN_SECONDS.start(), RUN_SECONDS.end());
    seconds.ok_or_else(|| format!("the time of a run must be from {min} to {max} seconds"))
}

impl CalibrateArgs {
    /// Rejects options of a calibration without `--calibrate`.
    pub fn check(&self) -> anyhow::Result<()> {
        let given = [
            ("--run-seconds", self.run_seconds.is_some()),
            ("--force", self.load.force),
            ("--max-other-cpus", self.load.max_other_cpus.is_some()),
            ("--max-wait", self.load.max_wait.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if !self.calibrate => {
                bail!("{option} requires --calibrate: run 'usher doctor --calibrate {option} …'")
            }
            _ => Ok(()),
        }
    }

    /// Measures the errors.
    fn measure(&self, global: &Global) -> anyhow::Result<(MeasuredCalibration, Topology)> {
        let config = measure::engine_config(global)?;
        let topology = config.topology.clone();
        let interruption = Interruption::watch()?;
        let progress = Progress::new();
        measure::warn_of_neighbours(global, &progress);
        let exe = std::env::current_exe().context("finding Usher's own executable")?;
        let options = CalibrationOptions {
            command: vec![exe.into(), OsString::from("calibration-worker")],
            run_time: Duration::from_secs_f64(self.run_seconds.unwrap_or(1.0)),
            load: self.load.rule(),
        };
        progress.steps(calibration_runs(&topology).into());
        let measured = calibrate(config, &options, interruption.flag(), &mut |event| {
            report_event(&progress, &event);
        });
        progress.end();
        match measured {
            Ok(measured) => Ok((measured, topology)),
            Err(CalibrateError::Run(error)) => interruption.outcome(Err::<_, RunError>(error)),
            Err(error) => Err(error.into()),
        }
    }
}

fn report_event(progress: &Progress, event: &CalibrationEvent<'_>) {
    match event {
        CalibrationEvent::Begins(program, cores) => {
            let cores = cores_text(*cores);
            progress.doing(format!("{} on {cores}", program.name()));
        }
        CalibrationEvent::Ended => progress.step(),
        CalibrationEvent::Busy(text) => progress.print_line(&format!("usher: {text}")),
    }
}

/// The errors of the sources of progress on this kind of machine.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CalibrationReport {
    /// Time of the measurement, in seconds since 1970.
    at_s: i64,
    /// Release of the kernel on which the errors were measured.
    kernel: String,
    /// The kind of machine.
    machine: MachineKey,
    /// Why the errors are not used; `null` if they are.
    problem: Option<String>,
    /// The sources, the best first; programs with busy-waiting threads are separate.
    sources: Vec<SourceReport>,
}

/// The error of one source.
#[derive(Debug, Serialize, JsonSchema)]
struct SourceReport {
    /// Name of the source.
    source: String,
    /// Whether the error is that of programs with busy-waiting threads.
    busy_waits: bool,
    /// Relative error of the speed-ups that the source shows, as a fraction.
    error: f64,
    /// Confidence in the source that follows from the error, 0..1.
    confidence: f64,
    /// Whether plans may be based on the source.
    may_plan: bool,
}

impl CalibrationReport {
    fn new(machine: MachineKey, calibration: Calibration, problem: Option<String>) -> Self {
        let errors = &calibration.errors;
        let report = |(source, busy_waits, error): (ProgressSource, bool, f64)| SourceReport {
            source: source.to_string(),
            busy_waits,
            error,
            confidence: errors.confidence(source, busy_waits),
            may_plan: source.may_plan() && error <= SOURCE_ERROR_MAX,
        };
        Self {
            sources: errors.iter().map(report).collect(),
            at_s: calibration.at_s,
            kernel: calibration.kernel,
            machine,
            problem,
        }
    }

    /// Describes the errors, one line for each kind of program.
    pub fn lines(&self) -> Vec<String> {
        let errors = |busy_waits| {
            let sources = self
                .sources
                .iter()
                .filter(|one| one.busy_waits == busy_waits);
            let texts = sources.map(SourceReport::text).collect::<Vec<_>>();
            texts.join(", ")
        };
        let measured = format!("measured {} ago on Linux {}", age(self.at_s), self.kernel);
        let lines = [
            ("errors of speed-ups: ", errors(false)),
            ("with busy-waiting threads: ", errors(true)),
            ("", measured),
        ];
        let lines = lines.into_iter().filter(|line| !line.1.is_empty());
        let lines = lines.map(|(label, text)| format!("{label}{text}"));
        lines.chain(self.problem.clone()).collect()
    }
}

impl SourceReport {
    fn text(&self) -> String {
        // Plans never use CPU time, even without an error.
        let unused = match self.error > SOURCE_ERROR_MAX && self.source != "cpu-time" {
            true => " (too inaccurate for plans)",
            false => "",
        };
        format!("{} {:.1} %{unused}", self.source, 100.0 * self.error)
    }
}

/// Calibrates this machine, and stores the errors. Returns a report if the errors were measured but
/// are not stored, because the measurement was disturbed.
pub fn measure_and_store(
    args: &CalibrateArgs,
    global: &Global,
    store: &Path,
) -> anyhow::Result<Option<CalibrationReport>> {
    let (measured, topology) = args.measure(global)?;
    match store_calibration(store, &topology, &measured) {
        Ok(()) => Ok(None),
        Err(error @ CalibrateError::Disturbed(_)) => {
            failure::print_error(&error.to_string());
            let machine = MachineKey::of(&topology);
            let problem = Some(error.to_string());
            Ok(Some(CalibrationReport::new(
                machine,
                measured.calibration,
                problem,
            )))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the stored errors of this kind of machine; `None` if there are none, or if the store
/// cannot be read, which the report of the store states.
pub fn stored(store: &Path, topology: Option<&Topology>) -> Option<CalibrationReport> {
    let machine = MachineKey::of(topology?);
    let store = Store::open_if_present(store).ok()??.store;
    let calibration = store.calibration(&machine).ok()??;
    let release = kernel_release();
    let problem = (calibration.kernel != release).then(|| {
        format!(
            "not used, because the kernel is now Linux {release}: run 'usher doctor --calibrate' \
             again"
        )
    });
    Some(CalibrationReport::new(machine, calibration, problem))
}

#[cfg(test)]
mod tests {
    use usher_model::SourceErrors;

    use super::*;

    #[test]
    fn inaccurate_sources_are_marked() {
        let mut errors = SourceErrors::default();
        errors.set(ProgressSource::Heartbeat, false, 0.001);
        errors.set(ProgressSource::Bytes, false, 0.12);
        errors.set(ProgressSource::CpuTime, true, 0.5);
        let calibration = Calibration {
            at_s: 0,
            kernel: "6.1".to_owned(),
            errors,
        };
        let source = usher_topology::Source::parse("core:2 pu:1").unwrap();
        let machine = MachineKey::of(&usher_topology::load(source).unwrap());
        let report = CalibrationReport::new(machine, calibration, Some("not used".to_owned()));
        let lines = report.lines();
        assert_eq!(
            lines[0],
            "errors of speed-ups: heartbeat 0.1 %, bytes 12.0 % (too inaccurate for plans)"
        );
        assert_eq!(lines[1], "with busy-waiting threads: cpu-time 50.0 %");
        assert!(
            lines[2].ends_with("ago on Linux 6.1") && lines[3] == "not used",
            "{lines:?}"
        );
        let may_plan: Vec<_> = report.sources.iter().map(|one| one.may_plan).collect();
        assert_eq!(may_plan, [true, false, false]);
    }
}
