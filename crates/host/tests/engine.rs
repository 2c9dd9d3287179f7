// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the engine on this machine with real programs and a test policy, and checks seats, attach
//! and release, soft seats, records, hotplug, and the undo after a stop or a
//! panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::bench::{Bench, Idler, ROOT, busy, programs};
use common::{FirstCpuPolicy, allowed, allowed_in, until};
use rustix::event::{EventfdFlags, eventfd};
use usher_act::ActError;
use usher_host::engine::{
    AdoptOptions, Engine, EngineConfig, EngineError, LogChange, PolicyFactory, SoftSeats,
};
use usher_host::launch::{LaunchSpec, Stream};
use usher_model::{CpuSet, Decision, Event, Observation, Topology};
use usher_policy::Policy;

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
    let attach = || {
        let began = Instant::now();
        match engine.attach(starved.pid(), AdoptOptions::new([""; 0]), ROOT) {
            // On a busy machine, the thread may not run within this time.
            Err(EngineError::Act(ActError::Departing { .. })) => {
                assert!(began.elapsed() >= Duration::from_secs(5));
                None
            }
            attached => Some(attached.unwrap()),
        }
    };
    for _ in 0..3 {
        let adopted = until("the process is attached", attach);
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
    let expected = "'sleep': the program gets its seat by affinity masks, because the scheduler \
                    rejects the soft seat: it has enough of them; 1 other program has the same \
                    warning";
    assert!(
        warnings.iter().any(|warning| warning == expected),
        "{warnings:?}"
    );
    drop(second);
    let left = until("one program is left", || {
        let status = engine.status().unwrap();
        (status.programs.len() == 1).then_some(status)
    });
    let has_count = |warning: &String| warning.contains("the same warning");
    assert!(!left.warnings.iter().any(has_count), "{:?}", left.warnings);
}

fn kind(change: &LogChange) -> &'static str {
    match change {
        LogChange::Arrived { .. } => "arrived",
        LogChange::Placed { .. } => "placed",
        LogChange::Departed { .. } => "departed",
        LogChange::Note { .. } => "note",
        LogChange::Planned { .. } => "planned",
        LogChange::Undone { .. } => "undone",
        LogChange::StoreWarning { .. } => "store-warning",
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
