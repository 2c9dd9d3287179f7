// SPDX-License-Identifier: MIT OR Apache-2.0
//! Perf events of a program: retired instructions if the machine has a PMU, or else the software
//! task clock (CPU time).
//!
//! *Launch*: one event is opened on the stopped child before the child executes the program. Every
//! thread and process that the child starts inherits the event, and `exec` enables the event. The
//! instructions of the launcher itself are therefore not counted, and the first instructions of
//! each thread are counted. A thread that ends adds its count to the event that the thread
//! inherited.
//!
//! *Attach*: one event is opened per thread; threads and processes that the thread starts later
//! inherit its event.
//!
//! 1. A thread that starts while the events are being opened has an inherited event only if its
//!    creator already had an event. The kernel does not report whether a thread has inherited an
//!    event.
//! 2. Threads that started before the first event was opened have no inherited event, and get an
//!    event each. The list of threads is read again until each of these threads has an event or has
//!    ended.
//! 3. Threads that started after the first event was opened are assumed to have inherited an event.
//!
//! A program that is frozen during the attachment starts no threads, so that case 1 does not occur.
//!
//! If there are more events than hardware counters, the kernel multiplexes them. Each count is then
//! multiplied by the time for which its event was enabled, divided by the time for which a hardware
//! counter counted it.
//!
//! Bounds: an open event needs one file descriptor, and a reading one system call. A launched
//! program has one event, an attached program one per thread, without an upper limit. Except for
//! ended threads, the first event that cannot be opened ends the attachment, and the error names
//! the reason. A reading leaves out events that cannot be read, or that have not run yet.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use perf_event::events::{Hardware, Software};
use perf_event::{Builder, Counter};
use rustix::time::{ClockId, clock_gettime};

use crate::tree::{read_stat, tasks};

/// The event that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CounterKind {
    /// Instructions retired in user space: needs a PMU.
    Instructions,
    /// CPU nanoseconds from the kernel's clock; available everywhere.
    TaskClock,
}

impl CounterKind {
    fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::TaskClock => "task-clock",
        }
    }

    fn builder(self) -> Builder<'static> {
        match self {
            Self::Instructions => Builder::new(Hardware::INSTRUCTIONS),
            Self::TaskClock => Builder::new(Software::TASK_CLOCK),
        }
    }
}

/// The reason why a program has no counter; the text also names the source of progress that Usher
/// uses instead.
#[derive(Debug, thiserror::Error)]
pub enum CounterGap {
    /// The machine has no PMU that counts the event, like most virtual machines.
    #[error(
        "this machine has no hardware counter '{event}' (no PMU): Usher measures progress by \
         heartbeats, OMPT or repetitions, or else by CPU time"
    )]
    NoPmu {
        /// The event.
        event: &'static str,
    },
    /// The kernel does not permit this user to count the event.
    #[error(
        "counting '{event}' of process {pid} is not permitted: lower \
         /proc/sys/kernel/perf_event_paranoid to 2, or give Usher CAP_PERFMON"
    )]
    NotPermitted {
        /// The event.
        event: &'static str,
        /// The process or thread.
        pid: i32,
    },
    /// The kernel was built without perf events, or a sandbox hides them.
    #[error(
        "this kernel has no perf events: Usher measures progress by other sources than instructions"
    )]
    NoPerfEvents,
    /// The process ended before the event could be opened.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// Another error when the event was opened, such as too many open files.
    #[error("opening the perf event '{event}' of process {pid}: {source}")]
    Refused {
        /// The event.
        event: &'static str,
        /// The process or thread.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
}

impl CounterGap {
    pub(crate) fn from(kind: CounterKind, pid: i32, source: io::Error) -> Self {
        let event = kind.name();
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => Self::NoPmu { event },
            Some(libc::EACCES | libc::EPERM) => Self::NotPermitted { event, pid },
            Some(libc::ENOSYS) => Self::NoPerfEvents,
            Some(libc::ESRCH) => Self::Gone { pid },
            _ => Self::Refused { event, pid, source },
        }
    }
}

/// The open perf events of one program, by process or thread id.
#[derive(Debug)]
pub struct PerfCounters {
    kind: CounterKind,
    counters: BTreeMap<i32, Counter>,
}

