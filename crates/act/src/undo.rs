// SPDX-License-Identifier: MIT OR Apache-2.0
//! Taking back what a dead instance did.

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
use crate::error::{ActError, file_error};
use crate::journal::{self, DirKind, Record, State};
use crate::mounts::{Mounts, Places};
use crate::procs::Procs;
use crate::release::{Left, let_go_all};
use crate::site::{self, Lost};
use crate::systemd::{self, Manager};
use crate::{cgroups, files, tree};

/// Attempts to remove a directory in which files appear.
const REMOVALS: usize = 8;

/// How long another process may take that is undoing the same journal.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Between two attempts to lock it.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// What was taken back.
#[derive(Debug, Default)]
pub struct UndoReport {
    /// Programs that were let go.
    pub programs: usize,
    /// Dead instances whose journal was closed.
    pub instances: usize,
    /// What could not be taken back, or not be read.
    pub errors: Vec<ActError>,
}

/// What became of a program whose Usher died.
#[derive(Debug)]
pub enum Rescue {
    /// Its Usher lives: nothing done.
    MasterLives,
    /// The keeper works and undoes it: wait for this process and ask again.
    KeeperLives(ProcessId),
    /// The owner is dead, and the keeper is dead or stopped: the caller has undone
    /// it now.
    Undone(UndoReport),
    /// Nothing of it is left: it was undone before.
    Nothing,
}

/// Undoes what dead instances left: every start does this first. Those whose
/// keeper works are left to it; a stopped keeper is not waited for.
///
/// # Errors
/// The journals cannot be listed. What is wrong with a single one stands in
/// the report.
pub fn undo_stale(config: &ActConfig) -> Result<UndoReport, ActError> {
    let dir = config.instances_dir();
    let mut report = UndoReport::default();
    // Before anything below is opened: another user may have prepared it.
    check_owner(&config.runtime_dir)?;
    check_owner(&dir)?;
    if let Err(error) = fs::read_dir(&dir) {
        return match error.kind() {
            io::ErrorKind::NotFound => Ok(report),
            _ => Err(file_error("listing journals in", dir)(error)),
        };
    }
    let procs = Procs::new(config);
    let own = procs.own()?;
    for instance in files::subdirs(&dir) {
        let keeper = crate::keeper::of_instance(&instance);
        if keeper.is_some_and(|keeper| keeper != own && procs.works(keeper)) {
            continue; // it does so, and starts the master again
        }
        match undo_instance(config, &instance) {
            Ok(one) => report.add(one),
            Err(error) => report.errors.push(error),
        }
    }
    Ok(report)
}

/// Whether a process is the owner of an instance, or its keeper.
pub(crate) fn serves_an_instance(config: &ActConfig, process: ProcessId) -> bool {
    let instances = files::subdirs(&config.instances_dir());
    instances.iter().any(|dir| {
        let keeper = crate::keeper::of_instance(dir);
        [owner_in_name(dir), keeper].contains(&Some(process))
    })
}

