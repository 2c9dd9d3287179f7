// SPDX-License-Identifier: MIT OR Apache-2.0
//! One program's cgroup directories: who is in them, moving, narrowing,
//! freezing, removing.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use usher_model::{CpuSet, ProcessTree};

use crate::error::{ActError, file_error};
use crate::files;
use crate::journal::{Dir, DirKind};
use crate::mounts::nearest;

const PROCS: &str = "cgroup.procs";

/// The numbers of the processes in a directory and below it.
pub(crate) fn members(dir: &Path) -> BTreeSet<i32> {
    let dirs = with_subdirs(dir);
    dirs.iter().flat_map(|dir| members_of(dir)).collect()
}

/// The numbers of the processes in a directory itself.
pub(crate) fn members_of(dir: &Path) -> BTreeSet<i32> {
    // A directory that is gone has no members; one whose list cannot be read
    // (a threaded cgroup) has its members listed at its domain.
    let text = fs::read_to_string(dir.join(PROCS)).unwrap_or_default();
    let pids = text.lines().filter_map(|pid| pid.parse::<i32>().ok());
    // 0 stands for a process of another pid namespace.
    pids.filter(|pid| *pid != 0).collect()
}

/// A directory and all below it, the deepest first.
fn with_subdirs(dir: &Path) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = files::subdirs(dir)
        .iter()
        .flat_map(|sub| with_subdirs(sub))
        .collect();
    dirs.push(dir.to_owned());
    dirs
}

/// Whether a cgroup, with those below it, holds exactly processes of this set.
/// The root cgroup, and one with processes of another PID namespace, do not.
pub(crate) fn holds_only(dir: &Path, pids: &BTreeSet<i32>) -> bool {
    // The root cgroup has no such file.
    if !dir.join("cgroup.events").exists() {
        return false;
    }
    let lists = with_subdirs(dir).into_iter().map(|dir| {
        let text = fs::read_to_string(dir.join(PROCS)).ok()?;
        let pids = text.lines().map(|pid| pid.parse::<i32>().ok());
        pids.collect::<Option<Vec<i32>>>()
    });
    let Some(lists) = lists.collect::<Option<Vec<_>>>() else {
        return false;
    };
    let mut members = lists.iter().flatten();
    members.clone().next().is_some() && members.all(|pid| pids.contains(pid))
}

/// Moves a process, with all its threads, into a directory. One that is gone
/// meanwhile is no error. `Ok(false)`: it is gone.
pub(crate) fn enter(dir: &Path, pid: i32) -> Result<bool, ActError> {
    let path = dir.join(PROCS);
    match files::put(&path, &pid.to_string()) {
        Ok(()) => Ok(true),
        Err(error) if files::is(&error, Errno::SRCH) => Ok(false),
        Err(error) => Err(file_error("moving a process by writing", path)(error)),
    }
}

/// Moves a process back to a directory, or to the nearest above it that is
/// still there and takes it.
pub(crate) fn go_back(dir: &Path, pid: i32) -> Result<(), ActError> {
    let mut first_error = None;
    let candidates = nearest(dir)
        .ancestors()
        .take_while(|dir| dir.join(PROCS).exists());
    for dir in candidates {
        match enter(dir, pid) {
            Ok(_) => return Ok(()),
            Err(error) => first_error.get_or_insert(error),
        };
    }
    match first_error {
        Some(error) => Err(error),
        None => Err(file_error("moving a process by writing", dir.join(PROCS))(
            io::ErrorKind::NotFound.into(),
        )),
    }
}

/// Kills every process of a program at once, those that have left its session
/// too. Without a cgroup nobody knows of these, and nothing is done.
pub fn kill_all(home: &ProcessTree) {
    if let Some(dir) = &home.cgroup {
        // It is gone already where nothing was left.
        let _ = files::put(&dir.join("cgroup.kill"), "1");
    }
}

/// Stops or continues everything in a cgroup v2 directory. One that is gone
/// is no error.
pub(crate) fn freeze(dir: &Path, frozen: bool) -> Result<(), ActError> {
    let path = dir.join("cgroup.freeze");
    match files::put(&path, if frozen { "1" } else { "0" }) {
        Err(error) if !files::is_gone(&error) => Err(file_error("writing", path)(error)),
        _ => Ok(()),
    }
}

/// Whether this process may freeze a cgroup.
pub(crate) fn can_freeze(dir: &Path) -> bool {
    OpenOptions::new()
        .write(true)
        .open(dir.join("cgroup.freeze"))
        .is_ok()
}

/// Whether a cgroup was told to freeze, by whatever wrote it last.
pub(crate) fn is_told_to_freeze(dir: &Path) -> bool {
    files::read(&dir.join("cgroup.freeze")).is_ok_and(|text| text == "1")
}

