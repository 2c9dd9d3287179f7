// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds further process trees to an attached program, such as the tasks of a step of a batch system,
//! which are started independently of one another.
//!
//! The joining processes stay in their cgroups. They are recorded like processes that have left the
//! program's cgroup: Usher restricts, stops and releases them by their numbers. If the joining tree
//! has another affinity mask than the program, the journal records this mask, so that threads that
//! the tree creates later get this mask back, and not the mask of the program's first process.
//!
//! Known limit: an orphan of the joined tree that is created after the last scan and whose parent has
//! ended gets the mask of the program's first process at the release.
//!
//! If a step fails, the tree is released, as after a failed admission: its processes continue, and get
//! their masks and priorities back. A thread that the tree creates during this release may keep a value
//! of Usher's. If a change cannot be undone, the tree stays recorded, and the release of the program
//! retries the undo.
//!
//! Bounds: at most `ActConfig::joined_trees_max` living trees per program (4096). The check and the
//! capture may list all processes of the machine. The seat is applied to the whole program, by scans
//! of which the last begins within 50 ms (`mask.rs`). A client that waits for less time, such as the
//! plugin for Slurm (40 ms by default), may therefore disconnect before the tree has joined; the join
//! is completed nevertheless. A release after a failure takes at most `RetryLimits::SHORT`.

use std::collections::BTreeSet;

use usher_model::{CpuSet, ProcessId, ProgramId};

use super::Actuator;
use crate::error::ActError;
use crate::journal::Record;
use crate::release::{ReleaseOutcome, RetryLimits, release_program};
use crate::scan::Scan;
use crate::{mask, tree};

impl Actuator {
    /// Adds the tree with this root to an admitted program, and applies the program's seat, freeze
    /// and demotion to the tree. Returns the CPUs that the tree could use before; `None` if the
    /// tree belongs to the program already.
    ///
    /// # Errors
    /// The program is not managed; the process is gone, is a kernel thread, is Usher itself or one
    /// of its ancestors; a process of its tree belongs to another program; too many trees have joined
    /// the program; the program can use none of the CPUs of its seat; or a system call failed. After
    /// an error, the tree does not belong to the program, unless a change could not be undone.
    pub fn join(
        &mut self,
        program: ProgramId,
        root: ProcessId,
    ) -> Result<Option<CpuSet>, ActError> {
        if self.home(program).is_none() {
            return Err(ActError::Unknown(program));
        }
        match self.check_again(None, root) {
            Err(ActError::Managed { program: other, .. }) if other == program => return Ok(None),
            checked => checked?,
        }
        let trees = self.prune_trees(program)?;
        if trees >= self.config.joined_trees_max {
            return Err(ActError::TooManyTrees { program, trees });
        }
        let found = tree::descendants(&self.procs, [root]);
        let pids: BTreeSet<i32> = found.iter().map(|process| process.id.pid).collect();
        let pid = root.pid;
        let before = mask::initial(&self.procs, &pids).ok_or(ActError::Gone { pid })?;
        self.journal.write(Record::Joined {
            program,
            process: root,
            before: before.clone(),
        })?;
        let known = self.managed(program)?.own_masks.joined.clone();
        match self.take_tree(program, root, &before) {
            Ok(()) => Ok(Some(before)),
            Err(error) => {
                self.managed(program)?.own_masks.joined = known;
                Err(self.abort_join(program, root, pids, &before, error))
            }
        }
    }

    /// Applies the seat, the freeze and the demotion of the program to a joining tree.
    fn take_tree(
        &mut self,
        program: ProgramId,
        root: ProcessId,
        before: &CpuSet,
    ) -> Result<(), ActError> {
        let managed = self.managed(program)?;
        managed.own_masks.note_joined(before);
        // The next refresh finds the processes, and applies the seat to them.
        managed.last_scan_pid = None;
        managed.seat_is_incomplete = true;
        self.capture(program, root)?;
        self.refresh(program)
    }

    /// Releases a tree after its join failed. `pids` are its processes at the beginning. Returns the
    /// error to report.
    fn abort_join(
        &mut self,
        program: ProgramId,
        root: ProcessId,
        mut pids: BTreeSet<i32>,
        before: &CpuSet,
        error: ActError,
    ) -> ActError {
        let procs = self.procs.clone();
        let found = tree::descendants(&procs, [root]);
        pids.extend(found.iter().map(|process| process.id.pid));
        pids.insert(root.pid);
        let Ok(state) = self.state(program) else {
            return error;
        };
        let state = state.of_processes(&pids, before);
        let mut scan = Scan::new();
        let left = release_program(&procs, program, &state, &mut scan, RetryLimits::SHORT);
        if let ReleaseOutcome::Failed(errors) = left {
            let left = errors.iter().map(ToString::to_string).collect::<Vec<_>>();
            return ActError::NotUndone {
                program,
                what: format!(
                    "{}; Usher undoes the changes of process {} because the process cannot join \
                     the program: {error}",
                    left.join("; "),
                    root.pid
                ),
            };
        }
        let is_other = |pid: i32| !pids.contains(&pid);
        self.journal
            .forget(program, |state| state.retain_processes(is_other));
        if let Some(managed) = self.programs.get_mut(&program) {
            managed.own_masks.retain_processes(is_other);
            managed.sessions.retain(|&session| is_other(session));
        }
        error
    }
}
