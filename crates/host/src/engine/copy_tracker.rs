// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process tree and the copies of one program, and the intervals between its scans.
//!
//! Each program has its own interval between two scans:
//!
//! 1. 10 ms ([`YOUNG_NS`]), or 5 ms without notifications, in the first second after the program's arrival and after each new
//!    process. The mask of a new worker is then set within 20 ms of its `exec`.
//! 2. 15 ms ([`ACTIVE_NS`]) while there are copies, for 10 s after the last new child process, and
//!    while the program uses CPU time.
//! 3. 500 ms ([`WATCHED_NS`]) otherwise, with notifications of executed programs
//!    (`exec_notifications`). A scan also follows each notification at once.
//! 4. 50 ms ([`IDLE_NS`]) otherwise, without notifications. The scan then reads one file, unless
//!    the kernel has created a process or thread on the machine.
//!
//! The first scan follows 5 ms ([`FIRST_NS`]) after the arrival. In the first two cases, a
//! notification begins a scan burst (`burst_scans`), for launched programs from 3 ms
//! ([`LAUNCHED_NS`]) after the arrival.
//!
//! **Bound.** The first worker of an idle program is found 50 ms after its `exec` at the latest, in
//! case 3 usually within 1 ms. A worker that executes nothing, or is statically linked, is found
//! after 500 ms at the latest, or after 1 s if the program has a cgroup and the kernel had not yet
//! counted its CPU time. Later workers are found within the intervals of the first two cases.
//!
//! A costly scan lengthens the interval: scans use at most 5 % of a CPU in the first case, and at
//! most 1 % otherwise, apart from bursts. Without a new process and outside bursts, the states of
//! known copies are read with at most 1 % of a CPU, and at least once per second. Only the CPU time
//! of the loop's thread counts. If elapsed time counted, one preemption of 50 ms on a busy machine
//! would postpone the next scan by 1 to 5 s.

use usher_model::ProcessId;
use usher_policy::copies::hints::CopyRecord;
use usher_policy::copies::{CopyPlanner, CopyState, GroupReport};
use usher_probe::ForkScan;

use super::burst_scans::{BurstBudget, BurstScans};
use super::clock::thread_cpu_ns;

/// Interval of scans of a program that is young or has recently started a process.
const YOUNG_NS: u64 = 10_000_000;
/// The same interval without notifications of executed programs.
const UNWATCHED_YOUNG_NS: u64 = 5_000_000;
/// Time from the arrival of a program to its first scan.
const FIRST_NS: u64 = 5_000_000;
/// Time from the arrival of a launched program to the arming of the watch. A scan at this time, or an
/// earlier notification, would slow the `exec` of the program itself.
const LAUNCHED_NS: u64 = 3_000_000;
/// Time for which a program counts as young after its arrival and after each new process.
const YOUNG_FOR_NS: u64 = 1_000_000_000;
/// Interval of scans of a program with copies or with use of CPU time.
const ACTIVE_NS: u64 = 15_000_000;
/// Time for which a program counts as active after its last new process.
const ACTIVE_FOR_NS: u64 = 10_000_000_000;
/// Interval of scans of an idle program without notifications of executed programs.
const IDLE_NS: u64 = 50_000_000;
/// Interval of scans of an idle program with notifications of executed programs.
const WATCHED_NS: u64 = 500_000_000;
/// A scan of an idle program may be earlier by 1/EARLY_DIVISOR of its interval, so that one wake-up
/// of the loop serves several purposes.
const EARLY_DIVISOR: u64 = 10;
/// Longest time between two full scans of an idle program, which read its CPU time. Without a full
/// scan, a program at rest remains idle.
const FULL_NS: u64 = 1_000_000_000;
/// The interval is at least this multiple of the CPU time of the last scan.
const YOUNG_FACTOR: u64 = 20;
const ACTIVE_FACTOR: u64 = 100;

/// The process tree and the copies of one program.
#[derive(Debug)]
pub(super) struct CopyTracker {
    pub scan: ForkScan,
    pub planner: CopyPlanner,
    /// Time of the arrival or of the last new process.
    forked_ns: u64,
    /// Whether the program has started a child process.
    has_forked: bool,
    /// Time of the last scan that found a rise of the program's CPU time.
    ran_ns: u64,
    cpu_ns: u64,
    full_ns: u64,
    /// Time from which the copies are read again, even if no process is new.
    reread_due_ns: u64,
    due_ns: u64,
    /// Time by which the next scan may be early.
    early_ns: u64,
    is_idle: bool,
    /// Whether a notification requested the next scan of the idle program.
    is_notified: bool,
    /// Whether masks of copies are not wanted now, so that no scan reads the processes.
    pub is_suspended: bool,
    young_ns: u64,
    bursts: BurstScans,
    /// Whether the watch for the first child processes of a launched program must still be armed.
    is_before_watch: bool,
    /// Number of groups when the log was last written.
    pub logged: usize,
    /// The copies of this run that are stored for the next run.
    pub record: CopyRecord,
    /// Whether some scans were omitted, so that copies may have been missed.
    pub has_gaps: bool,
}

