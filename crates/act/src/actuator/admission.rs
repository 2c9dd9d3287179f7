// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission of a process tree: checks whether Usher may manage the tree, gives it a home cgroup,
//! and records in the journal how to undo the admission.
//!
//! 1. Check that the root process lives, is not Usher or one of its ancestors, and that no
//!    process of the tree is managed already, by this instance or by another live instance.
//! 2. Before each of the following changes, write its line to the journal.
//! 3. A launched program gets a cgroup below its launcher's cgroup or, under systemd, a scope.
//!    If neither is possible, the program stays in its launcher's cgroup, and its processes are
//!    found by descent from its first process. An attached program is never moved.
//!
//! A failed admission leaves the tree in its former cgroups. Processes that are created during the
//! admission are found by the next [`Actuator::refresh`].
//!
//! Bounds: The check lists all processes of the machine, unless the root process has no children.
//! The moves take at most 60 rounds; a tree that still forks then is rejected (`tree.rs`). A
//! request to systemd takes at most 5 s, and the move that systemd makes at most 2 s. After a
//! time-out, the program stays in its launcher's cgroup. Before the first change, the unfinished
//! departure of an earlier program with the same number is retried for at most 1 s.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use usher_model::{ProcessId, ProgramId};

use super::{Actuator, ManagedProgram, NoOwnCgroup};
use crate::config::WorkClass;
use crate::environment::instances_in;
use crate::error::{ActError, join};
use crate::journal::{CgroupPaths, Dir, DirKind, ProgramState, Record};
use crate::procs::Process;
use crate::systemd::Manager;
use crate::tree::{self, Tree};
use crate::{cgroups, files, release, undo};

/// Reason for which a program has no cgroup of its own.
const CGROUP_INVISIBLE: &str = "the cgroup of the program is not visible to Usher";

