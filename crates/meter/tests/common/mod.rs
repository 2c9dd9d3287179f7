// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that the meter's tests share: they start programs of the rig, which have a known use
//! of CPUs, disks and networks, make cgroups, and poll with a deadline of 60 s. The tests of one
//! file run one after another, because each test would measure the use of another test.

#![allow(dead_code)] // each test file uses only a part of these functions

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use usher_meter::{Meter, MeterConfig};
use usher_model::{MeterSource, Metering, ProcessId};

/// Time limit for waiting for a state.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Serialises the tests of one file, because each test would measure the use of another test.
static TURN: Mutex<()> = Mutex::new(());

pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a meter by BPF. If the kernel rejects BPF, prints a skip and returns `None`.
pub fn meter(what: &str) -> Option<Meter> {
    let meter = Meter::open(&MeterConfig::default());
    if meter.source() == MeterSource::Bpf {
        return Some(meter);
    }
    usher_skip::skip!("{what}: {:?}", meter.reasons());
    None
}

/// A part of the reason that the meter gives in a container with a PID namespace of its own.
pub const BY_A_CONTAINER: &str = "in this PID namespace";

/// Returns a meter that can distinguish programs without a cgroup. If this is impossible here,
/// prints a skip and returns `None`.
pub fn meter_by_processes(what: &str) -> Option<Meter> {
    let meter = meter(what)?;
    let reasons = meter.reasons();
    if reasons.iter().any(|reason| reason.contains(BY_A_CONTAINER)) {
        usher_skip::skip!("{what}: {reasons:?}");
        return None;
    }
    Some(meter)
}

pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub fn sample(meter: &mut Meter) -> Metering {
    meter.sample(now_ns(), true)
}

/// Polls until `holds` returns true; fails after [`DEADLINE`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether a notification is pending.
pub fn is_notified(meter: &Meter) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let fd = meter.notify_fd().unwrap();
    let now = Timespec::default();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

/// A program of the rig.
pub struct Program {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    /// Starts a program, in `cgroup` if it is given.
    pub fn start(args: &[&str], cgroup: Option<&Path>) -> Self {
        let rig = env!("CARGO_BIN_EXE_usher-meter-rig");
        let mut command = match cgroup {
            // The shell enters the cgroup, and then executes the program.
            Some(cgroup) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "echo 0 >$0/cgroup.procs && exec \"$@\""]);
                shell.arg(cgroup).arg(rig);
                shell
            }
            None => Command::new(rig),
        };
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, out };
        assert_eq!(program.line(), "ready");
        program
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn id(&self) -> ProcessId {
        ProcessId {
            pid: self.pid(),
            start_ticks: start_ticks(self.pid()),
        }
    }

    /// Writes the line that starts the work of the program.
    pub fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Starts the work of the program, and returns the numbers that the program prints.
    pub fn numbers(&mut self) -> Vec<u64> {
        self.go();
        let line = self.line();
        line.split(' ')
            .filter_map(|word| word.parse().ok())
            .collect()
    }

    pub fn number(&mut self) -> u64 {
        self.numbers()[0]
    }

    /// Closes the program's input and waits for its end.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn start_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    after_name.split(' ').nth(19).unwrap().parse().unwrap()
}

/// A cgroup (v2) of this test. When the value is dropped, the cgroup is removed and its processes
/// are killed.
pub struct Cgroup(pub PathBuf);

impl Cgroup {
    /// Creates the cgroup. If this fails, prints a skip and returns `None`.
    pub fn make(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts
            .find(|mount| mount[2] == "cgroup2")
            .map(|mount| mount[1].to_owned());
        let name = format!("usher-meter-{}-{name}", std::process::id());
        let dir = root.map(|root| Path::new(&root).join(name));
        match dir.as_ref().map(fs::create_dir) {
            Some(Ok(())) => dir.map(Self),
            other => {
                usher_skip::skip!("cgroups: {other:?}");
                None
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        wait_until("the cgroup to be removed", || {
            fs::remove_dir(&self.0).is_ok()
        });
    }
}