impl CopyTracker {
    /// Starts to follow a program. `is_launched`: the program has no child processes yet.
    /// `has_notifications`: the machine has notifications of executed programs.
    pub fn new(
        proc_root: &std::path::Path,
        root: ProcessId,
        is_launched: bool,
        has_notifications: bool,
        at_ns: u64,
    ) -> Self {
        Self {
            scan: ForkScan::new(proc_root, root, is_launched),
            planner: CopyPlanner::default(),
            forked_ns: at_ns,
            has_forked: false,
            ran_ns: at_ns,
            cpu_ns: 0,
            full_ns: 0,
            reread_due_ns: 0,
            due_ns: at_ns
                + match is_launched {
                    true => LAUNCHED_NS,
                    false => FIRST_NS,
                },
            early_ns: 0,
            is_idle: false,
            is_notified: false,
            is_suspended: false,
            young_ns: match has_notifications {
                true => YOUNG_NS,
                false => UNWATCHED_YOUNG_NS,
            },
            bursts: BurstScans::default(),
            is_before_watch: is_launched,
            logged: 0,
            record: CopyRecord::default(),
            has_gaps: false,
        }
    }

    /// Returns the time of the next scan.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Returns whether the next scan is due.
    pub fn is_due(&self, at_ns: u64) -> bool {
        self.due_ns <= at_ns + self.early_ns
    }

    /// Returns whether the last scan found the program idle.
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Requests a scan now if the program is idle, because a process of the machine executes a
    /// program.
    pub fn scan_if_idle(&mut self, at_ns: u64) {
        if self.is_idle {
            self.is_notified = true;
            self.due_ns = at_ns;
        }
    }

    /// Returns whether to arm the watch now instead of a scan, because a launched program may execute
    /// its first child processes soon. The first scan follows.
    pub fn begins_watch(&mut self) -> bool {
        let begins = std::mem::take(&mut self.is_before_watch);
        if begins {
            self.due_ns += FIRST_NS - LAUNCHED_NS;
        }
        begins
    }

    /// Begins a scan burst if the program is not idle. Call this function after a notification.
    pub fn begin_burst(&mut self, at_ns: u64, budget: &mut BurstBudget) {
        if !self.is_idle
            && !self.is_suspended
            && let Some(due_ns) = self.bursts.begin(at_ns, budget)
        {
            self.due_ns = self.due_ns.min(due_ns);
        }
    }

    /// Records that the masks of the whole program were set or restored.
    pub fn masks_changed(&mut self) {
        self.planner.masks_changed();
        self.reread_due_ns = 0;
    }

    /// Returns the recognised copies. A copy that Usher leaves alone is reported with the CPUs of its
    /// own masks, which are read now.
    pub fn groups(&self) -> Vec<GroupReport> {
        let mut groups = self.planner.report();
        let copies = groups.iter_mut().flat_map(|group| &mut group.copies);
        for copy in copies.filter(|copy| copy.state == CopyState::LeftAlone) {
            copy.cpus = self.scan.allowed_cpus(copy.process).unwrap_or_default();
        }
        groups
    }

    /// Returns the number of children of launchers that are no copies.
    pub fn unrecognised(&self) -> usize {
        self.planner.unrecognised()
    }

    /// Returns whether the process tree must be read now. `is_at_rest`: the program has used no CPU
    /// time since the last scan.
    pub fn needs_scan(&mut self, at_ns: u64, is_at_rest: bool) -> bool {
        let is_old = !is_at_rest && at_ns.saturating_sub(self.full_ns) >= FULL_NS;
        let is_reread_due = at_ns >= self.reread_due_ns || self.bursts.is_active(at_ns);
        // The process that executes a program may have been created in the present tick, of which the
        // CPU time does not show yet.
        let is_at_rest = is_at_rest && !std::mem::take(&mut self.is_notified);
        let is_active = self.planner.is_active();
        is_old || (is_active && is_reread_due) || self.scan.is_due(at_ns, is_at_rest)
    }

