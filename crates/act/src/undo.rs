// SPDX-License-Identifier: MIT OR Apache-2.0
//! Undoes the changes that a dead instance has recorded in its journal.
//!
//! 1. Check that the owner of the instance is dead, that no other user could have written the
//!    journal, and that its pids belong to this PID namespace. Owners and keepers with threads that
//!    are still ending are waited for, for at most 1 s in all.
//! 2. Take a lock, with which only one process undoes the journal at a time. The wait for the lock
//!    is at most 2 s, after which the undo fails. If the lock holder is stopped, the undo continues
//!    without the lock, because every step may be repeated.
//! 3. Read the journal and drop its invalid paths. If the journal is damaged, find the cgroup
//!    directories of the instance by their names.
//! 4. If the journal was written in this boot, release all programs: thaw them and restore their
//!    masks, priorities and cgroups (`release`). For all programs, this step retries for at most
//!    3.5 s, and then for 0.7 s per program.
//! 5. If all changes are undone, remove the instance's directory, the journal first. The removal is
//!    tried up to 8 times if new files appear. Otherwise the journal stays for the next undo.
//!
//! Module `instance` implements the checks, the lock and the removal of the directory.
//!
//! [`undo_stale`] undoes all dead instances. [`undo_orphaned`] and [`thaw_launched`] undo the
//! changes of a single program for its launcher.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use usher_model::{ProcessId, ProgramId};

use crate::config::ActConfig;
use crate::environment::{self, InstanceDir};
use crate::error::{ActError, file_error};
use crate::instance::{
    check_namespace, check_owner, foreign, lock, owner_in_name, read_checked, remove_instance,
};
use crate::journal::{self, CgroupPaths, DirKind, JournalState, Record};
use crate::mounts::Mounts;
use crate::procs::Procs;
use crate::release::{ReleaseOutcome, release_all};
use crate::systemd::{self, Manager};
use crate::{cgroups, files, tree};

/// Upper limit of the wait for owners and keepers that are ending. The end takes some 10 ms, longer
/// if the kernel closes BPF objects or has no CPU time for the other threads.
const EXIT_MAX: Duration = Duration::from_secs(1);

/// The result of an undo.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// Number of programs that were released.
    pub programs: usize,
    /// Number of closed journals of dead instances.
    pub instances: usize,
    /// The changes that could not be undone, and the files that could not be read.
    pub errors: Vec<ActError>,
}

/// The result of an undo request for a program of an Usher process that may have died.
#[derive(Debug)]
pub enum UndoOutcome {
    /// The Usher process that manages the program lives, and nothing was done.
    OwnerAlive,
    /// The keeper, which is this process, runs and undoes the changes. The caller should wait for
    /// the end of the keeper and call the function again.
    KeeperAlive(ProcessId),
    /// The owner is dead, and the keeper is dead or stopped. This call has undone the changes of
    /// the program.
    Undone(UndoReport),
    /// No change of the program remains, because all changes were undone before.
    Nothing,
}

/// Undoes the changes that dead instances left. Every start of Usher calls this function first. An
/// instance with a running keeper is left to its keeper. If the keeper is stopped, this function
/// undoes the instance's changes.
///
/// # Errors
/// The journals cannot be listed. Errors of a single journal are in the report.
pub fn undo_stale(config: &ActConfig) -> Result<UndoReport, ActError> {
    let dir = config.instances_dir();
    let mut report = UndoReport::default();
    // The owners of the directories are checked before any file in them is opened, because another
    // user may have made the directories.
    check_owner(&config.runtime_dir)?;
    check_owner(&dir)?;
    if let Err(error) = fs::read_dir(&dir) {
        return match error.kind() {
            io::ErrorKind::NotFound => Ok(report),
            _ => Err(file_error("listing the journals in", dir)(error)),
        };
    }
    let procs = Procs::new(config);
    let own = procs.own()?;
    let deadline = Instant::now() + EXIT_MAX;
    for instance in files::subdirs(&dir) {
        // The keeper undoes the changes, and starts the owner again.
        if crate::keeper::undoes(&procs, Some(own), &instance, deadline) {
            continue;
        }
        match undo_instance_by(config, &instance, deadline) {
            Ok(one) => report.add(one),
            Err(error) => report.errors.push(error),
        }
    }
    Ok(report)
}

