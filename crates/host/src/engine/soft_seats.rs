// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seats that a scheduler keeps instead of affinity masks.
//!
//! A mask forbids: CPUs that its program leaves idle are lost, or lent in ticks. A
//! scheduler that knows the seats prefers: a program runs on its seat at once, and
//! others run there only while it is idle. Where such a scheduler runs, it seats each
//! program that has a cgroup to itself: one of its own, or the unit that holds nothing
//! else. The masks of these programs are left wide. The scheduler knows seats by the
//! cgroup's number, so every other program gets masks. So does every program while one
//! is measured on a seat: what it borrowed would count for the seat.

use std::fmt::Debug;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use usher_act::ActError;
use usher_model::{Action, CpuSet, ProgramId};

use super::world::RealWorld;

/// A scheduler that can keep seats.
pub trait SoftSeats: Debug + Send + Sync {
    /// Tells one that runs now, and is to keep seats, from any that ran before; `None`:
    /// none does.
    fn running(&self) -> Option<u64>;

    /// Gives the threads of a cgroup a seat, by the cgroup's number.
    ///
    /// # Errors
    /// Why it cannot be done.
    fn seat(&self, cgroup: u64, name: &str, cpus: &CpuSet) -> Result<(), String>;

    /// Takes a cgroup's seat away, if it has one.
    ///
    /// # Errors
    /// Why it cannot be done.
    fn unseat(&self, cgroup: u64) -> Result<(), String>;

    /// Takes everybody's seat away: of one that died some may be left.
    ///
    /// # Errors
    /// Why it cannot be done.
    fn unseat_all(&self) -> Result<(), String>;
}

/// The kernel's number of a cgroup, which is its directory's inode.
fn number_of(cgroup: &Path) -> Option<u64> {
    std::fs::metadata(cgroup).ok().map(|found| found.ino())
}

impl RealWorld {
    /// Carries an action out: a seat by the scheduler, if one keeps them.
    pub(super) fn carry_out(&mut self, action: &Action) -> Result<(), ActError> {
        let program = action.program();
        match action {
            Action::Seat { cpus, .. } if self.seat_softly(program, cpus) => {
                self.mark(program, true);
                self.actuator.act(&Action::Release { program })
            }
            Action::Seat { .. } => {
                self.actuator.act(action)?;
                // Not before: where both refuse, the program has the seat that it had.
                self.unseat(program);
                self.mark(program, false);
                Ok(())
            }
            Action::Release { .. } => {
                self.unseat(program);
                self.mark(program, false);
                self.actuator.act(action)
            }
            _ => self.actuator.act(action),
        }
    }

    fn mark(&mut self, program: ProgramId, soft: bool) {
        if let Some(member) = self.state.members.get_mut(&program) {
            member.soft = soft;
        }
    }

    /// Whether the scheduler keeps this seat now.
    fn seat_softly(&mut self, program: ProgramId, cpus: &CpuSet) -> bool {
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
                let text =
                    format!("'{name}' gets affinity masks, as the scheduler refuses: {error}");
                self.warn(text);
                false
            }
        }
    }

    /// Takes back what the scheduler was told of a program.
    pub(super) fn unseat(&self, program: ProgramId) {
        let Some(seats) = &self.soft else {
            return;
        };
        let member = self.state.members.get(&program);
        let cgroup = member.and_then(|member| member.home.cgroup.as_deref());
        if let Some(cgroup) = cgroup.and_then(number_of) {
            // With the scheduler gone, so is the seat.
            let _ = seats.unseat(cgroup);
        }
    }

    /// Takes back what the scheduler was told of anybody.
    pub(super) fn unseat_all(&self) {
        if let Some(seats) = &self.soft {
            // With the scheduler gone, so are the seats.
            let _ = seats.unseat_all();
        }
    }

    /// Seats everybody again where a scheduler has come or gone, or seats are to be
    /// kept firmly from now on, or not any more.
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
