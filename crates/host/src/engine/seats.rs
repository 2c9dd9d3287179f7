// SPDX-License-Identifier: MIT OR Apache-2.0
//! Carries out actions on seats. A seat is implemented as a soft seat, if the running sched_ext
//! scheduler can implement it, and otherwise as an affinity mask.
//!
//! 1. If the scheduler runs, the policy permits soft seats and the program has a cgroup of its own,
//!    pass the seat to the scheduler and restore the program's masks.
//! 2. If this is not possible, or the scheduler rejects the seat, set the affinity masks of the
//!    program.
//! 3. Remove the former seat last. If no new seat could be set, the program keeps its former seat.
//!
//! When a scheduler starts or ends, or soft seats become permitted or forbidden, all programs are
//! seated again. The change of the scheduler is noticed within a second, or at the next decision.
//!
//! A seat by affinity masks takes about 50 ms at most. A failed action is not retried here: the
//! policy gets the failure with its next observation.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use usher_act::ActError;
use usher_model::{Action, CpuSet, ProgramId};

use super::warning::WarningTopic;
use super::world::RealWorld;

/// Returns the kernel's ID of a cgroup, which is the inode number of its directory.
fn number_of(cgroup: &Path) -> Option<u64> {
    std::fs::metadata(cgroup).ok().map(|found| found.ino())
}

impl RealWorld {
    /// Carries out an action. A seat becomes a soft seat if the scheduler can implement it.
    pub(super) fn carry_out(&mut self, action: &Action) -> Result<(), ActError> {
        let program = action.program();
        match action {
            Action::Seat { cpus, .. } if self.try_soft_seat(program, cpus) => {
                self.set_soft(program, true);
                self.actuator.act(&Action::Release { program })
            }
            Action::Seat { .. } => {
                self.actuator.act(action)?;
                // The former seat is removed last, so that the program keeps it if neither the
                // scheduler nor the actuator can set the new seat.
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

    /// Passes a seat to the scheduler, if possible. Returns whether the scheduler has accepted the
    /// seat.
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
                let text = format!(
                    "the program gets its seat by affinity masks, because the scheduler rejects \
                     the soft seat: {error}"
                );
                self.warn_about(WarningTopic::Program(program), text);
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
            // The call fails if the scheduler has ended, in which case its seats have ended, too.
            let _ = seats.unseat(cgroup);
        }
    }

    /// Removes all seats from the scheduler.
    pub(super) fn unseat_all(&self) {
        if let Some(seats) = &self.soft {
            // The call fails if the scheduler has ended, in which case its seats have ended, too.
            let _ = seats.unseat_all();
        }
    }

    /// Seats all programs again if a scheduler has started or ended, or if soft seats have become
    /// permitted or forbidden.
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
