// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drops the records of ended processes and threads of a program, so that the state of a program
//! with many short-lived threads does not grow without limit.
//!
//! 1. Count the recorded processes and threads. Continue only if there are at least 512, and twice
//!    as many as after the last pruning; otherwise a pruning would find few ended threads.
//! 2. Drop the records of processes and threads that do not exist any more, or whose start time
//!    differs, because the kernel has reused the number.
//! 3. Drop the pins of threads without a record.
//!
//! The number of records is therefore at most twice the number of living processes and threads at
//! the last pruning, or 512. A pruning reads one file of `/proc` for each record. The lines stay in
//! the journal's file until the file is rewritten.

use usher_model::ProgramId;

use super::Actuator;
use crate::error::ActError;
use crate::journal::{ProgramState, ThreadId};

/// Smallest number of recorded processes and threads of a program at which the records of ended
/// processes and threads are dropped. The number must also have doubled since the last time.
const PRUNE_MIN: usize = 512;

impl Actuator {
    /// Drops the records of ended processes and threads, if many processes and threads are
    /// recorded.
    pub(super) fn prune(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?;
        let noted = noted_in(state);
        let managed = self.managed(program)?;
        if noted < PRUNE_MIN.max(managed.noted * 2) {
            return Ok(());
        }
        let procs = self.procs.clone();
        self.journal.forget(program, |state| {
            state
                .members
                .retain(|&process, _| procs.same(process).is_some());
            let lives = |thread: &ThreadId| {
                procs.thread_start(thread.pid, thread.tid) == Some(thread.start_ticks)
            };
            state.threads.retain(|thread, _| lives(thread));
            state.demoted.threads.retain(|thread, _| lives(thread));
        });
        let state = self.state(program)?;
        let (noted, known) = (noted_in(state), state.threads.clone());
        let managed = self.managed(program)?;
        managed.noted = noted;
        managed
            .own_masks
            .pinned
            .retain(|thread, _| known.contains_key(thread));
        Ok(())
    }
}

impl Actuator {
    /// Drops the roots of joined trees that have ended. Returns the number of remaining roots. Costs
    /// one file of `/proc` for each root.
    pub(super) fn prune_trees(&mut self, program: ProgramId) -> Result<usize, ActError> {
        let procs = self.procs.clone();
        self.journal.forget(program, |state| {
            state.joined.retain(|&root, _| procs.same(root).is_some());
        });
        Ok(self.state(program)?.joined.len())
    }
}

/// Returns the number of recorded processes and threads.
fn noted_in(state: &ProgramState) -> usize {
    state.threads.len() + state.members.len() + state.demoted.threads.len()
}
