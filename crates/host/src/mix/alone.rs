// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs' curves alone: from the profile store, or measured now.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use usher_model::{Curve, ProgramKey, ProgressSource, Topology};
use usher_probe::{Command, identify};
use usher_report::data::ProgramFacts;
use usher_report::text;
use usher_store::{MachineKey, Store};

use super::file::{MixFile, MixProgram};
use super::{MixEvent, MixOptions};
use crate::engine::EngineConfig;
use crate::error::MeasureError;
use crate::launch::Stream;
use crate::profile::{ProfileOptions, Subject, default_counts, profile, remember};

/// Cores by capacity that differ by less than this are the same.
const SAME_CORES: f64 = 1e-6;

/// What makes two programs of a mix the same.
type CommandAndEnv<'a> = (&'a [std::ffi::OsString], &'a BTreeMap<String, String>);

/// The curve of one program alone, and where it comes from.
#[derive(Debug, Clone)]
pub(super) struct Alone {
    pub curve: Curve,
    pub source: String,
}

/// The curves of all programs of a mix, in its order; same commands are
/// measured once. `seconds`: how long measuring may take.
pub(super) fn curves(
    mix: &MixFile,
    config: &EngineConfig,
    options: &MixOptions,
    seconds: Option<f64>,
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(MixEvent<'_>),
) -> Result<Vec<Alone>, MeasureError> {
    let mut known: BTreeMap<CommandAndEnv<'_>, Alone> = BTreeMap::new();
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
        let alone = measure(mix, program, config, options, share, cancel, tell)?;
        known.insert((&program.argv[..], &program.env), alone);
    }
    let of = |p: &MixProgram| known.get(&(&p.argv[..], &p.env)).cloned();
    Ok(mix.programs.iter().filter_map(of).collect())
}

/// A stored curve that has every point that would be measured.
fn stored(
    mix: &MixFile,
    program: &MixProgram,
    config: &EngineConfig,
    options: &MixOptions,
) -> Option<Alone> {
    let path = options.store.as_deref().filter(|_| !options.remeasure)?;
    // A store that cannot be read is measured anew, and said so by the engine.
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
    (complete && source == ProgressSource::Repetition).then(|| Alone {
        source: format!(
            "from the profile store, {}",
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
    let command = Command {
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
    tell: &mut dyn FnMut(MixEvent<'_>),
) -> Result<Alone, MeasureError> {
    let subject = Subject {
        name: program.name.clone(),
        spec: program.spec(&mix.dir, Stream::Null, true),
        ok_status: program.ok_status.clone(),
    };
    let how = ProfileOptions {
        repeats: options.alone_repeats.max(1),
        seconds_max,
        patience_seconds: mix.protocol.patience_seconds,
        ..ProfileOptions::default()
    };
    let mut told = |run: &crate::profile::ProfileRun| {
        let program = &program.name;
        tell(MixEvent::Alone { program, run });
    };
    let mut profiled = profile(config.clone(), &subject, &how, cancel, &mut told)?;
    // The same name for it as when the mix looks for it in the store.
    profiled.key = key_of(mix, program).or(profiled.key);
    if let Some(store) = &options.store {
        keep(store, config, program, &profiled, tell);
    }
    let least = profiled.points.iter().map(|p| p.seconds.len()).min();
    Ok(Alone {
        source: format!(
            "measured here, {} a point",
            text::count(least.unwrap_or(0), "run")
        ),
        curve: profiled.curve,
    })
}

/// A store that cannot be written costs the next run its time, not this one
/// its result.
fn keep(
    store: &Path,
    config: &EngineConfig,
    program: &MixProgram,
    profiled: &crate::profile::Profiled,
    tell: &mut dyn FnMut(MixEvent<'_>),
) {
    if let Err(error) = remember(store, &config.topology, &program.name, profiled) {
        let text = error.to_string();
        tell(MixEvent::Warning { text: &text });
    }
}

/// The program as the report knows it.
pub(super) fn facts(program: &MixProgram, alone: &Alone, topology: &Topology) -> ProgramFacts {
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
