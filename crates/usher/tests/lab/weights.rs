// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that loops on one CPU get CPU time by the weights of their cgroups, level by
//! level, and by their nice values within a cgroup, under the sched_ext scheduler.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::{World, wait_for};
use crate::load::Loop;
use crate::sched::{Running, assert_nothing_went_wrong};

const CGROUPS: &str = "/sys/fs/cgroup";
/// CPU time of both loops together, in nanoseconds, after which their shares are compared.
const LONG_NS: u64 = 4_000_000_000;

/// A cgroup, removed when it is empty.
pub struct Cgroup(PathBuf);

impl Cgroup {
    pub fn new(name: &str) -> Self {
        let cgroup = Self(PathBuf::from(CGROUPS).join(name));
        fs::create_dir(&cgroup.0).unwrap();
        cgroup
    }

    pub fn take_in(&self, looping: &Loop) {
        let pid = looping.pid().to_string();
        fs::write(self.0.join("cgroup.procs"), pid).unwrap();
    }

    /// Moves this process into the cgroup, calls a function, and moves the process into the root
    /// cgroup.
    pub fn with_us(&self, then: impl FnOnce()) {
        fs::write(self.0.join("cgroup.procs"), "0").unwrap();
        then();
        fs::write(Path::new(CGROUPS).join("cgroup.procs"), "0").unwrap();
    }

    /// Returns the directory of the cgroup.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the id by which the scheduler identifies the cgroup.
    pub fn number(&self) -> u64 {
        fs::metadata(&self.0).unwrap().ino()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// CPU time of all loops, in nanoseconds, after which the factors of their cgroups are stable.
const SETTLED_NS: u64 = 1_500_000_000;

/// Returns the share of each group of loops in the CPU time of all.
fn shares(groups: &[&[Loop]]) -> Vec<f64> {
    let ran_ns = || -> Vec<u64> {
        let of_group = |group: &&[Loop]| group.iter().map(Loop::ran_ns).sum();
        groups.iter().map(of_group).collect()
    };
    let ran_for = |due_ns: u64| {
        let before = ran_ns();
        wait_for("loops to have run", || {
            let after = ran_ns();
            let ran: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            (ran.iter().sum::<u64>() >= due_ns).then_some(ran)
        })
    };
    ran_for(SETTLED_NS);
    let ran = ran_for(LONG_NS);
    let all: u64 = ran.iter().sum();
    ran.iter().map(|&ran| ran as f64 / all as f64).collect()
}

/// Starts loops on CPU 0 in a cgroup.
fn loops_in(cgroup: &Cgroup, nice_values: &[&str]) -> Vec<Loop> {
    let start = |nice: &&str| {
        let looping = Loop::start(nice, &[0]);
        cgroup.take_in(&looping);
        looping
    };
    nice_values.iter().map(start).collect()
}

/// Name and value of a file of a cgroup.
type Setting = (&'static str, &'static str);

const EVEN: Setting = ("cpu.weight", "100");
const HEAVY: Setting = ("cpu.weight", "400");
const IDLE: Setting = ("cpu.idle", "1");

/// Settings of two cgroups with a loop each, and the permitted range of the second loop's share. By
/// the weights, the share is 80 % and 99.7 %.
const CGROUP_PAIRS: [(Setting, Setting, Range<f64>); 2] =
    [(EVEN, HEAVY, 0.7..0.9), (IDLE, EVEN, 0.95..1.0)];

/// Nice values of two loops in one cgroup, and the permitted range of the second loop's share. By
/// the weights, the share is 79 % and 98.6 %.
const NICE_PAIRS: [([&str; 2], Range<f64>); 2] = [(["6", "0"], 0.7..0.9), (["19", "0"], 0.95..1.0)];

fn write(cgroup: &Cgroup, (file, value): Setting) {
    fs::write(cgroup.path().join(file), value).unwrap();
}

/// Compares the shares of two loops by the weights of their cgroups, and by their nice values
/// within a cgroup.
pub fn divide_a_cpu() {
    let world = World::new();
    fs::write(format!("{CGROUPS}/cgroup.subtree_control"), "+cpu").unwrap();
    let running = Running::start(&world);
    for (light, heavy, range) in CGROUP_PAIRS {
        let cgroups = [Cgroup::new("light"), Cgroup::new("heavy")];
        write(&cgroups[0], light);
        write(&cgroups[1], heavy);
        let loops = cgroups.each_ref().map(|cgroup| loops_in(cgroup, &["0"]));
        let share = shares(&[&loops[0], &loops[1]])[1];
        drop(loops);
        assert!(range.contains(&share), "{share}");
    }
    for (nice_values, range) in NICE_PAIRS {
        let cgroup = Cgroup::new("both");
        let loops = loops_in(&cgroup, &nice_values);
        let share = shares(&[&loops[..1], &loops[1..]])[1];
        drop(loops);
        assert!(range.contains(&share), "{share}");
    }
    divide_by_level();
    drop(running);
    assert_nothing_went_wrong();
}

/// The share of a cgroup depends neither on its depth nor on its number of threads.
fn divide_by_level() {
    let outer = [Cgroup::new("alone"), Cgroup::new("parent")];
    write(&outer[1], ("cgroup.subtree_control", "+cpu"));
    let inner = [Cgroup::new("parent/many"), Cgroup::new("parent/one")];
    write(&inner[1], ("cpu.weight", "300"));
    let alone = loops_in(&outer[0], &["0"]);
    let many = loops_in(&inner[0], &["0", "0", "0", "0"]);
    let one = loops_in(&inner[1], &["0"]);
    let actual = shares(&[&alone, &many, &one]);
    for (share, due) in actual.iter().zip([0.5, 0.125, 0.375]) {
        assert!((share / due - 1.0).abs() < 0.15, "{actual:?}");
    }
}
