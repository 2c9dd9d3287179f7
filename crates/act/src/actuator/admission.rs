// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking a process tree in.

use std::collections::BTreeSet;
use std::path::PathBuf;

use usher_model::{ProcessId, ProgramId};

use super::{Actuator, Held};
use crate::config::Work;
use crate::error::ActError;
use crate::journal::{Dir, DirKind, ProgramState, Record};
use crate::mounts::Places;
use crate::procs::Process;
use crate::site::PREFIX;
use crate::tree::{self, Tree};
use crate::{cgroups, files, undo};

impl Actuator {
    /// Whether a tree rooted there may be taken in.
    pub(super) fn check(&self, program: ProgramId, root: ProcessId) -> Result<(), ActError> {
        let pid = root.pid;
        let process = self.procs.same(root).ok_or(ActError::Gone { pid })?;
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let refused = |reason| Err(ActError::Refused { pid, reason });
        if process.kernel_thread {
            return refused("it is a kernel thread");
        }
        if pid == 1 {
            return refused("it is the init process");
        }
        if self.procs.ancestors(own).contains(&pid) {
            return refused("Usher itself runs below it");
        }
        if self.journal.state().programs.contains_key(&program) {
            return Ok(()); // it is to be born in its own home
        }
        if undo::serves_an_instance(&self.config, root) {
            return refused("it is Usher itself, or its keeper");
        }
        let childless = self.procs.children(pid).is_some_and(|c| c.is_empty());
        let below = match childless {
            true => Vec::new(),
            false => tree::descendants(&self.procs, [root]),
        };
        let own = self.places_of(own);
        let mut tree = below.iter().chain([&process]);
        tree.try_for_each(|one| self.check_unmanaged(one, &own))
    }

    /// Nobody's seats are given back rightly where two have noted them. An
    /// Usher that runs below another may manage what is below it.
    fn check_unmanaged(&self, process: &Process, own: &Places) -> Result<(), ActError> {
        let pid = process.id.pid;
        let places = self.places_of(pid);
        if let Some(program) = self.manager_of(process, &places) {
            return Err(ActError::Managed { pid, program });
        }
        let is_foreign = |place: &Option<PathBuf>, own: &Option<PathBuf>| {
            let below = |place: &PathBuf| {
                let below = own.as_ref().and_then(|own| place.strip_prefix(own).ok());
                let mut parts = below.unwrap_or(place).iter();
                parts.any(|part| part.to_string_lossy().starts_with(PREFIX))
            };
            place.as_ref().is_some_and(below)
        };
        if is_foreign(&places.v2, &own.v2) || is_foreign(&places.cpuset, &own.cpuset) {
            let reason = "another Usher manages it";
            return Err(ActError::Refused { pid, reason });
        }
        Ok(())
    }

    /// The cgroups of a process; none where it is gone.
    fn places_of(&self, pid: i32) -> Places {
        let places = self.site.mounts.places(&self.procs, pid);
        places.unwrap_or_default()
    }

    /// The program that a process belongs to.
    fn manager_of(&self, process: &Process, places: &Places) -> Option<ProgramId> {
        let programs = &self.journal.state().programs;
        let places = [&places.v2, &places.cpuset].into_iter().flatten();
        let ours: Vec<_> = places.filter(|place| self.site.has_made(place)).collect();
        let lies_in = |state: &ProgramState| {
            let below = |place: &&PathBuf| state.dirs.iter().any(|dir| place.starts_with(&dir.dir));
            ours.iter().any(below)
        };
        let mut inside = programs.iter().filter(|_| !ours.is_empty());
        let by_cgroup = inside.find(|(_, state)| lies_in(state));
        let followed = |state: &ProgramState| state.dirs.is_empty();
        if by_cgroup.is_some() || !programs.values().any(followed) {
            return by_cgroup.map(|(program, _)| *program);
        }
        let above = self.procs.ancestors(process.id.pid);
        let above: Vec<_> = above
            .iter()
            .filter_map(|pid| self.procs.get(*pid))
            .collect();
        let holds = |state: &ProgramState| {
            followed(state) && above.iter().any(|one| state.members.contains_key(&one.id))
        };
        programs
            .iter()
            .find(|(_, state)| holds(state))
            .map(|(program, _)| *program)
    }

