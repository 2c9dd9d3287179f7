// SPDX-License-Identifier: GPL-2.0-only
//! What `cpu.weight` and nice values are to the scheduler.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet as Mask, sched_setaffinity};

use crate::common::{World, wait_for};
use crate::sched::{Running, assert_nothing_went_wrong};

const CGROUPS: &str = "/sys/fs/cgroup";
/// Nanoseconds of CPU time that the two have had together when they are compared.
const LONG_NS: u64 = 4_000_000_000;
/// What the heavier one has of that is between these; by the weights it is four fifths.
const SHARE: std::ops::Range<f64> = 0.7..0.9;

/// A loop on CPU 0 in a cgroup of its own.
struct Busy {
    child: Child,
    folder: PathBuf,
}

impl Busy {
    fn start(name: &str, weight: &str, nice: &str) -> Self {
        let folder = PathBuf::from(CGROUPS).join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("cpu.weight"), weight).unwrap();
        let child = Command::new("nice")
            .args(["-n", nice, "sh", "-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        fs::write(folder.join("cgroup.procs"), pid.to_string()).unwrap();
        let mut only = Mask::new();
        only.set(0);
        let pid = Pid::from_raw(pid.cast_signed());
        sched_setaffinity(pid, &only).unwrap();
        Self { child, folder }
    }

    fn ran_ns(&self) -> u64 {
        let path = format!("/proc/{}/schedstat", self.child.id());
        let text = fs::read_to_string(path).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.folder);
    }
}

fn share_of_the_second(first: &Busy, second: &Busy) -> f64 {
    let before = [first.ran_ns(), second.ran_ns()];
    let ran = wait_for("two loops to have run", || {
        let ran = [first.ran_ns() - before[0], second.ran_ns() - before[1]];
        (ran[0] + ran[1] >= LONG_NS).then_some(ran)
    });
    ran[1] as f64 / (ran[0] + ran[1]) as f64
}

/// By the weights of their cgroups, and by their nice values within equal ones.
pub fn divide_a_cpu() {
    let world = World::new();
    fs::write(format!("{CGROUPS}/cgroup.subtree_control"), "+cpu").unwrap();
    let running = Running::start(&world);
    for [light, heavy] in [[("100", "0"), ("400", "0")], [("100", "6"), ("100", "0")]] {
        let light = Busy::start("light", light.0, light.1);
        let heavy = Busy::start("heavy", heavy.0, heavy.1);
        let share = share_of_the_second(&light, &heavy);
        assert!(SHARE.contains(&share), "{share}");
    }
    drop(running);
    assert_nothing_went_wrong();
}
