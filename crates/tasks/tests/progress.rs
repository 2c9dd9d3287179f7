// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests that a runtime reports its tasks on the heartbeat page of its program. The program of each
//! test is this test binary, which the test starts with `USHER_HEARTBEAT` and the name of a test
//! that runs tasks.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::Path;
use std::process::Command;

use usher_heartbeat::{ENVIRONMENT, Heartbeat, Page, PageReading};
use usher_tasks::{GraphBuilder, Groups, Runtime, RuntimeBuilder};

/// The tasks that [`run_tasks`] runs.
const TASKS: u64 = 1000 + 300 + 20 + 7;

/// Runs tasks of a graph, by token, by submission and in a scope.
fn run_tasks(runtime: &Runtime) {
    let mut builder = GraphBuilder::new();
    for task in 0..1000 {
        builder.task();
        if task > 0 {
            builder.after(task, task - 1);
        }
    }
    let mut graph = builder.build(|_| {}).unwrap();
    runtime.run(&mut graph).unwrap();
    for token in 0..300 {
        runtime.register(token, 0, Groups::NONE, || {}).unwrap();
    }
    for _ in 0..20 {
        runtime.submit(Groups::NONE, || {}).unwrap();
    }
    runtime.wait().unwrap();
    runtime.scope(|scope| (0..7).for_each(|_| scope.spawn(|_| {})));
}

fn fibonacci(runtime: &Runtime, n: u64) -> u64 {
    match n {
        0 | 1 => n,
        n => {
            let (a, b) = runtime.join(|| fibonacci(runtime, n - 1), || fibonacci(runtime, n - 2));
            a + b
        }
    }
}

#[test]
fn program_of_two_workers() {
    run_tasks(&Runtime::new(2).unwrap());
}

#[test]
fn program_of_one_worker() {
    run_tasks(&Runtime::new(1).unwrap());
}

#[test]
fn program_that_reports_nothing() {
    let builder = RuntimeBuilder::new(2).report_progress(false);
    run_tasks(&builder.build().unwrap());
}

#[test]
fn program_of_two_runtimes() {
    run_tasks(&Runtime::new(2).unwrap());
    run_tasks(&Runtime::new(1).unwrap());
}

#[test]
fn program_of_loops_and_joins() {
    let runtime = Runtime::new(4).unwrap();
    assert_eq!(fibonacci(&runtime, 20), 6765);
    runtime.for_each(0..100_000, |_| {});
}

#[test]
fn program_with_a_unit_of_its_own() {
    let heartbeat = Heartbeat::from_env();
    heartbeat.describe("frames", 0.0, "encoder");
    run_tasks(&Runtime::new(2).unwrap());
    heartbeat.beat(3);
}

#[test]
fn program_that_counts_without_a_name() {
    let heartbeat = Heartbeat::from_env();
    heartbeat.beat(3);
    run_tasks(&Runtime::new(2).unwrap());
}

/// Runs a test of this binary as a program with a heartbeat page.
fn run(program: &str, page: &Path) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", program]).env(ENVIRONMENT, page);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{program}: {printed}");
    assert!(printed.contains("1 passed"), "{program}: {printed}");
}

/// Runs a test of this binary as a program and returns what it reported.
fn reported(program: &str) -> PageReading {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let mut page = Page::create(&path).unwrap();
    run(program, &path);
    page.read().unwrap()
}

#[test]
fn tasks_are_reported_with_their_unit() {
    for (program, tasks) in [
        ("program_of_two_workers", TASKS),
        ("program_of_one_worker", TASKS),
        ("program_of_two_runtimes", 2 * TASKS),
    ] {
        let reading = reported(program);
        assert_eq!(
            (reading.work, &*reading.unit),
            (tasks, "tasks"),
            "{program}"
        );
    }
}

#[test]
fn what_depends_on_the_workers_is_not_reported() {
    for program in ["program_of_loops_and_joins", "program_that_reports_nothing"] {
        let reading = reported(program);
        assert_eq!((reading.work, &*reading.unit), (0, ""), "{program}");
    }
}

#[test]
fn the_own_count_of_a_program_is_kept() {
    let reading = reported("program_with_a_unit_of_its_own");
    assert_eq!((reading.work, &*reading.unit), (3, "frames"));
    let reading = reported("program_that_counts_without_a_name");
    assert_eq!((reading.work, &*reading.unit), (3, ""));
}

#[test]
fn a_program_without_a_valid_page_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    run("program_of_two_workers", &path);
    std::fs::write(&path, "no heartbeat page").unwrap();
    run("program_of_two_workers", &path);
    assert_eq!(std::fs::read(&path).unwrap(), b"no heartbeat page");
}
