// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a switch does not depend on the number of CPUs and LLCs: counts of loop iterations,
//! and of the words of CPU sets that are visited, in the callbacks of the host build, on machines
//! with 8, with 512 and with 2,048 CPUs.

mod common;

use std::collections::BTreeSet;

use common::rig::{Shape, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostSched, HostSettings, Task, TaskId};
use usher_rules::select_cpu::{CPUS_MAX, LLCS_MAX};

const SMALL: Shape = Shape(1, 1, 4, 2);
const LARGE: [Shape; 5] = [
    Shape(2, 32, 4, 2),
    Shape(2, 4, 32, 2),
    Shape(8, 8, 4, 2),
    LARGEST,
    Shape(64, 1, 16, 2),
];
/// The largest machine: 2,048 CPUs and 64 LLCs.
const LARGEST: Shape = Shape(4, 16, 16, 2);
const STEPS: usize = 2_000;

struct Case {
    sched: HostSched,
    tasks: Vec<TaskId>,
    now_ns: u64,
}

impl Case {
    /// Starts `per_cpu` threads for each CPU, which may run on all CPUs.
    fn new(shape: Shape, per_cpu: usize) -> Self {
        let settings = HostSettings {
            llcs: (shape.0 * shape.1) as u32,
            ..SETTINGS
        };
        let mut case = Self {
            sched: HostSched::new(&shape.places(), &settings, 1),
            tasks: Vec::new(),
            now_ns: 1_000 * MS,
        };
        case.pass(0);
        for number in 0..per_cpu * shape.cpus() {
            let cpu = number % shape.cpus();
            let task = case.sched.new_task(&Task {
                mm: (number as u64 % 64 + 1) << 12,
                ran_ns: 1,
                cpu: cpu as u32,
                cpus: set(0..shape.cpus()),
                ..Task::default()
            });
            case.sched.wake(task, cpu);
            case.settle();
            case.tasks.push(task);
        }
        case
    }

    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        self.sched.set_now(self.now_ns);
    }

    fn settle(&mut self) {
        while let Some(cpu) = self.sched.next_resched() {
            self.sched.schedule(cpu);
        }
    }

    /// Returns the loop iterations of `STEPS` steps, after as many steps that do not count. A step
    /// gets the number of its CPU.
    fn count(&mut self, shape: Shape, step: impl Fn(&mut Self, usize)) -> u64 {
        for number in 0..2 * STEPS {
            if number == STEPS {
                self.sched.take_loop_iterations();
            }
            step(self, number * 37 % shape.cpus());
            self.settle();
        }
        self.sched.take_loop_iterations()
    }
}

/// Compares the cost on the large machines with that on the small machine.
fn check(per_cpu: usize, step: impl Fn(&mut Case, usize)) {
    let small = Case::new(SMALL, per_cpu).count(SMALL, &step);
    for shape in LARGE {
        let large = Case::new(shape, per_cpu).count(shape, &step);
        assert!(
            large * 100 <= small * 115 + 100 * STEPS as u64 / 10,
            "{shape:?}: {large} instead of {small}"
        );
    }
}

/// All CPUs of the largest machine start, run a thread each, and become idle again.
#[test]
fn scheduler_starts_and_stops_on_the_largest_machine() {
    assert_eq!(
        (LARGEST.cpus(), LARGEST.0 * LARGEST.1),
        (CPUS_MAX, LLCS_MAX)
    );
    let mut case = Case::new(LARGEST, 1);
    let tally = case.sched.tally();
    assert_eq!(tally.switches, CPUS_MAX as u64, "each thread runs");
    assert!(!case.sched.any_idle());
    let cpus: BTreeSet<u32> = case.tasks.iter().map(|&t| case.sched.task(t).cpu).collect();
    assert_eq!(cpus.len(), CPUS_MAX, "each thread has a CPU of its own");
    for task in std::mem::take(&mut case.tasks) {
        case.sched.remove(task);
        case.settle();
        case.sched.end_task(task);
    }
    assert!(case.sched.any_idle());
    let waiting = (0..LLCS_MAX).map(|llc| case.sched.llc(llc).waiting);
    assert_eq!(waiting.sum::<u32>(), 0);
    drop(case);
}

/// A machine with more CPUs than the tables hold has no scheduler.
#[test]
#[should_panic(expected = "places.len() <= crate::select_cpu::CPUS_MAX")]
fn more_cpus_than_the_tables_hold_are_rejected() {
    let mut places = LARGEST.places();
    places.push(places[0]);
    HostSched::new(&places, &SETTINGS, 1);
}

/// Threads that may run on a few CPUs, spread over the machine, find those that are idle, wherever
/// the other idle CPUs are.
#[test]
fn thread_finds_its_only_idle_cpus_anywhere() {
    let shape = LARGEST;
    for allowed in [[2, 2047], [1030, 70], [640, 641]] {
        let settings = HostSettings {
            llcs: LLCS_MAX as u32,
            ..SETTINGS
        };
        let mut sched = HostSched::new(&shape.places(), &settings, 1);
        sched.set_now(MS);
        let task = sched.new_task(&Task {
            ran_ns: 1,
            cpu: 5,
            cpus: set(allowed),
            ..Task::default()
        });
        sched.wake(task, 5);
        let cpu = sched.task(task).cpu as usize;
        assert!(allowed.contains(&cpu), "{cpu} is not in {allowed:?}");
        while let Some(cpu) = sched.next_resched() {
            sched.schedule(cpu);
        }
        assert_eq!(sched.task(task).is_queued, 0, "{allowed:?}");
    }
}

/// Three threads for each CPU compute, and the slices end on one CPU after another.
#[test]
fn switch_between_waiting_threads_does_not_depend_on_the_cpus() {
    check(3, |case, cpu| {
        case.pass(3 * MS);
        case.sched.schedule(cpu);
    });
}

/// The CPU of a thread that sleeps becomes idle, and the thread wakes again.
#[test]
fn sleep_and_wakeup_do_not_depend_on_the_cpus() {
    check(1, |case, cpu| {
        let task = case.tasks[cpu];
        case.pass(3 * MS);
        case.sched.remove(task);
        case.settle();
        case.pass(2 * MS);
        let last = case.sched.task(task).cpu as usize;
        case.sched.wake(task, last);
    });
}