/// The file that stops and continues everything in a cgroup v2 directory,
/// kept open: for who does so often.
#[derive(Debug)]
pub(crate) struct Freezer {
    path: PathBuf,
    /// `None`: the directory is gone.
    file: Option<File>,
}

/// Opens a directory's freezer.
pub(crate) fn freezer(dir: &Path) -> Result<Freezer, ActError> {
    let path = dir.join("cgroup.freeze");
    match OpenOptions::new().write(true).open(&path) {
        Err(error) if files::is_gone(&error) => Ok(Freezer { path, file: None }),
        Err(error) => Err(file_error("opening", path)(error)),
        Ok(file) => Ok(Freezer {
            path,
            file: Some(file),
        }),
    }
}

/// As [`freeze()`], through the open file.
pub(crate) fn freeze_by(freezer: &Freezer, frozen: bool) -> Result<(), ActError> {
    let Some(file) = &freezer.file else {
        return Ok(());
    };
    match rustix::io::pwrite(file, if frozen { b"1" } else { b"0" }, 0) {
        Err(errno) if !files::is_gone(&errno.into()) => {
            Err(file_error("writing", &freezer.path)(errno.into()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory and the empty ones below it. `Ok(false)`: somebody is
/// still in there.
pub(crate) fn remove(dir: &Path) -> Result<bool, ActError> {
    for dir in with_subdirs(dir) {
        match fs::remove_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if files::is(&error, Errno::BUSY) => return Ok(false),
            // A file system that may only be read says so before it looks.
            Err(error) if files::is(&error, Errno::ROFS) && !dir.exists() => {}
            Err(error) => return Err(file_error("removing cgroup", dir)(error)),
        }
    }
    Ok(true)
}

/// The CPUs that processes in a directory may use now.
pub(crate) fn effective_cpus(dir: &Path, kind: DirKind) -> Result<CpuSet, ActError> {
    let file = match kind {
        DirKind::CpusetV1 => "cpuset.effective_cpus",
        DirKind::V2 | DirKind::Scope | DirKind::Unit => "cpuset.cpus.effective",
        DirKind::CpuV1 => return Ok(CpuSet::new()), // it does not narrow
    };
    files::read_cpus(&dir.join(file))
}

impl Dir {
    /// Whether this directory narrows the program: one that a version before
    /// 2 of the journal notes.
    pub(crate) fn narrows(&self) -> bool {
        !self.wide.is_empty()
    }

    /// The CPUs that the program could use now if it were not narrowed.
    pub(crate) fn allowed(&self) -> Result<CpuSet, ActError> {
        let parent = self.dir.parent().unwrap_or(&self.dir);
        if self.kind == DirKind::CpusetV1 {
            reopen_v1(parent)?;
        }
        Ok(self.wide.and(&effective_cpus(parent, self.kind)?))
    }

    /// Lets them run wherever they could before. One that is gone is no error.
    pub(crate) fn widen(&self) -> Result<(), ActError> {
        if !self.narrows() || !self.dir.is_dir() {
            return Ok(());
        }
        let allowed = self.allowed()?;
        // A group of cgroup v2 without a set of its own follows its parent.
        let parent = self.dir.parent().unwrap_or(&self.dir);
        let follows = self.kind != DirKind::CpusetV1
            && effective_cpus(parent, self.kind)?.is_subset(&self.wide);
        let cpus = if follows || allowed.is_empty() {
            "\n".to_owned()
        } else {
            allowed.to_string()
        };
        match files::write(&self.dir.join("cpuset.cpus"), &cpus) {
            Err(_) if !self.dir.is_dir() => Ok(()),
            result => result,
        }
    }

    /// Makes the processes in here give way to everybody beside this
    /// directory, or no longer. `Ok(false)`: it has no cpu controller that
    /// could, or is gone.
    pub(crate) fn set_idle(&self, idle: bool) -> Result<bool, ActError> {
        let path = self.dir.join("cpu.idle");
        match files::put(&path, if idle { "1" } else { "0" }) {
            Ok(()) => Ok(true),
            Err(error) if files::is_gone(&error) => Ok(false),
            Err(error) => Err(file_error("writing", path)(error)),
        }
    }
}

/// Gives our own v1 cpuset all CPUs of its parent again: unplugging a CPU
/// takes it out of every v1 cpuset for good.
fn reopen_v1(base: &Path) -> Result<(), ActError> {
    let parent = base.parent().unwrap_or(base);
    let all = effective_cpus(parent, DirKind::CpusetV1)?;
    let own = files::read_cpus(&base.join("cpuset.cpus"))?;
    if own == all {
        return Ok(());
    }
    files::write(&base.join("cpuset.cpus"), &all.to_string())
}
