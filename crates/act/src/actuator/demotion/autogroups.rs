// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lowers the autogroups of a program's sessions to nice 19, so that background work yields to
//! other sessions too.
//!
//! An autogroup belongs to a session. It is lowered only if all processes of the session belong to
//! the program; otherwise, and where the user could not restore it, the reason is recorded as a
//! gap. The kernel limits the rate of such changes for users, so the caller may have to retry.

use rustix::io::Errno;
use usher_model::ProgramId;

use super::super::Actuator;
use crate::autogroup::{self, Autogroup};
use crate::error::ActError;
use crate::files;
use crate::journal::Record;
use crate::priority::{NICE_MAX, PriorityRights};

impl Actuator {
    /// Lowers the autogroups of sessions of which all processes belong to the program. Returns
    /// whether the kernel requires a later retry for some of them.
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
        sessions.retain(|session, _| !known.contains(session));
        let members = pids();
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
                    let reason = format!(
                        "the autogroup of session {session} keeps its CPU share because other \
                         programs are in the session: start the program with setsid"
                    );
                    self.note_gap(program, reason)?;
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

    /// Records a session that began outside this PID namespace. Its number is 0 here, so its other
    /// processes cannot be seen.
    fn note_outer_session(&mut self, program: ProgramId) -> Result<(), ActError> {
        let pids = self.own_pids(program)?;
        let mut processes = pids.into_iter().filter_map(|pid| self.procs.get(pid));
        if processes.any(|process| process.session == 0)
            && self.managed(program)?.sessions.insert(0)
        {
            let reason = "the autogroup of the program's session keeps its CPU share because the \
                          session began outside this container: start the program with setsid";
            self.note_gap(program, reason.to_owned())?;
        }
        Ok(())
    }

    /// Returns whether the autogroup is lowered, or can never be.
    fn lower_autogroup(
        &mut self,
        program: ProgramId,
        session: i32,
        pid: i32,
    ) -> Result<bool, ActError> {
        let what = format!("the autogroup of session {session} keeps its CPU share");
        let mut autogroup = match Autogroup::of(&self.procs, pid) {
            Ok(Some(autogroup)) if autogroup.nice != NICE_MAX => autogroup,
            Ok(_) => return Ok(true),
            Err(error) => {
                self.note_gap(program, format!("{what}: {error}"))?;
                return Ok(true);
            }
        };
        if autogroup.nice < 0 && !PriorityRights::are_all(&self.procs) {
            self.note_gap(
                program,
                format!("{what} because this user may not restore the autogroup's nice value"),
            )?;
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
                self.note_gap(program, format!("{what}: {error}"))?;
                Ok(true)
            }
            _ => Ok(true),
        }
    }
}
