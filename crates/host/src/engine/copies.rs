// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows the process trees of the managed programs, and places the copies that launchers inside
//! the programs start. The module `copies` of crate `policy` decides; crate `probe` reads the tree,
//! and crate `act` sets the masks.
//!
//! Each program has its own interval between two scans:
//!
//! 1. 5 ms ([`YOUNG_NS`]) in the first second after the program's arrival and after each new
//!    process, so that the mask of a new worker is set within 20 ms of its `exec`.
//! 2. 15 ms ([`ACTIVE_NS`]) while there are copies, for 10 s after the last new process, and while
//!    the program uses CPU time.
//! 3. 50 ms ([`IDLE_NS`]) otherwise. The scan then reads one file, unless the kernel has created a
//!    process or thread on the machine.
//!
//! A scan that takes long prolongs the interval: scans use at most 5 % of a CPU in the first case,
//! and at most 1 % otherwise.

use usher_act::CopyPlacement;
use usher_model::{ProcessId, ProgramId};
use usher_policy::copies::{CopyPlanner, GroupReport, MaskChange};
use usher_probe::ForkScan;

use super::clock::now_ns;
use super::log::LogChange;
use super::warning::WarningTopic;
use super::world::RealWorld;

/// Interval of scans of a program that is young or has recently started a process.
const YOUNG_NS: u64 = 5_000_000;
/// Time for which a program counts as young after its arrival and after each new process.
const YOUNG_FOR_NS: u64 = 1_000_000_000;
/// Interval of scans of a program with copies or with use of CPU time.
const ACTIVE_NS: u64 = 15_000_000;
/// Time for which a program counts as active after its last new process.
const ACTIVE_FOR_NS: u64 = 10_000_000_000;
/// Interval of scans of an idle program.
const IDLE_NS: u64 = 50_000_000;
/// Longest time between two full scans of an idle program, which read its CPU time.
const FULL_NS: u64 = 500_000_000;
/// The interval is at least this multiple of the duration of the last scan.
const YOUNG_FACTOR: u64 = 20;
const ACTIVE_FACTOR: u64 = 100;

/// The process tree and the copies of one program.
#[derive(Debug)]
pub(super) struct CopyTracker {
    scan: ForkScan,
    planner: CopyPlanner,
    /// Time of the arrival or of the last new process.
    forked_ns: u64,
    /// Time of the last scan that found a rise of the program's CPU time.
    ran_ns: u64,
    cpu_ns: u64,
    full_ns: u64,
    due_ns: u64,
    /// Number of groups when the log was last written.
    logged: usize,
}

impl CopyTracker {
    /// Starts to follow a program. `is_launched`: the program has no child processes yet.
    pub fn new(
        proc_root: &std::path::Path,
        root: ProcessId,
        is_launched: bool,
        at_ns: u64,
    ) -> Self {
        Self {
            scan: ForkScan::new(proc_root, root, is_launched),
            planner: CopyPlanner::default(),
            forked_ns: at_ns,
            ran_ns: at_ns,
            cpu_ns: 0,
            full_ns: 0,
            due_ns: at_ns + YOUNG_NS,
            logged: 0,
        }
    }

    /// Returns the time of the next scan.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Records that the masks of the whole program were set or restored.
    pub fn masks_changed(&mut self) {
        self.planner.masks_changed();
    }

    /// Returns the recognised copies.
    pub fn groups(&self) -> Vec<GroupReport> {
        self.planner.report()
    }

    /// Returns the number of children of launchers that are no copies.
    pub fn unrecognised(&self) -> usize {
        self.planner.unrecognised()
    }

    /// Returns whether the process tree must be read now.
    fn needs_scan(&mut self, at_ns: u64) -> bool {
        let is_old = at_ns.saturating_sub(self.full_ns) >= FULL_NS;
        is_old || self.planner.is_active() || self.scan.is_due()
    }

