// SPDX-License-Identifier: MIT OR Apache-2.0
//! Carries out actions on seats: a seat is an affinity mask, or a soft seat if the running
//! sched_ext scheduler can keep it.
//!
//! A soft seat needs a cgroup of the program's own. If the scheduler refuses, the program gets an
//! affinity mask. When a scheduler starts or ends, or soft seats become permitted or forbidden, all
//! programs are seated again.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use usher_act::ActError;
use usher_model::{Action, CpuSet, ProgramId};

use super::world::RealWorld;

/// The kernel's id of a cgroup: its directory's inode.
fn number_of(cgroup: &Path) -> Option<u64> {
    std::fs::metadata(cgroup).ok().map(|found| found.ino())
}

impl RealWorld {
    /// Carries out an action. The scheduler keeps the seat if it can.
    pub(super) fn carry_out(&mut self, action: &Action) -> Result<(), ActError> {
        let program = action.program();
        match action {
            Action::Seat { cpus, .. } if self.try_soft_seat(program, cpus) => {
                self.set_soft(program, true);
                self.actuator.act(&Action::Release { program })
            }
            Action::Seat { .. } => {
                self.actuator.act(action)?;
                // The former seat is removed last: if neither the scheduler nor the actuator gives
                // the new seat, the program keeps the former one.
                self.unseat(program);
                self.set_soft(program, false);
                Ok(())
            }
            Action::Release { .. } => {
                self.unseat(program);
                self.set_soft(program, false);
                self.actuator.act(action)
            }
            _ => self.actuator.act(action),
        }
    }

    fn set_soft(&mut self, program: ProgramId, soft: bool) {
        if let Some(member) = self.state.members.get_mut(&program) {
            member.soft = soft;
        }
    }

    /// Has the scheduler keep this seat, if it can. Returns whether it does.
    fn try_soft_seat(&mut self, program: ProgramId, cpus: &CpuSet) -> bool {
        let (Some(seats), Some(_)) = (&self.soft, self.state.kept_by) else {
            return false;
        };
        let Some(member) = self.state.members.get(&program) else {
            return false;
        };
        let Some(cgroup) = member.home.cgroup.as_deref().and_then(number_of) else {
            return false;
        };
        match seats.seat(cgroup, &member.program.name, cpus) {
            Ok(()) => true,
            Err(error) => {
                let name = &member.program.name;
                let text = format!(
                    "the program '{name}' gets its seat by affinity masks, because the scheduler \
                     rejects the soft seat: {error}"
                );
                self.warn(text);
                false
            }
        }
    }

    /// Removes a program's seat from the scheduler.
    pub(super) fn unseat(&self, program: ProgramId) {
        let Some(seats) = &self.soft else {
            return;
        };
        let member = self.state.members.get(&program);
        let cgroup = member.and_then(|member| member.home.cgroup.as_deref());
        if let Some(cgroup) = cgroup.and_then(number_of) {
            // Fails if the scheduler has gone; then so has the seat.
            let _ = seats.unseat(cgroup);
        }
    }

    /// Removes all seats from the scheduler.
    pub(super) fn unseat_all(&self) {
        if let Some(seats) = &self.soft {
            // Fails if the scheduler has gone; then so have the seats.
            let _ = seats.unseat_all();
        }
    }

    /// Seats all programs again when a scheduler has come or gone, or when soft seats have
    /// become permitted or forbidden.
    pub(super) fn follow_scheduler(&mut self) {
        let running = self.soft.as_ref().and_then(|seats| seats.running());
        let keeps = running.filter(|_| self.state.soft_seats);
        if keeps == self.state.kept_by {
            return;
        }
        self.state.kept_by = keeps;
        let members = self.state.members.values();
        let seats = members.filter_map(|member| {
            let (program, cpus) = (member.id(), member.seat.clone()?);
            Some(Action::Seat { program, cpus })
        });
        for action in seats.collect::<Vec<_>>() {
            if let Err(error) = self.carry_out(&action) {
                self.warn(error.to_string());
            }
        }
    }
}
