// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers the autogroups of a program's sessions to nice 19, so that background work yields to
//! other sessions too.
//!
//! The kernel makes one autogroup per session and divides the CPUs among autogroups by their nice
//! values. For each session of the program that was not handled before:
//!
//! 1. If processes of other programs are in the session, or this user could not restore the nice
//!    value, keep the autogroup unchanged and record the reason as a gap of the demotion.
//! 2. Write the present nice value to the journal.
//! 3. Set the nice value to 19.
//!
//! For unprivileged users, the kernel accepts one such change per 100 ms on the whole machine. If
//! the kernel rejects a change for this reason, [`Actuator::follow_demotion`] must be called again
//! later; this module never waits. The cost is one pass over the program's processes or, after a
//! fork, over all processes of the machine.

use rustix::io::Errno;
use usher_model::ProgramId;

use super::super::Actuator;
use super::gaps::{GapReason, GapSubject};
use crate::autogroup::{self, Autogroup};
use crate::error::{ActError, message_of};
use crate::files;
use crate::journal::Record;
use crate::priority::{NICE_MAX, PriorityRights};

/// The value of an autogroup that is not lowered.
const SHARE: &str = "CPU share";

impl Actuator {
    /// Lowers the autogroups of all sessions that contain only processes of the program. Returns
    /// `true` if the caller must retry some autogroups later, because of the kernel's rate limit.
    pub(super) fn lower_autogroups(&mut self, program: ProgramId) -> Result<bool, ActError> {
        let known = self.managed(program)?.sessions.clone();
        let pids = || self.own_pids(program).unwrap_or_default();
        let is_new = |pid: &i32| {
            let process = self.procs.get(*pid);
            process.is_some_and(|one| !known.contains(&one.session))
        };
        if !pids().iter().any(is_new) {
            return Ok(false);
        }
        self.note_outer_session(program)?;
        let pids = || self.own_pids(program).unwrap_or_default();
        let mut sessions = autogroup::sessions(&self.procs, pids);
        let members = pids();
        // The number of an ended session may be used again.
        let handled = &mut self.managed(program)?.sessions;
        handled.retain(|session| *session == 0 || sessions.contains_key(session));
        sessions.retain(|session, _| !known.contains(session));
        let mut later = false;
        for (session, is_own) in sessions {
            let of_it = |pid: &&i32| {
                let process = self.procs.get(**pid);
                process.is_some_and(|process| process.session == session)
            };
            let member = members.iter().find(of_it).copied();
            let done = match (is_own, member) {
                (true, Some(pid)) => self.lower_autogroup(program, session, pid)?,
                (true, None) => true,
                (false, _) => {
                    let reason = GapReason::keeps(
                        SHARE,
                        "because other programs are in the session: start the program with setsid",
                    );
                    self.note_gap_of(program, GapSubject::Session(session), reason)?;
                    true
                }
            };
            if done {
                self.managed(program)?.sessions.insert(session);
            }
            later |= !done;
        }
        Ok(later)
    }

    /// Records a session that began outside this PID namespace. In this namespace the session's
    /// number is 0, and its other processes are invisible.
    fn note_outer_session(&mut self, program: ProgramId) -> Result<(), ActError> {
        let pids = self.own_pids(program)?;
        let mut processes = pids.into_iter().filter_map(|pid| self.procs.get(pid));
        if processes.any(|process| process.session == 0)
            && self.managed(program)?.sessions.insert(0)
        {
            let reason = "the autogroup of the program's session keeps its CPU share because the \
                          session began outside this container: start the program with setsid";
            self.note_gap(program, reason)?;
        }
        Ok(())
    }

    /// Lowers the autogroup of one session. Returns `false` if the caller must retry later, and
    /// `true` if the autogroup is lowered or cannot be lowered at all.
    fn lower_autogroup(
        &mut self,
        program: ProgramId,
        session: i32,
        pid: i32,
    ) -> Result<bool, ActError> {
        let subject = GapSubject::Session(session);
        let refused = |error| GapReason::keeps("CPU share:", &message_of(error));
        let mut autogroup = match Autogroup::of(&self.procs, pid) {
            Ok(Some(autogroup)) if autogroup.nice != NICE_MAX => autogroup,
            Ok(_) => return Ok(true),
            Err(error) => {
                self.note_gap_of(program, subject, refused(&error))?;
                return Ok(true);
            }
        };
        if autogroup.nice < 0 && !PriorityRights::are_all(&self.procs) {
            let reason = GapReason::keeps(
                SHARE,
                "because this user may not restore the autogroup's nice value",
            );
            self.note_gap_of(program, subject, reason)?;
            return Ok(true);
        }
        self.journal.write(Record::Autogroup {
            program,
            autogroup: autogroup.number,
            session,
            nice: autogroup.nice,
        })?;
        match autogroup.set(NICE_MAX) {
            Err(error) if files::is(&error, Errno::AGAIN) => Ok(false),
            Err(error) if !files::is_gone(&error) => {
                self.note_gap_of(program, subject, refused(&error))?;
                Ok(true)
            }
            _ => Ok(true),
        }
    }
}
