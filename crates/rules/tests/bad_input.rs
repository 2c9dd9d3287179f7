// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the host build with a task or a CPU that the instance does not have panic. The checks
//! are in Rust, because the C code does not check these numbers.

mod common;

use common::*;
use usher_rules::sched::{HostSched, Task, TaskId};

fn sched() -> HostSched {
    HostSched::new(&places(4, 2), &SETTINGS, 1)
}

/// Returns task 2 of another instance, which has three tasks.
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
