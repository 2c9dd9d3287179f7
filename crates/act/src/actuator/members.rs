// SPDX-License-Identifier: MIT OR Apache-2.0
//! Membership of processes in programs: which program a process belongs to, and which processes of
//! a program have left its cgroup. Before a process is admitted, the unfinished departures of at
//! most 5 other programs that contained processes of its tree are completed.
//!
//! Each departure is continued once, for at most the times of `RetryLimits::SHORT`. If it is then
//! still unfinished, the admission fails with [`ActError::Departing`], and the caller retries. All
//! functions may list all processes of the machine.

use usher_model::{ProcessId, ProgramId};

use super::Actuator;
use crate::error::ActError;
use crate::release;

/// Upper limit of the unfinished departures that one admission continues. Each usually takes at
/// most 50 ms; `RetryLimits::SHORT` states the other cases.
const DEPARTURES_MAX: usize = 5;

impl Actuator {
    /// Executes the checks of [`Self::check`]. If a process of the tree still belongs to a program
    /// that is departing, first continues the departure, because the departing program's masks
    /// would be recorded as the process's own masks.
    pub(super) fn check_again(
        &mut self,
        program: Option<ProgramId>,
        root: ProcessId,
    ) -> Result<(), ActError> {
        let mut continued = Vec::new();
        loop {
            let checked = self.check(program, root);
            let Err(ActError::Managed { pid, program }) = checked else {
                return checked;
            };
            if self.programs.contains_key(&program) {
                return checked;
            }
            if continued.contains(&program) || continued.len() == DEPARTURES_MAX {
                return Err(ActError::Departing { pid });
            }
            self.await_departure(program);
            continued.push(program);
        }
    }

    /// Returns the program that a process belongs to. The process may be any member of the tree.
    pub fn program_of(&self, pid: i32) -> Option<ProgramId> {
        let process = self.procs.get(pid)?;
        self.manager_of(&process, &self.places_of(pid))
    }

    /// Returns the living processes of a program that are outside its cgroup, because they or
    /// systemd moved them. Empty if the program has no cgroup.
    pub fn leavers(&self, program: ProgramId) -> Vec<ProcessId> {
        let has_leavers = self
            .programs
            .get(&program)
            .map(|managed| managed.has_leavers);
        let Ok(state) = self.state(program) else {
            return Vec::new();
        };
        if has_leavers != Some(true) {
            return Vec::new();
        }
        let inside = release::inside(state);
        let outside = release::pids(&self.procs, state);
        let outside = outside.difference(&inside);
        let living = outside.filter_map(|&pid| self.procs.get(pid));
        let living = living.filter(|process| !process.is_dead());
        living.map(|process| process.id).collect()
    }

    /// Searches for processes that have left the program's cgroup since the last [`Self::refresh`],
    /// and returns all such processes like [`Self::leavers`].
    ///
    /// # Errors
    /// The program is not managed, or the journal cannot be written.
    pub fn find_leavers(&mut self, program: ProgramId) -> Result<Vec<ProcessId>, ActError> {
        let frozen = self.managed(program)?.frozen_since.is_some();
        self.follow(program, frozen)?;
        Ok(self.leavers(program))
    }
}
