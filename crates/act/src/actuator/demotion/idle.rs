// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets `cpu.idle` on a cgroup of the program's own, and limits the unsent data in the program's
//! sockets by a BPF program on the same cgroup.
//!
//! The cgroup is found in this order:
//!
//! 1. cgroup v2: the program's own cgroup, or its systemd scope (by `CPUWeight=idle`).
//! 2. cgroup v1: a new directory of the cpu hierarchy. All processes are moved into the directory
//!    by at most 64 scans ([`SCANS_MAX`]), until a scan finds no process outside. Processes that
//!    are still outside after 64 scans are recorded as a gap of the demotion. The kernel may reject
//!    the move of a process with a real-time policy, which then stays outside.
//! 3. Without any such cgroup, the program yields by its autogroup instead, and the reason is
//!    recorded as a gap of the demotion.
//!
//! Each process is moved once, and each scan lists the processes of the program's cgroup. A request
//! to systemd takes at most 5 s. If the BPF program cannot be attached, the demotion continues
//! without a limit of unsent data.

use std::collections::BTreeSet;

use usher_model::ProgramId;

use super::super::Actuator;
use super::gaps::{GapReason, GapSubject};
use crate::backlog::Backlog;
use crate::error::{ActError, join};
use crate::journal::{Dir, DirKind, Record};
use crate::scan::SCANS_MAX;
use crate::{cgroups, release, systemd};

impl Actuator {
    /// Limits the unsent data in the sockets of connections that the program opens from now on. The
    /// limit is necessary because the kernel still sends such data while the program is stopped.
    pub(super) fn bound_backlog(&mut self, program: ProgramId) -> Result<(), ActError> {
        if self.managed(program)?.backlog.is_some() {
            return Ok(());
        }
        let bounded = match self.v2_dir(program)? {
            Some(dir) => {
                let backlog = self.backlog.get_or_insert_with(Backlog::load);
                let loaded = backlog.as_mut().map_err(|error| error.clone());
                loaded.and_then(|backlog| backlog.bound(&dir.dir))
            }
            None => Err("the program has no cgroup of its own".to_owned()),
        };
        match bounded {
            Ok(link) => self.managed(program)?.backlog = Some(link),
            Err(error) => {
                let reason = format!(
                    "the kernel still sends the data in the program's sockets while the program \
                     is stopped: {error}"
                );
                self.note_gap(program, reason)?;
            }
        }
        Ok(())
    }

    /// Sets `cpu.idle` on a cgroup of the program's own. Returns whether the program has such a
    /// cgroup.
    pub(super) fn idle(&mut self, program: ProgramId) -> Result<bool, ActError> {
        let reason = match self.v2_dir(program)? {
            None => "the program has no cgroup of its own".to_owned(),
            Some(dir) if dir.kind == DirKind::Unit => {
                "an attached program stays in its own cgroup, and the manager of that cgroup sets \
                 the weight of the cgroup"
                    .to_owned()
            }
            Some(dir) if dir.kind == DirKind::Scope => match self.idle_scope(program, &dir) {
                Ok(()) => return Ok(true),
                Err(reason) => reason,
            },
            Some(dir) if dir.set_idle(true)? => return Ok(true),
            Some(_) => match self.idle_in_v1(program)? {
                Ok(()) => return Ok(true),
                Err(reason) => reason,
            },
        };
        self.note_gap(program, format!("cpu.idle is not used: {reason}"))?;
        Ok(false)
    }

    /// Sets the weight `idle` on the program's scope if the scope was created without this weight.
    fn idle_scope(&self, program: ProgramId, scope: &Dir) -> Result<(), String> {
        let is_idle = || systemd::is_idle(&scope.dir);
        if is_idle() {
            return Ok(());
        }
        let manager = self
            .environment
            .scopes
            .as_ref()
            .ok_or("systemd no longer answers")?;
        let result = manager.set_idle(&self.environment.scope_of(program), true);
        match result {
            Err(error) => Err(error.to_string()),
            Ok(()) if is_idle() => Ok(()),
            Ok(()) => Err("the cpu controller is not delegated to the user's systemd".to_owned()),
        }
    }

