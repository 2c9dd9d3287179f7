// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the hidden command that `usher bench tasks` runs for each contestant. Every form must
//! run the workload, check its result, and print a line per case.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails

use std::process::{Command, Output};

fn inside(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher-bench"));
    command.arg("tasks-inside").args(words.split(' '));
    command.output().unwrap()
}

/// Runs the command and returns the lines of its output, split into words.
fn lines(words: &str) -> Vec<Vec<String>> {
    let output = inside(words);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect();
    text.lines().map(words).collect()
}

#[test]
fn every_form_runs_every_case() {
    let forms = [
        "usher",
        "usher-traced",
        "usher-hints",
        "usher-paper",
        "rayon",
        "rayon-spawn",
        "order-ts",
        "order-fifo",
        "order-lifo",
        "order-stages",
        "by-hand",
    ];
    for form in forms {
        for threads in 1..=3 {
            let cases = ["empty", "compute:9", "memory:128"];
            let words = format!("{form} {threads} 0 3 wavefront 9 7 4 {}", cases.join(" "));
            let lines = lines(&words);
            let reported: Vec<&str> = lines.iter().map(|line| line[0].as_str()).collect();
            assert_eq!(reported, cases, "{words}");
            for line in lines {
                let numbers: Vec<u64> = line[1..].iter().map(|n| n.parse().unwrap()).collect();
                let &[tasks, frames, median_ns, least_ns] = numbers.as_slice() else {
                    panic!("{line:?}");
                };
                assert_eq!((tasks, frames), (252, 3));
                assert!(least_ns <= median_ns);
            }
        }
    }
}

#[test]
fn both_forms_factorise_a_matrix() {
    for form in ["usher", "usher-depend"] {
        for threads in 1..=3 {
            let words = format!("{form} {threads} 0 3 cholesky 7 8");
            let lines = lines(&words);
            let [line] = lines.as_slice() else {
                panic!("{lines:?}");
            };
            assert_eq!(line[..3], ["cholesky:8", "84", "3"], "{words}");
        }
    }
    assert!(!inside("usher 1 0 3 cholesky 7 9").status.success());
    assert!(!inside("rayon 1 0 3 cholesky 7 8").status.success());
}

/// The runtime tries several orders only for graphs of at least 256 tasks.
#[test]
fn without_hints_an_order_is_chosen_for_each_case_before_it_is_timed() {
    let reported = |form: &str| {
        let output = inside(&format!("{form} 1 0 1 wavefront 9 8 4 empty memory:128"));
        assert!(output.status.success(), "{form}");
        let errors = String::from_utf8(output.stderr).unwrap();
        let orders = errors.lines().filter(|line| line.starts_with("order: "));
        orders.count()
    };
    assert_eq!(reported("usher"), 2);
    assert_eq!(reported("usher-traced"), 2);
    assert_eq!(reported("usher-hints"), 0);
}

#[test]
fn forks_are_counted_and_joined() {
    for form in ["usher", "rayon"] {
        for threads in 1..=3 {
            let lines = lines(&format!("{form} {threads} 0 2 fib 15"));
            // Computing fib(15) forks fib(16) - 1 = 986 times.
            assert_eq!(lines[0][..3], ["fib:15", "986", "2"]);
        }
    }
}

#[test]
fn loops_run_each_item_in_every_frame() {
    let cases = ["for", "sum"].map(|kind| {
        let case = |costs: &str| format!("{kind}-{costs}:3");
        ["equal", "ramp", "cluster"].map(case)
    });
    let cases = cases.concat();
    for form in ["usher", "usher-blocks", "rayon", "rayon-chunks"] {
        for threads in 1..=3 {
            let words = format!("{form} {threads} 0 2 loop 20000 {}", cases.join(" "));
            let lines = lines(&words);
            let reported: Vec<&str> = lines.iter().map(|line| line[0].as_str()).collect();
            assert_eq!(reported, cases, "{words}");
            assert!(lines.iter().all(|line| line[1..3] == ["20000", "2"]));
        }
    }
}

#[test]
fn registered_tasks_take_memory_and_all_run() {
    let reported = lines("footprint 20000");
    let names: Vec<&str> = reported.iter().map(|line| line[0].as_str()).collect();
    assert_eq!(names, ["bare", "pointer", "graph"]);
    assert!(
        reported
            .iter()
            .all(|line| line[1].parse::<f64>().unwrap() > 16.0)
    );
    assert_eq!(lines("flight 20000 2"), [["ran", "20000"]]);
}

#[test]
fn many_workers_run_all_tasks_and_report_times() {
    for workers in [1, 2, 64] {
        let reported = lines(&format!("workers {workers} 1000"));
        let names: Vec<&str> = reported.iter().map(|line| line[0].as_str()).collect();
        assert_eq!(names, ["cpu", "elapsed"]);
        assert!(
            reported
                .iter()
                .all(|line| line[1].parse::<f64>().unwrap() > 0.0)
        );
    }
}

#[test]
fn invalid_workloads_are_rejected() {
    for words in [
        "usher 0 0 1 wavefront 2 2 2 empty",
        "usher 1 0 0 wavefront 2 2 2 empty",
        "usher 1 0 1 wavefront 2 0 2 empty",
        "usher 1 0 1 wavefront 60000 60000 8 empty",
        "usher 1 0 1 wavefront 2 2 2 nothing",
        "usher 1 0 1 wavefront 2 2 2 memory:100",
        "usher 1 0 1 fib 1",
        "usher-hints 1 0 1 fib 5",
        "usher 1 0 1 loop 0 for-equal:4",
        "usher 1 0 1 loop 10",
        "usher 1 0 1 loop 10 for-equal",
        "usher 1 0 1 loop 10 for-equal:0",
        "usher 1 0 1 loop 10 all-equal:4",
        "usher-hints 1 0 1 loop 10 for-equal:4",
        "rayon-chunks 1 0 1 fib 5",
        "usher-blocks 1 0 1 wavefront 2 2 2 empty",
        "by-hand 1 0 1 fib 5",
        "usher",
        "flight",
        "footprint many",
    ] {
        let output = inside(words);
        assert_eq!(output.status.code(), Some(125), "{words}");
        assert!(!output.stderr.is_empty(), "{words}");
    }
}
