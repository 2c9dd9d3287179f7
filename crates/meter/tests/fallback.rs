// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the meter by `/proc`, on this machine and on a directory tree that describes a machine.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use std::fs;
use std::path::Path;

use common::{Cgroup, Program, now_ns, sample, turn, wait_until};
use usher_meter::{Meter, MeterConfig, SERVICES};
use usher_model::{DiskId, LinkId, MeterSource, Metering, ProcessId, ProgramId};

const PROGRAM: ProgramId = ProgramId(1);
/// Tolerance in nanoseconds: several clock ticks of 10 ms, because the kernel rounds the time of
/// each process to ticks.
const SLACK_NS: u64 = 40_000_000;

fn by_proc() -> Meter {
    let meter = Meter::open(&MeterConfig {
        bpf: false,
        ..MeterConfig::default()
    });
    assert_eq!(meter.source(), MeterSource::Proc);
    assert!(meter.reasons().len() > 3 && meter.notify_fd().is_none());
    meter
}

fn background_ns(metering: &Metering) -> u64 {
    metering.background[&PROGRAM].cpu_ns
}

#[test]
fn a_program_without_a_cgroup_is_found_by_descent() {
    let _turn = turn();
    let mut meter = by_proc();
    let mut program = Program::start(&["burn", "300"], None);
    meter.manage(PROGRAM, None, program.id()).unwrap();
    let before = sample(&mut meter);
    let used_ns = program.number() * 1000;
    let after = sample(&mut meter);
    let counted_ns = background_ns(&after) - background_ns(&before);
    assert!(
        counted_ns.abs_diff(used_ns) <= SLACK_NS,
        "{counted_ns} of {used_ns}"
    );
}

#[test]
fn a_cgroup_counts_short_lived_processes() {
    let _turn = turn();
    let mut meter = by_proc();
    let Some(cgroup) = Cgroup::make("fallback") else {
        return;
    };
    let mut program = Program::start(&["storm", "500"], Some(&cgroup.0));
    meter
        .manage(PROGRAM, Some(&cgroup.0), program.id())
        .unwrap();
    sample(&mut meter);
    let used = program.numbers();
    let used_ns = (used[0] + used[1]) * 1000;
    wait_until("the cgroup to have counted", || {
        background_ns(&sample(&mut meter)) + used_ns / 20 >= used_ns
    });
    meter.forget(PROGRAM);
    assert!(sample(&mut meter).background.is_empty());
}

#[test]
fn an_ended_process_cannot_be_managed() {
    let gone = ProcessId {
        pid: std::process::id() as i32,
        start_ticks: 1,
    };
    let mut meters = vec![by_proc()];
    meters.extend(common::meter("ended processes"));
    for mut meter in meters {
        let error = meter.manage(PROGRAM, None, gone).unwrap_err().to_string();
        assert_eq!(error, format!("process {} has ended", gone.pid));
        let nowhere = Path::new("/nonexistent/cgroup");
        let error = meter
            .manage(PROGRAM, Some(nowhere), gone)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("reading /nonexistent/cgroup"), "{error}");
        assert!(sample(&mut meter).background.is_empty());
    }
}

const VDA: DiskId = DiskId {
    major: 254,
    minor: 0,
};

/// Returns the text of a file `/proc/PID/stat`.
fn stat(pid: u64, comm: &str, flags: u64, ticks: u64, policy: u32) -> String {
    let zeros = "0 ".repeat(18);
    format!("{pid} ({comm}) S 1 1 1 0 -1 {flags} 0 0 0 0 {ticks} 0 0 0 20 0 1 0 55 {zeros}{policy}")
}

/// A simulated `/proc` and `/sys` with one busy disk, one interface and one background process.
struct Machine(tempfile::TempDir);

impl Machine {
    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn busy(&self, ticks: u64, idle: u64) {
        self.put("proc/stat", &format!("cpu  {ticks} 0 0 {idle} 0 0 0 0\n"));
    }

    fn io(&self, pid: u64, sectors: u64) {
        let bytes = sectors * 512;
        let text = format!("read_bytes: {bytes}\nwrite_bytes: 0\n");
        self.put(&format!("proc/{pid}/io"), &text);
    }

    fn disk(&self, reads: u64, sectors: u64) {
        let line = |name: &str| format!(" {name} {reads} 0 {sectors} 0 0 0 0 0 0 0 0\n");
        self.put("proc/diskstats", &(line("254 0 vda") + &line("254 1 vda1")));
    }

    /// Returns a meter that has taken its first sample, with process 10 as a background program.
    fn meter(&self) -> Meter {
        let mut meter = Meter::open(&MeterConfig {
            proc: self.0.path().join("proc"),
            sys: self.0.path().join("sys"),
            bpf: false,
            ..MeterConfig::default()
        });
        let backup = ProcessId {
            pid: 10,
            start_ticks: 55,
        };
        meter.manage(PROGRAM, None, backup).unwrap();
        meter.sample(1, true);
        meter
    }