/// Returns whether a process is the owner of an instance, or its keeper.
pub(crate) fn serves_an_instance(config: &ActConfig, process: ProcessId) -> bool {
    let instances = files::subdirs(&config.instances_dir());
    instances.iter().any(|dir| {
        let keeper = crate::keeper::of_instance(dir);
        [owner_in_name(dir), keeper].contains(&Some(process))
    })
}

/// Undoes one whole instance if its owner is dead. Waits up to [`EXIT_MAX`] for an owner that is
/// ending.
pub(crate) fn undo_instance(config: &ActConfig, dir: &Path) -> Result<UndoReport, ActError> {
    undo_instance_by(config, dir, Instant::now() + EXIT_MAX)
}

/// As [`undo_instance`], with a deadline for the end of the owner.
fn undo_instance_by(
    config: &ActConfig,
    dir: &Path,
    deadline: Instant,
) -> Result<UndoReport, ActError> {
    let procs = Procs::new(config);
    let mut report = UndoReport::default();
    check_owner(dir)?;
    let Some(owner) = owner_in_name(dir) else {
        return Ok(report);
    };
    if procs.stays_alive(owner, deadline) {
        return Ok(report);
    }
    let Some(_lock) = lock(&procs, dir)? else {
        return Ok(report);
    };
    let (state, errors) = read_checked(config, &procs, dir)?;
    let owner = state.head.as_ref().map_or(owner, |head| head.owner);
    if procs.lives(owner) {
        return Ok(report);
    }
    report.errors = errors;
    let this_boot = procs.boot_id()?;
    if state
        .head
        .as_ref()
        .is_none_or(|head| head.boot == this_boot)
    {
        undo_state(config, &procs, dir, state, &mut report);
    }
    let all_undone = report.errors.iter().all(ActError::is_ignored_record);
    if all_undone {
        remove_instance(dir)?;
        report.instances = 1;
    }
    Ok(report)
}

/// Undoes every program of a journal and the changes of the instance itself.
fn undo_state(
    config: &ActConfig,
    procs: &Procs,
    instance: &Path,
    mut state: JournalState,
    report: &mut UndoReport,
) {
    if !report.errors.is_empty() {
        add_found_dirs(config, instance, &mut state);
    }
    let scopes = idle_scopes(&state);
    for (program, left) in release_all(procs, &state.programs) {
        match left {
            ReleaseOutcome::Done => report.programs += 1,
            ReleaseOutcome::DirsLeft => report.errors.push(ActError::NotUndone {
                program,
                what: "the kernel does not yet remove the program's cgroups".to_owned(),
            }),
            ReleaseOutcome::ThreadsLeft => report.errors.push(threads_left(program)),
            ReleaseOutcome::Failed(errors) => report.errors.extend(errors),
        }
    }
    report.errors.extend(remove_bases(&state));
    // The weights are also reset in systemd, because systemd would later write `idle` again to the
    // files that were reset above.
    for scope in scopes {
        let _ = Manager::silent(&config.busctl).set_idle(&scope, false);
    }
}

/// Returns the error for a program with threads that may still inherit a mask or a priority of
/// Usher's.
pub(crate) fn threads_left(program: ProgramId) -> ActError {
    ActError::NotUndone {
        program,
        what: "new threads of the program may still inherit its seat or its lowered priority"
            .to_owned(),
    }
}

/// Returns the names of the scopes that have the weight `idle`.
fn idle_scopes(state: &JournalState) -> Vec<String> {
    let dirs = state.programs.values().flat_map(|program| &program.dirs);
    let scopes = dirs.filter(|dir| dir.kind == DirKind::Scope && systemd::is_idle(&dir.dir));
    let names = scopes.filter_map(|dir| dir.dir.file_name()?.to_str().map(str::to_owned));
    names.filter(|name| name.ends_with(".scope")).collect()
}

