// SPDX-License-Identifier: MIT OR Apache-2.0
//! Undo of the changes that a dead instance has recorded in its journal.
//!
//! An instance is undone only if its owner is dead, no other user could have written the journal,
//! and the pids belong to this boot and PID namespace. A lock ensures that one process undoes a
//! journal at a time; a stopped lock holder is not waited for, because every step may be repeated.
//! The undo thaws programs, restores masks, priorities and cgroups, and removes the instance's
//! directories, the journal first. Cgroups named after the instance are found even if the journal
//! is damaged.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use usher_model::{ProcessId, ProgramId};

use crate::config::ActConfig;
use crate::environment::{self, InstanceDir};
use crate::error::{ActError, file_error};
use crate::journal::{self, CgroupPaths, DirKind, JournalState, Record};
use crate::mounts::Mounts;
use crate::procs::Procs;
use crate::release::{ReleaseOutcome, release_all};
use crate::systemd::{self, Manager};
use crate::{cgroups, files, tree};

/// Upper limit of attempts to remove a directory in which new files appear.
const REMOVALS: usize = 8;

/// Upper limit of the wait for another process that is undoing the same journal.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Pause between two attempts to lock it.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The result of an undo.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// Number of programs that were released.
    pub programs: usize,
    /// Number of closed journals of dead instances.
    pub instances: usize,
    /// What could not be undone, or not be read.
    pub errors: Vec<ActError>,
}

/// The result of an undo request for a program of an Usher process that may have died.
#[derive(Debug)]
pub enum UndoOutcome {
    /// The Usher process that owns it lives: nothing was done.
    OwnerAlive,
    /// The keeper runs and undoes it: wait for the end of this process and call again.
    KeeperAlive(ProcessId),
    /// The owner is dead, and the keeper is dead or stopped: the caller has undone it now.
    Undone(UndoReport),
    /// Nothing of the program is left: it was undone before.
    Nothing,
}

/// Undoes what dead instances left; every start does this first. Instances with a running keeper
/// are left to it; a stopped keeper is not waited for.
///
/// # Errors
/// The journals cannot be listed. Errors of a single journal are in the report.
pub fn undo_stale(config: &ActConfig) -> Result<UndoReport, ActError> {
    let dir = config.instances_dir();
    let mut report = UndoReport::default();
    // Checked before anything below is opened: another user may have prepared the directory.
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
    for instance in files::subdirs(&dir) {
        let keeper = crate::keeper::of_instance(&instance);
        let runs = |keeper| procs.can_run(keeper) && procs.stays_alive(keeper);
        if keeper.is_some_and(|keeper| keeper != own && runs(keeper)) {
            continue; // the keeper undoes the changes, and starts the owner again
        }
        match undo_instance(config, &instance) {
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

/// Undoes one whole instance if its owner is dead.
pub(crate) fn undo_instance(config: &ActConfig, dir: &Path) -> Result<UndoReport, ActError> {
    let procs = Procs::new(config);
    let mut report = UndoReport::default();
    check_owner(dir)?;
    let Some(owner) = owner_in_name(dir) else {
        return Ok(report);
    };
    if procs.stays_alive(owner) {
        return Ok(report);
    }
    let Some(_lock) = lock(&procs, dir)? else {
        return Ok(report);
    };
    let (mut state, mut errors) = journal::read(dir)?.unwrap_or_default();
    errors.extend(journal::validate(&mut state, config, dir));
    check_namespace(&procs, dir, &state)?;
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
    let all_undone = report
        .errors
        .iter()
        .all(|error| matches!(error, ActError::Corrupt { .. }));
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
    // The files of the cgroups were reset above; systemd would write them again.
    for scope in scopes {
        let _ = Manager::silent(&config.busctl).set_idle(&scope, false);
    }
}

/// Makes the error for threads that may still inherit one of Usher's masks or priorities.
pub(crate) fn threads_left(program: ProgramId) -> ActError {
    ActError::NotUndone {
        program,
        what: "new threads of the program may still inherit its seat or its lowered priority"
            .to_owned(),
    }
}

/// Returns the scopes that have the weight `idle`.
fn idle_scopes(state: &JournalState) -> Vec<String> {
    let dirs = state.programs.values().flat_map(|program| &program.dirs);
    let scopes = dirs.filter(|dir| dir.kind == DirKind::Scope && systemd::is_idle(&dir.dir));
    let names = scopes.filter_map(|dir| dir.dir.file_name()?.to_str().map(str::to_owned));
    names.filter(|name| name.ends_with(".scope")).collect()
}

/// Adds what a corrupt journal may have lost: directories with this instance's name anywhere in the
/// hierarchies. Processes inside are moved to the directory's parent.
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

/// Adds a program's directory.
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

/// Removes an instance's own directories, and disables controllers that it enabled unless another
/// directory could use them. Only version 1 of the journal records them.
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

/// Moves processes out of an instance's own directory. The kernel moves the processes of a v1
/// cpuset to its parent when its last CPU goes offline.
fn empty(base: &Path) -> Vec<ActError> {
    let parent = base.parent().unwrap_or(base);
    let members = cgroups::members_of(base).into_iter();
    members
        .filter_map(|pid| cgroups::go_back(parent, pid).err())
        .collect()
}

/// Removes an instance's directory, the journal first: a directory without a journal is completely
/// undone. A keeper that is just starting may write its process number there meanwhile.
pub(crate) fn remove_instance(dir: &Path) -> Result<(), ActError> {
    journal::remove(dir)?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        match fs::remove_dir_all(dir) {
            Err(error)
                if error.kind() == io::ErrorKind::DirectoryNotEmpty && attempts < REMOVALS => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => return removed.map_err(file_error("removing", dir)),
        }
    }
}

/// Undoes one program of an instance; the instance's owner must be dead.
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
            // The remaining directories have no living processes; the next start removes them.
            ReleaseOutcome::DirsLeft => report.programs = 1,
            ReleaseOutcome::Done => {
                journal::close(instance_dir, program)?;
                report.programs = 1;
            }
        }
    }
    Ok(report)
}

