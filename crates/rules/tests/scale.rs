// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a switch does not depend on the number of CPUs and LLCs: counts of loop iterations in
//! the callbacks of the host build, on machines with 8 and with 512 CPUs.

mod common;

use common::rig::{Shape, set};
use common::{MS, SETTINGS};
use usher_rules::sched::{HostSched, HostSettings, Task, TaskId};

const SMALL: Shape = Shape(1, 1, 4, 2);
const LARGE: [Shape; 3] = [Shape(2, 32, 4, 2), Shape(2, 4, 32, 2), Shape(8, 8, 4, 2)];
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
