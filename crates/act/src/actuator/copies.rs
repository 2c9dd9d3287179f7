// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places single processes of a managed program on a part of the program's seat: the copies that a
//! launcher inside the program starts.
//!
//! A part is an affinity mask of all threads of the process, as a seat is a mask of all threads of
//! the program. The same rules hold:
//!
//! - The former masks and the new mask are recorded in the journal first, so that the release, the
//!   keeper and the next start of Usher restore them.
//! - A thread that the program pinned is not changed, even if another copy was given the same mask.
//!   A copy that chooses exactly its own part cannot be distinguished from a copy that chooses none.
//! - Processes of other users than the program's are not changed.
//!
//! A later seat of the program keeps the parts that overlap the seat. While the masks of a released
//! program are being restored, processes are not placed.
//!
//! A placement costs a few system calls per thread of the process.

use usher_model::{CpuSet, ProcessId, ProgramId};

use super::Actuator;
use crate::error::ActError;
use crate::mask;
use crate::membership::Membership;

/// The result of a request to place a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyPlacement {
    /// The process runs on the given CPUs, or has ended.
    Placed,
    /// All threads of the process are pinned, or the process is of another user or program. The
    /// process was not changed.
    LeftAlone,
    /// The masks of the program are being restored. Repeat the request later.
    Busy,
}

impl Actuator {
    /// Confines a process of an admitted program to a part of the program's seat. `None` gives the
    /// process the whole seat again, or its own masks if the program has no seat.
    ///
    /// # Errors
    /// The program is not managed, or a system call failed.
    pub fn place_copy(
        &mut self,
        program: ProgramId,
        process: ProcessId,
        cpus: Option<&CpuSet>,
    ) -> Result<CopyPlacement, ActError> {
        if self.scans.contains_key(&program) {
            return Ok(CopyPlacement::Busy);
        }
        if self.procs.same(process).is_none_or(|one| one.is_dead()) {
            self.managed(program)?.own_masks.copies.remove(&process);
            return Ok(CopyPlacement::Placed);
        }
        if !self.may_place(program, process)? {
            return Ok(CopyPlacement::LeftAlone);
        }
        let seat = self.managed(program)?.seat.clone();
        let copies = &mut self.managed(program)?.own_masks.copies;
        match cpus {
            Some(cpus) => copies.insert(process, cpus.clone()),
            None => copies.remove(&process),
        };
        let Some(target) = cpus.cloned().or(seat) else {
            mask::restore_process(&self.procs, self.state(program)?, process)?;
            self.managed(program)?.own_masks.note_restored(process.pid);
            return Ok(CopyPlacement::Placed);
        };
        let procs = self.procs.clone();
        let mut own = std::mem::take(&mut self.managed(program)?.own_masks);
        let journal = &mut self.journal;
        let placed = mask::narrow_process(&procs, journal, program, process, &target, &mut own);
        self.managed(program)?.own_masks = own;
        match placed? || self.procs.same(process).is_none() {
            true => Ok(CopyPlacement::Placed),
            false => {
                self.managed(program)?.own_masks.copies.remove(&process);
                Ok(CopyPlacement::LeftAlone)
            }
        }
    }

    /// Returns whether a confined copy has set another mask itself. A repeated call of
    /// [`Self::place_copy`] then leaves the copy alone.
    pub fn has_chosen_mask(&self, program: ProgramId, process: ProcessId) -> bool {
        let own = self
            .programs
            .get(&program)
            .map(|managed| &managed.own_masks);
        own.is_some_and(|own| own.has_chosen(&self.procs, process))
    }

    /// Returns whether a process belongs to the program and may be changed.
    fn may_place(&self, program: ProgramId, process: ProcessId) -> Result<bool, ActError> {
        let owner = self.owners.get(&program).copied();
        let membership = Membership::new(&self.procs, self.state(program)?).owned_by(owner);
        Ok(membership.contains(process))
    }

    /// Forgets the parts of ended processes.
    pub(super) fn prune_copies(&mut self, program: ProgramId) -> Result<(), ActError> {
        let procs = self.procs.clone();
        let own = &mut self.managed(program)?.own_masks;
        own.retain_copies(|process| procs.same(process).is_some());
        Ok(())
    }
}
