// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the number of running workers follow the CPUs that the process may use.
//!
//! A runtime may have more workers than CPUs, from the beginning or after its CPUs were reduced. A
//! thread of the runtime, the *observer*, sets the limit of running workers every 5 ms
//! ([`INTERVAL`]):
//!
//! 1. The limit is the number of CPUs in the observer's affinity mask. If the CPU quota of the
//!    process's cgroups is lower, it is the limit, rounded down, but at least 1. The quota is read
//!    every 50 ms ([`QUOTA_ITERATIONS`]) and after each change of the mask; the kernel itself
//!    accounts for quotas in periods of 100 ms.
//! 2. If tasks are visible while workers sleep, each running worker that is blocked in a task (the
//!    kernel reports another state than "running") permits one more. If all running workers are
//!    blocked, the limit doubles.
//! 3. If no task has begun for 100 ms ([`STALL_ITERATIONS`]) while tasks are visible, the running
//!    tasks may wait for tasks that have not begun, for example in a loop. The limit then rises by
//!    half of the running workers, at least one, every 100 ms. The rise ends when no task is
//!    visible, or after 1 s in which tasks have begun regularly ([`PROGRESS_ITERATIONS`]).
//! 4. After an increase, the observer wakes workers. After a decrease, each surplus worker sleeps
//!    after its current task, and other workers take its queued tasks. A worker in a nested wait
//!    continues until the wait ends.
//!
//! The observer also reports the tasks that have begun ([`crate::progress`]).
//!
//! The observer sleeps while no worker has run for 100 ms ([`STALL_ITERATIONS`]). It ends with the
//! workers. If it cannot be started, or the affinity mask cannot be read, all workers may run.
//!
//! An iteration takes about 5 µs, and one that reads the quota 40 µs, together 0.2 % of a CPU. Step
//! 2 adds about 10 µs for each running worker.

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::places;
use crate::progress::ProgressReport;
use crate::worker::Registry;

/// The time between two iterations.
const INTERVAL: Duration = Duration::from_millis(5);
/// Iterations without a new task before the limit rises (100 ms).
const STALL_ITERATIONS: u32 = 20;
/// Iterations with new tasks after which a rise ends (1 s).
const PROGRESS_ITERATIONS: u32 = 200;

/// Iterations between two readings of the quota (50 ms).
const QUOTA_ITERATIONS: u32 = 10;

/// Iterations between two reports of progress (20 ms).
const REPORT_ITERATIONS: u32 = 4;

/// Starts the observer of a runtime. It limits the running workers if `follows` is true, and reports
/// progress if there is a report. Returns `None` if it has nothing to do or cannot be started.
pub(crate) fn start(
    registry: &Arc<Registry>,
    follows: bool,
    report: Option<ProgressReport>,
) -> Option<JoinHandle<()>> {
    if !follows && report.is_none() {
        return None;
    }
    let registry = Arc::clone(registry);
    let thread = thread::Builder::new().name("usher-tasks-cpus".to_owned());
    // The observer calls no functions of the program.
    let thread = thread.stack_size(256 << 10);
    // The workers of a runtime that a bound worker creates are not bound to the CPUs of that
    // worker.
    let unbound = places::unbound_cpus();
    let body = move || {
        places::bind_worker(None, unbound);
        observe(&registry, follows, report);
    };
    thread.spawn(body).ok()
}

fn observe(registry: &Registry, follows: bool, report: Option<ProgressReport>) {
    let running = registry.running();
    running.register_observer();
    let mut rule = LimitRule::default();
    let mut cpus = UsableCpus::default();
    let mut reports = Reports {
        report,
        iterations: 0,
    };
    let mut idle = 0;
    while !registry.has_ended() {
        if follows {
            let limit = rule.limit(&sample(registry, cpus.count()));
            registry.limit_running(limit);
        }
        reports.iterate(registry);
        idle = match running.count() {
            0 => idle + 1,
            _ => 0,
        };
        match idle < STALL_ITERATIONS || registry.is_closing() {
            true => thread::park_timeout(INTERVAL),
            false => running.park_observer(),
        }
    }
    registry.limit_running(registry.workers());
    reports.update(registry);
}

/// The reports of progress at some of the iterations.
#[derive(Debug)]
struct Reports {
    report: Option<ProgressReport>,
    /// Iterations since the last report.
    iterations: u32,
}

impl Reports {
    fn iterate(&mut self, registry: &Registry) {
        self.iterations += 1;
        if self.iterations >= REPORT_ITERATIONS {
            self.update(registry);
        }
    }

    fn update(&mut self, registry: &Registry) {
        self.iterations = 0;
        if let Some(report) = &mut self.report {
            report.update(registry.progress());
        }
    }
}

/// The number of CPUs that the calling thread may use, by its affinity mask and its CPU quota.
#[derive(Debug, Default)]
struct UsableCpus {
    /// The number of CPUs in the mask at the last reading of the quota.
    in_mask: Option<u32>,
    count: usize,
    /// Iterations since the last reading of the quota.
    since_quota: u32,
}

impl UsableCpus {
    fn count(&mut self) -> usize {
        let mask = rustix::thread::sched_getaffinity(None);
        let in_mask = mask.ok().map(|mask| mask.count());
        self.since_quota += 1;
        if in_mask.is_none() || in_mask != self.in_mask || self.since_quota >= QUOTA_ITERATIONS {
            self.in_mask = in_mask;
            self.since_quota = 0;
            self.count = usable_cpus();
        }
        self.count
    }
}

