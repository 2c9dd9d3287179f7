// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that join a managed program, because they belong to the same group: the tasks of a step
//! of a batch system are one program, although they are started independently of one another.
//!
//! 1. A group is identified by its name, the user of its processes and the requesting user. The
//!    requesting user counts, because requests of root may cover processes of other users, such as
//!    setuid children, and requests of a user may not. Only a program that was attached with a group
//!    can be joined, and the policy keeps the program's class of work and its weight.
//! 2. The actuator records the joining process tree and applies the program's seat to it; the probe
//!    counts its CPU time from now on.
//! 3. The program is bound to the union of the CPUs to which its processes are bound. If the union
//!    grows, the policy plans the seat anew before the request is answered. A thread never gets a
//!    CPU outside its own former mask.
//!
//! A joining process does not count in the quota of programs.

use usher_model::{CpuSet, Event, ProgramId};

use super::admission::admission_error;
use super::arrival::ArrivingProgram;
use super::config::{AdoptedProgram, EngineError};
use super::world::RealWorld;

impl RealWorld {
    /// Returns the program that an arriving process joins.
    pub(super) fn group_of(&self, arriving: &ArrivingProgram) -> Option<ProgramId> {
        let group = arriving.group.as_ref()?;
        let mut members = self.state.members.values();
        let found = members.find(|one| {
            one.group.as_ref() == Some(group)
                && one.uid == arriving.uid
                && one.requesting_user == arriving.asking
        });
        found.map(|one| one.id())
    }

    /// Adds the tree of an arriving process to a managed program.
    pub(super) fn join(
        &mut self,
        id: ProgramId,
        arriving: ArrivingProgram,
    ) -> Result<AdoptedProgram, EngineError> {
        let joined = self.actuator.join(id, arriving.root);
        let is_new = joined.map_err(admission_error)?.is_some();
        let usable = self.state.usable.clone();
        let member = self.state.members.get_mut(&id);
        let member = member.ok_or(EngineError::Unknown(id))?;
        if is_new {
            member.watch.follow(&[arriving.root]);
        }
        let widened = widened(
            member.program.bound_to.as_ref(),
            arriving.program.bound_to.as_ref(),
            &usable,
        );
        if let Some(cpus) = widened {
            member.program.bound_to = Some(cpus.clone()).filter(|cpus| !usable.is_subset(cpus));
            let mut event = member.limits();
            if let Event::Limited { bound_to, .. } = &mut event {
                *bound_to = Some(cpus);
            }
            self.state.events.push(event);
        }
        Ok(AdoptedProgram {
            id,
            home: member.home.clone(),
            key: member.key.clone(),
            seat: member.seat.clone(),
            warnings: member.watch.take_warnings(),
            background: member.program.background,
            hints: None,
            joined: true,
        })
    }
}

/// Returns the CPUs to which a program is bound from now on; `None` if they do not change. `present`
/// and `joining`: the CPUs of the program and of the joining process; `None` is all usable CPUs.
fn widened(present: Option<&CpuSet>, joining: Option<&CpuSet>, usable: &CpuSet) -> Option<CpuSet> {
    let present = present?;
    let all = joining.map_or_else(|| usable.clone(), |joining| present.or(joining));
    (all != *present).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_a_group_are_a_union() {
        let set = |list: &str| list.parse::<CpuSet>().unwrap();
        let usable = set("0-7");
        let shown = |present: Option<&str>, joining: Option<&str>| {
            let (present, joining) = (present.map(set), joining.map(set));
            let cpus = widened(present.as_ref(), joining.as_ref(), &usable);
            cpus.map(|cpus| cpus.to_string())
        };
        assert_eq!(shown(Some("0-3"), Some("4-7")).as_deref(), Some("0-7"));
        assert_eq!(shown(Some("0-3"), Some("2")), None);
        assert_eq!(shown(Some("0-3"), None).as_deref(), Some("0-7"));
        assert_eq!(shown(None, Some("0-3")), None);
    }
}
