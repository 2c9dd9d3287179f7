// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers the priorities of all threads of a program: nice value, scheduling policy and I/O class.
//!
//! A new thread inherits the priority of the thread that creates it, which may not be lowered yet.
//! Therefore scans over all threads are repeated:
//!
//! 1. List the threads of the program and read their priorities.
//! 2. Write the former priority of each thread to the journal.
//! 3. Lower the priorities of threads that need it. A failure for one thread does not prevent step
//!    3 for other threads.
//! 4. Repeat until two consecutive scans find no thread to lower, but at most 64 times
//!    ([`SCANS_MAX`]). A scan costs a few system calls per thread.
//!
//! Fields that this user could not restore are left unchanged and reported as gaps of the demotion.
//! The nice value and the policy of a thread with a deadline policy are always left unchanged, and
//! also reported.

use std::io;

use rustix::io::Errno;
use usher_model::{Demotion, ProgramId};

use super::super::Actuator;
use super::gaps::{GapReason, GapSubject};
use crate::error::{ActError, join, message_of};
use crate::files;
use crate::journal::{Priority, Record, ThreadId};
use crate::priority::{self, PriorityFields, PriorityRights, is_refused};
use crate::scan::{self, SCANS_MAX};

/// A thread, its present priority, and the fields to lower.
type ToLower = (ThreadId, Priority, PriorityFields);

impl Actuator {
    /// Lowers the priorities of all threads by repeated scans, until two consecutive scans find no
    /// thread to lower, or after [`SCANS_MAX`] scans. Returns whether any thread needed a change.
    pub(super) fn lower(&mut self, program: ProgramId, to: Demotion) -> Result<bool, ActError> {
        let (mut any, mut quiet) = (false, 0);
        for _ in 0..SCANS_MAX {
            let pids = self.own_pids(program)?;
            let found = scan::threads(&self.procs, &pids);
            if self.lower_all(program, to, &found)? {
                (any, quiet) = (true, 0);
            } else {
                quiet += 1;
            }
            if quiet == 2 {
                break;
            }
        }
        Ok(any)
    }

    /// Executes one scan over all threads: records all threads, and then lowers the threads that
    /// need it. If the change of one thread fails, the scan continues with the next thread. Returns
    /// whether another scan is needed.
    fn lower_all(
        &mut self,
        program: ProgramId,
        to: Demotion,
        found: &[ThreadId],
    ) -> Result<bool, ActError> {
        let all = PriorityRights::are_all(&self.procs);
        let mut to_lower = Vec::new();
        let mut results = Vec::new();
        for &thread in found {
            match Priority::of(thread.tid) {
                Ok(now) => to_lower.extend(self.note_priority(program, to, (thread, now), all)?),
                Err(error) => results.push((thread, Err(error))),
            }
        }
        let is_recorded = self.state(program)?.demoted.to.contains(&to);
        if !is_recorded && !to_lower.is_empty() {
            self.journal.write(Record::Demote { program, to })?;
        }
        for (thread, now, what) in to_lower {
            results.push((thread, priority::lower(thread.tid, &now, &what)));
        }
        let mut again = false;
        let mut errors = Vec::new();
        for (thread, result) in results {
            match self.has_lowered(program, thread, result) {
                Ok(has) => again |= has,
                Err(error) => errors.push(error),
            }
        }
        match errors.is_empty() {
            true => Ok(again),
            false => Err(join(program, errors)),
        }
    }

    /// Writes a thread's former priority to the journal and records a gap for each field that must
    /// stay unchanged. Returns the fields to lower, or `None` if there are none.
    fn note_priority(
        &mut self,
        program: ProgramId,
        to: Demotion,
        (thread, now): (ThreadId, Priority),
        all: bool,
    ) -> Result<Option<ToLower>, ActError> {
        let rights = match all {
            true => PriorityRights::ALL,
            false => PriorityRights::over(&self.procs, thread.pid),
        };
        let demoted = &self.state(program)?.demoted;
        let before = priority::before(demoted, thread, &now);
        let is_first = demoted.to.is_empty();
        let is_known = demoted.threads.contains_key(&thread);
        let what = priority::to_lower(&now, &before, to, &rights);
        if now.is_deadline() {
            let reason = GapReason::keeps(
                "policy SCHED_DEADLINE,",
                "because Usher could not restore it: only a thread itself can set this policy",
            );
            self.note_gap_of(program, GapSubject::Thread(thread.tid), reason)?;
        }
        let wanted = priority::to_lower(&now, &before, to, &PriorityRights::ALL);
        if let Some(kept) = wanted.without(&what).in_words() {
            let needs = before.rights_needed();
            let why = format!(
                "because this user may not restore a lowered {kept}; the restore requires {needs}"
            );
            let reason = GapReason::keeps(&format!("{kept},"), &why);
            self.note_gap_of(program, GapSubject::Process(thread.pid), reason)?;
        }
        if !is_known && (is_first || what.any()) {
            self.journal.write(Record::Priority {
                program,
                thread,
                before,
            })?;
        }
        Ok(what.any().then_some((thread, now, what)))
    }

    /// Evaluates the result of lowering one thread. Returns `true` if the thread was lowered, or
    /// has died and may have left a child with the former priority.
    fn has_lowered(
        &mut self,
        program: ProgramId,
        thread: ThreadId,
        lowered: io::Result<()>,
    ) -> Result<bool, ActError> {
        match lowered {
            Err(error) if is_refused(&error) => {
                let reason = GapReason::keeps("priorities:", &message_of(&error));
                self.note_gap_of(program, GapSubject::Process(thread.pid), reason)?;
                Ok(false)
            }
            Err(error) if !files::is(&error, Errno::SRCH) => Err(ActError::Process {
                doing: "lowering the priority of thread",
                pid: thread.tid,
                source: error,
            }),
            _ => Ok(true),
        }
    }
}