/// Undoes all of one instance, where its owner is dead.
pub(crate) fn undo_instance(config: &ActConfig, dir: &Path) -> Result<UndoReport, ActError> {
    let procs = Procs::new(config);
    let mut report = UndoReport::default();
    check_owner(dir)?;
    let Some(owner) = owner_in_name(dir) else {
        return Ok(report);
    };
    if procs.lives(owner) {
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

/// Undoes every program of a journal and what the instance made for itself.
fn undo_state(
    config: &ActConfig,
    procs: &Procs,
    instance: &Path,
    mut state: State,
    report: &mut UndoReport,
) {
    if !report.errors.is_empty() {
        add_lost(config, instance, &mut state);
    }
    let scopes = idle_scopes(&state);
    for (program, left) in let_go_all(procs, &state.programs) {
        match left {
            Left::Nothing => report.programs += 1,
            Left::Remains => report.errors.push(ActError::Left {
                program,
                what: "the kernel does not let go of its cgroups".to_owned(),
            }),
            Left::Threads => report.errors.push(threads_left(program)),
            Left::Errors(errors) => report.errors.extend(errors),
        }
    }
    report.errors.extend(remove_bases(&state));
    // The files of the cgroups were reset above; systemd would write them again.
    for scope in scopes {
        let _ = Manager::silent(&config.busctl).set_idle(&scope, false);
    }
}

/// The error where threads may still inherit a mask or priority of ours.
pub(crate) fn threads_left(program: ProgramId) -> ActError {
    ActError::Left {
        program,
        what: "new threads may still inherit its seat or priority".to_owned(),
    }
}

/// The scopes that have the weight `idle`.
fn idle_scopes(state: &State) -> Vec<String> {
    let dirs = state.programs.values().flat_map(|program| &program.dirs);
    let scopes = dirs.filter(|dir| dir.kind == DirKind::Scope && systemd::is_idle(&dir.dir));
    let names = scopes.filter_map(|dir| dir.dir.file_name()?.to_str().map(str::to_owned));
    names.filter(|name| name.ends_with(".scope")).collect()
}

/// Adds what a corrupt journal may have lost: directories with this
/// instance's name anywhere in the hierarchies. Those inside go to where the
/// directory lies.
fn add_lost(config: &ActConfig, instance: &Path, state: &mut State) {
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
        for lost in site::lost_dirs(&mount.point, name) {
            match lost {
                Lost::Dir(program, dir) => adopt(program, dir, kind, state),
                Lost::Scope(program, dir) => adopt(program, dir, DirKind::Scope, state),
                Lost::Base(dir) => {
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
fn adopt(program: ProgramId, dir: PathBuf, kind: DirKind, state: &mut State) {
    let known = state.programs.get(&program);
    if known.is_some_and(|program| program.dirs.iter().any(|known| known.dir == dir)) {
        return;
    }
    if known.is_none() {
        let from = Places::default();
        state.apply(Record::Begin { program, from });
    }
    let dir = journal::Dir {
        dir,
        kind,
        wide: Default::default(),
    };
    state.apply(Record::Dir { program, dir });
}

/// Removes an instance's own directories, and disables what it enabled where
/// no other directory could use it: what version 1 of the journal notes.
pub(crate) fn remove_bases(state: &State) -> Vec<ActError> {
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

/// Moves out whom the kernel has put into an instance's own directory: the
/// processes of a v1 cpuset whose last CPU went offline.
fn empty(base: &Path) -> Vec<ActError> {
    let parent = base.parent().unwrap_or(base);
    let members = cgroups::members_of(base).into_iter();
    members
        .filter_map(|pid| cgroups::go_back(parent, pid).err())
        .collect()
}

/// Removes an instance's directory, the journal first: a directory without
/// one says that all is undone. A keeper that is just starting may put its
/// number there meanwhile.
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

/// Undoes one program of an instance, whose owner must be dead.
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
            return Err(foreign(instance_dir, "its owner lives: use `usher detach`"));
        }
        if head.boot != procs.boot_id()? {
            return Ok(report);
        }
    }
    report.errors = errors;
    let mut programs = state.programs;
    programs.retain(|&one, _| one == program);
    for (program, left) in let_go_all(&procs, &programs) {
        match left {
            Left::Errors(errors) => report.errors.extend(errors),
            Left::Threads => report.errors.push(threads_left(program)),
            // What remains is without life; the next start removes it.
            Left::Remains => report.programs = 1,
            Left::Nothing => {
                journal::close(instance_dir, program)?;
                report.programs = 1;
            }
        }
    }
    Ok(report)
}

/// What a program's launcher calls when its Usher has died: undoes the
/// program when the keeper is dead too.
///
/// # Errors
/// As [`undo_program`].
pub fn rescue(
    config: &ActConfig,
    instance_dir: &Path,
    program: ProgramId,
) -> Result<Rescue, ActError> {
    let procs = Procs::new(config);
    let Some((state, _)) = journal::read(instance_dir)? else {
        return Ok(Rescue::Nothing);
    };
    let owner = state.head.as_ref().map(|head| head.owner);
    if owner
        .or_else(|| owner_in_name(instance_dir))
        .is_some_and(|owner| procs.lives(owner))
    {
        return Ok(Rescue::MasterLives);
    }
    if let Some(keeper) = crate::keeper::of_instance(instance_dir)
        && procs.works(keeper)
    {
        return Ok(Rescue::KeeperLives(keeper));
    }
    if !state.programs.contains_key(&program) {
        return Ok(Rescue::Nothing);
    }
    undo_program(config, instance_dir, program).map(Rescue::Undone)
}

/// What a launcher calls that may not read the journal of the Usher that died,
/// as that was root's: thaws the launched program `pid`, a child of the caller.
/// Returns `false` where that Usher lives. A program without a cgroup of its own
/// was stopped by signals, and is continued where `is_background`.
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
        .filter(|dir| site::is_ours(dir));
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

/// A journal is obeyed only where nobody else can have written it.
fn check_owner(dir: &Path) -> Result<(), ActError> {
    let data = match fs::symlink_metadata(dir) {
        Ok(data) => data,
        // Another process has just finished with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(file_error("reading", dir)(error)),
    };
    let own = data.is_dir() && data.uid() == rustix::process::geteuid().as_raw();
    if own && data.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(foreign(
        dir,
        "it is not a directory that only this user may write in",
    ))
}

/// Numbers of processes mean others in another pid namespace.
fn check_namespace(procs: &Procs, dir: &Path, state: &State) -> Result<(), ActError> {
    match &state.head {
        Some(head) if head.pid_namespace != procs.pid_namespace() => {
            Err(foreign(dir, "it belongs to another pid namespace"))
        }
        _ => Ok(()),
    }
}

fn foreign(dir: &Path, reason: &'static str) -> ActError {
    file_error("leaving alone journal", dir)(io::Error::other(reason))
}

/// `PID-START`, the name of an instance's directory; the second and later
/// instances of one process get a number behind it.
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

/// Keeps other undoers away while it is held; `None` where the instance is
/// gone.
///
/// A holder that is stopped is not waited for: it may be stopped for ever, and
/// every step of an undo may be done twice.
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

/// Whether the process that holds a lock on this file is stopped.
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
