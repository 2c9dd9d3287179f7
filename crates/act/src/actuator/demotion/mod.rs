// SPDX-License-Identifier: MIT OR Apache-2.0
//! Demotion, which lasts until the program departs.
//!
//! A program yields to programs of other sessions by one of two means: `cpu.idle` on a cgroup of
//! its own (`idle.rs`), or the nice value of its sessions' autogroups (`autogroups.rs`). It never
//! uses both, because processes in a cgroup of the cpu controller other than the root are in no
//! autogroup. Among the program's own threads, among threads that share its session, and for disks,
//! the values of each thread count (`threads.rs`).
//!
//! A value that could not be restored is not lowered, and the reason is reported. A step that fails
//! for another reason does not prevent the others. A repeated demotion completes the failed step;
//! until then, new threads and sessions are followed.

mod autogroups;
mod idle;
mod threads;

use std::time::Instant;

use usher_model::{Demotion, ProgramId};

use super::{Actuator, join};
use crate::error::ActError;
use crate::scan::SETTLE;

/// Upper limit of reasons kept for one program.
const REASONS_MAX: usize = 16;

impl Actuator {
    /// Returns which parts of the program's present demotion were not done, and why: one sentence
    /// each. Empty if all was done, or if the program is not demoted.
    pub fn demotion_gaps(&self, program: ProgramId) -> &[String] {
        let managed = self.programs.get(&program);
        managed
            .map(|managed| managed.demotion_gaps.as_slice())
            .unwrap_or_default()
    }

    /// Records a part of the demotion that was not done; each reason once.
    fn note_gap(&mut self, program: ProgramId, reason: String) -> Result<(), ActError> {
        let demotion_gaps = &mut self.managed(program)?.demotion_gaps;
        if !demotion_gaps.contains(&reason) && demotion_gaps.len() < REASONS_MAX {
            demotion_gaps.push(reason);
        }
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

    /// Continues a demotion: it covers sessions and threads that started since. [`Self::refresh`]
    /// includes it; callers that need only this part, and more often, call it alone.
    ///
    /// The cost is one map lookup if the program yields by `cpu.idle` or is not demoted. Otherwise
    /// it is a read of `/proc/loadavg` while no process on the machine has forked. After a
    /// fork, it is a read of `/proc/PID/stat` for each of the program's processes, or for each
    /// process of the machine if the program has no cgroup.
    ///
    /// # Errors
    /// The program is not managed, or a system call failed.
    pub fn follow_demotion(&mut self, program: ProgramId) -> Result<(), ActError> {
        let managed = self.managed(program)?;
        let Some(to) = managed.demotion else {
            return Ok(());
        };
        let since = managed.priorities_since;
        // After an incomplete demotion it is not yet known by which means the program yields.
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
