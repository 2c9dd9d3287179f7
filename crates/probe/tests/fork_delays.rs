// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scan of a process tree finds processes that wait for a CPU in the middle of a `fork` or an
//! `exec`. The processes are files of a directory that has the form of `/proc`.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use usher_model::ProcessId;
use usher_probe::{ForkScan, RUN_VARIABLE};

const LAUNCHER: i32 = 10;
const ROOT: i32 = 100;
const CHILD: i32 = 101;
const MS: u64 = 1_000_000;

/// A directory of the form of `/proc` with the root process of a program.
struct Processes(TempDir);

impl Processes {
    fn new() -> Self {
        let processes = Self(TempDir::new().unwrap());
        processes.assign(ROOT);
        processes.write(ROOT, LAUNCHER);
        processes.write_environment(ROOT);
        processes
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    /// Assigns a number, as the kernel does at the start of a `fork`.
    fn assign(&self, pid: i32) {
        let text = format!("0.00 0.00 0.00 1/100 {pid}\n");
        fs::write(self.root().join("loadavg"), text).unwrap();
    }

    /// Writes the files of a process, except its environment.
    fn write(&self, pid: i32, parent: i32) {
        let dir = self.root().join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        let stat = format!(
            "{pid} (work) S {parent} {ROOT} 1 0 -1 0 0 0 0 0 7 3 5 6 20 0 1 0 {pid} 1000 10 \
             18446744073709551615 4096 1 0 0 0 0 0 0 0 0 0 0 17 3 0 5 0\n"
        );
        fs::write(dir.join("stat"), stat).unwrap();
        let status = format!(
            "Tgid:\t{pid}\nCpus_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t1\n\
             nonvoluntary_ctxt_switches:\t1\n"
        );
        fs::write(dir.join("status"), status).unwrap();
        fs::write(dir.join("environ"), "").unwrap();
    }

    /// Writes the environment of a process, which is empty in the middle of an `exec`.
    fn write_environment(&self, pid: i32) {
        let path = self.root().join(pid.to_string()).join("environ");
        fs::write(path, format!("{RUN_VARIABLE}={LAUNCHER}.1\0")).unwrap();
    }

    fn remove(&self, pid: i32) {
        fs::remove_dir_all(self.root().join(pid.to_string())).unwrap();
    }

    /// Starts a scan, which has found the root process.
    fn scan(&self) -> ForkScan {
        let root = ProcessId {
            pid: ROOT,
            start_ticks: ROOT as u64,
        };
        let mut scan = ForkScan::new(self.root(), root, true);
        scan.scan(0);
        assert_eq!(pids(&scan), [ROOT]);
        scan
    }
}

fn pids(scan: &ForkScan) -> Vec<i32> {
    scan.processes().iter().map(|one| one.id.pid).collect()
}

/// Scans every 5 ms up to a time.
fn scan_until(scan: &mut ForkScan, times: std::ops::Range<u64>) {
    for at_ms in times.step_by(5) {
        scan.scan(at_ms * MS);
    }
}

#[test]
fn a_child_that_can_be_found_late_is_found() {
    let processes = Processes::new();
    let mut scan = processes.scan();
    processes.assign(CHILD);
    scan_until(&mut scan, 5..500);
    assert_eq!(pids(&scan), [ROOT]);
    processes.write(CHILD, ROOT);
    scan_until(&mut scan, 500..1000);
    assert_eq!(pids(&scan), [ROOT, CHILD]);
}

/// A process that waits for a CPU uses no CPU time, so that the program seems to be at rest.
#[test]
fn a_rest_does_not_give_up_an_unread_child() {
    let processes = Processes::new();
    let mut scan = processes.scan();
    scan_until(&mut scan, 5..100);
    processes.assign(CHILD);
    scan.scan(100 * MS);
    for at_ms in (105..200).step_by(5) {
        assert!(!scan.is_due(at_ms * MS, true));
    }
    processes.write(CHILD, ROOT);
    assert!(scan.is_due(200 * MS, false));
    scan.scan(200 * MS);
    assert_eq!(pids(&scan), [ROOT, CHILD]);
}

#[test]
fn an_orphan_with_a_long_exec_is_found_after_the_end_of_the_program() {
    let processes = Processes::new();
    let mut scan = processes.scan();
    processes.assign(CHILD);
    processes.write(CHILD, 1);
    processes.remove(ROOT);
    scan_until(&mut scan, 5..500);
    assert!(pids(&scan).is_empty());
    processes.write_environment(CHILD);
    scan_until(&mut scan, 500..1000);
    assert_eq!(pids(&scan), [CHILD]);
}

#[test]
fn a_number_that_is_never_used_costs_little() {
    let processes = Processes::new();
    let mut scan = processes.scan();
    scan_until(&mut scan, 5..500);
    processes.assign(CHILD);
    let mut due = 0;
    for at_ms in (500..5000).step_by(5) {
        if scan.is_due(at_ms * MS, false) {
            due += 1;
            scan.scan(at_ms * MS);
        }
    }
    assert!((5..20).contains(&due), "{due} scans");
}
