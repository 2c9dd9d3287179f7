// SPDX-License-Identifier: MIT OR Apache-2.0
//! Perf events on real processes, compared with the kernel's own accounting of their CPU time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{BurnProcess, build, until, wait4};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use usher_probe::{CounterGap, CounterKind, PerfCounters};

/// A child that is stopped before it executes `burn`.
fn stopped(burn: &Path, arguments: &str) -> (Child, Pid) {
    // The shell uses CPU time before the exec, which must not be counted.
    let script = format!(
        "i=0; while [ $i -lt 600000 ]; do i=$((i+1)); done; kill -STOP $$; exec {} {arguments}",
        burn.display()
    );
    let child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), stopped).unwrap().unwrap();
    (child, pid)
}

/// Returns whether the count matches the CPU time that was used. The task clock continues while the
/// hypervisor or an interrupt has the CPU, so the count may exceed that time.
fn counts(counted_ns: f64, burnt: Duration) -> bool {
    (0.95..1.5).contains(&(counted_ns / burnt.as_nanos() as f64))
}

#[test]
fn counting_starts_at_exec_with_threads_and_children() {
    let dir = tempfile::tempdir().unwrap();
    let burn = build(dir.path());
    let (mut child, pid) = stopped(&burn, "compute 3 2 100");
    let mut counters = PerfCounters::on_exec(CounterKind::TaskClock, pid.as_raw_nonzero().get());
    let counters = counters.as_mut().unwrap();
    assert_eq!((counters.open_events(), counters.read()), (1, 0.0));
    kill_process(pid, Signal::CONT).unwrap();
    use std::io::Write;
    child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    let all = wait4(pid.as_raw_nonzero().get());
    // Expected: three threads and two children with 0.1 s each.
    let burnt = Duration::from_millis(500);
    let counted = counters.read();
    assert!(counts(counted, burnt), "{counted} of {all:?}");
    assert!(counted <= all.as_nanos() as f64);
}

#[test]
fn attaching_counts_existing_threads_and_their_children() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "4", "2", "100"]);
    let pids = BTreeSet::from([program.pid()]);
    let kind = CounterKind::TaskClock;
    let mut counters = PerfCounters::on_running(kind, Path::new("/proc"), &pids).unwrap();
    assert_eq!(counters.open_events(), 5);
    assert_eq!(counters.read(), 0.0, "all of them wait");
    program.go();
    let all = program.cpu_time();
    let counted = counters.read();
    let burnt = Duration::from_millis(600);
    assert!(counts(counted, burnt), "{counted} of {all:?}");
}

#[test]
fn counter_errors_are_typed() {
    let own = std::process::id() as i32;
    match PerfCounters::on_exec(CounterKind::Instructions, own) {
        Ok(_) => usher_skip::skip!("a missing PMU: this machine has one"),
        Err(gap) => {
            let expected = matches!(
                gap,
                CounterGap::NoPmu { .. }
                    | CounterGap::NotPermitted { .. }
                    | CounterGap::NoPerfEvents
            );
            assert!(expected, "{gap:?}");
        }
    }
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let gone = child.id() as i32;
    until("the number is free", || {
        !Path::new(&format!("/proc/{gone}")).exists()
    });
    let error = PerfCounters::on_exec(CounterKind::TaskClock, gone).unwrap_err();
    assert!(matches!(error, CounterGap::Gone { pid } if pid == gone));
    let none = BTreeSet::from([gone]);
    let kind = CounterKind::TaskClock;
    let error = PerfCounters::on_running(kind, Path::new("/proc"), &none).unwrap_err();
    assert!(matches!(error, CounterGap::Gone { .. }));
}

#[test]
fn instructions_agree_with_the_task_clock() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = BurnProcess::start(&build(dir.path()), &["compute", "2", "0", "100"]);
    let pids = BTreeSet::from([program.pid()]);
    let open = |kind| PerfCounters::on_running(kind, Path::new("/proc"), &pids);
    let mut clock = open(CounterKind::TaskClock).unwrap();
    match open(CounterKind::Instructions) {
        Err(gap) => usher_skip::skip!("{gap}"),
        Ok(mut instructions) => {
            program.go();
            program.cpu_time();
            let per_ns = instructions.read() / clock.read();
            assert!(
                per_ns > 0.1 && per_ns < 20.0,
                "{per_ns} instructions a nanosecond"
            );
        }
    }
}
