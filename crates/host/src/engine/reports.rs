// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the notes and warnings that `usher status` and `usher explain` show.
//!
//! Notes and warnings describe the present state; the log contains the past. A note of the policy
//! gives the reason for a plan. A note is dropped when this reason may have ceased:
//!
//! 1. A note about one program is dropped when the program departs or its mode changes.
//! 2. A note about all programs is dropped when a program arrives or departs, when the mode of a
//!    program changes, and when seats become forbidden or permitted.
//! 3. Every note is dropped when the plan begins or ceases to leave all placement to the kernel.
//!
//! A note that is marked as lasting is kept when the plan changes. The policy repeats a reason that
//! still holds with its next decision. A warning has a [`WarningTopic`] and is dropped when the
//! topic is resolved. Beyond 400 notes, the oldest note is dropped.

use std::collections::BTreeMap;

use usher_model::{Decision, Note, Plan, ProgramId, SeatMode};

use super::log::LogChange;
use super::profiles::StoreEvent;
use super::status::TimedNote;
use super::warning::WarningTopic;
use super::world::RealWorld;

/// Maximum number of notes.
const NOTES_MAX: usize = 400;

impl RealWorld {
    /// Adds a warning that holds until the engine ends, if there is no equal warning.
    pub fn warn(&mut self, text: String) {
        self.warn_about(WarningTopic::Other, text);
    }

    /// Adds a warning that holds until its topic is resolved, if there is no equal warning. A
    /// warning about a program is reported with the program's name.
    pub fn warn_about(&mut self, topic: WarningTopic, text: String) {
        let program = topic.program().and_then(|id| self.state.members.get(&id));
        let name = program.map(|member| member.program.name.clone());
        self.state.warnings.add(topic, name, text);
    }

    /// Drops the warnings about a topic.
    pub fn resolved(&mut self, topic: WarningTopic) {
        self.state.warnings.resolve(topic);
    }

    /// Warns that the loop's thread has no real-time class, if the daemon runs as root. For root,
    /// the kernel rejects the class only because of the daemon's unit (`RestrictRealtime=yes`) or
    /// of a cgroup without a real-time budget. For ordinary users there is no warning, because they
    /// never get the class.
    pub fn warn_of_delays(&mut self, errno: rustix::io::Errno) {
        if rustix::process::geteuid().is_root() {
            self.warn(format!(
                "the control loop runs without a real-time scheduling class, so seats may change \
                 late under full load: {errno}"
            ));
        }
    }

    /// Reports what dead instances left and this start could not undo.
    pub fn warn_of_stale_journals(&mut self) {
        let stale = self.actuator.found_stale();
        if stale.instances > 0 {
            let (programs, instances) = (stale.programs, stale.instances);
            let undone = LogChange::Undone {
                programs,
                instances,
            };
            self.state.log.add(super::now_ns(), undone);
        }
        let errors = self.actuator.found_stale().errors.iter();
        let errors: Vec<String> = errors.map(ToString::to_string).collect();
        errors.into_iter().for_each(|text| self.warn(text));
    }

    /// Reports what happened to the profile store since the last call. A warning is also logged,
    /// once while it holds.
    pub fn report_profile_store(&mut self) {
        for event in self.profiles.take_events() {
            let (topic, text) = match event {
                StoreEvent::Replaced(text) => (WarningTopic::Other, text),
                StoreEvent::Failed(text) => (WarningTopic::Store, text),
                StoreEvent::Written => {
                    self.resolved(WarningTopic::Store);
                    continue;
                }
                StoreEvent::Locked(text) => (WarningTopic::StoreLock, text),
                StoreEvent::Unlocked => {
                    self.resolved(WarningTopic::StoreLock);
                    continue;
                }
            };
            if self.state.warnings.add(topic, None, text.clone()) {
                let warning = LogChange::StoreWarning { text };
                self.state.log.add(super::now_ns(), warning);
            }
        }
    }

    /// Keeps the notes of a decision.
    pub fn keep_notes(&mut self, at_ns: u64, decision: &Decision) {
        for note in &decision.notes {
            let text = self.state.background.with_device_names(&note.text);
            let note = Note { text, ..*note };
            self.keep_note(at_ns, note, false);
        }
    }

    /// Keeps and logs one note. `lasting` means that the note stays true under all later plans.
    pub fn keep_note(&mut self, at_ns: u64, note: Note, lasting: bool) {
        let state = &mut self.state;
        if state.notes.len() == NOTES_MAX {
            state.notes.pop_front();
        }
        let at_seconds = at_ns.saturating_sub(state.started_ns) as f64 * 1e-9;
        let (program, text) = (note.program, note.text.clone());
        state.log.add(at_ns, LogChange::Note { program, text });
        state.notes.push_back(TimedNote {
            at_seconds,
            note,
            lasting,
        });
    }

    /// Drops the notes about the current plan that a new plan makes untrue.
    pub fn drop_outdated_notes(&mut self, new: &Plan) {
        let (before, now) = (modes(&self.state.plan), modes(new));
        let all = self.state.plan.abstains != new.abstains;
        let is_outdated = |one: &TimedNote| {
            let moved = |id: ProgramId| before.contains_key(&id) && before.get(&id) != now.get(&id);
            let changed = one.note.program.map_or(before != now, moved);
            !one.lasting && (all || changed)
        };
        self.state.notes.retain(|one| !is_outdated(one));
    }

    /// Drops the notes about all programs.
    pub fn drop_general_notes(&mut self) {
        self.state.notes.retain(|one| one.note.program.is_some());
    }

    /// Drops notes and warnings about a program that departs.
    pub fn drop_notes_of(&mut self, id: ProgramId) {
        self.state.notes.retain(|one| one.note.program != Some(id));
        self.resolved(WarningTopic::Program(id));
        self.resolved(WarningTopic::Refresh(id));
    }
}

/// Returns the mode of each program of a plan.
fn modes(plan: &Plan) -> BTreeMap<ProgramId, SeatMode> {
    let seats = plan.seats.iter();
    seats.map(|seat| (seat.program, seat.mode)).collect()
}
