// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the engine's use of the profile store: which runs are stored, which profiles a program
//! gets, and stores that cannot be used.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::bench::{Bench, Idler, ROOT, busy, programs};
use common::{FirstCpuPolicy, until};
use usher_host::engine::{AdoptOptions, Engine, EngineConfig, EngineHandle, ProfileUse};
use usher_host::kernel_release;
use usher_host::launch::LaunchSpec;
use usher_model::{
    CurvePoint, Decision, Event, Observation, ProfileMatch, ProgressSource, SourceErrors,
    VariationBudget, confidence_of_error,
};
use usher_policy::Policy;
use usher_store::{Calibration, MachineKey, MeasuredPoint, Measurement, Store};

/// Returns the configuration of an engine that uses this profile store.
fn with_store(bench: &Bench, store: &Path) -> EngineConfig {
    EngineConfig {
        profiles: ProfileUse {
            store: Some(store.to_owned()),
            ..ProfileUse::default()
        },
        ..bench.config()
    }
}

#[test]
fn a_completed_run_is_stored_and_recalled() {
    let bench = Bench::new();
    let store = bench.path("profiles.db");
    let config = || EngineConfig {
        // Other tests run on the same CPUs.
        other_cpus_max: Some(f64::INFINITY),
        ..with_store(&bench, &store)
    };
    let engine = Engine::start(config(), Box::new(FirstCpuPolicy)).unwrap();
    let spec = LaunchSpec::new(busy(0.6));
    let (held, adopted) = engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
    let began = Instant::now();
    assert!(held.release().unwrap().wait().unwrap().success());
    let elapsed = began.elapsed().as_secs_f64();
    // Less than the duration of the run: this test may run late after the end of the program, and a
    // longer duration would count as a start before the seat.
    let seconds = 0.55;
    engine.repeated(adopted.id, seconds, ROOT).unwrap();
    assert!(engine.stop().is_empty());

    let machine = MachineKey::of(&bench.topology);
    let known = Store::open(&store).unwrap();
    let profile = known
        .lookup(&adopted.key.unwrap(), &machine)
        .unwrap()
        .unwrap();
    let (curve, _) = profile.curve().unwrap();
    let point = curve.points()[0];
    assert_eq!((curve.points().len(), point.rate), (1, 1.0 / seconds));
    assert_eq!(point.cores, bench.topology.capacity_of(&bench.first_cpu()));
    let busy_cpus = point.busy_cpus.unwrap();
    assert!(
        busy_cpus > 0.0 && busy_cpus <= 1.1 * elapsed / seconds,
        "{busy_cpus}"
    );
    drop(known);

    let engine = Engine::start(config(), Box::new(FirstCpuPolicy)).unwrap();
    let (_held, _) = engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
    assert_eq!(programs(&engine)[0].profile, Some(curve));
}

#[test]
fn a_run_beside_an_unmanaged_busy_loop_is_not_stored() {
    let bench = Bench::new();
    let store = bench.path("profiles.db");
    let config = with_store(&bench, &store);
    let cpu = bench.first_cpu().to_string();
    let mut busy_loop = std::process::Command::new("taskset");
    busy_loop.args(["-c", &cpu, "sh", "-c", "ulimit -t 60; while :; do :; done"]);
    let mut busy_loop = busy_loop.spawn().unwrap();
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    let spec = LaunchSpec::new(busy(1.5));
    let (held, adopted) = engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
    let began = Instant::now();
    assert!(held.release().unwrap().wait().unwrap().success());
    let seconds = began.elapsed().as_secs_f64();
    engine.repeated(adopted.id, seconds, ROOT).unwrap();
    assert!(engine.stop().is_empty());
    busy_loop.kill().unwrap();
    busy_loop.wait().unwrap();
    assert_eq!(Store::open(&store).unwrap().list().unwrap(), []);
}

/// Upper limit of the pairs of runs until two runs count.
const PAIRS_MAX: usize = 5;