/// Returns the number of CPUs that the calling thread may use, by its affinity mask and its CPU
/// quota; the largest number if it cannot be read.
pub(crate) fn usable_cpus() -> usize {
    thread::available_parallelism().map_or(usize::MAX, usize::from)
}

fn sample(registry: &Registry, cpus: usize) -> Sample {
    let running = registry.running().count();
    let backlog = cpus < registry.workers() && running < registry.workers() && registry.sees_work();
    Sample {
        cpus,
        running,
        blocked: match backlog {
            true => registry
                .running_threads()
                .filter(|&tid| is_blocked(tid))
                .count(),
            false => 0,
        },
        backlog,
        tasks: match backlog {
            true => registry.tasks_begun(),
            false => 0,
        },
    }
}

/// Returns whether a thread of this process neither runs nor waits for a CPU. A thread whose state
/// cannot be read counts as blocked, so that the limit is not too low.
fn is_blocked(tid: i32) -> bool {
    // The state is the first field after the name, which has at most 15 bytes.
    let mut line = [0; 64];
    let read = fs::File::open(format!("/proc/self/task/{tid}/stat"))
        .and_then(|mut file| file.read(&mut line));
    let line = read.map_or(&line[..0], |bytes| &line[..bytes]);
    let end = line.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| line.get(end + 2)) != Some(&b'R')
}

/// The state of a runtime, from which the limit of running workers follows.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The CPUs that the process may use.
    cpus: usize,
    running: usize,
    /// Running workers that are blocked in a task.
    blocked: usize,
    /// Whether tasks are visible while workers sleep. If it is false, the numbers of blocked
    /// workers and of tasks are 0.
    backlog: bool,
    /// The tasks that have begun since the start of the runtime.
    tasks: u64,
}

/// Computes the limit of running workers from consecutive samples.
#[derive(Debug, Default)]
struct LimitRule {
    /// The rise because of running tasks that may wait for others.
    rise: usize,
    tasks: u64,
    /// Consecutive samples without and with a new task.
    without_progress: u32,
    with_progress: u32,
}

impl LimitRule {
    fn limit(&mut self, sample: &Sample) -> usize {
        if !sample.backlog {
            *self = Self::default();
            return sample.cpus;
        }
        match sample.tasks == self.tasks {
            true => (self.without_progress, self.with_progress) = (self.without_progress + 1, 0),
            false => (self.without_progress, self.with_progress) = (0, self.with_progress + 1),
        }
        self.tasks = sample.tasks;
        if self.without_progress >= STALL_ITERATIONS {
            self.without_progress = 0;
            self.rise += (sample.running / 2).max(1);
        }
        if self.with_progress >= PROGRESS_ITERATIONS {
            self.rise = 0;
        }
        let permitted = sample.cpus.saturating_add(sample.blocked);
        let permitted = match sample.blocked >= sample.running {
            true => permitted.max(2 * sample.running),
            false => permitted,
        };
        permitted.saturating_add(self.rise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Sample = Sample {
        cpus: 2,
        running: 2,
        blocked: 0,
        backlog: true,
        tasks: 1,
    };

    /// Returns the limits for copies of a sample in which a task begins each time, or never.
    fn limits(rule: &mut LimitRule, sample: Sample, begins: bool, count: u32) -> Vec<usize> {
        let next = |at: u32| Sample {
            tasks: sample.tasks + u64::from(at * u32::from(begins)),
            ..sample
        };
        (1..=count).map(|at| rule.limit(&next(at))).collect()
    }

    #[test]
    fn the_limit_is_the_number_of_cpus_and_of_blocked_workers() {
        let mut rule = LimitRule::default();
        assert_eq!(limits(&mut rule, BUSY, true, 3), [2; 3]);
        let one = Sample { blocked: 1, ..BUSY };
        assert_eq!(rule.limit(&one), 3);
        let running = |running| Sample {
            running,
            blocked: running,
            ..BUSY
        };
        assert_eq!(rule.limit(&running(2)), 4);
        assert_eq!(rule.limit(&running(4)), 8, "all are blocked");
        let without = Sample {
            backlog: false,
            ..running(8)
        };
        assert_eq!(rule.limit(&without), 2, "no task is left");
    }

    #[test]
    fn the_limit_rises_while_no_task_begins() {
        let mut rule = LimitRule::default();
        limits(&mut rule, BUSY, true, 5);
        let waits = Sample { tasks: 6, ..BUSY };
        let before = limits(&mut rule, waits, false, STALL_ITERATIONS - 1);
        assert_eq!((before.last(), rule.limit(&waits)), (Some(&2), 3));
        let more = Sample {
            running: 8,
            ..waits
        };
        assert_eq!(
            limits(&mut rule, more, false, STALL_ITERATIONS).last(),
            Some(&7)
        );
        let after = limits(
            &mut rule,
            Sample { tasks: 7, ..more },
            true,
            PROGRESS_ITERATIONS,
        );
        assert_eq!((after[0], after.last()), (7, Some(&2)), "tasks begin again");
    }

    #[test]
    fn the_states_of_threads_are_read() {
        // SAFETY: `gettid` has no preconditions.
        let own = unsafe { libc::gettid() };
        assert!(!is_blocked(own));
        assert!(is_blocked(0), "there is no such thread");
    }
}
