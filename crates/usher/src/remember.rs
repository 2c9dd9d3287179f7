// SPDX-License-Identifier: GPL-2.0-only
//! Adds the duration of a program that ran without a daemon to the profile store. The duration
//! becomes a point of the program's scalability curve at the number of cores of the whole machine.
//!
//! A run counts only if it succeeded, took at least 0.5 s, and other programs used at most 0.1 CPUs
//! on average during the run. The measurement reads `/proc/stat` at the start and at the end of the
//! run. A run that counts also costs the identification of the executable and one transaction of
//! the store. Errors are printed and do not change the exit status.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use usher_host::launch::{Exit, LaunchSpec};
use usher_model::{CurvePoint, ProgressSource};
use usher_probe::{MachineProbe, ProgramCommand, Roots};
use usher_store::{MachineKey, MeasuredPoint, Measurement, Store};

use crate::machine::usable_machine;
use crate::{failure, runtime};

/// Minimum duration of a run that counts: the duration of a shorter run says little about
/// scalability.
pub const DURATION_MIN: Duration = Duration::from_millis(500);
/// CPUs that other programs may use on average without counting as a disturbance.
const QUIET_CPUS: f64 = 0.1;

/// A run from its start to its end.
pub struct MeasuredRun {
    started: Instant,
    machine: MachineProbe,
    executable: Option<PathBuf>,
}

impl MeasuredRun {
    /// Starts the measurement; costs a read of `/proc/stat`.
    pub fn begin(spec: &LaunchSpec) -> Self {
        let mut machine = MachineProbe::new(&Roots::default());
        // An error is ignored: if `/proc/stat` cannot be read, the second sample also fails, and
        // the run does not count.
        let _ = machine.sample();
        Self {
            started: Instant::now(),
            machine,
            executable: spec.resolve().ok(),
        }
    }

    /// Stores a run that succeeded, was long enough and undisturbed. Errors are only printed,
    /// because the program has already done its work.
    pub fn end(self, exit: Exit, spec: &LaunchSpec, name: Option<&str>, store: Option<&PathBuf>) {
        let took = self.started.elapsed();
        if !exit.success() || took < DURATION_MIN {
            return;
        }
        let path = runtime::store_path(store.map(PathBuf::as_path));
        if let Err(error) = self.remember(exit, took, spec, name, path) {
            failure::print_error(&format!(
                "the duration of the program was not stored in the profile store: {}",
                failure::line(&error)
            ));
        }
    }

    fn remember(
        mut self,
        exit: Exit,
        took: Duration,
        spec: &LaunchSpec,
        name: Option<&str>,
        path: PathBuf,
    ) -> anyhow::Result<()> {
        let seconds = took.as_secs_f64();
        let busy_cpus = exit.cpu_seconds / seconds;
        let (Ok(machine), Some(executable)) = (self.machine.sample(), self.executable.take())
        else {
            return Ok(());
        };
        let all_busy: f64 = machine.idle.values().map(|idle| 1.0 - idle).sum();
        if all_busy - busy_cpus > QUIET_CPUS {
            return Ok(());
        }
        let directory = std::env::current_dir().context("finding the current directory")?;
        let name = name.map(str::to_owned).or_else(|| {
            let file = executable.file_name()?;
            Some(file.to_string_lossy().into_owned())
        });
        let key = usher_probe::identify(&ProgramCommand {
            executable: directory.join(executable),
            arguments: spec.argv.iter().skip(1).cloned().collect(),
            directory,
            environment: std::env::vars_os().collect(),
        })?;
        let topology = usable_machine()?;
        let point = CurvePoint {
            cores: topology.capacity_of(&topology.all_cpus()),
            rate: 1.0 / seconds,
            relative_error: CurvePoint::SINGLE_RUN_ERROR,
            busy_cpus: Some(busy_cpus),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let measurement = Measurement {
            name: name.unwrap_or_default(),
            at_s: now.map_or(0, |now| now.as_secs().try_into().unwrap_or(i64::MAX)),
            points: vec![MeasuredPoint {
                point,
                source: ProgressSource::Repetition,
            }],
            ..Measurement::default()
        };
        Store::open(&path)?.merge(&key, &MachineKey::of(&topology), &measurement)?;
        Ok(())
    }
}
