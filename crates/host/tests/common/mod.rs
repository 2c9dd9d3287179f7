// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that the tests of this crate share: a policy that seats every program on the first
//! CPU, functions that read affinity masks, and a poll with a deadline of 60 s.

pub mod bench;

use std::time::{Duration, Instant};

use usher_model::{Action, CpuSet, Decision, Event, Observation};
use usher_policy::Policy;

/// A policy that seats every program on the machine's first CPU.
pub struct FirstCpuPolicy;

impl Policy for FirstCpuPolicy {
    fn name(&self) -> &'static str {
        "first"
    }

    fn decide(&mut self, observation: &Observation) -> Decision {
        let cpus = CpuSet::single(observation.usable.first().unwrap());
        let seat = |event: &Event| match event {
            Event::Arrived(program) => Some(Action::Seat {
                program: program.id,
                cpus: cpus.clone(),
            }),
            _ => None,
        };
        Decision {
            actions: observation.events.iter().filter_map(seat).collect(),
            soft_seats: Some(true),
            ..Decision::default()
        }
    }
}

/// Returns the CPUs that a process (`PID`) or a thread (`PID/task/TID`) may use; `None` if the task
/// is gone.
pub fn allowed(task: &str) -> Option<CpuSet> {
    allowed_in(&std::fs::read_to_string(format!("/proc/{task}/status")).ok()?)
}

/// Returns the CPUs that the text of a file `/proc/PID/status` lists as allowed.
pub fn allowed_in(status: &str) -> Option<CpuSet> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}

/// Polls until `find` returns a value; fails after 60 s.
pub fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