    /// Journals a program and makes its directories, where it is to have any.
    pub(super) fn begin(
        &mut self,
        program: ProgramId,
        of: ProcessId,
        cgroups: Option<Work>,
    ) -> Result<(), ActError> {
        if self.journal.state().programs.contains_key(&program) {
            return Err(ActError::Taken(program));
        }
        let pid = of.pid;
        let places = self.site.mounts.places(&self.procs, pid);
        let from = places.filter(|_| self.procs.same(of).is_some());
        let from = from.ok_or(ActError::Gone { pid })?;
        let mut dirs = Vec::new();
        if let Some(work) = cgroups {
            dirs = self.site.dirs(program, &from, work)?;
        }
        let begun = Record::Begin {
            program,
            from: from.clone(),
        };
        self.journal.write(begun)?;
        self.programs.insert(program, Held::default());
        for dir in dirs {
            let kind = dir.kind;
            match self.make_dir(program, dir, &from) {
                // It does without: whoever demotes it says why.
                Err(_) if kind == DirKind::CpuV1 => self.leave_cpu(program)?,
                Err(error) => return self.give_up(program, error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    pub(super) fn make_dir(
        &mut self,
        program: ProgramId,
        dir: Dir,
        from: &Places,
    ) -> Result<(), ActError> {
        self.journal.write(Record::Dir {
            program,
            dir: dir.clone(),
        })?;
        files::make_dir(&dir.dir)?;
        match (&dir.kind, &from.cpuset) {
            (DirKind::CpusetV1, Some(from)) => dir.fill_v1(from),
            (DirKind::CpusetV1, None) => dir.fill_v1(dir.dir.parent().unwrap_or(&dir.dir)),
            _ => Ok(()),
        }
    }

    /// Undoes a program that could not be taken in.
    pub(super) fn give_up<T>(
        &mut self,
        program: ProgramId,
        error: ActError,
    ) -> Result<T, ActError> {
        match self.depart(program) {
            Ok(()) => Err(error),
            Err(left) => Err(ActError::Left {
                program,
                what: format!("{left}, after it could not be taken in: {error}"),
            }),
        }
    }

    /// Has systemd make a scope for a tree, and our directory in it. Nothing
    /// of this needs an undo: systemd removes the scope when it is empty.
    pub(super) fn enter_scope(
        &mut self,
        program: ProgramId,
        root: ProcessId,
    ) -> Result<(), ActError> {
        let Some(manager) = self.site.scopes.clone() else {
            return Ok(());
        };
        let mut pids = BTreeSet::new();
        Tree::new(&self.procs, root).capture(|process| {
            pids.insert(process.id.pid);
            Ok(())
        })?;
        let unit = self.site.scope_of(program);
        let mounts = &self.site.mounts;
        let scope = manager.start_scope(&unit, &pids, mounts, &self.procs)?;
        let from = self.state(program)?.from.clone();
        let dir = self.site.dir_in_scope(&scope, &from, &mut self.journal)?;
        self.make_dir(program, dir, &from)
    }

    /// Moves a process into one of its program's directories. Into a scope
    /// systemd moves it, from there into our directory we do.
    fn enter(&self, program: ProgramId, pid: i32, dir: &Dir) -> Result<(), ActError> {
        if dir.kind == DirKind::Scope
            && let (Some(manager), Some(scope)) = (&self.site.scopes, dir.dir.parent())
        {
            let place = self.site.mounts.places(&self.procs, pid);
            let Some(place) = place.and_then(|places| places.v2) else {
                return Ok(());
            };
            if !place.starts_with(scope) {
                return manager.attach(&self.site.scope_of(program), pid);
            }
        }
        cgroups::enter(&dir.dir, pid).map(|_| ())
    }

    /// Moves every process of a tree into the program's directories.
    pub(super) fn capture(&mut self, program: ProgramId, root: ProcessId) -> Result<(), ActError> {
        let procs = self.procs.clone();
        Tree::new(&procs, root).capture(|process| self.take(program, process))
    }

    pub(super) fn take(&mut self, program: ProgramId, process: &Process) -> Result<(), ActError> {
        if self.state(program)?.members.contains_key(&process.id) {
            return Ok(());
        }
        // With a real-time policy it may have to stay where nobody gives way.
        self.bring(program, process).map(|_| ())
    }

    /// Moves a process into those of its program's directories that it is not
    /// in. Returns what keeps it out of the one that gives way, if anything.
    pub(super) fn bring(
        &mut self,
        program: ProgramId,
        process: &Process,
    ) -> Result<Option<ActError>, ActError> {
        // The dead have left their cgroups, and moving them is slow.
        let places = self.site.mounts.places(&self.procs, process.id.pid);
        let Some(places) = places.filter(|_| !process.is_dead()) else {
            return Ok(None);
        };
        // What a followed process launches through Usher has a home of its own.
        let manager = self.manager_of(process, &places);
        if manager.is_some_and(|other| other != program) {
            return Ok(None);
        }
        let state = self.state(program)?;
        let is_there = |dir: &Dir| {
            let place = places.of(dir.kind);
            place.is_some_and(|place| place.starts_with(&dir.dir))
        };
        let missing: Vec<Dir> = state
            .dirs
            .iter()
            .filter(|dir| !is_there(dir))
            .cloned()
            .collect();
        if missing.is_empty() && !state.dirs.is_empty() {
            return Ok(None);
        }
        let known = state.members.get(&process.id).cloned();
        let is_new = known.is_none();
        let from = known.unwrap_or_else(|| self.origin(state, places));
        if is_new {
            self.journal.write(Record::Member {
                program,
                process: process.id,
                from: from.clone(),
            })?;
        }
        let mut kept_out = None;
        for dir in &missing {
            match self.enter(program, process.id.pid, dir) {
                Err(error) if dir.kind == DirKind::CpuV1 => kept_out = Some(error),
                entered => entered?,
            }
        }
        self.put_back_stranger(process.id, &from)?;
        Ok(kept_out)
    }

    /// Where a process goes back to: where it was, or, as far as it has been
    /// born inside, where its program's others go.
    fn origin(&self, state: &ProgramState, places: Places) -> Places {
        let inside = |place: &PathBuf| state.dirs.iter().any(|dir| place.starts_with(&dir.dir));
        let or = |place: Option<PathBuf>, home: &Option<PathBuf>| {
            place
                .filter(|place| !inside(place))
                .or_else(|| home.clone())
        };
        Places {
            v2: or(places.v2, &state.from.v2),
            cpuset: or(places.cpuset, &state.from.cpuset),
            cpu: or(places.cpu, &state.from.cpu),
        }
    }

    /// A process may have died and its number gone to another one while it was
    /// moved: that one is put back.
    fn put_back_stranger(&self, process: ProcessId, from: &Places) -> Result<(), ActError> {
        let stranger = self
            .procs
            .get(process.pid)
            .is_some_and(|now| now.id != process);
        for dir in from.all() {
            if stranger {
                cgroups::go_back(dir, process.pid)?;
            }
        }
        Ok(())
    }
}
