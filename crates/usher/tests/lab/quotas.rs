// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that the sched_ext scheduler enforces `cpu.max`: for cgroups with a quota before
//! the scheduler starts, for nested cgroups, and after a change of a quota.
//!
//! A loop without a quota keeps CPU 0 busy. The share of the loop with a quota is therefore its CPU
//! time divided by the CPU time of both.

use std::fs;
use std::ops::Range;

use crate::common::{World, wait_for};
use crate::load::Loop;
use crate::sched::{Running, assert_nothing_went_wrong};
use crate::weights::Cgroup;

const CGROUPS: &str = "/sys/fs/cgroup";
/// CPU time of both loops together over which a share is measured: twenty periods of 100 ms.
const LONG_NS: u64 = 2_000_000_000;
/// CPU time of both loops after which a change has taken effect. Before Linux 6.17, a thread
/// examines its quotas every 250 ticks.
const NOTICED_NS: u64 = 1_500_000_000;

/// Runs both loops for `for_ns` of CPU time. Returns the share of the first.
fn share_over(limited: &Loop, other: &Loop, for_ns: u64) -> f64 {
    let before = [limited.ran_ns(), other.ran_ns()];
    wait_for("two loops to have run", || {
        let ran = [limited.ran_ns() - before[0], other.ran_ns() - before[1]];
        let all_ns = ran[0] + ran[1];
        (all_ns >= for_ns).then_some(ran[0] as f64 / all_ns as f64)
    })
}

#[track_caller]
fn assert_share(limited: &Loop, other: &Loop, range: Range<f64>) {
    share_over(limited, other, NOTICED_NS);
    let share = share_over(limited, other, LONG_NS);
    assert!(range.contains(&share), "{share}, not in {range:?}");
}

fn set(cgroup: &Cgroup, quota: &str) {
    fs::write(cgroup.path().join("cpu.max"), quota).unwrap();
}

/// A loop in a nested cgroup gets the smallest quota of its cgroups, also after changes.
pub fn limit_a_loop() {
    let world = World::new();
    fs::write(format!("{CGROUPS}/cgroup.subtree_control"), "+cpu").unwrap();
    let outer = Cgroup::new("outer");
    fs::write(outer.path().join("cgroup.subtree_control"), "+cpu").unwrap();
    let inner = Cgroup::new("outer/inner");
    set(&inner, "20000 100000");
    let running = Running::start(&world);
    let other = Loop::start("0", &[0]);
    let limited = Loop::start("0", &[0]);
    inner.take_in(&limited);
    assert_share(&limited, &other, 0.18..0.205);
    set(&outer, "10000 100000");
    assert_share(&limited, &other, 0.09..0.105);
    set(&outer, "max");
    set(&inner, "30000 100000");
    assert_share(&limited, &other, 0.27..0.31);
    set(&inner, "max");
    assert_share(&limited, &other, 0.45..0.55);
    drop((limited, other));
    drop(running);
    assert_nothing_went_wrong();
}
