// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seating, releasing, freezing and thawing, by each backend.

use std::time::Instant;

use rustix::process::Signal;
use usher_model::{CpuSet, ProcessId, ProgramId};

use super::{Actuator, join};
use crate::config::Freezing;
use crate::error::ActError;
use crate::journal::{Dir, DirKind, ProgramState, Record};
use crate::procs::Process;
use crate::{cgroups, files, mask, release, tree};

/// Rounds of stopping those that were born during the last one.
const STOPS_MAX: usize = 60;

impl Actuator {
    pub(super) fn narrowing_dir(&self, program: ProgramId) -> Result<Option<Dir>, ActError> {
        let mut dirs = self.state(program)?.dirs.iter();
        Ok(dirs.find(|dir| dir.narrows()).cloned())
    }

    pub(super) fn seat(&mut self, program: ProgramId, cpus: &CpuSet) -> Result<(), ActError> {
        let Some(dir) = self.narrowing_dir(program)? else {
            let procs = self.procs.clone();
            let pids = |state: &ProgramState| release::pids(&procs, state);
            return mask::narrow(&procs, &mut self.journal, program, cpus, pids);
        };
        let allowed = dir.allowed()?;
        let seat = cpus.and(&allowed);
        if seat.is_empty() {
            return Err(ActError::NoCpus {
                program,
                wanted: cpus.clone(),
                allowed,
            });
        }
        dir.narrow(&seat)?;
        self.gather_v1(program, &dir)
    }

    pub(super) fn release(&mut self, program: ProgramId) -> Result<(), ActError> {
        if let Some(dir) = self.narrowing_dir(program)? {
            dir.widen()?;
            return self.gather_v1(program, &dir);
        }
        self.restore_masks(program)?;
        // Threads that are being born now are found by the next refreshes.
        self.held(program)?.releasing_since = Some(Instant::now());
        Ok(())
    }

    fn restore_masks(&self, program: ProgramId) -> Result<bool, ActError> {
        let state = self.state(program)?;
        let pids = || release::pids(&self.procs, state);
        mask::restore(&self.procs, state, pids).map_err(|errors| join(program, errors))
    }

    /// Looks for threads that were born narrowed while the program was
    /// released; when there were none for long enough, forgets the masks.
    pub(super) fn finish_release(&mut self, program: ProgramId) -> Result<(), ActError> {
        let Some(since) = self.held(program)?.releasing_since else {
            return Ok(());
        };
        if self.restore_masks(program)? {
            self.held(program)?.releasing_since = Some(Instant::now());
        } else if since.elapsed() >= release::SETTLE {
            self.held(program)?.releasing_since = None;
            self.journal.write(Record::Unmask { program })?;
        }
        Ok(())
    }

    pub(super) fn freeze(&mut self, program: ProgramId, frozen: bool) -> Result<(), ActError> {
        if self.site.description.freezing == Freezing::CgroupV2 {
            if let Some(freezer) = &self.held(program)?.freezer {
                return cgroups::freeze_by(freezer, frozen);
            }
            if let Some(dir) = self.v2_dir(program)? {
                let freezer = cgroups::freezer(&dir)?;
                let freezer = self.held(program)?.freezer.insert(freezer);
                return cgroups::freeze_by(freezer, frozen);
            }
        }
        if frozen {
            let stopped = self.stop(program);
            if stopped.is_err() {
                // Some may stand; what fails here is tried again at the end.
                let _ = self.resume(program);
            }
            return stopped;
        }
        self.resume(program)
    }

    fn resume(&mut self, program: ProgramId) -> Result<(), ActError> {
        let errors = release::resume(&self.procs, self.state(program)?);
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        self.journal.write(Record::Continue { program })
    }

    /// Stops every process that is not stopped already, until none is left.
    fn stop(&mut self, program: ProgramId) -> Result<(), ActError> {
        for _ in 0..STOPS_MAX {
            let state = self.state(program)?;
            let running = |process: &Process| {
                !matches!(process.state, 'T' | 't' | 'Z' | 'X')
                    && !state.stopped.contains(&process.id)
            };
            let pids = release::pids(&self.procs, state);
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

    /// Takes note of processes born since, where no cgroup holds them.
    pub(super) fn follow(&mut self, program: ProgramId, frozen: bool) -> Result<(), ActError> {
        let members = self.state(program)?.members.keys().copied();
        for process in tree::descendants(&self.procs, members) {
            self.take(program, &process)?;
        }
        if frozen { self.stop(program) } else { Ok(()) }
    }

    /// A CPU that goes offline is taken out of a v1 cpuset for good.
    pub(super) fn repair_v1(&mut self, program: ProgramId, cpus: &CpuSet) -> Result<(), ActError> {
        let Some(dir) = self.narrowing_dir(program)? else {
            return Ok(());
        };
        let now = files::read_cpus(&dir.dir.join("cpuset.cpus"))?;
        let wanted = cpus.and(&dir.allowed()?);
        // With none left to it a new plan is on its way.
        if wanted.is_empty() || now == wanted {
            return Ok(());
        }
        self.seat(program, cpus)
    }

    /// A v1 cpuset that was left without CPUs has lost its processes to its
    /// parent: takes them in again.
    fn gather_v1(&self, program: ProgramId, dir: &Dir) -> Result<(), ActError> {
        if dir.kind != DirKind::CpusetV1 {
            return Ok(());
        }
        let state = self.state(program)?;
        let noted = state.members.keys();
        let noted = noted.filter(|id| self.procs.same(**id).is_some());
        let mut pids = release::pids(&self.procs, state);
        pids.extend(noted.map(|id| id.pid));
        for pid in pids.difference(&cgroups::members(&dir.dir)) {
            let places = self.site.mounts.places(&self.procs, *pid);
            let cpuset = places.and_then(|places| places.cpuset);
            if cpuset.as_deref() == dir.dir.parent() {
                cgroups::enter(&dir.dir, *pid)?;
            }
        }
        Ok(())
    }
}
