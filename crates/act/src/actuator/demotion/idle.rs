// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cpu.idle` on a cgroup of the program's own, and what else such a cgroup
//! is good for.

use std::collections::BTreeSet;

use usher_model::ProgramId;

use super::super::{Actuator, join};
use crate::backlog::Backlog;
use crate::error::ActError;
use crate::journal::{Dir, DirKind, Record};
use crate::looks::LOOKS_MAX;
use crate::{cgroups, release};

impl Actuator {
    /// Bounds what of the program's lies in sockets when it is stopped: of the
    /// connections that it opens from now on.
    pub(super) fn bound_backlog(&mut self, program: ProgramId) -> Result<(), ActError> {
        if self.held(program)?.backlog.is_some() {
            return Ok(());
        }
        let bounded = match self.v2_dir(program)? {
            Some(dir) => {
                let backlog = self.backlog.get_or_insert_with(Backlog::load);
                let loaded = backlog.as_mut().map_err(|error| error.clone());
                loaded.and_then(|backlog| backlog.bound(&dir))
            }
            None => Err("it has no cgroup of its own".to_owned()),
        };
        match bounded {
            Ok(link) => self.held(program)?.backlog = Some(link),
            Err(error) => {
                let reason =
                    format!("what it has handed to sockets goes on when it is stopped: {error}");
                self.lacks(program, reason)?;
            }
        }
        Ok(())
    }

    /// Makes a cgroup of the program's own give way; whether there is one.
    pub(super) fn idle(&mut self, program: ProgramId) -> Result<bool, ActError> {
        let dirs = self.state(program)?.dirs.clone();
        for dir in dirs.iter().filter(|dir| dir.kind == DirKind::V2) {
            if dir.set_idle(true)? {
                return Ok(true);
            }
        }
        let made = dirs.into_iter().find(|dir| dir.kind == DirKind::CpuV1);
        let dir = match made {
            Some(dir) => Ok(dir),
            None => self.make_cpu_dir(program)?,
        };
        let idles = match &dir {
            Ok(dir) => dir.set_idle(true)?,
            Err(_) => false,
        };
        match dir {
            Ok(dir) if idles => self.gather(program, &dir)?,
            Ok(dir) => self.lacks(program, format!("no cpu.idle in {}", dir.dir.display()))?,
            Err(reason) => self.lacks(program, format!("cpu.idle is not used: {reason}"))?,
        }
        Ok(idles)
    }

    fn make_cpu_dir(&mut self, program: ProgramId) -> Result<Result<Dir, String>, ActError> {
        let state = self.state(program)?;
        if state.dirs.is_empty() {
            return Ok(Err("the program has no cgroup of its own".to_owned()));
        }
        let from = state.from.clone();
        let dir = match self.site.idle_dir(program, &from) {
            Ok(dir) => dir,
            Err(reason) => return Ok(Err(reason)),
        };
        match self.make_dir(program, dir.clone(), &from) {
            Ok(()) => Ok(Ok(dir)),
            Err(error) => {
                self.leave_cpu(program)?;
                Ok(Err(error.to_string()))
            }
        }
    }

    /// Moves everybody into the directory that gives way, until a look finds
    /// nobody outside but those that the kernel does not let in.
    fn gather(&mut self, program: ProgramId, dir: &Dir) -> Result<(), ActError> {
        let mut tried = BTreeSet::new();
        for _ in 0..LOOKS_MAX {
            let inside = cgroups::members(&dir.dir);
            let all = release::pids(&self.procs, self.state(program)?);
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
        let reason = "processes of it are born faster than they can be moved to where cpu.idle is";
        self.lacks(program, format!("{reason}: some stay outside"))
    }

    fn bring_or_say(&mut self, program: ProgramId, pid: i32) -> Result<(), ActError> {
        let Some(process) = self.procs.get(pid) else {
            return Ok(());
        };
        let (Ok(Some(error)) | Err(error)) = self.bring(program, &process) else {
            return Ok(());
        };
        self.lacks(program, format!("process {pid} stays outside: {error}"))
    }

    /// Moves everybody out of the program's cpu directory of cgroup v1, if it
    /// has one, and removes it. Where the dying still hold it, it stands, and
    /// gives way no longer.
    pub(in crate::actuator) fn leave_cpu(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?;
        let mut dirs = state.dirs.iter();
        let Some(dir) = dirs.find(|dir| dir.kind == DirKind::CpuV1) else {
            return Ok(());
        };
        let dir = dir.dir.clone();
        let mut errors = release::wake(state);
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
