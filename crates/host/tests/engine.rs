// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the engine on this machine with real programs and a test policy, and checks seats, attach
//! and release, soft seats, stored profiles, records, hotplug, and the undo after a stop or a
//! panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::{FirstCpuPolicy, allowed, allowed_in, until};
use rustix::event::{EventfdFlags, eventfd};
use tempfile::TempDir;
use usher_act::ActConfig;
use usher_host::engine::{
    AdoptOptions, Engine, EngineConfig, EngineError, LogChange, PolicyFactory, ProfileUse,
    ProgramStatus, SoftSeats,
};
use usher_host::launch::{LaunchSpec, Stream};
use usher_model::{
    CpuSet, CurvePoint, Decision, Event, Observation, ProfileMatch, ProgressSource, Topology,
};
use usher_policy::Policy;
use usher_store::{MachineKey, MeasuredPoint, Measurement, Store};
use usher_topology::{Source, load};

const ROOT: u32 = 0;

struct Bench {
    dir: TempDir,
    topology: Topology,
}

impl Bench {
    fn new() -> Self {
        let machine = load(Source::ThisMachine).unwrap();
        let usable = usher_topology::usable_cpus(Path::new("/")).unwrap();
        Self {
            dir: tempfile::tempdir().unwrap(),
            topology: machine.restrict(&usable).unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self) -> EngineConfig {
        EngineConfig::new(self.topology.clone(), ActConfig::new(self.path("run")))
    }

    fn engine(&self) -> Engine {
        Engine::start(self.config(), Box::new(FirstCpuPolicy)).unwrap()
    }

    fn first_cpu(&self) -> CpuSet {
        CpuSet::single(self.topology.all_cpus().first().unwrap())
    }
}

/// A process that does nothing, and ends when the value is dropped.
struct Idler(Child);

impl Idler {
    fn new() -> Self {
        let mut command = Command::new("cat");
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    fn allowed(&self) -> CpuSet {
        allowed(&self.pid().to_string()).unwrap()
    }
}

impl Drop for Idler {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn programs(engine: &Engine) -> Vec<ProgramStatus> {
    engine.status().unwrap().programs
}

/// Returns a command that uses this CPU time, independently of other programs.
fn busy(cpu_seconds: f64) -> [String; 3] {
    let code = format!("import time\nwhile time.process_time() < {cpu_seconds}: pass");
    ["python3".to_owned(), "-c".to_owned(), code]
}

#[test]
fn a_program_is_seated_before_it_is_executed() {
    let bench = Bench::new();
    let engine = bench.engine();
    let out = bench.path("out");
    let spec = LaunchSpec {
        stdout: Stream::File(out.clone()),
        ..LaunchSpec::new(["cat", "/proc/self/status"])
    };
    let (held, adopted) = engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
    assert_eq!(adopted.seat, Some(bench.first_cpu()));
    assert_eq!(adopted.warnings, [""; 0]);
    let status = &programs(&engine)[0];
    assert_eq!((status.name.as_str(), status.pid), ("cat", held.pid()));
    assert_eq!(status.command, "cat /proc/self/status");
    assert_eq!(held.release().unwrap().wait().unwrap().code(), 0);
    assert_eq!(
        allowed_in(&fs::read_to_string(&out).unwrap()).unwrap(),
        bench.first_cpu()
    );
    until("its end was noticed", || {
        programs(&engine).is_empty().then_some(())
    });
    assert!(engine.stop().is_empty());
}

#[test]
fn repetitions_inherit_the_seat() {
    let bench = Bench::new();
    let engine = bench.engine();
    let out = bench.path("out");
    let spec = LaunchSpec {
        stdout: Stream::File(out.clone()),
        new_session: true,
        ..LaunchSpec::new(["cat", "/proc/self/status"])
    };
    let adopt = AdoptOptions::new(&spec.argv).named("again");
    let (mut repeater, adopted) = engine.launch_repeating(&spec, adopt).unwrap();
    for _ in 0..3 {
        repeater.start().unwrap();
        let repetition = repeater.finish().unwrap();
        assert!(repetition.exit.success());
        engine
            .repeated(adopted.id, repetition.seconds(), ROOT)
            .unwrap();
        assert_eq!(
            allowed_in(&fs::read_to_string(&out).unwrap()).unwrap(),
            bench.first_cpu()
        );
        assert_eq!(programs(&engine).len(), 1);
    }
    drop(repeater);
    until("its end was noticed", || {
        programs(&engine).is_empty().then_some(())
    });
}

#[test]
fn a_running_program_is_attached_and_released() {
    let bench = Bench::new();
    let engine = bench.engine();
    let idler = Idler::new();
    let before = idler.allowed();
    let adopted = engine
        .attach(idler.pid(), AdoptOptions::new([""; 0]), ROOT)
        .unwrap();
    assert_eq!(idler.allowed(), bench.first_cpu());
    let status = &programs(&engine)[0];
    assert_eq!((status.name.as_str(), status.threads), ("cat", 1));
    assert_eq!(status.cpus, Some(bench.first_cpu()));
    engine.release(adopted.id, ROOT).unwrap();
    assert_eq!(idler.allowed(), before);
    let gone = engine.release(adopted.id, ROOT).unwrap_err();
    assert!(matches!(gone, EngineError::Unknown(id) if id == adopted.id));
    let (log, next) = engine.log(0).unwrap();
    assert_eq!(log.len(), next);
    let mut kinds: Vec<_> = log.iter().map(|entry| kind(&entry.change)).collect();
    // Where the program has no cgroup of its own, a note states the reason.
    kinds.retain(|&kind| kind != "note");
    assert_eq!(kinds, ["arrived", "placed", "departed"]);
}

/// A stand-in for a scheduler, which accepts soft seats until a test makes it reject them.
#[derive(Debug, Default)]
struct RefusingScheduler {
    refuses: AtomicBool,
    seated: Mutex<BTreeMap<u64, CpuSet>>,
}

impl RefusingScheduler {
    fn seated(&self) -> Vec<CpuSet> {
        self.seated.lock().unwrap().values().cloned().collect()
    }
}

impl SoftSeats for RefusingScheduler {
    fn running(&self) -> Option<u64> {
        Some(1 + u64::from(self.refuses.load(Ordering::SeqCst)))
    }