impl PerfCounters {
    /// Counts a child, and all threads and processes that the child starts, from the child's `exec`
    /// on. Call it while the child is stopped before its `exec`.
    ///
    /// # Errors
    /// The reason why there is no counter.
    pub fn on_exec(kind: CounterKind, child: i32) -> Result<Self, CounterGap> {
        let counter = open(kind, child, |b| b.enable_on_exec(true))?;
        Ok(Self {
            kind,
            counters: BTreeMap::from([(child, counter)]),
        })
    }

    /// Counts running processes, and all threads and processes that these start later. Processes
    /// that end during the call are left out.
    ///
    /// # Errors
    /// The reason why there is no counter; [`CounterGap::Gone`] if none of the processes exists
    /// any more.
    pub fn on_running(
        kind: CounterKind,
        proc_root: &Path,
        processes: &BTreeSet<i32>,
    ) -> Result<Self, CounterGap> {
        let began_ticks = boot_ticks();
        let mut counters = BTreeMap::new();
        let list = || processes.iter().flat_map(|&pid| tasks(proc_root, pid));
        let mut todo: Vec<i32> = list().collect();
        while !todo.is_empty() {
            for tid in todo {
                match open(kind, tid, |b| b.enabled(true)) {
                    Ok(counter) => drop(counters.insert(tid, counter)),
                    Err(CounterGap::Gone { .. }) => {}
                    Err(gap) => return Err(gap),
                }
            }
            todo = list()
                .filter(|tid| !counters.contains_key(tid))
                .filter(|&tid| started_before(proc_root, tid, began_ticks))
                .collect();
        }
        match (counters.is_empty(), processes.first()) {
            (true, pid) => Err(CounterGap::Gone {
                pid: pid.copied().unwrap_or(0),
            }),
            (false, _) => Ok(Self { kind, counters }),
        }
    }

    /// The event that is counted.
    pub fn kind(&self) -> CounterKind {
        self.kind
    }

    /// Number of open events: one after a launch, one per thread after attaching.
    pub fn open_events(&self) -> usize {
        self.counters.len()
    }

    /// Returns the count since the start, summed over all events, in instructions or nanoseconds.
    /// The count is scaled if the events were multiplexed.
    pub fn read(&mut self) -> f64 {
        let scaled = |counter: &mut Counter| {
            let read = counter.read_count_and_time().ok()?;
            (read.time_running > 0).then(|| scale(read.count, read.time_enabled, read.time_running))
        };
        self.counters.values_mut().filter_map(scaled).sum()
    }
}

fn scale(count: u64, enabled: u64, running: u64) -> f64 {
    count as f64 * (enabled as f64 / running as f64)
}

fn open(
    kind: CounterKind,
    pid: i32,
    set: impl for<'b> FnOnce(&'b mut Builder<'static>) -> &'b mut Builder<'static>,
) -> Result<Counter, CounterGap> {
    let mut builder = kind.builder();
    builder.observe_pid(pid).any_cpu().inherit(true);
    let built = set(&mut builder).build();
    built.map_err(|source| CounterGap::from(kind, pid, source))
}

/// Returns whether a thread started before `ticks`. Each thread has its own `/proc` directory,
/// which directory listings omit.
fn started_before(proc_root: &Path, tid: i32, ticks: u64) -> bool {
    read_stat(proc_root, tid).is_ok_and(|stat| stat.start_ticks < ticks)
}

/// Returns the current time in clock ticks since boot, like the start time in `/proc/PID/stat`.
fn boot_ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    let nanos_per_tick = 1_000_000_000 / per_second.max(1);
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 / nanos_per_tick
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiplexed_counter_is_scaled_up() {
        assert_eq!(scale(100, 40, 10), 400.0);
        assert_eq!(scale(7, 5, 5), 7.0);
    }

    #[test]
    fn errors_name_the_missing_feature_and_the_substitute() {
        let gap = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            CounterGap::from(CounterKind::Instructions, 7, error).to_string()
        };
        assert!(gap(libc::ENOENT).contains("no PMU"));
        assert!(gap(libc::EACCES).contains("perf_event_paranoid"));
        assert!(gap(libc::ESRCH).contains("process 7 has ended"));
        assert!(gap(libc::EMFILE).contains("opening the perf event 'instructions' of process 7"));
    }
}