    fn read(&mut self, at_ns: u64) {
        self.full_ns = at_ns;
        if self.scan.scan(at_ns) {
            self.forked_ns = at_ns;
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
    }

    fn schedule(&mut self, began_ns: u64) {
        let spent_ns = now_ns().saturating_sub(began_ns);
        let since_fork_ns = began_ns.saturating_sub(self.forked_ns);
        let since_run_ns = began_ns.saturating_sub(self.ran_ns);
        let is_active = self.planner.is_active()
            || since_fork_ns < ACTIVE_FOR_NS
            || since_run_ns < YOUNG_FOR_NS;
        let (interval_ns, factor) = match is_active {
            _ if since_fork_ns < YOUNG_FOR_NS => (YOUNG_NS, YOUNG_FACTOR),
            true => (ACTIVE_NS, ACTIVE_FACTOR),
            false => (IDLE_NS, ACTIVE_FACTOR),
        };
        self.due_ns = began_ns + interval_ns.max(spent_ns * factor);
    }
}

impl RealWorld {
    /// Returns the time of the next scan for copies; `None` if no program is scanned.
    pub(super) fn copies_due_ns(&self) -> Option<u64> {
        let members = self.state.members.values();
        let trackers = members.filter_map(|member| member.copies.as_ref());
        trackers.map(CopyTracker::due_ns).min()
    }

    /// Scans the programs that are due for new processes, and places their copies.
    pub(super) fn follow_copies(&mut self) {
        let at_ns = now_ns();
        let members = self.state.members.iter();
        let is_due = |tracker: &CopyTracker| tracker.due_ns() <= at_ns;
        let due = members.filter(|(_, member)| member.copies.as_ref().is_some_and(is_due));
        for id in due.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.follow_copies_of(id);
        }
    }

    fn follow_copies_of(&mut self, id: ProgramId) {
        let at_ns = now_ns();
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        let seat = member.reach(&self.state.usable);
        let Some(tracker) = &mut member.copies else {
            return;
        };
        let is_frozen = self.actuator.frozen_since(id).is_some();
        let changes = match !is_frozen && tracker.needs_scan(at_ns) {
            true => {
                tracker.read(at_ns);
                let processes = tracker.scan.processes();
                tracker
                    .planner
                    .step(at_ns, &self.topology, &seat, &processes)
            }
            false => Vec::new(),
        };
        for change in changes {
            self.place_copy(id, &change);
        }
        self.log_copies(id, at_ns);
        if let Some(tracker) = self.tracker(id) {
            tracker.schedule(at_ns);
        }
    }

    fn tracker(&mut self, id: ProgramId) -> Option<&mut CopyTracker> {
        self.state.members.get_mut(&id)?.copies.as_mut()
    }

    fn place_copy(&mut self, id: ProgramId, change: &MaskChange) {
        let cpus = change.cpus.as_ref();
        let placed = self.actuator.place_copy(id, change.process, cpus);
        let Some(tracker) = self.tracker(id) else {
            return;
        };
        match placed {
            Ok(CopyPlacement::Placed) => {}
            Ok(CopyPlacement::LeftAlone) => tracker.planner.leave_alone(change.process),
            Ok(CopyPlacement::Busy) => tracker.planner.masks_changed(),
            Err(error) => {
                tracker.planner.leave_alone(change.process);
                self.warn_about(WarningTopic::Program(id), error.to_string());
            }
        }
    }

    /// Writes newly recognised groups of copies to the log.
    fn log_copies(&mut self, id: ProgramId, at_ns: u64) {
        let Some(tracker) = self.tracker(id) else {
            return;
        };
        let groups = tracker.groups();
        let before = std::mem::replace(&mut tracker.logged, groups.len());
        if groups.len() <= before {
            return;
        }
        for group in groups {
            let text = format!(
                "recognised {} copies of {} that process {} started",
                group.copies.len(),
                group.name,
                group.launcher
            );
            let program = Some(id);
            self.state.log.add(at_ns, LogChange::Note { program, text });
        }
    }
}