    fn seat(&self, cgroup: u64, _: &str, cpus: &CpuSet) -> Result<(), String> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err("it has enough of them".to_owned());
        }
        self.seated.lock().unwrap().insert(cgroup, cpus.clone());
        Ok(())
    }

    fn unseat(&self, cgroup: u64) -> Result<(), String> {
        self.seated.lock().unwrap().remove(&cgroup);
        Ok(())
    }

    fn unseat_all(&self) -> Result<(), String> {
        self.seated.lock().unwrap().clear();
        Ok(())
    }
}

/// Starts a program that runs until its input ends. Its file name may contain any bytes.
fn idler_named(dir: &Path, name: &[u8]) -> Idler {
    let path = dir.join(OsStr::from_bytes(name));
    fs::copy("/bin/cat", &path).unwrap();
    // The start is repeated, because the child of another test's fork may have inherited the
    // descriptor through which the copy was written (`ETXTBSY`).
    until("the copy can be executed", || {
        let mut command = Command::new(&path);
        command.stdin(Stdio::piped()).spawn().ok().map(Idler)
    })
}

/// Starts a busy loop on one CPU.
fn busy_loop(cpu: &CpuSet, nice: &str) -> Idler {
    let mut command = Command::new("nice");
    command.args(["-n", nice, "taskset", "-c", &cpu.to_string(), "sh", "-c"]);
    command.arg("ulimit -t 60; while :; do :; done");
    Idler(command.spawn().unwrap())
}

/// The release of a runnable thread is complete only after the thread has run.
#[test]
fn a_process_that_is_still_being_released_is_attached_after_its_release() {
    let bench = Bench::new();
    let engine = bench.engine();
    let cpus = bench.topology.all_cpus();
    let rivals = cpus.iter().map(|cpu| busy_loop(&CpuSet::single(cpu), "0"));
    let _rivals: Vec<_> = rivals.collect();
    let starved = busy_loop(&cpus, "19");
    for _ in 0..3 {
        let adopt = AdoptOptions::new([""; 0]);
        let adopted = engine.attach(starved.pid(), adopt, ROOT).unwrap();
        engine.release(adopted.id, ROOT).unwrap();
    }
}

#[test]
fn programs_with_names_of_any_bytes_are_seated() {
    let bench = Bench::new();
    let engine = bench.engine();
    let names: [&[u8]; 3] = [
        "process-name-töööö".as_bytes(),
        b"\xff\xfe) R 1 (",
        b"a\nb) S 1",
    ];
    for name in names {
        let idler = idler_named(bench.dir.path(), name);
        let adopt = AdoptOptions::new(Vec::<String>::new());
        let adopted = engine.attach(idler.pid(), adopt, ROOT).unwrap();
        let status = fs::read(format!("/proc/{}/status", idler.pid())).unwrap();
        assert_eq!(
            allowed_in(&String::from_utf8_lossy(&status)).unwrap(),
            bench.first_cpu()
        );
        engine.release(adopted.id, ROOT).unwrap();
    }
}

#[test]
fn a_program_refused_by_the_scheduler_gets_masks() {
    let bench = Bench::new();
    let keeper = Arc::new(RefusingScheduler::default());
    let mut config = bench.config();
    config.soft = Some(keeper.clone());
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    let launch = || {
        let words = ["sleep", "60"];
        let launched = engine.launch(&LaunchSpec::new(words), AdoptOptions::new(words));
        launched.unwrap()
    };
    let allowed_to = |pid: i32| allowed(&pid.to_string()).unwrap();
    let before = allowed_to(i32::try_from(std::process::id()).unwrap());
    let (first, adopted) = launch();
    if adopted.home.cgroup.is_none() {
        usher_skip::skip!("launched programs get no cgroup of their own here");
        return;
    }
    assert_eq!(
        (allowed_to(first.pid()), keeper.seated()),
        (before, vec![bench.first_cpu()])
    );

    keeper.refuses.store(true, Ordering::SeqCst);
    // The loop checks whether the scheduler runs at each decision.
    let (second, _) = launch();
    assert_eq!(
        (allowed_to(first.pid()), allowed_to(second.pid())),
        (bench.first_cpu(), bench.first_cpu())
    );
    assert_eq!(keeper.seated(), []);
    let warnings = engine.status().unwrap().warnings;
    let expected = "the program 'sleep' gets its seat by affinity masks, because the scheduler \
                    rejects the soft seat: it has enough of them";
    assert!(
        warnings.iter().any(|warning| warning == expected),
        "{warnings:?}"
    );
}

fn kind(change: &LogChange) -> &'static str {
    match change {
        LogChange::Arrived { .. } => "arrived",
        LogChange::Placed { .. } => "placed",
        LogChange::Departed { .. } => "departed",
        LogChange::Note { .. } => "note",
        LogChange::Planned { .. } => "planned",
    }
}

