// SPDX-License-Identifier: GPL-2.0-only
//! Takes CPUs offline and online in a guest while programs run, and checks that seats stay disjoint
//! and use only online CPUs.

use std::fs;
use std::time::{Duration, Instant};

use usher_model::CpuSet;

use crate::common::{DEADLINE, World, wait_for};
use crate::seats::{Programs, machine, seated};

/// Brings CPUs back online, even if a check fails.
struct OnlineGuard(CpuSet);

impl Drop for OnlineGuard {
    fn drop(&mut self) {
        switch(&self.0, "1");
    }
}

fn switch(cpus: &CpuSet, state: &str) {
    for cpu in cpus.iter() {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        // The write is repeated, because the kernel refuses it while it switches another CPU.
        wait_for("a CPU to be switched", || fs::write(&path, state).ok());
    }
}

/// Waits until a program may use one of the CPUs. A failure shows the state of the daemon.
fn wait_for_use(world: &World, programs: &Programs, cpus: &CpuSet) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let masks = programs.masks();
        let used = |masks: &Vec<CpuSet>| masks.iter().any(|mask| mask.intersects(cpus));
        if masks.as_ref().is_some_and(used) {
            return;
        }
        let state = || world.status();
        assert!(
            Instant::now() < deadline,
            "no program uses CPUs {cpus}: {masks:?}, {}",
            state()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Takes all CPUs of a program offline and online again. The other programs keep disjoint seats
/// meanwhile.
pub fn seats_follow_online_cpus() {
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let whole = machine();
    let programs = Programs::run(&world, 3);
    let seats = seated(&programs, &whole);
    // Only seats without CPU 0 are chosen, because CPU 0 cannot go offline, and a core must remain
    // for each program.
    let can_be_offline = seats.iter().filter(|seat| !seat.contains(0));
    let lost = can_be_offline
        .min_by_key(|seat| seat.len())
        .unwrap()
        .clone();
    let back = OnlineGuard(lost.clone());
    switch(&lost, "0");
    let left = machine();
    assert_eq!(left.all_cpus(), whole.all_cpus().minus(&lost));
    wait_for("the daemon to see fewer CPUs", || {
        let usable: CpuSet = world.status()["usable"].as_str()?.parse().ok()?;
        (usable == left.all_cpus()).then_some(())
    });
    let seats = seated(&programs, &left);
    assert!(
        seats.iter().all(|seat| !seat.intersects(&lost)),
        "{seats:?}"
    );
    drop(back);
    wait_for("the daemon to see all CPUs again", || {
        let usable: CpuSet = world.status()["usable"].as_str()?.parse().ok()?;
        (usable == whole.all_cpus()).then_some(())
    });
    wait_for_use(&world, &programs, &lost);
    seated(&programs, &whole);
    assert_eq!(world.end(daemon), Some(0));
    programs.roam(&whole.all_cpus());
}

/// Checks that CPUs which are offline when the daemon starts are used when they come online.
pub fn cpus_that_come_later_are_used() {
    let whole = machine();
    let late = whole.domains.last().unwrap().cpus.clone();
    let back = OnlineGuard(late.clone());
    switch(&late, "0");
    let left = machine();
    let mut world = World::new();
    let daemon = world.daemon(&["--policy", "equal"]);
    let programs = Programs::run(&world, 2);
    seated(&programs, &left);
    drop(back);
    wait_for("the daemon to see all CPUs", || {
        let usable: CpuSet = world.status()["usable"].as_str()?.parse().ok()?;
        (usable == whole.all_cpus()).then_some(())
    });
    wait_for_use(&world, &programs, &late);
    seated(&programs, &whole);
    assert_eq!(world.end(daemon), Some(0));
    programs.roam(&whole.all_cpus());
}