    /// Reads the process tree, the threads of the copies, and the CPU time of the program.
    pub fn read(&mut self, at_ns: u64) {
        let began_cpu_ns = thread_cpu_ns();
        self.full_ns = at_ns;
        if self.scan.scan(at_ns) {
            self.forked_ns = at_ns;
            self.has_forked |= self.scan.has_children();
        }
        if self.planner.is_active() {
            let pids = self.planner.copy_pids(&self.scan.processes());
            self.scan.measure(&pids, at_ns);
        }
        let processes = self.scan.processes();
        let cpu_ns = processes.iter().map(|one| one.cpu_ns).sum();
        if cpu_ns > self.cpu_ns {
            self.ran_ns = at_ns;
        }
        self.cpu_ns = cpu_ns;
        let spent_ns = thread_cpu_ns().saturating_sub(began_cpu_ns);
        self.reread_due_ns = at_ns + ACTIVE_NS.max(spent_ns * ACTIVE_FACTOR);
    }

    /// Sets the time of the next scan, after a scan that began at `began_ns` and used `spent_ns` of
    /// CPU time. `is_watched`: the watch for executed programs was armed before the scan.
    pub fn schedule(
        &mut self,
        began_ns: u64,
        spent_ns: u64,
        is_watched: bool,
        budget: &mut BurstBudget,
    ) {
        let since_fork_ns = began_ns.saturating_sub(self.forked_ns);
        let since_run_ns = began_ns.saturating_sub(self.ran_ns);
        let is_active = self.planner.is_active()
            || (self.has_forked && since_fork_ns < ACTIVE_FOR_NS)
            || since_run_ns < YOUNG_FOR_NS;
        let (interval_ns, factor) = match is_active {
            _ if since_fork_ns < YOUNG_FOR_NS => (self.young_ns, YOUNG_FACTOR),
            true => (ACTIVE_NS, ACTIVE_FACTOR),
            false if is_watched => (WATCHED_NS, ACTIVE_FACTOR),
            false => (IDLE_NS, ACTIVE_FACTOR),
        };
        self.is_idle = !is_active && since_fork_ns >= YOUNG_FOR_NS;
        self.early_ns = match self.is_idle {
            true => interval_ns / EARLY_DIVISOR,
            false => 0,
        };
        let regular_ns = began_ns + interval_ns.max(spent_ns * factor);
        let burst_ns = self.bursts.next(began_ns, spent_ns, budget);
        self.due_ns = burst_ns.map_or(regular_ns, |burst_ns| burst_ns.min(regular_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn tracker() -> CopyTracker {
        let root = ProcessId {
            pid: 10,
            start_ticks: 1,
        };
        CopyTracker::new(std::path::Path::new("/nonexistent"), root, true, true, MS)
    }

    #[test]
    fn the_interval_follows_the_age_and_the_cpu_time_of_scans() {
        let (mut tracker, mut budget) = (tracker(), BurstBudget::default());
        let mut interval_ns = |began_ns: u64, spent_ns: u64| {
            tracker.schedule(began_ns, spent_ns, false, &mut budget);
            tracker.due_ns() - began_ns
        };
        assert_eq!(interval_ns(2 * MS, 0), 10 * MS, "a young program");
        assert_eq!(interval_ns(2 * MS, MS), 20 * MS, "5 % of a CPU");
        assert_eq!(interval_ns(5_000 * MS, 0), 50 * MS, "an idle program");
        assert_eq!(interval_ns(5_000 * MS, MS), 100 * MS, "1 % of a CPU");
    }

    #[test]
    fn a_notification_brings_the_next_scan_forward_except_for_idle_and_suspended_programs() {
        let (mut tracker, mut budget) = (tracker(), BurstBudget::default());
        assert_eq!(tracker.due_ns(), MS + LAUNCHED_NS);
        assert!(tracker.begins_watch());
        assert_eq!(tracker.due_ns(), MS + FIRST_NS);
        assert!(!tracker.begins_watch());
        tracker.schedule(6 * MS, 0, false, &mut budget);
        let due_ns = tracker.due_ns();
        assert_eq!(due_ns, 16 * MS);
        tracker.is_suspended = true;
        tracker.begin_burst(11 * MS, &mut budget);
        assert_eq!(tracker.due_ns(), due_ns);
        tracker.is_suspended = false;
        tracker.begin_burst(11 * MS, &mut budget);
        assert!(tracker.due_ns() < 12 * MS);
        tracker.schedule(5_000 * MS, 0, true, &mut budget);
        assert!(tracker.is_idle());
        tracker.begin_burst(5_001 * MS, &mut budget);
        assert_eq!(tracker.due_ns(), 5_500 * MS);
    }
}