#[test]
fn stopping_undoes_everything() {
    let bench = Bench::new();
    let idler = Idler::new();
    let before = idler.allowed();
    for stop in [true, false] {
        let engine = bench.engine();
        engine
            .attach(idler.pid(), AdoptOptions::new([""; 0]), ROOT)
            .unwrap();
        assert_eq!(idler.allowed(), bench.first_cpu());
        let handle = engine.handle();
        match stop {
            true => assert!(engine.stop().is_empty()),
            false => drop(engine),
        }
        assert_eq!(idler.allowed(), before);
        assert!(matches!(handle.status(), Err(EngineError::Stopped)));
    }
}

#[test]
fn unmanageable_processes_are_rejected_in_one_line() {
    let bench = Bench::new();
    let engine = bench.engine();
    let idler = Idler::new();
    let nothing = || AdoptOptions::new([""; 0]);
    let refused = |pid: i32, asking: u32| {
        let error = engine
            .attach(pid, nothing(), asking)
            .unwrap_err()
            .to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let mut gone = Command::new("true").spawn().unwrap();
    let gone_pid = i32::try_from(gone.id()).unwrap();
    gone.wait().unwrap();
    assert!(refused(gone_pid, ROOT).contains("does not exist"));
    assert!(refused(0, ROOT).contains("does not exist"));
    assert!(refused(-4, ROOT).contains("does not exist"));
    let owner = rustix::process::getuid().as_raw();
    let message = refused(idler.pid(), owner + 1);
    assert!(
        message.contains(&format!(
            "belongs to user {owner}, not to user {}",
            owner + 1
        )),
        "{message}"
    );
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(refused(own, ROOT).contains("cannot be managed"));
    assert!(refused(1, ROOT).contains("cannot be managed"));
    match fs::read_to_string("/proc/2/comm") {
        Ok(name) if name.trim() == "kthreadd" => {
            assert!(refused(2, ROOT).contains("kernel thread"));
        }
        _ => usher_skip::skip!("kernel threads: none is visible"),
    }
    let weightless = AdoptOptions {
        weight: f64::NAN,
        ..nothing()
    };
    let error = engine.attach(idler.pid(), weightless, ROOT).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("must be a number from 0.001 to 1000, not NaN"),
        "{error}"
    );
    assert!(programs(&engine).is_empty());
    let id = engine.attach(idler.pid(), nothing(), ROOT).unwrap().id;
    assert!(
        refused(idler.pid(), ROOT)
            .contains(&format!("already belongs to the managed program {id}"))
    );
    assert!(matches!(
        engine.release(id, owner + 1),
        Err(EngineError::NotYours { .. })
    ));
    assert!(matches!(
        engine.repeated(id, 1.0, owner + 1),
        Err(EngineError::NotYours { .. })
    ));
    assert_eq!(programs(&engine).len(), 1);
}