/// A policy that keeps the variation budgets of arriving programs, and gives all the first CPU.
struct BudgetPolicy(Arc<Mutex<Vec<Option<VariationBudget>>>>);

impl Policy for BudgetPolicy {
    fn name(&self) -> &'static str {
        "budget"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        for event in &observation.events {
            if let Event::Arrived(program) = event {
                self.0.lock().unwrap().push(program.variation);
            }
        }
        // Samples show the demand of the programs.
        let wake_after_ns = Some(50_000_000);
        Decision {
            wake_after_ns,
            ..FirstCpuPolicy.decide(observation)
        }
    }
}

#[test]
fn runs_beside_other_programs_are_corrected_and_grant_a_budget() {
    if !Path::new("/proc/self/schedstat").exists() {
        usher_skip::skip!("corrected runs: the kernel counts no waits for CPUs");
        return;
    }
    let bench = Bench::new();
    let store = bench.path("profiles.db");
    let budgets = Arc::new(Mutex::new(Vec::new()));
    let start = |vary| {
        let mut config = with_store(&bench, &store);
        config.profiles.correct = true;
        config.profiles.vary = vary;
        Engine::start(config, Box::new(BudgetPolicy(budgets.clone()))).unwrap()
    };
    let spec = LaunchSpec::new(busy(1.5));
    let launch = |engine: &Engine| engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
    // Runs two programs at the same time. Returns the duration of the longer run.
    let run_pair = || {
        let engine = start(true);
        let runs = [launch(&engine), launch(&engine)];
        let key = runs[0].1.key.clone().unwrap();
        let children = runs.map(|(held, adopted)| {
            let child = held.release().unwrap();
            (child, adopted.id, Instant::now())
        });
        let longest = children.into_iter().map(|(mut child, id, began)| {
            assert!(child.wait().unwrap().success());
            let seconds = began.elapsed().as_secs_f64();
            engine.repeated(id, seconds, ROOT).unwrap();
            seconds
        });
        let seconds = longest.fold(0.0, f64::max);
        assert!(engine.stop().is_empty());
        (key, seconds)
    };
    let machine = MachineKey::of(&bench.topology);
    // On a busy machine, the control loop may be too late to observe a whole run, which then does
    // not count.
    let (known, key, seconds, record) = (0..PAIRS_MAX)
        .find_map(|_| {
            let (key, seconds) = run_pair();
            let known = Store::open(&store).unwrap();
            let record = known.variation(&key, &machine).unwrap()?;
            (record.runs >= 2).then_some((known, key, seconds, record))
        })
        .unwrap();

    let profile = known.lookup(&key, &machine).unwrap().unwrap();
    let point = profile.curve().unwrap().0.points()[0];
    assert_eq!(point.cores, bench.topology.capacity_of(&bench.first_cpu()));
    // Both programs used the same CPU, so that each took at least 1.3 times as long as alone.
    assert!(point.rate * seconds > 1.3, "{point:?} {seconds}");
    assert!(point.relative_error < 0.5, "{point:?}");
    drop(known);

    for vary in [true, false] {
        let engine = start(vary);
        let (_held, _) = launch(&engine);
        engine.status().unwrap();
    }
    let budgets = budgets.lock().unwrap();
    let granted: Vec<bool> = budgets.iter().map(Option::is_some).collect();
    assert!(granted.ends_with(&[true, false]), "{granted:?}");
    assert!(granted.starts_with(&[false, false]), "{granted:?}");
    let budget = budgets[budgets.len() - 2].unwrap();
    assert_eq!(budget.usual_seconds, record.usual_seconds);
    assert!(budget.seconds > 0.0);
    assert_eq!(budget.seconds, record.credit_seconds);
}

