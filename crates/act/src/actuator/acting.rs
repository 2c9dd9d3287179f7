// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seat, release, freeze and thaw: the actions of [`super::Actuator`] on an admitted program.
//!
//! A seat is an affinity mask on every thread. A release restores the former masks by repeated
//! scans of the program's threads. One scan is not enough, because a thread that starts during the
//! scan may inherit the seat's mask. [`Actuator::continue_scans`] continues these scans. Per
//! program, the scans may use 4 ms of CPU time at once, and 1.2 % of a CPU afterwards (`scan.rs`).
//!
//! A freeze writes to `cgroup.freeze` if the program has a cgroup that Usher may freeze. Without
//! such a cgroup, the freeze sends SIGSTOP to all running processes of the program, and repeats
//! this until no process runs, for at most 60 rounds. If a process still runs after 60 rounds, the
//! freeze continues the stopped processes and returns [`ActError::Storm`]. The journal records each
//! change before the change is made.
//!
//! A seat lists all threads of the program repeatedly, for about 50 ms at most (`mask.rs`). The
//! other actions take time in proportion to the number of the program's processes. None of them
//! waits.

use std::path::Path;

use rustix::process::Signal;
use usher_model::{CpuSet, ProcessId, ProgramId};

use super::Actuator;
use crate::error::{ActError, join};
use crate::journal::{DirKind, Record};
use crate::mask::SeatState;
use crate::procs::Process;
use crate::release::{RestoreScope, RetryLimits};
use crate::scan::{Scan, ScanUrgency};
use crate::{cgroups, files, mask, release, tree};

/// Upper limit of rounds of a freeze by SIGSTOP. Each round stops the processes that were created
/// during the previous round.
const STOP_ROUNDS_MAX: usize = 60;

/// Upper limit of the threads of a program whose processes are found by lists of children. Each
/// thread costs about as much as three other processes of the machine.
const WALKED_THREADS_MAX: i64 = 32;

impl Actuator {
    pub(super) fn seat(&mut self, program: ProgramId, cpus: &CpuSet) -> Result<(), ActError> {
        let procs = self.procs.clone();
        let owner = self.owners.get(&program).copied();
        let mut own = std::mem::take(&mut self.managed(program)?.own_masks);
        let narrowed = mask::narrow(&procs, &mut self.journal, program, cpus, &mut own, owner);
        let managed = self.managed(program)?;
        managed.own_masks = own;
        managed.seat_is_incomplete = narrowed? == SeatState::Incomplete;
        Ok(())
    }

    /// Begins to restore the affinity masks of a program's threads by a scan, which
    /// [`Self::continue_scans`] continues.
    pub(super) fn release(&mut self, program: ProgramId) -> Result<(), ActError> {
        self.managed(program)?.own_masks.forget_copies();
        self.scans.insert(program, Scan::new());
        self.step_release(program)
    }

    /// Executes one step of the scan that restores the masks of a released program. When no thread
    /// has a mask of Usher's any more, the journal's records of the program's masks are dropped.
    fn step_release(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.journal.state().programs.get(&program);
        let state = state.ok_or(ActError::Unknown(program))?;
        let Some(scan) = self.scans.get_mut(&program) else {
            return Ok(());
        };
        let (what, pace) = (RestoreScope::Masks, ScanUrgency::Background);
        let done = release::scan_step(&self.procs, state, scan, what, pace);
        if done.map_err(|errors| join(program, errors))? {
            self.scans.remove(&program);
            self.journal.write(Record::Unmask { program })?;
            self.managed(program)?.own_masks.pinned.clear();
        }
        Ok(())
    }

    /// Returns whether a scan that restores masks or priorities is unfinished;
    /// [`Self::continue_scans`] continues such scans.
    pub fn is_scanning(&self) -> bool {
        !self.scans.is_empty()
    }