    /// Resets the weight of the program's scope in systemd. The undo resets only the file
    /// `cpu.idle`, and systemd would later write `idle` to the file again.
    pub(in crate::actuator) fn reset_scope(&self, program: ProgramId) {
        let Ok(state) = self.state(program) else {
            return;
        };
        let mut scopes = state.dirs.iter().filter(|dir| dir.kind == DirKind::Scope);
        if let Some(manager) = &self.environment.scopes
            && scopes.any(|scope| systemd::is_idle(&scope.dir))
        {
            let _ = manager.set_idle(&self.environment.scope_of(program), false);
        }
    }

    /// Moves the program into a directory of the cgroup v1 cpu hierarchy with `cpu.idle`. Returns
    /// the reason as an inner `Err` if no such directory can be made.
    fn idle_in_v1(&mut self, program: ProgramId) -> Result<Result<(), String>, ActError> {
        let dirs = &self.state(program)?.dirs;
        let made = dirs.iter().find(|dir| dir.kind == DirKind::CpuV1).cloned();
        let dir = match made {
            Some(dir) => dir,
            None => match self.make_cpu_dir(program)? {
                Ok(dir) => dir,
                Err(reason) => return Ok(Err(reason)),
            },
        };
        if !dir.set_idle(true)? {
            return Ok(Err(format!(
                "the cgroup {} has no file cpu.idle",
                dir.dir.display()
            )));
        }
        self.move_all_in(program, &dir)?;
        Ok(Ok(()))
    }

    fn make_cpu_dir(&mut self, program: ProgramId) -> Result<Result<Dir, String>, ActError> {
        let from = self.state(program)?.from.clone();
        let dir = match self.environment.idle_dir(program, &from) {
            Ok(dir) => dir,
            Err(reason) => return Ok(Err(reason)),
        };
        match self.make_dir(program, dir.clone()) {
            Ok(()) => Ok(Ok(dir)),
            Err(error) => {
                self.leave_cpu(program)?;
                Ok(Err(error.to_string()))
            }
        }
    }

    /// Moves all processes of the program into the directory with `cpu.idle`, until a scan finds
    /// outside only processes that the kernel does not permit to move.
    fn move_all_in(&mut self, program: ProgramId, dir: &Dir) -> Result<(), ActError> {
        let mut tried = BTreeSet::new();
        for _ in 0..SCANS_MAX {
            let inside = cgroups::members(&dir.dir);
            // Processes that left the program's cgroup are not moved back.
            let all = match self.v2_dir(program)? {
                Some(own) => cgroups::members(&own.dir),
                None => BTreeSet::new(),
            };
            let outside: Vec<i32> = all.difference(&inside).copied().collect();
            let mut is_quiet = true;
            for pid in outside.into_iter().filter(|pid| tried.insert(*pid)) {
                is_quiet = false;
                self.bring_or_say(program, pid)?;
            }
            if is_quiet {
                return Ok(());
            }
        }
        let gap = "the program forks faster than Usher can move its processes: some processes stay \
                   outside the cgroup with cpu.idle";
        self.note_gap(program, gap)
    }

    fn bring_or_say(&mut self, program: ProgramId, pid: i32) -> Result<(), ActError> {
        let Some(process) = self.procs.get(pid) else {
            return Ok(());
        };
        let (Ok(Some(error)) | Err(error)) = self.move_in(program, &process) else {
            return Ok(());
        };
        let reason = GapReason::stays(&format!("outside the cgroup with cpu.idle: {error}"));
        self.note_gap_of(program, GapSubject::Process(pid), reason)
    }

    /// Moves all processes out of the program's cgroup v1 cpu directory, if any, and removes the
    /// directory. While the directory still contains exiting processes, it remains without
    /// `cpu.idle`.
    pub(in crate::actuator) fn leave_cpu(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?;
        let mut dirs = state.dirs.iter();
        let Some(dir) = dirs.find(|dir| dir.kind == DirKind::CpuV1) else {
            return Ok(());
        };
        let dir = dir.dir.clone();
        let mut errors = release::end_idle(state);
        errors.extend(release::leave_cpu(&self.procs, state));
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        match cgroups::remove(&dir)? {
            true => self.journal.write(Record::Gone { program, dir }),
            false => Ok(()),
        }
    }
}
