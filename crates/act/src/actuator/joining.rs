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
//! The check and the capture may list all processes of the machine. The seat is applied to the whole
//! program (`mask.rs`), for about 50 ms at most.

use std::collections::BTreeSet;

use usher_model::{CpuSet, ProcessId, ProgramId};

use super::Actuator;
use crate::error::ActError;
use crate::journal::Record;
use crate::{mask, tree};

impl Actuator {
    /// Adds the tree with this root to an admitted program, and applies the program's seat, freeze
    /// and demotion to the tree. Returns the CPUs that the tree could use before; `None` if the
    /// tree belongs to the program already.
    ///
    /// # Errors
    /// The program is not managed; the process is gone, is a kernel thread, is Usher itself or one
    /// of its ancestors; a process of its tree belongs to another program; or a system call failed.
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
        let found = tree::descendants(&self.procs, [root]);
        let pids: BTreeSet<i32> = found.iter().map(|process| process.id.pid).collect();
        let pid = root.pid;
        let before = mask::initial(&self.procs, &pids).ok_or(ActError::Gone { pid })?;
        self.journal.write(Record::Joined {
            program,
            process: root,
            before: before.clone(),
        })?;
        let managed = self.managed(program)?;
        managed.own_masks.joined.push(before.clone());
        // The next refresh finds the processes, and applies the seat to them.
        managed.last_scan_pid = None;
        managed.seat_is_incomplete = true;
        self.capture(program, root)?;
        self.refresh(program)?;
        Ok(Some(before))
    }
}