    /// Continues the scans that restore masks and priorities. One scan is not enough, because
    /// threads that start while a program is released or departs may inherit Usher's masks and
    /// priorities. Call this function about every 20 ms while [`Self::is_scanning`] returns true.
    /// Per program, the scans may use 4 ms of CPU time at once, and 1.2 % of a CPU afterwards. A
    /// scan may exceed this budget by one step.
    ///
    /// # Errors
    /// A system call failed; the scan of that program continues.
    pub fn continue_scans(&mut self) -> Result<(), ActError> {
        let due = self
            .scans
            .iter()
            .filter(|(_, scan)| scan.is_within_budget());
        let due: Vec<ProgramId> = due.map(|(&program, _)| program).collect();
        let mut result = Ok(());
        for program in due {
            let step = match self.programs.contains_key(&program) {
                true => self.step_release(program),
                false => self.continue_departure(program, RetryLimits::NONE),
            };
            result = result.and(step);
        }
        result
    }

    pub(super) fn freeze(&mut self, program: ProgramId, frozen: bool) -> Result<(), ActError> {
        let by_cgroup = match frozen && self.has_foreign(program)? {
            true => false,
            false => self.freeze_cgroup(program, frozen)?,
        };
        // The cgroup may now contain processes of another user, because a process may have executed
        // a setuid program since the admission.
        let by_cgroup = match by_cgroup && frozen && self.has_foreign(program)? {
            true => !self.freeze_cgroup(program, false)?,
            false => by_cgroup,
        };
        let managed = self.managed(program)?;
        let by_signal = std::mem::replace(&mut managed.by_signal, frozen && !by_cgroup);
        if by_cgroup && !managed.has_leavers && !by_signal {
            return Ok(());
        }
        if frozen {
            let stopped = self.stop(program, by_cgroup);
            if stopped.is_err() {
                // An error of this call is ignored: the program's departure sends SIGCONT again to
                // processes that are still stopped.
                let _ = self.resume(program);
            }
            return stopped;
        }
        self.resume(program)
    }

    /// Freezes or thaws the program's cgroup. Returns `false` if the program has no cgroup that
    /// this process may freeze.
    fn freeze_cgroup(&mut self, program: ProgramId, frozen: bool) -> Result<bool, ActError> {
        let Some(dir) = self.v2_dir(program)? else {
            return Ok(false);
        };
        if dir.kind == DirKind::Unit {
            return self.freeze_unit(program, &dir.dir, frozen);
        }
        if let Some(freezer) = &self.managed(program)?.freezer {
            return cgroups::freeze_by(freezer, frozen).map(|()| true);
        }
        let freezer = match cgroups::freezer(&dir.dir) {
            Err(error) if files::is_denied(&error) => return Ok(false),
            freezer => freezer?,
        };
        let freezer = self.managed(program)?.freezer.insert(freezer);
        cgroups::freeze_by(freezer, frozen).map(|()| true)
    }

    /// Freezes or thaws a cgroup that Usher did not make. The cgroup is thawed only if the journal
    /// records that Usher froze it, so that a cgroup that another program froze stays frozen.
    fn freeze_unit(
        &mut self,
        program: ProgramId,
        unit: &Path,
        frozen: bool,
    ) -> Result<bool, ActError> {
        let is_ours = self.state(program)?.frozen;
        match frozen {
            true if cgroups::is_freeze_set(unit) => Ok(true),
            true if !cgroups::can_freeze(unit) => Ok(false),
            true => {
                self.journal.write(Record::Freeze { program })?;
                cgroups::freeze(unit, true).map(|()| true)
            }
            false if !is_ours => Ok(self.state(program)?.stopped.is_empty()),
            false => {
                self.resume(program)?;
                Ok(true)
            }
        }
    }

    fn resume(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?;
        let mut errors = release::resume(&self.procs, state);
        errors.extend(release::thaw_unit(state).err());
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        self.journal.write(Record::Continue { program })
    }