    /// Sets all counters of the machine to `n` times their initial use.
    fn at(&self, n: u64) {
        self.busy(100 * n, 300 * n);
        let stat = |pid, comm: &str, flags, ticks| stat(pid, comm, flags, ticks, 0);
        self.put("proc/10/stat", &stat(10, "backup", 0, 30 * n));
        self.io(10, 100 * n);
        self.put("proc/11/stat", &stat(11, SERVICES[1], 0, 10 * n));
        self.put("proc/12/stat", &stat(12, "kworker", 0x0020_0000, 5 * n));
        self.put("proc/14/stat", &self::stat(14, "boinc", 0, 20 * n, 5));
        self.put("proc/13/stat", &stat(13, "editor", 0, 55 * n));
        self.put("proc/13/schedstat", &format!("0 {} 1\n", 1000 * n));
        self.disk(40 * n, 400 * n);
        self.put("sys/dev/block/254:1/partition", "1\n");
        self.put("sys/devices/system/cpu/online", "0-3\n");
        let line = format!("{} {} 0 0 0 0 0 0 {} {} 0 0", 70 * n, 7 * n, 90 * n, 9 * n);
        self.put("proc/net/dev", &format!("  eth0: {line}\n    lo: {line}\n"));
        self.put("sys/class/net/eth0/ifindex", "2\n");
        self.put("sys/class/net/lo/ifindex", "1\n");
    }
}

#[test]
fn the_rest_is_foreground() {
    let machine = Machine(tempfile::tempdir().unwrap());
    machine.at(1);
    let mut meter = machine.meter();
    machine.at(3);
    let at_ns = now_ns();
    let now = meter.sample(at_ns, true);
    let ticks = |ns: u64| ns / 10_000_000;
    let background = &now.background[&PROGRAM];
    assert_eq!(
        (now.cpus, ticks(now.idle_ns), now.cpu_read_ns),
        (4, 600, at_ns)
    );
    assert_eq!(ticks(background.cpu_ns), 60);
    assert_eq!(ticks(now.ignored.cpu_ns), 70);
    assert_eq!(ticks(now.foreground.cpu_ns), 200 - 60 - 70);
    assert_eq!(now.foreground.wait_ns, 2000);
    assert_eq!(background.disks[&VDA].sync_sectors, 200);
    assert_eq!(now.foreground.disks[&VDA].sync_sectors, 600);
    assert_eq!(now.foreground.disks.len(), 1);
    let eth0 = now.foreground.links[&LinkId(2)];
    assert_eq!((eth0.sends, eth0.received_bytes), (18, 140));
    assert_eq!(eth0.last_ns, Some(at_ns));
    assert_eq!(now.foreground.links.len(), 1);
    assert_eq!(meter.names().links[&LinkId(2)], "eth0");
}

#[test]
fn late_ticks_are_not_foreground() {
    let machine = Machine(tempfile::tempdir().unwrap());
    machine.at(1);
    let mut meter = machine.meter();
    for round in 1..50 {
        // A clock tick of the program is visible in one sample, and the same tick of the machine
        // only in the next sample.
        machine.put("proc/10/stat", &stat(10, "backup", 0, 30 + round, 0));
        let now = meter.sample(2 * round, true);
        assert_eq!(now.foreground.cpu_ns, 0, "round {round}");
        machine.busy(100 + round, 300);
        let now = meter.sample(2 * round + 1, true);
        assert_eq!(now.foreground.cpu_ns, 0, "round {round}");
    }
    machine.busy(100 + 49 + 7, 300);
    let now = meter.sample(100, true);
    assert_eq!(now.foreground.cpu_ns, 70_000_000);
}

#[test]
fn a_disk_used_only_by_background_has_no_recent_foreground_use() {
    let machine = Machine(tempfile::tempdir().unwrap());
    machine.at(1);
    let mut meter = machine.meter();
    // Between these samples there is one foreground request; then there is one request of the
    // program together with a write.
    machine.disk(41, 408);
    let now = meter.sample(5, false);
    assert_eq!(now.foreground.disks[&VDA].last_ns, Some(5));
    machine.io(10, 100 + 6);
    machine.disk(42, 416);
    let now = meter.sample(6, false);
    assert_eq!(now.background[&PROGRAM].disks[&VDA].requests, 1);
    let foreground = now.foreground.disks[&VDA];
    assert_eq!((foreground.sync_sectors, foreground.requests), (10, 1));
    assert_eq!(foreground.last_ns, Some(5));
}

#[test]
fn children_of_a_program_read_for_it_from_the_start() {
    let machine = Machine(tempfile::tempdir().unwrap());
    machine.at(1);
    let mut meter = machine.meter();
    let child = stat(20, "child", 0, 0, 0).replace(" S 1 ", " S 10 ");
    machine.put("proc/20/stat", &child);
    machine.io(20, 64);
    machine.disk(48, 464);
    let read = |metering: &Metering| metering.background[&PROGRAM].disks[&VDA].sync_sectors;
    assert_eq!(read(&meter.sample(2, true)), 64);
    // The child ends. The count of its parent increases by the child's count, and the parent
    // continues to read.
    fs::remove_dir_all(machine.0.path().join("proc/20")).unwrap();
    machine.io(10, 100 + 64 + 8);
    machine.disk(49, 472);
    assert_eq!(read(&meter.sample(3, true)), 72);
    // A process joins the program after it has already read data.
    machine.put(
        "proc/13/stat",
        &stat(13, "editor", 0, 55, 0).replace(" S 1 ", " S 10 "),
    );
    machine.io(13, 1000);
    machine.disk(50, 480);
    assert_eq!(read(&meter.sample(4, true)), 72);
}
