// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that the sched_ext scheduler enforces `cpu.max`: for cgroups with a quota before
//! the scheduler starts, for nested cgroups, and after a change of a quota.
//!
//! A loop without a quota keeps CPU 0 busy beside a loop with a quota. The share of the latter is its
//! CPU time divided by the time on the guest's clock, on which the periods of quotas are counted.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::{World, wait_for};
use crate::load::Loop;
use crate::sched::{Running, assert_nothing_went_wrong};
use crate::weights::Cgroup;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Shortest time over which a share is measured.
const LONG: Duration = Duration::from_secs(2);
/// Time after which a change has taken effect. Before Linux 6.17, a thread examines its quotas every
/// 250 ticks.
const NOTICED: Duration = Duration::from_millis(1500);

/// Waits until the share of a loop is near its quota. A measurement covers up to one period more
/// than its length, and a guest whose host is busy may overrun a period. Both errors become smaller
/// with time: a share that stays outside fails the check.
fn wait_for_share(limited: &Loop, quota: f64) {
    let changed = Instant::now();
    wait_for("a change of a quota", || {
        (changed.elapsed() >= NOTICED).then_some(())
    });
    let ran_ns_before = limited.ran_ns();
    let began = Instant::now();
    wait_for(&format!("a share of {quota}"), || {
        let elapsed = began.elapsed();
        let ran_ns = limited.ran_ns() - ran_ns_before;
        let share = ran_ns as f64 / elapsed.as_nanos() as f64;
        let is_near = (0.9 * quota..1.03 * quota).contains(&share);
        (elapsed >= LONG && is_near).then_some(())
    });
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
    wait_for_share(&limited, 0.2);
    set(&outer, "10000 100000");
    wait_for_share(&limited, 0.1);
    set(&outer, "max");
    set(&inner, "30000 100000");
    wait_for_share(&limited, 0.3);
    set(&inner, "max");
    wait_for_share(&limited, 0.5);
    drop((limited, other));
    drop(running);
    assert_nothing_went_wrong();
}