    /// Sends SIGSTOP to running processes of the program until no process runs. If `outside` is
    /// true, only processes outside the program's cgroups are stopped.
    fn stop(&mut self, program: ProgramId, outside: bool) -> Result<(), ActError> {
        for _ in 0..STOP_ROUNDS_MAX {
            let state = self.state(program)?;
            let running = |process: &Process| {
                !matches!(process.state, 'T' | 't' | 'Z' | 'X')
                    && !state.stopped.contains(&process.id)
            };
            let mut pids = self.own_pids(program)?;
            if outside {
                let inside = release::inside(state);
                pids.retain(|pid| !inside.contains(pid));
            }
            let running: Vec<ProcessId> = pids
                .into_iter()
                .filter_map(|pid| self.procs.get(pid))
                .filter(running)
                .map(|process| process.id)
                .collect();
            if running.is_empty() {
                return Ok(());
            }
            for process in running {
                self.journal.write(Record::Stop { program, process })?;
                self.procs.signal(process, Signal::STOP)?;
            }
        }
        Err(ActError::Storm(program))
    }

    /// Records descendants of a program that a scan of its process tree has found. Without a
    /// cgroup, only this record connects a process with the program after its parent has ended.
    /// Recorded processes, ended processes and processes of other programs are left out. If the
    /// program has a cgroup, nothing is recorded.
    ///
    /// `found` may contain only processes that descend from the program for certain, because their
    /// masks will be restored when the program departs. A process costs about 20 reads of `/proc`.
    ///
    /// # Errors
    /// The program is not managed, or the journal cannot be written.
    pub fn record_descendants(
        &mut self,
        program: ProgramId,
        found: impl IntoIterator<Item = ProcessId>,
    ) -> Result<(), ActError> {
        if self.v2_dir(program)?.is_some() {
            return Ok(());
        }
        for id in found {
            if let Some(process) = self.procs.same(id) {
                self.note(program, &process)?;
            }
        }
        Ok(())
    }

    /// Records the processes of the program that are in none of its cgroups. A program with a
    /// cgroup has such processes if processes have left the cgroup; a program without a cgroup, if
    /// processes were created since the last call.
    pub(super) fn follow(&mut self, program: ProgramId, frozen: bool) -> Result<(), ActError> {
        let state = self.state(program)?;
        let inside = release::inside(state);
        let now_inside = inside.iter().filter_map(|&pid| self.procs.get(pid));
        let now_inside: Vec<ProcessId> = now_inside.map(|one| one.id).collect();
        // A process that the last call found inside the cgroup may have left the cgroup. If its
        // parent has ended, too, only the list of the last call still connects the process with the
        // program.
        let managed = self.programs.get(&program);
        let was_inside = managed
            .map(|managed| managed.inside.clone())
            .unwrap_or_default();
        let root = managed.and_then(|managed| Some(managed.home.as_ref()?.root));
        let mut roots: Vec<ProcessId> = state.members.keys().copied().collect();
        roots.extend(was_inside.into_iter().chain(root).chain(now_inside.clone()));
        // All processes of a stopped program must be found at once. Lists of children do not contain
        // orphans, and can lack children if siblings end all the time.
        let walked = match frozen {
            true => None,
            false => tree::descendants_by_children(&self.procs, &roots, WALKED_THREADS_MAX),
        };
        let tree = walked.unwrap_or_else(|| tree::descendants(&self.procs, roots));
        let outside: Vec<Process> = tree
            .into_iter()
            .filter(|process| !inside.contains(&process.id.pid))
            .collect();
        let has_cgroup = self.v2_dir(program)?.is_some();
        let managed = self.managed(program)?;
        managed.has_leavers = has_cgroup && !outside.is_empty();
        managed.inside = now_inside;
        for process in outside {
            self.note(program, &process)?;
        }
        let by_signal = self.managed(program)?.by_signal;
        let frozen_unseen = has_cgroup && self.freezes_unseen(program) && !by_signal;
        match frozen && (!frozen_unseen || self.managed(program)?.has_leavers) {
            true => self.stop(program, frozen_unseen),
            false => Ok(()),
        }
    }
}
