// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of copies that a launcher inside a managed program starts: the engine confines the copies
//! to parts of the program's CPUs, and restores their masks at the release.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;

use common::bench::{Bench, ROOT, programs};
use common::{allowed, until};
use usher_host::engine::{AdoptOptions, Engine, EngineConfig, ProgramStatus};
use usher_host::launch::{ChildProcess, LaunchSpec, Stream};
use usher_model::CpuSet;
use usher_policy::copies::{CopyState, GroupReport};

/// An engine that gives no seats but places copies.
fn engine(bench: &Bench) -> Engine {
    let config = EngineConfig {
        places_copies: true,
        ..bench.config()
    };
    let policy = usher_policy::by_name("linux", &bench.topology).unwrap();
    Engine::start(config, policy).unwrap()
}

/// A launched program, whose process group is killed at the end.
struct Launched(ChildProcess);

impl Launched {
    fn start(engine: &Engine, words: &[&str]) -> Self {
        let spec = LaunchSpec {
            stdout: Stream::Null,
            stderr: Stream::Null,
            new_session: true,
            ..LaunchSpec::new(words)
        };
        let (held, _) = engine.launch(&spec, AdoptOptions::new(words)).unwrap();
        Self(held.release().unwrap())
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // SAFETY: `kill` accesses no memory; it signals the process group that this test started.
        unsafe { libc::kill(-self.0.pid(), libc::SIGKILL) };
    }
}

fn only(engine: &Engine) -> ProgramStatus {
    programs(engine).into_iter().next().unwrap()
}

/// Waits for a group of this many copies.
fn group_of(engine: &Engine, copies: usize) -> GroupReport {
    until("the copies are recognised", || {
        let groups = only(engine).copies;
        groups
            .into_iter()
            .find(|group| group.copies.len() == copies)
    })
}

fn has_two_cpus(bench: &Bench) -> bool {
    let enough = bench.topology.cores.len() >= 2;
    if !enough {
        usher_skip::skip!("needs two cores");
    }
    enough
}

#[test]
fn siblings_of_one_executable_get_parts_and_other_children_none() {
    let bench = Bench::new();
    if !has_two_cpus(&bench) {
        return;
    }
    let engine = engine(&bench);
    let script = "sleep 600 & sleep 600 & tail -f /dev/null & wait";
    let program = Launched::start(&engine, &["sh", "-c", script]);
    let group = group_of(&engine, 2);
    assert_eq!(
        (group.launcher, group.name.as_str()),
        (program.0.pid(), "sleep")
    );
    assert!(!group.forked && !group.narrows_launcher);
    let usable = bench.topology.all_cpus();
    let pids: Vec<i32> = group.copies.iter().map(|one| one.process.pid).collect();
    let parts: Vec<CpuSet> = until("the copies have disjoint masks", || {
        let masks: Vec<CpuSet> = pids
            .iter()
            .filter_map(|pid| allowed(&pid.to_string()))
            .collect();
        (!masks[0].intersects(&masks[1])).then_some(masks)
    });
    assert_eq!(parts[0].or(&parts[1]), usable);
    assert_eq!(parts[0], group.copies[0].cpus);
    assert!(
        group
            .copies
            .iter()
            .all(|one| one.state == CopyState::Confined)
    );
    until("the other child is counted", || {
        (only(&engine).unrecognised_workers == 1).then_some(())
    });
    assert_eq!(allowed(&program.0.pid().to_string()), Some(usable.clone()));
    // The end of a copy gives its part to the other copy.
    // SAFETY: `kill` accesses no memory; the process belongs to this test.
    unsafe { libc::kill(pids[0], libc::SIGKILL) };
    until("the remaining copy gets all CPUs", || {
        (allowed(&pids[1].to_string()) == Some(usable.clone())).then_some(())
    });
}

#[test]
fn a_release_restores_the_masks_of_copies() {
    let bench = Bench::new();
    if !has_two_cpus(&bench) {
        return;
    }
    let engine = engine(&bench);
    let _program = Launched::start(&engine, &["sh", "-c", "sleep 600 & sleep 600 & wait"]);
    let pids: Vec<i32> = (group_of(&engine, 2).copies.iter())
        .map(|one| one.process.pid)
        .collect();
    let usable = bench.topology.all_cpus();
    until("a copy is confined", || {
        (allowed(&pids[0].to_string())? != usable).then_some(())
    });
    engine.release(only(&engine).id, ROOT).unwrap();
    for pid in pids {
        until("the mask is restored", || {
            (allowed(&pid.to_string())? == usable).then_some(())
        });
    }
}

#[test]
fn copies_of_an_attached_program_are_recognised() {
    let bench = Bench::new();
    if !has_two_cpus(&bench) {
        return;
    }
    let first = engine(&bench);
    let program = Launched::start(&first, &["sh", "-c", "sleep 600 & sleep 600 & wait"]);
    let pids = |group: &GroupReport| -> BTreeSet<i32> {
        group.copies.iter().map(|one| one.process.pid).collect()
    };
    let expected = pids(&group_of(&first, 2));
    first.release(only(&first).id, ROOT).unwrap();
    let words: [&str; 0] = [];
    let attach = || first.attach(program.0.pid(), AdoptOptions::new(words), ROOT);
    attach().unwrap();
    assert_eq!(pids(&group_of(&first, 2)), expected);
}

/// One of the copies has chosen another CPU than that of its part.
#[test]
fn a_copy_that_chose_its_cpus_is_reported_with_its_own_mask() {
    let bench = Bench::new();
    if !has_two_cpus(&bench) {
        return;
    }
    let engine = engine(&bench);
    let cpu = bench.first_cpu();
    let copy = format!("taskset -c {cpu} sleep 600");
    let script = format!("{copy} & {copy} & wait");
    let _program = Launched::start(&engine, &["sh", "-c", &script]);
    until("a copy is left alone", || {
        let groups = only(&engine).copies;
        let group = groups.into_iter().find(|group| group.name == "sleep")?;
        let copies = group.copies.into_iter();
        let own: Vec<CpuSet> = copies
            .filter(|copy| copy.state == CopyState::LeftAlone)
            .map(|copy| copy.cpus)
            .collect();
        (!own.is_empty() && own.iter().all(|cpus| *cpus == cpu)).then_some(())
    });
}

#[test]
fn forks_are_confined_too() {
    let bench = Bench::new();
    let has_python = std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_ok();
    if !has_python {
        usher_skip::skip!("there is no python3");
        return;
    }
    if !has_two_cpus(&bench) {
        return;
    }
    let engine = engine(&bench);
    let script = "import os, signal\n\
        if os.fork() and os.fork(): pass\n\
        signal.pause()";
    let _program = Launched::start(&engine, &["python3", "-c", script]);
    let group = group_of(&engine, 2);
    assert!(group.forked);
    let parts = group.copies.iter().map(|one| one.cpus.clone());
    let all = parts.fold(CpuSet::new(), |all, part| all.or(&part));
    assert_eq!(all, bench.topology.all_cpus());
}

#[test]
fn without_permission_no_copy_is_recognised() {
    let bench = Bench::new();
    let policy = usher_policy::by_name("linux", &bench.topology).unwrap();
    let engine = Engine::start(bench.config(), policy).unwrap();
    let _program = Launched::start(&engine, &["sh", "-c", "sleep 600 & sleep 600 & wait"]);
    until("the processes run", || {
        (only(&engine).threads >= 3).then_some(())
    });
    assert!(only(&engine).copies.is_empty());
}
