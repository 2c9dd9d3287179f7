// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest of the scheduler's build for CPU numbers from 64 on. The guest has 72 CPUs, of
//! which only four come online at the boot (`maxcpus=4`; Linux starts one thread per core first): with
//! all CPUs online, an emulated machine is too slow. The first check brings four CPUs of the second
//! word of a CPU set online, for all checks that follow.

use std::fs;

use libbpf_rs::{MapCore, MapHandle};
use usher_model::CpuSet;

use crate::common::World;
use crate::common::wait_for;
use crate::load::Loop;
use crate::sched::{Running, assert_nothing_went_wrong, run_thread_pairs};
use crate::seats::machine;

/// The guest's machine, the kernel's words for it, and the CPUs that come online later.
pub const MACHINE: &str = "package:9 core:4 pu:2";
pub const KERNEL_WORDS: &str = "maxcpus=4";
const LATE: [usize; 4] = [64, 65, 66, 67];
/// CPUs that the tables of the large build hold, and the smallest size of a CPU's counts: a cache line.
const TABLE_CPUS: usize = 2048;
const COUNTS_BYTES: usize = 64;
/// CPU time that each loop must get.
const EACH_NS: u64 = 300_000_000;

fn online() -> CpuSet {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    list.trim().parse().unwrap()
}

/// Returns the size of the map with the counts of the CPUs, which has an entry for each CPU that the
/// tables of the scheduler hold.
fn map_bytes(running: &Running<'_>) -> usize {
    let id = running.status()["last"]["maps"]["tallies"]
        .as_u64()
        .unwrap();
    MapHandle::from_map_id(id as u32).unwrap().value_size() as usize
}

/// Starts one loop per online CPU, without affinity, and checks that the loops use all CPUs.
fn loops_use_all_cpus() {
    let cpus: Vec<usize> = online().iter().map(|cpu| cpu as usize).collect();
    let loops: Vec<Loop> = cpus.iter().map(|_| Loop::start("0", &cpus)).collect();
    wait_for("the loops to run on all CPUs at once", || {
        let used: CpuSet = loops.iter().map(|one| one.cpu() as u32).collect();
        (used == online()).then_some(())
    });
    let before: Vec<u64> = loops.iter().map(Loop::ran_ns).collect();
    wait_for("all loops to run", || {
        let mut ran = loops.iter().zip(&before);
        ran.all(|(one, before)| one.ran_ns() - before >= EACH_NS)
            .then_some(())
    });
}

/// Brings CPUs from 64 on online. `usher topo` must find eight CPUs.
pub fn late_cpus_come_online() {
    for cpu in LATE {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        wait_for("a CPU to come online", || fs::write(&path, "1").ok());
    }
    assert_eq!(machine().all_cpus(), online());
    assert_eq!(online().len(), 2 * LATE.len());
}

/// A CPU number from 64 on selects the large build. Threads exchange messages while they change CPUs,
/// loops use all CPUs, and a thread that is bound to a CPU of the second word of CPU sets runs there.
pub fn cpu_numbers_above_63_select_the_large_build() {
    let other = online().iter().nth(1).unwrap() as usize;
    let world = World::new();
    let running = Running::start(&world);
    assert!(map_bytes(&running) >= TABLE_CPUS * COUNTS_BYTES);
    run_thread_pairs(LATE[3] + 1);
    loops_use_all_cpus();
    let bound = Loop::start("0", &LATE[2..3]);
    wait_for("a bound loop to run", || {
        (bound.ran_ns() > EACH_NS && bound.cpu() == LATE[2]).then_some(())
    });
    bound.may_run_on(&[other]);
    wait_for("the loop to move", || (bound.cpu() == other).then_some(()));
    drop(bound);
    assert_eq!(running.status()["running"], true);
    drop(running);
    assert_nothing_went_wrong();
}
