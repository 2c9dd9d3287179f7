// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest that background work is frozen by `cgroup.freeze` while other programs use all
//! CPUs, and thawed afterwards, even if daemon and keeper are killed.

use std::fs;
use std::process::{Child, Command};

use crate::common::{World, wait_for};
use crate::seats::{Programs, cgroup};

/// Foreground work that uses every CPU.
struct Foreground(Vec<Child>);

impl Foreground {
    fn everywhere() -> Self {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let spin = |_| {
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .unwrap()
        };
        Self((0..cpus).map(spin).collect())
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the CPU time of a process, in ticks.
fn used(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(11)?.parse().ok()
}

/// Returns whether the cgroup of a process is frozen. The root cgroup, which contains the unmanaged
/// programs, cannot be frozen.
fn frozen(pid: i32) -> Option<bool> {
    let events = fs::read_to_string(cgroup(pid)?.join("cgroup.events")).unwrap_or_default();
    Some(events.lines().any(|line| line == "frozen 1"))
}

fn goes_on(pid: i32) {
    wait_for("background work to be thawed", || {
        (!frozen(pid)?).then_some(())
    });
    let before = used(pid).unwrap();
    wait_for("background work to run", || {
        (used(pid)? > before).then_some(())
    });
}

/// Starts background work under a policy of paper 2, which stops the work by the utilisation of the
/// CPUs.
fn stopped_for_the_cpus(world: &World) -> (Programs, Foreground) {
    let programs = Programs::of(world, &["bg", "--policy", "eii"], 1);
    let foreground = Foreground::everywhere();
    let pid = programs.pids[0];
    wait_for("background work to be frozen", || {
        frozen(pid)?.then_some(())
    });
    (programs, foreground)
}

/// Checks that background work is frozen while other programs use all CPUs, and runs afterwards.
pub fn is_frozen_and_continues() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let (programs, foreground) = stopped_for_the_cpus(&world);
    drop(foreground);
    goes_on(programs.pids[0]);
    assert_eq!(world.end(daemon), Some(0));
    goes_on(programs.pids[0]);
}

/// Kills daemon and keeper at the same time, and checks that background work is thawed.
pub fn is_thawed_when_all_die() {
    let mut world = World::new();
    let daemon = world.daemon(&[]);
    let (programs, _foreground) = stopped_for_the_cpus(&world);
    world.kill_with_keeper(daemon);
    goes_on(programs.pids[0]);
}