#[test]
fn a_profile_of_other_arguments_is_used_and_noted() {
    let bench = Bench::new();
    let store = bench.path("profiles.db");
    let config = || with_store(&bench, &store);
    let launch = |engine: &Engine, argv: &[&str]| {
        let spec = LaunchSpec::new(argv);
        engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap()
    };
    let engine = Engine::start(config(), Box::new(FirstCpuPolicy)).unwrap();
    let (_held, known) = launch(&engine, &["sh", "-c", "sleep 30"]);
    let point = |cores: f64, rate: f64| MeasuredPoint {
        point: CurvePoint {
            cores,
            rate,
            relative_error: 0.01,
            busy_cpus: None,
        },
        source: ProgressSource::Repetition,
    };
    let measurement = Measurement {
        name: "sh".to_owned(),
        points: vec![point(1.0, 1.0), point(2.0, 1.5)],
        ..Measurement::default()
    };
    let machine = MachineKey::of(&bench.topology);
    let mut profiles = Store::open(&store).unwrap();
    profiles
        .merge(&known.key.unwrap(), &machine, &measurement)
        .unwrap();
    let id = profiles.list().unwrap()[0].id();
    for (argv, is_similar) in [
        (&["sh", "-u", "-c", "sleep 30"][..], true),
        (&["sh", "-c", "sleep 31"], false),
    ] {
        let (_held, adopted) = launch(&engine, argv);
        let status = engine.status().unwrap();
        let program = status.programs.iter().find(|p| p.id == adopted.id).unwrap();
        assert_eq!(program.profile.is_some(), is_similar, "{argv:?}");
        let is_other = program.profile_match == ProfileMatch::OtherArguments;
        assert_eq!(is_other, is_similar, "{argv:?}");
        let notes = status
            .notes
            .iter()
            .filter(|one| one.note.program == Some(adopted.id));
        let notes: Vec<_> = notes.map(|one| one.note.text.as_str()).collect();
        let is_noted = notes
            .iter()
            .any(|text| text.contains(&format!("the profile {id} of")));
        assert_eq!(is_noted, is_similar, "{notes:?}");
    }
}

#[test]
fn bytes_are_progress_only_where_the_store_trusts_them() {
    let bench = Bench::new();
    let store = bench.path("profiles.db");
    let config = with_store(&bench, &store);
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    let (marker, stop) = (bench.path("marker"), bench.path("stop"));
    let script = format!(
        "head -c 2000000 /dev/zero > /dev/null; echo > {}; while [ ! -e {} ]; do sleep 0.02; done",
        marker.display(),
        stop.display()
    );
    let spec = LaunchSpec::new(["sh", "-c", &script]);
    // Returns the key of the program, and its source of progress after it has read its bytes.
    let run = |trusted: bool| {
        let (held, adopted) = engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
        let mut child = held.release().unwrap();
        until("the program has read", || marker.exists().then_some(()));
        // A probe counts bytes at most ten times a second.
        let source = until("the source of progress", || {
            let status = engine.status().unwrap();
            let program = status.programs.iter().find(|p| p.id == adopted.id)?;
            let source = program.progress?.source;
            (source == ProgressSource::Bytes || !trusted).then_some(source)
        });
        fs::write(&stop, "").unwrap();
        assert!(child.wait().unwrap().success());
        fs::remove_file(&stop).unwrap();
        fs::remove_file(&marker).unwrap();
        (adopted.key.unwrap(), source)
    };
    let (key, unknown) = run(false);
    if unknown < ProgressSource::Bytes {
        usher_skip::skip!("bytes: the machine has a PMU, so instructions are the better source");
        return;
    }
    assert_eq!(unknown, ProgressSource::CpuTime);
    let point = |source| MeasuredPoint {
        point: CurvePoint {
            cores: 1.0,
            rate: 1.0,
            relative_error: 0.01,
            busy_cpus: None,
        },
        source,
    };
    let measurement = Measurement {
        name: "sh".to_owned(),
        points: vec![point(ProgressSource::Bytes)],
        ..Measurement::default()
    };
    let machine = MachineKey::of(&bench.topology);
    let mut profiles = Store::open(&store).unwrap();
    profiles.merge(&key, &machine, &measurement).unwrap();
    assert_eq!(run(true).1, ProgressSource::Bytes);
    let bytes = ProgressSource::Bytes;
    profiles.forget_source(&key, &machine, bytes).unwrap();
    assert_eq!(run(false).1, ProgressSource::CpuTime);
}

