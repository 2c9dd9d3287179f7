// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that two loops on one CPU get CPU time in the ratio of their cgroups'
//! `cpu.weight`, and of their nice values within equal cgroups, under the sched_ext scheduler.

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

/// A loop on CPU 0 in a cgroup of its own.
struct LoopInCgroup {
    looping: Loop,
    _cgroup: Cgroup,
}

impl LoopInCgroup {
    fn start(name: &str, ((file, value), nice): Weight) -> Self {
        let cgroup = Cgroup::new(name);
        fs::write(cgroup.0.join(file), value).unwrap();
        let looping = Loop::start(nice, &[0]);
        cgroup.take_in(&looping);
        Self {
            looping,
            _cgroup: cgroup,
        }
    }

    fn ran_ns(&self) -> u64 {
        self.looping.ran_ns()
    }
}

/// CPU time of both loops, in nanoseconds, after which the scheduler has noticed that they are in
/// other cgroups.
const NOTICED_NS: u64 = 1_500_000_000;

fn share_of_the_second(first: &LoopInCgroup, second: &LoopInCgroup) -> f64 {
    let ran_for = |due_ns: u64| {
        let before = [first.ran_ns(), second.ran_ns()];
        wait_for("two loops to have run", || {
            let ran = [first.ran_ns() - before[0], second.ran_ns() - before[1]];
            (ran[0] + ran[1] >= due_ns).then_some(ran)
        })
    };
    ran_for(NOTICED_NS);
    let ran = ran_for(LONG_NS);
    ran[1] as f64 / (ran[0] + ran[1]) as f64
}

/// Name and value of a file of the cgroup, and the nice value.
type Weight = ((&'static str, &'static str), &'static str);

const EVEN: (&str, &str) = ("cpu.weight", "100");
const HEAVY: (&str, &str) = ("cpu.weight", "400");
const IDLE: (&str, &str) = ("cpu.idle", "1");

/// Weights of both loops, and the permitted range of the second loop's share. By the weights the
/// share is four fifths, and 99 % for the last pair.
const PAIRS: [(Weight, Weight, Range<f64>); 4] = [
    ((EVEN, "0"), (HEAVY, "0"), 0.7..0.9),
    ((EVEN, "6"), (EVEN, "0"), 0.7..0.9),
    ((EVEN, "19"), (EVEN, "0"), 0.95..1.0),
    ((IDLE, "0"), (EVEN, "0"), 0.95..1.0),
];

/// Compares the shares of two loops by the weights of their cgroups, and by their nice values
/// within equal cgroups.
pub fn divide_a_cpu() {
    let world = World::new();
    fs::write(format!("{CGROUPS}/cgroup.subtree_control"), "+cpu").unwrap();
    let running = Running::start(&world);
    for (light, heavy, has) in PAIRS {
        let light = LoopInCgroup::start("light", light);
        let heavy = LoopInCgroup::start("heavy", heavy);
        let share = share_of_the_second(&light, &heavy);
        assert!(has.contains(&share), "{share}");
    }
    drop(running);
    assert_nothing_went_wrong();
}
