// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows the process trees of the managed programs, and places the copies that launchers inside
//! the programs start. The module `copies` of crate `policy` decides; crate `probe` reads the tree,
//! and crate `act` sets the masks. `copy_tracker` states when a program is scanned.
//!
//! If a program has no cgroup, each scan also records new descendants in the journal. Otherwise, a
//! process whose parent ends before the next housekeeping would keep the mask of the seat. One gap
//! remains for attached programs, and for processes without the variable of their launcher: a
//! process that starts less than one scan interval before the end of its parent may keep the mask.
//! Restoring such a process by its mask and its process group alone could change a process of
//! another program.

use usher_act::CopyPlacement;
use usher_model::{ProcessId, ProgramId};
use usher_policy::copies::{MaskChange, hints};

use super::clock::{now_ns, thread_cpu_ns};
use super::copy_tracker::CopyTracker;
use super::log::LogChange;
use super::member::ManagedProgram;
use super::warning::WarningTopic;
use super::world::RealWorld;

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
        let is_due = |tracker: &CopyTracker| tracker.is_due(at_ns);
        let due = members.filter(|(_, member)| member.copies.as_ref().is_some_and(is_due));
        for id in due.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.follow_copies_of(id);
        }
    }

    /// Handles the notification that a process of the machine executes a program.
    pub(super) fn program_executed(&mut self) {
        let at_ns = now_ns();
        let notified = self.exec_notifications.notified(at_ns);
        let members = self.state.members.values_mut();
        for tracker in members.filter_map(|member| member.copies.as_mut()) {
            if notified.for_idle {
                tracker.scan_if_idle(at_ns);
            }
            if notified.for_active {
                tracker.begin_burst(at_ns, &mut self.burst_budget);
            }
        }
    }

    fn follow_copies_of(&mut self, id: ProgramId) {
        let (at_ns, began_cpu_ns) = (now_ns(), thread_cpu_ns());
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        let seat = member.reach(&self.state.usable);
        let Some(tracker) = &mut member.copies else {
            return;
        };
        if tracker.begins_watch() {
            self.exec_notifications.arm_for_active();
            return;
        }
        let cpu_ns = member.watch.summed_cpu_ns();
        let is_at_rest = member.checks.copies.can_be_omitted(at_ns, cpu_ns);
        let is_frozen = self.actuator.frozen_since(id).is_some();
        // Masks of copies would prevent a scheduler with soft seats from lending CPUs.
        let is_soft = self.state.kept_by.is_some();
        tracker.is_suspended = is_frozen || is_soft;
        let was_idle = tracker.is_idle();
        let is_watched = was_idle && self.exec_notifications.arm(at_ns);
        if !was_idle && !tracker.is_suspended {
            self.exec_notifications.arm_for_active();
        }
        let (mut new, mut changes) = (Vec::new(), Vec::new());
        if !tracker.is_suspended && tracker.needs_scan(at_ns, is_at_rest) {
            tracker.read(at_ns);
            member.checks.copies.made(at_ns, cpu_ns);
            new = tracker.scan.take_new_descendants();
            let (planner, processes) = (&mut tracker.planner, tracker.scan.processes());
            let chose = |one: &MaskChange| self.actuator.has_chosen_mask(id, one.process);
            changes = planner.applied().into_iter().filter(chose).collect();
            changes.extend(planner.step(at_ns, &self.topology, &seat, &processes));
        }
        tracker.has_gaps |= is_soft;
        self.record_descendants(id, new);
        for change in changes {
            self.place_copy(id, &change);
        }
        self.store_copies(id, seat.len());
        self.log_copies(id, at_ns);
        let members = &mut self.state.members;
        let tracker = members
            .get_mut(&id)
            .and_then(|member| member.copies.as_mut());
        if let Some(tracker) = tracker {
            let spent_ns = thread_cpu_ns().saturating_sub(began_cpu_ns);
            tracker.schedule(at_ns, spent_ns, is_watched, &mut self.burst_budget);
            if was_idle && !tracker.is_idle() {
                // The notification arrived before the new process had executed its program.
                tracker.begin_burst(at_ns, &mut self.burst_budget);
                self.exec_notifications.arm_for_active();
            }
        }
    }

    /// Scans an ending program without a cgroup once more, because the masks of its remaining
    /// processes are restored only if the processes are recorded. The scan finds children of living
    /// processes. If a process starts a child after the previous scan and ends before this scan,
    /// only the variable of the launcher proves the origin of the child.
    pub(super) fn record_remaining(&mut self, id: ProgramId) {
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        let Some(tracker) = member
            .copies
            .as_mut()
            .filter(|_| member.home.cgroup.is_none())
        else {
            return;
        };
        tracker.read(now_ns());
        let new = tracker.scan.take_new_descendants();
        self.record_descendants(id, new);
    }

    /// Records new processes of a program in the journal, so that their masks are restored although
    /// the program ends before the next housekeeping.
    fn record_descendants(&mut self, id: ProgramId, new: Vec<ProcessId>) {
        match self.actuator.record_descendants(id, new) {
            Ok(()) => {}
            Err(error) => self.warn_about(WarningTopic::Refresh(id), error.to_string()),
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
            Ok(CopyPlacement::Busy) => tracker.masks_changed(),
            Err(error) => {
                tracker.planner.leave_alone(change.process);
                self.warn_about(WarningTopic::Program(id), error.to_string());
            }
        }
    }

    /// Stores the number of CPUs per copy for the next run of the program.
    fn store_copies(&mut self, id: ProgramId, program_cpus: usize) {
        let Some(member) = self.state.members.get_mut(&id) else {
            return;
        };
        let Some(tracker) = &mut member.copies else {
            return;
        };
        let changed = tracker
            .record
            .update(&tracker.planner.report(), program_cpus);
        if let (Some(copies), Some(key)) = (changed, &member.key) {
            let name = member.program.name.clone();
            self.profiles.queue_copies(key.clone(), name, Some(copies));
        }
    }

    /// Deletes the stored_copies copies at the end of a program that used CPU time and started no
    /// copies.
    pub(super) fn forget_copies(&self, ended: &ManagedProgram) {
        let Some(tracker) = ended
            .copies
            .as_ref()
            .filter(|_| ended.stored_copies.is_some())
        else {
            return;
        };
        let cpu_ns = ended.last.as_ref().map_or(0, |(_, sample)| sample.cpu_ns);
        let had_copies = tracker.record.has_copies() || tracker.has_gaps;
        if let (false, Some(key), true) = (had_copies, &ended.key, hints::is_outdated(cpu_ns)) {
            let name = ended.program.name.clone();
            self.profiles.queue_copies(key.clone(), name, None);
        }
    }

    /// Writes newly recognised groups of copies to the log.
    fn log_copies(&mut self, id: ProgramId, at_ns: u64) {
        let Some(tracker) = self.tracker(id) else {
            return;
        };
        let groups = tracker.planner.report();
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