/// Undoes a program of a dead Usher process if the keeper is dead too. The program's launcher calls
/// this function.
///
/// # Errors
/// As [`undo_program`].
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

/// Thaws the launched program `pid`, a child of the caller. For launchers that may not read the
/// journal of a dead Usher process because root owned it. Returns `false` if that process lives. A
/// program without a cgroup of its own was stopped by signals, and is continued if `is_background`.
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

/// Checks that no other user can have written the journal; otherwise it is not followed.
fn check_owner(dir: &Path) -> Result<(), ActError> {
    let data = match fs::symlink_metadata(dir) {
        Ok(data) => data,
        // Another process has just finished the undo.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(file_error("reading", dir)(error)),
    };
    let reason = if !data.is_dir() {
        "the path is not a directory"
    } else if data.uid() != rustix::process::geteuid().as_raw() {
        "another user owns the directory; only that user or root can undo these changes"
    } else if data.mode() & 0o022 != 0 {
        "other users may write to the directory"
    } else {
        return Ok(());
    };
    Err(foreign(dir, reason))
}

/// Checks the PID namespace: in another namespace, the pids mean other processes.
fn check_namespace(procs: &Procs, dir: &Path, state: &JournalState) -> Result<(), ActError> {
    match &state.head {
        Some(head) if head.pid_namespace != procs.pid_namespace() => Err(foreign(
            dir,
            "the journal was written in another PID namespace",
        )),
        _ => Ok(()),
    }
}

fn foreign(dir: &Path, reason: &'static str) -> ActError {
    file_error("ignoring journal", dir)(io::Error::other(reason))
}

/// Returns `PID-START`, the name of an instance's directory; the second and later instances of one
/// process get a number behind it.
pub(crate) fn name_of(owner: ProcessId) -> String {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let name = format!("{}-{}", owner.pid, owner.start_ticks);
    match OPENED.fetch_add(1, Ordering::Relaxed) {
        0 => name,
        again => format!("{name}-{again}"),
    }
}

fn owner_in_name(dir: &Path) -> Option<ProcessId> {
    let mut parts = dir.file_name()?.to_str()?.split('-');
    Some(ProcessId {
        pid: parts.next()?.parse().ok()?,
        start_ticks: parts.next()?.parse().ok()?,
    })
}

/// Locks a journal against other processes that undo it. `None` if the instance is gone.
///
/// The undo does not wait for a stopped lock holder, which may stay stopped for ever. Every step of
/// an undo may be repeated.
fn lock(procs: &Procs, dir: &Path) -> Result<Option<File>, ActError> {
    let path = dir.join("undo.lock");
    let file = match OpenOptions::new().create(true).append(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error("opening", path)(error)),
    };
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) if holder_is_stopped(procs, &file) => {
                return Ok(Some(file));
            }
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(errno) => return Err(file_error("locking", path)(errno.into())),
        }
    }
}

/// Returns whether the process that holds a lock on this file is stopped.
fn holder_is_stopped(procs: &Procs, file: &File) -> bool {
    let Ok(meta) = file.metadata() else {
        return false;
    };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let of_file = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    procs.lock_holders(&of_file).into_iter().any(|pid| {
        let holder = procs.get(pid);
        holder.is_some_and(|holder| holder.is_stopped())
    })
}
