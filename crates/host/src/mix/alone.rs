// SPDX-License-Identifier: MIT OR Apache-2.0
//! Provides the curves of the programs of a mix, each measured alone. For each program:
//!
//! 1. If the profile store has every point that would be measured, use the stored curve.
//! 2. Otherwise measure the curve now, and store it.
//!
//! Programs with equal commands and environment variables are measured once. The time limit of all
//! measurements is divided equally among the programs to be measured, and reduces the number of
//! runs per point, to at least one. A program that fails or exceeds the time limit of a repetition
//! ends the mix with an error. A curve that cannot be stored is only a warning.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use usher_model::{Curve, ProgramKey, ProgressSource, Topology};
use usher_probe::{ProgramCommand, identify};
use usher_report::data::ProgramFacts;
use usher_report::text;
use usher_store::{MachineKey, Store};

use super::error::MixError;
use super::file::{MixFile, MixProgram};
use super::options::{MixEvent, MixOptions};
use crate::engine::EngineConfig;
use crate::launch::Stream;
use crate::profile::{
    ProfileEvent, ProfileOptions, ProfileTarget, default_counts, profile, store_curve,
};

/// Tolerance for comparing numbers of cores by capacity.
const SAME_CORES: f64 = 1e-6;

/// The identity of a program. Programs with equal commands and environment variables have the same
/// curve.
type CommandAndEnv<'a> = (&'a [std::ffi::OsString], &'a BTreeMap<String, String>);

/// The curve of one program alone, and its source.
#[derive(Debug, Clone)]
pub(super) struct AloneCurve {
    pub curve: Curve,
    pub source: String,
}

/// Returns the curves of all programs of a mix, in the order of the mix. `seconds` is the time
/// limit of the measurements.
pub(super) fn curves(
    mix: &MixFile,
    config: &EngineConfig,
    options: &MixOptions,
    seconds: Option<f64>,
    cancel: &AtomicBool,
    on_event: &mut dyn FnMut(MixEvent<'_>),
) -> Result<Vec<AloneCurve>, MixError> {
    let mut known: BTreeMap<CommandAndEnv<'_>, AloneCurve> = BTreeMap::new();
    let mut missing: Vec<&MixProgram> = Vec::new();
    for program in &mix.programs {
        let command = (&program.argv[..], &program.env);
        if known.contains_key(&command)
            || missing
                .iter()
                .any(|m| m.argv == program.argv && m.env == program.env)
        {
            continue;
        }
        match stored(mix, program, config, options) {
            Some(alone) => drop(known.insert(command, alone)),
            None => missing.push(program),
        }
    }
    let share = seconds.map(|seconds| seconds / missing.len().max(1) as f64);
    for program in missing {
        let alone = measure(mix, program, config, options, share, cancel, on_event)?;
        known.insert((&program.argv[..], &program.env), alone);
    }
    let of = |p: &MixProgram| known.get(&(&p.argv[..], &p.env)).cloned();
    Ok(mix.programs.iter().filter_map(of).collect())
}

/// Returns the stored curve, if the store has every point that would be measured.
fn stored(
    mix: &MixFile,
    program: &MixProgram,
    config: &EngineConfig,
    options: &MixOptions,
) -> Option<AloneCurve> {
    let path = options.store.as_deref().filter(|_| !options.remeasure)?;
    // An unreadable store is ignored here, because the engine reports it.
    let store = Store::open(path).ok()?;
    let key = key_of(mix, program)?;
    let profile = store
        .lookup(&key, &MachineKey::of(&config.topology))
        .ok()??;
    let (curve, source) = profile.curve()?;
    let has = |cores: f64| {
        let points = curve.points().iter();
        points
            .map(|p| p.cores)
            .any(|c| (c - cores).abs() < SAME_CORES)
    };
    let counts = default_counts(&config.topology);
    let complete = counts.iter().all(|&n| has(capacity(&config.topology, n)));
    (complete && source == ProgressSource::Repetition).then(|| AloneCurve {
        source: format!(
            "curve from the profile store, {}",
            text::count(profile.runs as usize, "run")
        ),
        curve,
    })
}

fn capacity(topology: &Topology, cores: u32) -> f64 {
    topology.capacity_of(&crate::profile::seat_of(topology, cores))
}

fn key_of(mix: &MixFile, program: &MixProgram) -> Option<ProgramKey> {
    let spec = program.spec(&mix.dir, Stream::Null, true);
    let directory = std::path::absolute(&mix.dir).ok()?;
    let environment = std::env::vars_os()
        .chain((program.env.iter()).map(|(name, value)| (name.into(), value.into())));
    let command = ProgramCommand {
        executable: directory.join(spec.resolve().ok()?),
        arguments: program.argv.iter().skip(1).cloned().collect(),
        environment: environment.collect(),
        directory,
    };
    identify(&command).ok()
}

fn measure(
    mix: &MixFile,
    program: &MixProgram,
    config: &EngineConfig,
    options: &MixOptions,
    seconds_max: Option<f64>,
    cancel: &AtomicBool,
    on_event: &mut dyn FnMut(MixEvent<'_>),
) -> Result<AloneCurve, MixError> {
    let target = ProfileTarget {
        name: program.name.clone(),
        spec: program.spec(&mix.dir, Stream::Null, true),
        ok_exit_codes: program.ok_exit_codes.clone(),
    };
    let how = ProfileOptions {
        repeats: options.alone_repeats.max(1),
        seconds_max,
        timeout_seconds: mix.protocol.timeout_seconds,
        load: options.load,
        ..ProfileOptions::default()
    };
    let mut on_profile = |event: ProfileEvent<'_>| match event {
        ProfileEvent::Run(run) => {
            let program = &program.name;
            on_event(MixEvent::Alone { program, run });
        }
        ProfileEvent::Busy(text) => on_event(MixEvent::Warning { text }),
    };
    let mut measured = profile(config.clone(), &target, &how, cancel, &mut on_profile)?;
    // The key under which later runs of the mix search the store.
    measured.key = key_of(mix, program).or(measured.key);
    if let Some(store) = &options.store {
        keep(store, config, program, &measured, on_event);
    }
    let least = measured.points.iter().map(|p| p.seconds.len()).min();
    Ok(AloneCurve {
        source: format!(
            "curve measured by this command, {} per point",
            text::count(least.unwrap_or(0), "run")
        ),
        curve: measured.curve,
    })
}

/// Stores a curve. A failure is only a warning, because the next run can measure the curve again.
fn keep(
    store: &Path,
    config: &EngineConfig,
    program: &MixProgram,
    measured: &crate::profile::MeasuredProfile,
    on_event: &mut dyn FnMut(MixEvent<'_>),
) {
    if let Err(error) = store_curve(store, &config.topology, &program.name, measured) {
        let text = error.to_string();
        on_event(MixEvent::Warning { text: &text });
    }
}

/// Returns the description of the program for the report.
pub(super) fn facts(program: &MixProgram, alone: &AloneCurve, topology: &Topology) -> ProgramFacts {
    let all = topology.capacity_of(&topology.all_cpus());
    let points = alone.curve.points().iter().filter(|p| p.cores <= all);
    let best = points.max_by(|a, b| a.rate.total_cmp(&b.rate));
    ProgramFacts {
        name: program.name.clone(),
        command: program.command(),
        class: program.class.clone(),
        weight: program.weight,
        curve: Some(alone.curve.clone()),
        alone_best_seconds: best.map(|p| 1.0 / p.rate),
        alone_best_cores: best.map(|p| p.cores),
        curve_source: alone.source.clone(),
    }
}