/// Adds to the state the directories that a damaged journal may lack: all directories in the
/// hierarchies with this instance's name in their names. The undo moves the processes in such a
/// directory to the directory's parent.
fn add_found_dirs(config: &ActConfig, instance: &Path, state: &mut JournalState) {
    let Ok(mounts) = Mounts::read(config) else {
        return;
    };
    let Some(name) = instance.file_name().and_then(|name| name.to_str()) else {
        return;
    };
    let hierarchies = [
        (mounts.v2, DirKind::V2),
        (mounts.cpuset, DirKind::CpusetV1),
        (mounts.cpu, DirKind::CpuV1),
    ];
    for (mount, kind) in hierarchies {
        let Some(mount) = mount else { continue };
        for lost in environment::instance_dirs(&mount.point, name) {
            match lost {
                InstanceDir::Dir(program, dir) => adopt(program, dir, kind, state),
                InstanceDir::Scope(program, dir) => adopt(program, dir, DirKind::Scope, state),
                InstanceDir::Base(dir) => {
                    for dir in files::subdirs(&dir) {
                        let number = dir.file_name().and_then(|name| name.to_str()?.parse().ok());
                        if let Some(number) = number {
                            adopt(ProgramId(number), dir.clone(), kind, state);
                        }
                    }
                    state.apply(Record::Base { dir });
                }
            }
        }
    }
}

/// Adds a directory of a program to the state, if the state does not contain it.
fn adopt(program: ProgramId, dir: PathBuf, kind: DirKind, state: &mut JournalState) {
    let known = state.programs.get(&program);
    if known.is_some_and(|program| program.dirs.iter().any(|known| known.dir == dir)) {
        return;
    }
    if known.is_none() {
        let from = CgroupPaths::default();
        state.apply(Record::Begin { program, from });
    }
    let dir = journal::Dir {
        dir,
        kind,
        wide: Default::default(),
    };
    state.apply(Record::Dir { program, dir });
}

/// Removes an instance's own directories, and disables the controllers that the instance enabled,
/// if no other directory could use these controllers. Only journals of version 1 contain such
/// directories and controllers.
pub(crate) fn remove_bases(state: &JournalState) -> Vec<ActError> {
    let mut errors = Vec::new();
    for base in state.bases.iter().rev() {
        errors.extend(empty(base));
        match cgroups::remove(base) {
            Ok(true) => {}
            Ok(false) => errors.push(file_error("removing cgroup", base)(
                rustix::io::Errno::BUSY.into(),
            )),
            Err(error) => errors.push(error),
        }
    }
    for dir in state.enabled.iter().rev() {
        if dir.is_dir() && files::subdirs(dir).is_empty() {
            errors.extend(files::write(&dir.join("cgroup.subtree_control"), "-cpuset").err());
        }
    }
    errors
}

/// Moves processes out of an instance's own directory. Such a directory of a v1 cpuset contains
/// processes if the last CPU of a cpuset below it has gone offline, because the kernel then moves
/// the processes to the parent.
fn empty(base: &Path) -> Vec<ActError> {
    let parent = base.parent().unwrap_or(base);
    let members = cgroups::members_of(base).into_iter();
    members
        .filter_map(|pid| cgroups::go_back(parent, pid).err())
        .collect()
}