#[test]
fn a_program_that_cannot_be_launched_leaves_nothing() {
    let bench = Bench::new();
    let engine = bench.engine();
    let spec = LaunchSpec::new(["no-such-program-anywhere"]);
    let error = engine
        .launch(&spec, AdoptOptions::new(&spec.argv))
        .unwrap_err();
    assert_eq!(error.code(), 127, "{error}");
    assert!(programs(&engine).is_empty());
    let spec = LaunchSpec {
        cwd: Some("/no/such/folder".into()),
        ..LaunchSpec::new(["/bin/true"])
    };
    let (held, _) = engine.launch(&spec, AdoptOptions::new(&spec.argv)).unwrap();
    assert_eq!(held.release().unwrap_err().code(), 125);
    until("its end was noticed", || {
        programs(&engine).is_empty().then_some(())
    });
}

#[test]
fn a_completed_run_is_stored_and_recalled() {
    let bench = Bench::new();
    let store = bench.path("profiles.db");
    let config = || EngineConfig {
        profiles: ProfileUse {
            store: Some(store.clone()),
            ..ProfileUse::default()
        },
        // Other tests run on the same CPUs.
        other_cpus_max: Some(f64::INFINITY),
        ..bench.config()
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
    let config = EngineConfig {
        profiles: ProfileUse {
            store: Some(store.clone()),
            ..ProfileUse::default()
        },
        ..bench.config()
    };
    let cpu = bench.first_cpu().to_string();
    let mut busy_loop = std::process::Command::new("taskset");
    busy_loop.args(["-c", &cpu, "sh", "-c", "while :; do :; done"]);
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

#[test]
fn a_profile_of_other_arguments_is_used_and_noted() {
    let bench = Bench::new();
    let store = bench.path("profiles.db");
    let config = || EngineConfig {
        profiles: ProfileUse {
            store: Some(store.clone()),
            ..ProfileUse::default()
        },
        ..bench.config()
    };
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
    let config = EngineConfig {
        profiles: ProfileUse {
            store: Some(store.clone()),
            ..ProfileUse::default()
        },
        ..bench.config()
    };
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
fn an_unusable_store_is_a_warning() {
    let bench = Bench::new();
    fs::write(bench.path("file"), "").unwrap();
    let config = EngineConfig {
        profiles: ProfileUse {
            store: Some(bench.path("file/profiles.db")),
            ..ProfileUse::default()
        },
        ..bench.config()
    };
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    let _idler = Idler::new();
    engine
        .attach(_idler.pid(), AdoptOptions::new([""; 0]), ROOT)
        .unwrap();
    // The loop collects warnings in its housekeeping, once a second.
    let mut warnings = Vec::new();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while warnings.is_empty() && std::time::Instant::now() < deadline {
        warnings = engine.status().unwrap().warnings;
    }
    assert!(
        warnings.iter().any(|w| w.contains("file/profiles.db")),
        "{warnings:?}"
    );
}

/// A policy that seats programs like [`FirstCpuPolicy`], and panics at the second arrival.
struct PanickingPolicy(u32);

impl Policy for PanickingPolicy {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let arrived = |event: &&Event| matches!(event, Event::Arrived(_));
        self.0 += observation.events.iter().filter(arrived).count() as u32;
        assert!(self.0 < 2, "as planned");
        FirstCpuPolicy.decide(observation)
    }
}

#[test]
fn a_panic_of_the_policy_restores_all_masks() {
    let bench = Bench::new();
    let ended = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let config = EngineConfig {
        ended: Some(ended.clone()),
        ..bench.config()
    };
    let engine = Engine::start(config, Box::new(PanickingPolicy(0))).unwrap();
    let (first, second) = (Idler::new(), Idler::new());
    let before = first.allowed();
    let nothing = || AdoptOptions::new([""; 0]);
    engine.attach(first.pid(), nothing(), ROOT).unwrap();
    assert_eq!(first.allowed(), bench.first_cpu());
    let error = engine.attach(second.pid(), nothing(), ROOT).unwrap_err();
    assert!(matches!(error, EngineError::Stopped));
    until("the first is released", || {
        (first.allowed() == before).then_some(())
    });
    assert_eq!(second.allowed(), before);
    until("the end is reported", || {
        rustix::io::read(&ended, &mut [0; 8]).ok()
    });
    assert!(engine.has_panicked());
    assert!(engine.stop().is_empty());
}

#[test]
fn cpus_that_go_offline_are_noticed() {
    let bench = Bench::new();
    let all = bench.topology.all_cpus();
    if all.len() < 2 {
        usher_skip::skip!("CPUs going offline: there is only one CPU");
        return;
    }
    let online = bench.path("sys/devices/system/cpu/online");
    fs::create_dir_all(online.parent().unwrap()).unwrap();
    fs::write(&online, all.to_string()).unwrap();
    let mut config = bench.config();
    config.roots.sys = bench.path("sys");
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    let idler = Idler::new();
    engine
        .attach(idler.pid(), AdoptOptions::new([""; 0]), ROOT)
        .unwrap();
    let before = engine.status().unwrap();
    assert_eq!(before.usable, all);
    let mut fewer = all.clone();
    fewer.remove(all.last().unwrap());
    fs::write(&online, fewer.to_string()).unwrap();
    let after = until("the missing CPU is noticed and the policy decides", || {
        let status = engine.status().unwrap();
        (status.usable == fewer && status.decisions > before.decisions).then_some(status)
    });
    assert_eq!(after.warnings, [""; 0]);
    fs::write(&online, "nonsense").unwrap();
    let warned = until("nonsense is reported", || {
        let status = engine.status().unwrap();
        (!status.warnings.is_empty()).then_some(status)
    });
    assert_eq!(warned.usable, fewer);
}

#[test]
fn cpus_that_come_online_after_the_start_are_used() {
    let bench = Bench::new();
    let all = bench.topology.all_cpus();
    let (Some(first), true) = (all.first(), all.len() > 1) else {
        usher_skip::skip!("there is only one CPU");
        return;
    };
    let known = CpuSet::single(first);
    let online = bench.path("sys/devices/system/cpu/online");
    fs::create_dir_all(online.parent().unwrap()).unwrap();
    fs::write(&online, known.to_string()).unwrap();
    let mut config = bench.config();
    config.roots.sys = bench.path("sys");
    config.topology = bench.topology.restrict(&known).unwrap();
    let whole = bench.topology.clone();
    config.policy_factory = Some(PolicyFactory::new(move || {
        let policy = usher_policy::by_name("equal", &whole).unwrap();
        Ok((whole.clone(), policy))
    }));
    let engine = Engine::start(config, Box::new(FirstCpuPolicy)).unwrap();
    let idlers = [Idler::new(), Idler::new()];
    for idler in &idlers {
        engine
            .attach(idler.pid(), AdoptOptions::new([""; 0]), ROOT)
            .unwrap();
        assert_eq!(idler.allowed(), known);
    }
    assert_eq!(engine.status().unwrap().usable, known);
    fs::write(&online, all.to_string()).unwrap();
    until("all CPUs are used, each by one program", || {
        let masks = idlers.each_ref().map(Idler::allowed);
        let apart = !masks[0].intersects(&masks[1]);
        (apart && masks[0].or(&masks[1]) == all).then_some(())
    });
    let status = engine.status().unwrap();
    assert_eq!((status.usable, status.programs.len()), (all.clone(), 2));
    assert_eq!(engine.topology().unwrap().all_cpus(), all);
    assert_eq!(status.warnings, [""; 0]);
    assert!(engine.stop().is_empty());
}

#[test]
fn a_recorded_run_replays_to_the_same_decisions() {
    for policy in usher_policy::NAMES {
        let bench = Bench::new();
        let record = bench.path("record");
        let config = EngineConfig {
            record: Some(record.clone()),
            ..bench.config()
        };
        let make = |topology: &Topology| usher_policy::by_name(policy, topology).unwrap();
        let engine = Engine::start(config, make(&bench.topology)).unwrap();
        let launched: Vec<_> = ["one", "two", "three"]
            .map(|name| {
                let spec = LaunchSpec::new(busy(0.2));
                engine
                    .launch(&spec, AdoptOptions::new(&spec.argv).named(name))
                    .unwrap()
            })
            .into_iter()
            .map(|(held, adopted)| (held.release().unwrap(), adopted))
            .collect();
        for (mut running, adopted) in launched {
            assert!(running.wait().unwrap().success(), "{policy}");
            // The result is ignored, because the engine may have noticed the end of the program
            // already.
            let _ = engine.repeated(adopted.id, 0.7, ROOT);
        }
        until("all ends were noticed", || {
            programs(&engine).is_empty().then_some(())
        });
        let decisions = engine.status().unwrap().decisions;
        assert!(engine.stop().is_empty(), "{policy}");
        let text = BufReader::new(fs::File::open(&record).unwrap());
        let replayed = usher_control::replay(text, |head| make(&head.topology)).unwrap();
        assert!(
            replayed >= 6 && replayed as u64 >= decisions,
            "{policy}: {replayed}"
        );
    }
}

/// The control loop writes the record, and must not wait for the reader of a FIFO.
#[test]
fn a_record_must_be_a_regular_file() {
    let bench = Bench::new();
    let fifo = bench.path("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let config = EngineConfig {
        record: Some(fifo),
        ..bench.config()
    };
    let policy = usher_policy::by_name("linux", &bench.topology).unwrap();
    let error = Engine::start(config, policy).err().unwrap();
    assert!(format!("{error:?}").contains("a regular file"), "{error:?}");
}
