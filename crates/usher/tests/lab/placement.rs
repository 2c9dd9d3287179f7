// SPDX-License-Identifier: GPL-2.0-only
//! Checks in a guest of the placement of new threads under the sched_ext scheduler.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::thread::sched_getcpu;

use crate::common::World;
use crate::sched::{Running, assert_nothing_went_wrong};

/// Number of programs whose threads are counted.
const PROGRAMS: usize = 10;

fn package_of(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Creates `threads` threads, which compute until all of them have started. Returns the CPU on which
/// each began.
fn first_cpus(threads: usize) -> Vec<usize> {
    let started = Arc::new(AtomicUsize::new(0));
    let each = (0..threads).map(|_| {
        let started = Arc::clone(&started);
        thread::spawn(move || {
            let cpu = sched_getcpu();
            started.fetch_add(1, Ordering::Relaxed);
            while started.load(Ordering::Relaxed) < threads {
                std::hint::spin_loop();
            }
            cpu
        })
    });
    let each: Vec<_> = each.collect();
    each.into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

/// Returns how many threads of several programs began on each package, if each program has a thread
/// for every second CPU.
fn by_package(packages: usize, cpus: usize) -> Vec<usize> {
    let mut counts = vec![0; packages];
    for cpu in (0..PROGRAMS).flat_map(|_| first_cpus(cpus / 2)) {
        counts[package_of(cpu)] += 1;
    }
    counts
}

/// Checks that the threads of a program begin on all packages in equal parts. Without placement by
/// load, the threads fill the cores of their parent's package first. The distribution under the
/// kernel's own scheduler is printed, and not checked.
pub fn new_threads_are_divided_among_packages() {
    let world = World::new();
    let cpus = thread::available_parallelism().unwrap().get();
    let packages = (0..cpus).map(package_of).max().unwrap() + 1;
    let eevdf = by_package(packages, cpus);
    let running = Running::start(&world);
    let usher = by_package(packages, cpus);
    drop(running);
    eprintln!("threads by package: {usher:?}, under the kernel's own scheduler {eevdf:?}");
    let equal = (PROGRAMS * (cpus / 2)) as f64 / packages as f64;
    for &count in &usher {
        let part = count as f64 / equal;
        assert!((0.7..=1.3).contains(&part), "{usher:?}, {eevdf:?}");
    }
    assert_nothing_went_wrong();
}