/// Undoes the changes of one program of an instance. The owner of the instance must be dead.
///
/// # Errors
/// The journal cannot be read or locked.
pub fn undo_program(
    config: &ActConfig,
    instance_dir: &Path,
    program: ProgramId,
) -> Result<UndoReport, ActError> {
    let mut report = UndoReport::default();
    check_owner(instance_dir)?;
    let procs = Procs::new(config);
    let Some(_lock) = lock(&procs, instance_dir)? else {
        return Ok(report);
    };
    let Some((mut state, mut errors)) = journal::read(instance_dir)? else {
        return Ok(report);
    };
    errors.extend(journal::validate(&mut state, config, instance_dir));
    check_namespace(&procs, instance_dir, &state)?;
    if let Some(head) = &state.head {
        if procs.lives(head.owner) {
            return Err(foreign(
                instance_dir,
                "the Usher process that wrote the journal still runs: release the programs with \
                 `usher detach`",
            ));
        }
        if head.boot != procs.boot_id()? {
            return Ok(report);
        }
    }
    report.errors = errors;
    let mut programs = state.programs;
    programs.retain(|&one, _| one == program);
    for (program, left) in release_all(&procs, &programs) {
        match left {
            ReleaseOutcome::Failed(errors) => report.errors.extend(errors),
            ReleaseOutcome::ThreadsLeft => report.errors.push(threads_left(program)),
            // The remaining directories contain no living processes. The next start of Usher
            // removes these directories.
            ReleaseOutcome::DirsLeft => report.programs = 1,
            ReleaseOutcome::Done => {
                journal::close(instance_dir, program)?;
                report.programs = 1;
            }
        }
    }
    Ok(report)
}

/// Undoes the changes of a program if its Usher process is dead and the keeper is dead or stopped.
/// The launcher of the program calls this function.
///
/// # Errors
/// The errors of [`undo_program`].
pub fn undo_orphaned(
    config: &ActConfig,
    instance_dir: &Path,
    program: ProgramId,
) -> Result<UndoOutcome, ActError> {
    let procs = Procs::new(config);
    let Some((state, _)) = journal::read(instance_dir)? else {
        return Ok(UndoOutcome::Nothing);
    };
    let owner = state.head.as_ref().map(|head| head.owner);
    if owner
        .or_else(|| owner_in_name(instance_dir))
        .is_some_and(|owner| procs.lives(owner))
    {
        return Ok(UndoOutcome::OwnerAlive);
    }
    if let Some(keeper) = crate::keeper::of_instance(instance_dir)
        && procs.can_run(keeper)
    {
        return Ok(UndoOutcome::KeeperAlive(keeper));
    }
    if !state.programs.contains_key(&program) {
        return Ok(UndoOutcome::Nothing);
    }
    undo_program(config, instance_dir, program).map(UndoOutcome::Undone)
}

/// Returns whether the owner of an instance was killed: the journal exists, and the owner had not
/// begun to end. The caller has checked that neither the owner nor the keeper runs.
pub fn was_killed(instance_dir: &Path) -> bool {
    let has = |name: &str| instance_dir.join(name).exists();
    has(journal::FILE) && !has(crate::keeper::ENDING)
}

/// Thaws the launched program `pid`, a child of the caller, after the death of an Usher process.
/// This function is for launchers that may not read the journal because root owns it. Returns
/// `false` if the Usher process lives. A program without a cgroup of its own was stopped by
/// signals; its processes get SIGCONT if `is_background` is true.
///
/// # Errors
/// The cgroup cannot be thawed.
pub fn thaw_launched(
    config: &ActConfig,
    instance_dir: &Path,
    pid: i32,
    is_background: bool,
) -> Result<bool, ActError> {
    let procs = Procs::new(config);
    if owner_in_name(instance_dir).is_some_and(|owner| procs.lives(owner)) {
        return Ok(false);
    }
    let places = Mounts::read(config)?.places(&procs, pid);
    let own = places
        .and_then(|places| places.v2)
        .filter(|dir| environment::is_ours(dir));
    if let Some(dir) = own {
        cgroups::freeze(&dir, false)?;
    } else if is_background && let Some(root) = procs.get(pid) {
        let tree = tree::descendants(&procs, [root.id]).into_iter();
        for process in tree.filter(|process| process.state == 'T') {
            procs.signal(process.id, Signal::CONT)?;
        }
    }
    Ok(true)
}

impl UndoReport {
    fn add(&mut self, other: Self) {
        self.programs += other.programs;
        self.instances += other.instances;
        self.errors.extend(other.errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_with_a_journal_was_killed_unless_its_owner_had_begun_to_end() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!was_killed(dir.path()));
        fs::write(dir.path().join(journal::FILE), "").unwrap();
        assert!(was_killed(dir.path()));
        fs::write(dir.path().join(crate::keeper::ENDING), "").unwrap();
        assert!(!was_killed(dir.path()));
    }
}
