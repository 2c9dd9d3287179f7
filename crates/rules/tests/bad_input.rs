// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host build panics for tasks and CPUs that an instance does not have. The C code does not
//! check them.

mod common;

use common::*;
use usher_rules::sched::{HostSched, Task, TaskId};

fn sched() -> HostSched {
    HostSched::new(&places(4, 2), &SETTINGS, 1)
}

/// Returns a task of an instance with more tasks.
fn foreign_task() -> TaskId {
    let mut other = sched();
    let tasks = [(); 3].map(|()| other.new_task(&Task::default()));
    tasks[2]
}

#[test]
#[should_panic(expected = "task 2 does not exist")]
fn rejects_a_task_of_another_instance() {
    let mut sched = sched();
    sched.new_task(&Task::default());
    sched.remove(foreign_task());
}

#[test]
#[should_panic(expected = "task 9 does not exist")]
fn rejects_an_unknown_parent() {
    let task = Task {
        is_forked: 1,
        parent: 9,
        ..Task::default()
    };
    sched().new_task(&task);
}

#[test]
#[should_panic(expected = "CPU 4 does not exist")]
fn rejects_an_unknown_cpu() {
    let mut sched = sched();
    let task = sched.new_task(&Task::default());
    sched.wake_new(task, 4);
}
