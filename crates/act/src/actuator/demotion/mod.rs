// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demoting, which lasts until the program is let go.
//!
//! What makes a program give way to programs of other sessions is `cpu.idle`
//! on a cgroup of its own (`idle.rs`), or its sessions' autogroups
//! (`autogroups.rs`), and never both: who is in a cgroup of the cpu controller
//! other than the root is in no autogroup. Within that, among its own threads
//! and those that share its session, and for disks, count the values of each
//! thread (`threads.rs`).
//!
//! Everything is left off that could not be taken back, and said. What fails
//! for another reason does not keep the rest from being done; to demote again
//! completes it, and meanwhile newcomers are followed.

mod autogroups;
mod idle;
mod threads;

use std::time::Instant;

use usher_model::{Demotion, ProgramId};

use super::{Actuator, join};
use crate::error::ActError;
use crate::scan::SETTLE;

/// Reasons kept of one program.
const REASONS_MAX: usize = 16;

impl Actuator {
    /// What of the program's present demotion was not done, and why: a
    /// sentence each. Empty where all was done, or it is not demoted.
    pub fn why_not_demoted(&self, program: ProgramId) -> &[String] {
        let held = self.programs.get(&program);
        held.map(|held| held.lacking.as_slice()).unwrap_or_default()
    }

    /// Notes what was not done; each reason once.
    fn lacks(&mut self, program: ProgramId, reason: String) -> Result<(), ActError> {
        let lacking = &mut self.held(program)?.lacking;
        if !lacking.contains(&reason) && lacking.len() < REASONS_MAX {
            lacking.push(reason);
        }
        Ok(())
    }

    /// Demotes a program that may have been demoted less, or half-way.
    pub(super) fn demote(&mut self, program: ProgramId, to: Demotion) -> Result<(), ActError> {
        let held = self.held(program)?;
        held.lacking.clear();
        held.sessions.clear();
        held.demotion = Some(to);
        (held.is_demoted, held.idles) = (false, false);
        held.priorities_since = Some(Instant::now());
        let lowered = self.lower(program, to);
        let gives_way = self.give_way(program, to);
        let errors: Vec<_> = lowered.err().into_iter().chain(gives_way.err()).collect();
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        let held = self.held(program)?;
        held.is_demoted = true;
        held.priorities_since = Some(Instant::now());
        Ok(())
    }

    /// Makes the program give way to other sessions.
    fn give_way(&mut self, program: ProgramId, to: Demotion) -> Result<(), ActError> {
        let idles = match to {
            Demotion::Idle => {
                self.bound_backlog(program)?;
                self.idle(program)?
            }
            Demotion::Nice => {
                self.leave_cpu(program)?;
                false
            }
        };
        self.held(program)?.idles = idles;
        if !idles {
            self.lower_autogroups(program)?;
        }
        Ok(())
    }

    /// Goes on with a demotion that was begun: sessions born meanwhile, and
    /// threads that were being born. Part of [`Self::refresh`], for who wants
    /// this alone and more often.
    ///
    /// A program that gives way by `cpu.idle`, or is not demoted, costs a look
    /// at a map; any other one a read of `/proc/loadavg` while nobody on the
    /// machine has forked, and after a fork one of `/proc/PID/stat` for each
    /// of its processes, or of the machine where it has no cgroup.
    ///
    /// # Errors
    /// The program is not managed, or the kernel refuses.
    pub fn follow_demotion(&mut self, program: ProgramId) -> Result<(), ActError> {
        let held = self.held(program)?;
        let Some(to) = held.demotion else {
            return Ok(());
        };
        let since = held.priorities_since;
        // Half-way it is not yet known what it gives way by.
        let has_sessions = held.is_demoted && !held.idles;
        if since.is_none() && !has_sessions {
            return Ok(());
        }
        let last_pid = self.procs.last_pid();
        let forked = last_pid.is_none() || self.held(program)?.followed_at != last_pid;
        let mut changed = false;
        if has_sessions && (forked || since.is_some()) {
            changed = self.lower_autogroups(program)?;
        }
        if since.is_some() {
            changed |= self.lower(program, to)?;
        }
        let held = self.held(program)?;
        held.followed_at = last_pid;
        if changed {
            held.priorities_since = Some(Instant::now());
        } else if since.is_some_and(|since| since.elapsed() >= SETTLE) {
            held.priorities_since = None;
        }
        Ok(())
    }
}