#[test]
fn the_confidence_in_a_source_is_that_of_its_calibrated_error() {
    use ProgressSource::{Bytes, CpuTime, Heartbeat, Instructions};
    let bench = Bench::new();
    let path = bench.path("profiles.db");
    let mut errors = SourceErrors::default();
    for source in [Heartbeat, Instructions, Bytes, CpuTime] {
        errors.set(source, false, 9.9);
        errors.set(source, true, 9.9);
    }
    let calibration = |kernel: String| Calibration {
        at_s: 0,
        kernel,
        errors: errors.clone(),
    };
    let machine = MachineKey::of(&bench.topology);
    let mut store = Store::open(&path).unwrap();
    let engine = Engine::start(with_store(&bench, &path), Box::new(FirstCpuPolicy)).unwrap();
    // Returns the confidence in the progress of a new program.
    let confidence = || {
        let idler = Idler::new();
        let options = AdoptOptions::new([""; 0]);
        let id = engine.attach(idler.pid(), options, ROOT).unwrap().id;
        until("a sample", || {
            let all = programs(&engine);
            let program = all.into_iter().find(|program| program.id == id)?;
            Some(program.progress?.confidence)
        })
    };
    let built_in = confidence();
    assert!(built_in >= CpuTime.confidence(false), "{built_in}");
    store
        .set_calibration(&machine, &calibration(kernel_release()))
        .unwrap();
    assert_eq!(confidence(), confidence_of_error(9.9));
    // Errors of another kernel are not used.
    let other = calibration("0.0.1".to_owned());
    store.set_calibration(&machine, &other).unwrap();
    assert_eq!(confidence(), built_in);
}

#[test]
fn an_unusable_store_is_a_warning() {
    let bench = Bench::new();
    fs::write(bench.path("file"), "").unwrap();
    let config = with_store(&bench, &bench.path("file/profiles.db"));
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    let _idler = Idler::new();
    engine
        .attach(_idler.pid(), AdoptOptions::new([""; 0]), ROOT)
        .unwrap();
    wait_for_warning(&engine, "file/profiles.db", true);
}

/// Waits until a warning with this text exists, or until none does. The loop collects warnings once
/// a second.
fn wait_for_warning(engine: &EngineHandle, text: &str, exists: bool) {
    until(&format!("'{text}' exists: {exists}"), || {
        let warnings = engine.status().unwrap().warnings;
        (warnings.iter().any(|one| one.contains(text)) == exists).then_some(())
    });
}

#[test]
fn a_store_that_can_be_opened_again_gets_the_measurements() {
    let bench = Bench::new();
    let (obstacle, store) = (bench.path("file"), bench.path("file/profiles.db"));
    fs::write(&obstacle, "").unwrap();
    let config = EngineConfig {
        other_cpus_max: Some(f64::INFINITY),
        ..with_store(&bench, &store)
    };
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    wait_for_warning(&engine, "kept in memory", true);
    let run = |seconds: f64| {
        let spec = LaunchSpec::new(busy(seconds));
        let (held, adopted) = engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
        assert!(held.release().unwrap().wait().unwrap().success());
        engine.repeated(adopted.id, seconds - 0.05, ROOT).unwrap();
        adopted.key.unwrap()
    };
    let first = run(0.6);
    fs::remove_file(&obstacle).unwrap();
    let second = run(0.7);
    wait_for_warning(&engine, "kept in memory", false);
    assert!(engine.stop().is_empty());
    let (known, machine) = (
        Store::open(&store).unwrap(),
        MachineKey::of(&bench.topology),
    );
    for key in [first, second] {
        assert!(known.lookup(&key, &machine).unwrap().is_some());
    }
}
