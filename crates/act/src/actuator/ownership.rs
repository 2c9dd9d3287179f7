// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits the changes in a program's tree to the processes of the user on whose behalf the program
//! is managed.
//!
//! A daemon of root manages programs of other users. A tree may contain setuid programs and their
//! children. Such processes run as another user and are never changed. A process belongs to a user
//! if all four of its user IDs are this user.
//!
//! [`Actuator::restrict_to`] stores one number per program until the program departs. Every other
//! function reads one file of `/proc` for each process of the program; nothing is cached, because a
//! process can change its user at any time.

use std::collections::BTreeSet;

use usher_model::ProgramId;

use super::Actuator;
use crate::error::ActError;
use crate::release;

impl Actuator {
    /// Restricts changes in a program's tree to processes of this user, until the program departs.
    /// Setuid programs in the tree, and processes of other users that such programs start, are then
    /// never changed. Call this function before the program is prepared or admitted on behalf of a
    /// user other than the user of this process.
    pub fn restrict_to(&mut self, program: ProgramId, owner: u32) {
        // Programs of failed admissions leave entries behind.
        let known = &self.journal.state().programs;
        self.owners.retain(|program, _| known.contains_key(program));
        self.owners.insert(program, owner);
    }

    /// Returns whether the program's cgroup has processes that must not be changed.
    pub(super) fn has_foreign(&self, program: ProgramId) -> Result<bool, ActError> {
        let Some(&owner) = self.owners.get(&program) else {
            return Ok(false);
        };
        let inside = release::inside(self.state(program)?);
        let foreign = |pid: &i32| {
            let is_alive = self.procs.get(*pid).is_some_and(|one| !one.is_dead());
            is_alive && !self.procs.belongs_to(*pid, owner)
        };
        Ok(inside.iter().any(foreign))
    }

    /// Returns whether a process of a program's tree may be changed.
    pub(super) fn may_change(&self, program: ProgramId, pid: i32) -> bool {
        let owner = self.owners.get(&program);
        owner.is_none_or(|&owner| self.procs.belongs_to(pid, owner))
    }

    /// Returns the pids of a program's processes that may be changed.
    pub(super) fn own_pids(&self, program: ProgramId) -> Result<BTreeSet<i32>, ActError> {
        let mut pids = release::pids(&self.procs, self.state(program)?);
        pids.retain(|&pid| self.may_change(program, pid));
        Ok(pids)
    }
}

#[cfg(test)]
mod tests {
    use usher_model::ProcessId;

    use super::*;
    use crate::config::{ActConfig, WorkClass};

    #[test]
    fn failed_admissions_leave_at_most_one_restriction() {
        let runtime = tempfile::tempdir().unwrap();
        let mut act = Actuator::open(ActConfig::new(runtime.path())).unwrap();
        let gone = ProcessId {
            pid: 1,
            start_ticks: u64::MAX,
        };
        for number in 0..3 {
            act.restrict_to(ProgramId(number), 1000);
            let admitted = act.admit(ProgramId(number), gone, WorkClass::Foreground);
            assert!(admitted.is_err(), "{admitted:?}");
        }
        assert_eq!(act.owners.len(), 1);
        assert!(act.undo_all().is_empty());
    }
}
