// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the tool in LLVM's runtime, with programs of known useful time: balanced and imbalanced
//! loops, tasks, locks, forks. Skipped without clang or libomp.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use usher_heartbeat::{ENVIRONMENT, Page, ThreadTotals};

/// Builds `work.c` with LLVM's runtime. Returns `None` and prints the reason if there is no clang
/// or no libomp.
fn work(dir: &Path) -> Option<PathBuf> {
    let program = dir.join("work");
    let built = Command::new("clang")
        .args(["-O1", "-fopenmp"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/work.c"))
        .arg("-o")
        .arg(&program)
        .output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        other => {
            usher_skip::skip!("clang -fopenmp does not work: {other:?}");
            None
        }
    }
}

/// Returns the library under test, which cargo builds beside the directory of the test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().unwrap();
    let name = "libusher_ompt.so";
    let places = [dir.join(name), dir.parent().unwrap().join(name)];
    places.into_iter().find(|p| p.exists()).expect(name)
}

fn run(program: &Path, page: Option<&Page>, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("OMP_NUM_THREADS", "2");
    command.env("OMP_TOOL_LIBRARIES", library());
    match page {
        Some(page) => command.env(ENVIRONMENT, page.path()),
        None => command.env_remove(ENVIRONMENT),
    };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// Runs the program with a new heartbeat page and reads the page.
fn run_on_new_page(arguments: &[&str]) -> Option<ThreadTotals> {
    let dir = tempfile::tempdir().unwrap();
    let program = work(dir.path())?;
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    run(&program, Some(&page), arguments);
    let threads = page.threads().unwrap().expect("the runtime loads the tool");
    eprintln!(
        "{arguments:?}: {threads:?}, efficiency {:?}",
        threads.efficiency()
    );
    Some(threads)
}

/// Checks the useful CPU milliseconds, with a small tolerance for start-up and for the work of the
/// runtime itself.
fn assert_useful(threads: &ThreadTotals, ms: u64) {
    let useful_ms = threads.useful_cpu_ns as f64 / 1e6;
    let expected = ms as f64;
    assert!(
        useful_ms >= 0.97 * expected && useful_ms <= 1.08 * expected + 20.0,
        "{useful_ms} ms useful instead of {ms}"
    );
}

#[test]
fn balanced_work_is_nearly_all_useful() {
    if let Some(threads) = run_on_new_page(&["balanced", "10", "20"]) {
        assert_useful(&threads, 2 * 10 * 20);
        // If two threads share one core, the efficiency is 3/4 in the worst case; the limit is
        // below that.
        assert!(threads.efficiency().unwrap() > 0.7);
    }
}

#[test]
fn imbalanced_work_is_half_useful_on_two_threads() {
    if let Some(threads) = run_on_new_page(&["imbalanced", "10", "20"]) {
        assert_useful(&threads, 10 * 20);
        let efficiency = threads.efficiency().unwrap();
        assert!((0.45..0.6).contains(&efficiency), "{efficiency}");
    }
}

#[test]
fn tasks_executed_while_waiting_at_a_barrier_are_useful() {
    if let Some(threads) = run_on_new_page(&["tasks", "5", "10"]) {
        assert_useful(&threads, 5 * 8 * 10);
        assert!(threads.efficiency().unwrap() > 0.7);
    }
}

#[test]
fn waiting_for_a_lock_is_not_useful() {
    if let Some(threads) = run_on_new_page(&["critical", "5", "20"]) {
        assert_useful(&threads, 5 * 2 * 20);
        // At each moment one of the two threads works while the other thread waits for the lock, so
        // half of the time is useful.
        let efficiency = threads.efficiency().unwrap();
        assert!((0.4..0.65).contains(&efficiency), "{efficiency}");
    }
}

#[test]
fn a_forked_child_has_slots_of_its_own() {
    if let Some(threads) = run_on_new_page(&["forked", "5", "20"]) {
        assert_useful(&threads, 2 * 20 + 5 * 2 * 20);
    }
}

#[test]
fn without_a_page_the_tool_declines() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(program) = work(dir.path()) {
        run(&program, None, &["balanced", "1", "1"]);
    }
}

#[test]
fn libgomp_ignores_the_tool() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("gomp");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/work.c");
    let built = Command::new("gcc")
        .args(["-O1", "-fopenmp", "-o"])
        .args([&program, &source])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        usher_skip::skip!("gcc -fopenmp does not work");
        return;
    }
    let mut page = Page::create(&dir.path().join("page")).unwrap();
    run(&program, Some(&page), &["balanced", "1", "1"]);
    assert_eq!(page.threads().unwrap(), None);
}
