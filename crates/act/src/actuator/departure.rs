// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a program's management: undoes all changes of the program, now or in several
//! attempts.
//!
//! 1. [`Actuator::depart`] removes the program from the managed programs and undoes its changes:
//!    thaws it, restores masks and priorities by scans, moves its processes back and removes its
//!    cgroups (`release`). The attempt takes at most the times of `RetryLimits::SHORT`.
//! 2. If threads or directories remain, the state of the program stays in the journal. Each
//!    [`Actuator::finish_departures`] tries once more, without waiting.
//! 3. If all changes are undone, a line in the journal closes the program.
//!
//! [`Actuator::undo_all`] undoes the changes of all programs together and removes the journal. It
//! scans for at most 1.5 s, waits for autogroups for at most 2 s, and retries for at most 0.7 s per
//! program. Changes that remain are left to the keeper or the next start of Usher.

use std::fs;

use usher_model::ProgramId;

use super::Actuator;
use crate::error::{ActError, join};
use crate::journal::Record;
use crate::keeper;
use crate::release::{ReleaseOutcome, RetryLimits, release_all, release_program};
use crate::scan::Scan;
use crate::{instance, undo};

impl Actuator {
    /// Ends the management of a running or ended program: thaws the program, restores its masks,
    /// moves surviving processes back to their former cgroups, and removes its cgroups.
    ///
    /// # Errors
    /// The program is not managed, or a change could not be undone. The next `finish_departures`,
    /// `undo_all` or start of Usher retries the undo.
    pub fn depart(&mut self, program: ProgramId) -> Result<(), ActError> {
        self.managed(program)?;
        self.programs.remove(&program);
        self.owners.remove(&program);
        self.reset_scope(program);
        self.scans.insert(program, Scan::new());
        self.continue_departure(program, RetryLimits::SHORT)
    }

    /// Continues a departure that [`Self::depart`] began.
    pub(super) fn continue_departure(
        &mut self,
        program: ProgramId,
        limits: RetryLimits,
    ) -> Result<(), ActError> {
        let mut scan = self.scans.remove(&program).unwrap_or_else(Scan::new);
        let state = self.state(program)?;
        let was_complete = scan.is_complete();
        let mut left = release_program(&self.procs, program, state, &mut scan, limits);
        if !scan.is_complete() {
            self.scans.insert(program, scan);
        } else if !was_complete && matches!(left, ReleaseOutcome::Failed(_)) {
            // The scan is complete now, but a process was created in the cgroup during the release.
            // The next attempts move such processes out.
            left = release_program(&self.procs, program, state, &mut scan, RetryLimits::SHORT);
        }
        match left {
            ReleaseOutcome::Done => {
                // The program is released. If the line cannot be written, the next
                // `finish_departures` or start repeats the undo, which finds nothing to change.
                let _ = self.journal.write(Record::Close { program });
                Ok(())
            }
            ReleaseOutcome::DirsLeft | ReleaseOutcome::ThreadsLeft => Ok(()),
            ReleaseOutcome::Failed(errors) => Err(join(program, errors)),
        }
    }

    /// Releases all programs and removes the journal. Returns the errors of changes that could not
    /// be undone.
    pub fn undo_all(&mut self) -> Vec<ActError> {
        self.programs.clear();
        self.scans.clear();
        // The file marks an orderly exit. Without the file, the keeper would undo the remaining
        // changes, but would also restart the daemon.
        let _ = fs::write(self.instance_dir.join(keeper::ENDING), "");
        let mut errors = Vec::new();
        let state = self.journal.state().clone();
        for (program, left) in release_all(&self.procs, &state.programs) {
            match left {
                ReleaseOutcome::Done => {
                    // The journal is removed below, or else another undo finds nothing to change.
                    let _ = self.journal.write(Record::Close { program });
                }
                ReleaseOutcome::DirsLeft => {}
                ReleaseOutcome::ThreadsLeft => errors.push(undo::threads_left(program)),
                ReleaseOutcome::Failed(left) => errors.extend(left),
            }
        }
        if errors.is_empty() {
            errors.extend(instance::remove_instance(&self.instance_dir).err());
        }
        errors
    }

    /// Retries departures that are still incomplete because the kernel rejected a change or a
    /// removal. Call this function about once a second.
    pub fn finish_departures(&mut self) {
        let is_left = |program: &&ProgramId| {
            !self.programs.contains_key(program) && !self.scans.contains_key(program)
        };
        let programs = self.journal.state().programs.keys();
        let left: Vec<ProgramId> = programs.filter(is_left).copied().collect();
        for program in left {
            // Failures are retried at the next call.
            let _ = self.continue_departure(program, RetryLimits::NONE);
        }
    }

    /// Completes the departure of an earlier program with this number, within the time limits of
    /// `RetryLimits::SHORT`.
    pub(super) fn await_departure(&mut self, program: ProgramId) {
        let is_known = self.journal.state().programs.contains_key(&program);
        if is_known && !self.programs.contains_key(&program) {
            // If the departure is still incomplete, the caller reports the number as taken.
            let _ = self.continue_departure(program, RetryLimits::SHORT);
        }
    }
}