impl Actuator {
    /// Checks whether the tree with this root may be admitted. `program`: the program that the tree
    /// becomes; `None` if the tree joins a program.
    pub(super) fn check(
        &self,
        program: Option<ProgramId>,
        root: ProcessId,
    ) -> Result<(), ActError> {
        let pid = root.pid;
        let process = self.procs.same(root).ok_or(ActError::Gone { pid })?;
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let refused = |reason| Err(ActError::Refused { pid, reason });
        if process.kernel_thread {
            return refused("the process is a kernel thread");
        }
        if pid == 1 {
            return refused("the process is the init process (pid 1)");
        }
        let above = self.procs.lineage(own);
        if above.iter().any(|one| one.id.pid == pid) {
            return refused("the process is an ancestor of Usher itself");
        }
        if program.is_some_and(|program| self.journal.state().programs.contains_key(&program)) {
            return Ok(()); // a prepared program: its process is created in its home
        }
        if undo::serves_an_instance(&self.config, root) {
            return refused("the process is Usher itself, or its keeper");
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

    /// Rejects a process that another live instance manages: if two journals contained one process,
    /// the undo of one journal would restore values that the other instance had set. An Usher
    /// process that another instance manages may still manage its own descendants.
    fn check_unmanaged(&self, process: &Process, own: &CgroupPaths) -> Result<(), ActError> {
        let pid = process.id.pid;
        let places = self.places_of(pid);
        if let Some(program) = self.manager_of(process, &places) {
            return Err(ActError::Managed { pid, program });
        }
        let is_foreign = |place: &PathBuf, own: &Option<PathBuf>| {
            let below = own.as_ref().and_then(|own| place.strip_prefix(own).ok());
            let mut others = instances_in(below.unwrap_or(place));
            // A directory of a dead instance, or of a departed program of this instance, is only a
            // leftover and does not prevent the admission.
            others.any(|other| !self.environment.is(&other) && self.procs.lives(other.owner))
        };
        if places
            .v2
            .as_ref()
            .is_some_and(|place| is_foreign(place, &own.v2))
        {
            let reason = "another Usher process already manages the process: end that Usher \
                          process, or detach the program from it";
            return Err(ActError::Refused { pid, reason });
        }
        Ok(())
    }

    /// Returns the cgroups of a process; empty if the process is gone.
    pub(super) fn places_of(&self, pid: i32) -> CgroupPaths {
        let places = self.environment.mounts.places(&self.procs, pid);
        places.unwrap_or_default()
    }

    /// Returns the program that a process belongs to.
    pub(super) fn manager_of(&self, process: &Process, places: &CgroupPaths) -> Option<ProgramId> {
        let programs = &self.journal.state().programs;
        let holds = |state: &ProgramState| {
            let mut dirs = state.dirs.iter().filter(|dir| dir.kind.is_v2());
            let place = places.v2.as_ref();
            place.is_some_and(|place| dirs.any(|dir| place.starts_with(&dir.dir)))
        };
        let by_cgroup = programs.iter().find(|(_, state)| holds(state));
        if let Some((program, _)) = by_cgroup {
            return Some(*program);
        }
        // Without members, no ancestor needs to be read.
        if programs.values().all(|state| state.members.is_empty()) {
            return None;
        }
        let above = self.procs.lineage(process.id.pid);
        let follows =
            |state: &ProgramState| above.iter().any(|one| state.members.contains_key(&one.id));
        let mut programs = programs.iter();
        let by_descent = programs.find(|(_, state)| follows(state));
        by_descent.map(|(program, _)| *program)
    }

    /// Writes the journal line that begins a program.
    pub(super) fn begin(&mut self, program: ProgramId, of: ProcessId) -> Result<(), ActError> {
        self.await_departure(program);
        if self.journal.state().programs.contains_key(&program) {
            return Err(ActError::Taken(program));
        }
        let pid = of.pid;
        let places = self.environment.mounts.places(&self.procs, pid);
        let from = places.filter(|_| self.procs.same(of).is_some());
        let from = from.ok_or(ActError::Gone { pid })?;
        self.journal.write(Record::Begin { program, from })?;
        self.programs.insert(program, ManagedProgram::default());
        Ok(())
    }

    /// Makes the directories of a launched program. A directory that cannot be made is dropped from
    /// the journal, and is no error.
    ///
    /// `of` is the launched process or its launcher.
    pub(super) fn make_dirs(
        &mut self,
        program: ProgramId,
        of: ProcessId,
        work: WorkClass,
    ) -> Result<(), ActError> {
        let from = self.state(program)?.from.clone();
        for dir in self.environment.dirs(program, &from, work) {
            let (path, kind) = (dir.dir.clone(), dir.kind);
            let Err(error) = self.make_dir(program, dir) else {
                self.let_user_thaw(&path, of.pid);
                continue;
            };
            self.journal.write(Record::Gone { program, dir: path })?;
            if kind == DirKind::V2 {
                self.note_no_cgroup(program, NoOwnCgroup::after(&error))?;
                break; // only the v2 directory identifies the program's processes
            }
        }
        Ok(())
    }

    pub(super) fn make_dir(&mut self, program: ProgramId, dir: Dir) -> Result<(), ActError> {
        let path = dir.dir.clone();
        self.journal.write(Record::Dir { program, dir })?;
        files::make_dir(&path)
    }

    /// Makes the user of a process the owner of a cgroup's `cgroup.freeze`, so
    /// that the user's launcher can thaw the program when this process and its
    /// keeper have died ([`crate::thaw_launched`]).
    fn let_user_thaw(&self, dir: &Path, pid: i32) {
        let uid = self.procs.uid(pid).filter(|uid| *uid != 0);
        if let Some(uid) = uid
            && rustix::process::geteuid().is_root()
        {
            // Without this owner, a frozen program stays frozen until the next start of Usher thaws
            // it.
            let _ = std::os::unix::fs::chown(dir.join("cgroup.freeze"), Some(uid), None);
        }
    }

    /// Records why a launched program stays in its launcher's cgroup.
    fn note_no_cgroup(
        &mut self,
        program: ProgramId,
        no_cgroup: NoOwnCgroup,
    ) -> Result<(), ActError> {
        self.environment.because(&no_cgroup.reason);
        self.managed(program)?.no_cgroup.get_or_insert(no_cgroup);
        Ok(())
    }

    /// Moves a launched program into a cgroup of its own. Returns `None` if the program stays in
    /// its launcher's cgroup.
    pub(super) fn place_launched(
        &mut self,
        program: ProgramId,
        root: ProcessId,
        work: WorkClass,
    ) -> Result<Option<PathBuf>, ActError> {
        if let Some(manager) = self.environment.scopes.clone() {
            let scope = self.enter_scope(&manager, program, root, work)?;
            self.capture(program, root)?;
            return Ok(scope);
        }
        let own = self.v2_dir(program)?.map(|dir| dir.dir);
        match self.capture(program, root) {
            Err(error @ ActError::File { .. }) if own.is_some() => {
                // The kernel does not permit the move, or the launcher's cgroup cannot have
                // children. The process then stays in its launcher's cgroup.
                self.leave_dirs(program)?;
                self.note_no_cgroup(program, NoOwnCgroup::after(&error))?;
                self.capture(program, root)?;
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(()) if own.is_none() => {
                let has_reason = self.managed(program)?.no_cgroup.is_some();
                if !has_reason {
                    self.note_no_cgroup(program, NoOwnCgroup::by_design(CGROUP_INVISIBLE))?;
                }
                Ok(None)
            }
            Ok(()) => Ok(own),
        }
    }

    /// Moves processes in the program's directories back to their former cgroups, and removes the
    /// directories.
    fn leave_dirs(&mut self, program: ProgramId) -> Result<(), ActError> {
        let state = self.state(program)?.clone();
        let errors = release::remove_dirs(&self.procs, &state);
        if !errors.is_empty() {
            return Err(join(program, errors));
        }
        for dir in state.dirs {
            self.journal.write(Record::Gone {
                program,
                dir: dir.dir,
            })?;
        }
        Ok(())
    }

    /// Requests a systemd scope for a launched process that is held before its `exec` and has no
    /// children. Returns `None` if the process stays in its launcher's unit, or systemd did not
    /// answer in time.
    fn enter_scope(
        &mut self,
        manager: &Manager,
        program: ProgramId,
        root: ProcessId,
        work: WorkClass,
    ) -> Result<Option<PathBuf>, ActError> {
        let target = match (&self.state(program)?.from.v2, &self.environment.mounts.v2) {
            (Some(from), Some(mount)) => manager.target(from, &mount.point),
            _ => Err(CGROUP_INVISIBLE.to_owned()),
        };
        let target = match target {
            Ok(target) => target,
            Err(reason) => {
                self.note_no_cgroup(program, NoOwnCgroup::by_design(reason))?;
                return Ok(None);
            }
        };
        let unit = self.environment.scope_of(program);
        // This line stays in the journal even if systemd answers with an error, because a delayed
        // job of systemd may still move the process.
        let dir = Dir {
            dir: target.dir.join(&unit),
            kind: DirKind::Scope,
            wide: Default::default(),
        };
        self.journal.write(Record::Dir { program, dir })?;
        let idle = work == WorkClass::Background;
        let mut started = manager.start_scope(&unit, &target, root.pid, idle);
        if idle && started.is_err() {
            // systemd before version 252 does not support the weight `idle`.
            started = manager.start_scope(&unit, &target, root.pid, false);
        }
        let mounts = &self.environment.mounts;
        let moved =
            started.and_then(|()| manager.wait_for_move(&unit, root.pid, mounts, &self.procs));
        match moved {
            Ok(scope) => {
                self.let_user_thaw(&scope, root.pid);
                Ok(Some(scope))
            }
            Err(error) => {
                self.note_no_cgroup(program, NoOwnCgroup::after(&error))?;
                Ok(None)
            }
        }
    }

    /// Admits a running tree without moving it. If the tree's cgroup contains no other processes,
    /// this cgroup becomes the home of the tree. Otherwise the reason is recorded.
    pub(super) fn place_attached(
        &mut self,
        program: ProgramId,
        root: ProcessId,
    ) -> Result<Option<PathBuf>, ActError> {
        self.begin(program, root)?;
        self.capture(program, root)?;
        let Some(dir) = self.state(program)?.from.v2.clone() else {
            self.note_shared_cgroup(program, CGROUP_INVISIBLE)?;
            return Ok(None);
        };
        let members = self.state(program)?.members.keys().copied();
        let tree = tree::descendants(&self.procs, members).into_iter();
        let tree: BTreeSet<i32> = tree.map(|process| process.id.pid).collect();
        if !cgroups::holds_only(&dir, &tree) {
            self.note_shared_cgroup(
                program,
                "other processes are in the cgroup in which the program runs, and Usher never \
                 moves a running program to another cgroup",
            )?;
            return Ok(None);
        }
        let unit = Dir {
            dir: dir.clone(),
            kind: DirKind::Unit,
            wide: Default::default(),
        };
        self.journal.write(Record::Dir { program, dir: unit })?;
        Ok(Some(dir))
    }

    /// Records why a program that ran already has no cgroup of its own.
    fn note_shared_cgroup(
        &mut self,
        program: ProgramId,
        reason: &'static str,
    ) -> Result<(), ActError> {
        self.managed(program)?.no_cgroup = Some(NoOwnCgroup::by_design(reason));
        Ok(())
    }

    /// Undoes the admission of a program after an error.
    pub(super) fn abort_admission<T>(
        &mut self,
        program: ProgramId,
        error: ActError,
    ) -> Result<T, ActError> {
        match self.depart(program) {
            // The program had not begun if its first journal line could not be written.
            Ok(()) | Err(ActError::Unknown(_)) => Err(error),
            Err(left) => Err(ActError::NotUndone {
                program,
                what: format!(
                    "{left}; Usher undoes the changes because the program cannot be managed: \
                     {error}"
                ),
            }),
        }
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
        // The returned reason is ignored, because a process with a real-time policy may have to
        // stay outside the cgroup with `cpu.idle`.
        self.move_in(program, process).map(|_| ())
    }

    /// Records a process that stays outside the program's cgroups.
    pub(super) fn note(&mut self, program: ProgramId, process: &Process) -> Result<(), ActError> {
        if self.state(program)?.members.contains_key(&process.id) {
            return Ok(());
        }
        let Some(places) = self.visible_places(program, process) else {
            return Ok(());
        };
        self.journal.write(Record::Member {
            program,
            process: process.id,
            from: places,
        })
    }

    /// Returns the cgroups of a living process that no other program manages.
    fn visible_places(&self, program: ProgramId, process: &Process) -> Option<CgroupPaths> {
        // Dead processes are left out: they have left their cgroups, and moving them would be slow.
        let places = self.environment.mounts.places(&self.procs, process.id.pid);
        let places = places.filter(|_| !process.is_dead())?;
        // A descendant that was launched through Usher may belong to another program, with a home
        // of its own.
        let manager = self.manager_of(process, &places);
        manager
            .is_none_or(|other| other == program)
            .then_some(places)
    }

    /// Moves a process into each directory of the program that does not yet contain the process. If
    /// the kernel rejects the move into the directory with `cpu.idle`, returns the reason as
    /// `Some`.
    pub(super) fn move_in(
        &mut self,
        program: ProgramId,
        process: &Process,
    ) -> Result<Option<ActError>, ActError> {
        let places = self.visible_places(program, process);
        let Some(places) = places.filter(|_| self.may_change(program, process.id.pid)) else {
            return Ok(None);
        };
        let state = self.state(program)?;
        let is_there = |dir: &Dir| {
            let place = places.of(dir.kind);
            place.is_some_and(|place| place.starts_with(&dir.dir))
        };
        let ours = || state.dirs.iter().filter(|dir| dir.kind.is_entered());
        let missing: Vec<Dir> = ours().filter(|dir| !is_there(dir)).cloned().collect();
        if missing.is_empty() && ours().next().is_some() {
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
            match cgroups::enter(&dir.dir, process.id.pid) {
                Err(error) if dir.kind == DirKind::CpuV1 => kept_out = Some(error),
                entered => drop(entered?),
            }
        }
        if !missing.is_empty() {
            self.return_reused_pid(process.id, &from)?;
        }
        Ok(kept_out)
    }

    /// Returns the cgroups to which the undo moves a process back. For each hierarchy this is the
    /// process's former cgroup or, if the process was created inside the program's directories, the
    /// program's former cgroup.
    fn origin(&self, state: &ProgramState, places: CgroupPaths) -> CgroupPaths {
        let ours = || state.dirs.iter().filter(|dir| dir.kind.is_entered());
        let inside = |place: &PathBuf| ours().any(|dir| place.starts_with(&dir.dir));
        let or = |place: Option<PathBuf>, home: &Option<PathBuf>| {
            place
                .filter(|place| !inside(place))
                .or_else(|| home.clone())
        };
        CgroupPaths {
            v2: or(places.v2, &state.from.v2),
            cpuset: or(places.cpuset, &state.from.cpuset),
            cpu: or(places.cpu, &state.from.cpu),
        }
    }

    /// Moves a process back if its pid was reused. The intended process may have died just before
    /// the move, so that another process with the same pid was moved.
    fn return_reused_pid(&self, process: ProcessId, from: &CgroupPaths) -> Result<(), ActError> {
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
