// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demotion: gives a program the lowest priority for CPUs and disks, until the program departs.
//!
//! A program yields to programs of other sessions by one of two means: `cpu.idle` on a cgroup of
//! its own (`idle.rs`), or the nice value of its sessions' autogroups (`autogroups.rs`). A program
//! never uses both means, because a process in a non-root cgroup of the cpu controller is in no
//! autogroup. In addition, the priority of each thread is lowered (`threads.rs`). The threads'
//! priorities determine the order within the program and its session, and the order of disk
//! requests.
//!
//! A priority or nice value that this user could not restore is not lowered;
//! [`Actuator::demotion_gaps`] returns the reason. If one step fails with an error, the other steps
//! are still executed. A repeated demotion completes the failed step. In the meantime, new threads
//! and sessions are demoted as usual.
//!
//! Bounds: A demotion visits all threads of the program in at most 64 scans, and does not wait
//! except for requests to systemd. [`Actuator::follow_demotion`] scans the threads again until no
//! thread has needed a change for 20 ms ([`SETTLE`]); afterwards it checks only sessions, and only
//! after a fork.

mod autogroups;
mod gaps;
mod idle;
mod threads;

use std::time::Instant;

use usher_model::{Demotion, ProgramId};

pub(super) use self::gaps::DemotionGaps;
use self::gaps::{GapReason, GapSubject};
use super::Actuator;
use crate::error::{ActError, join};
use crate::scan::SETTLE;

impl Actuator {
    /// Returns the gaps of the program's present demotion: one sentence for each reason for which a
    /// part was not done. Empty if the demotion is complete or the program is not demoted.
    pub fn demotion_gaps(&self, program: ProgramId) -> Vec<String> {
        let managed = self.programs.get(&program);
        managed
            .map(|managed| managed.demotion_gaps.texts(&self.procs))
            .unwrap_or_default()
    }

    /// Records a part of the demotion of a whole program that was not done.
    fn note_gap(&mut self, program: ProgramId, reason: impl Into<String>) -> Result<(), ActError> {
        self.note_gap_of(program, GapSubject::Program, GapReason::new(reason))
    }

    /// Records that a part of a demotion was not done for one process, thread or session.
    fn note_gap_of(
        &mut self,
        program: ProgramId,
        subject: GapSubject,
        reason: GapReason,
    ) -> Result<(), ActError> {
        let managed = self.programs.get_mut(&program);
        let managed = managed.ok_or(ActError::Unknown(program))?;
        managed.demotion_gaps.add(subject, reason, &self.procs);
        Ok(())
    }

    /// Demotes a program. An earlier, weaker or incomplete demotion is extended.
    pub(super) fn demote(&mut self, program: ProgramId, to: Demotion) -> Result<(), ActError> {
        let managed = self.managed(program)?;
        managed.demotion_gaps.clear();
        managed.sessions.clear();
        managed.demotion = Some(to);
        (managed.is_demoted, managed.idles) = (false, false);
        managed.priorities_since = Some(Instant::now());
        let lowered = self.lower(program, to);
        let gives_way = self.yield_cpu(program, to);
        let errors: Vec<_> = lowered.err().into_iter().chain(gives_way.err()).collect();
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        let managed = self.managed(program)?;
        managed.is_demoted = true;
        managed.priorities_since = Some(Instant::now());
        Ok(())
    }

    /// Makes the program yield the CPU to other sessions.
    fn yield_cpu(&mut self, program: ProgramId, to: Demotion) -> Result<(), ActError> {
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
        self.managed(program)?.idles = idles;
        if !idles {
            self.lower_autogroups(program)?;
        }
        Ok(())
    }

    /// Extends a demotion to sessions and threads that started since the last call.
    /// [`Self::refresh`] calls this function. A caller that needs only the demotion, but more
    /// often, calls it directly.
    ///
    /// The cost is one map lookup if the program yields by `cpu.idle` or is not demoted. For other
    /// programs the cost is one read of `/proc/loadavg`, as long as no process on the machine has
    /// forked. After a fork, the cost is a read of `/proc/PID/stat` for each of the program's
    /// processes, or for each process of the machine if the program has no cgroup.
    ///
    /// # Errors
    /// The program is not managed, or a system call failed.
    pub fn follow_demotion(&mut self, program: ProgramId) -> Result<(), ActError> {
        let managed = self.managed(program)?;
        let Some(to) = managed.demotion else {
            return Ok(());
        };
        let since = managed.priorities_since;
        // While the demotion is incomplete, the means by which the program yields is not decided
        // yet.
        let has_sessions = managed.is_demoted && !managed.idles;
        if since.is_none() && !has_sessions {
            return Ok(());
        }
        let last_pid = self.procs.last_pid();
        let forked = last_pid.is_none() || self.managed(program)?.last_session_scan_pid != last_pid;
        let mut changed = false;
        if has_sessions && (forked || since.is_some()) {
            changed = self.lower_autogroups(program)?;
        }
        if since.is_some() {
            changed |= self.lower(program, to)?;
        }
        let managed = self.managed(program)?;
        managed.last_session_scan_pid = last_pid;
        if changed {
            managed.priorities_since = Some(Instant::now());
        } else if since.is_some_and(|since| since.elapsed() >= SETTLE) {
            managed.priorities_since = None;
        }
        Ok(())
    }
}
