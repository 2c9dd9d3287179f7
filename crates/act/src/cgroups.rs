// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations on the cgroup directories of one program. The functions list member processes, move
//! processes, read and reset the CPU sets of cgroup v1 and v2, freeze cgroups, set `cpu.idle` and
//! remove directories. A missing directory or process is no error, because directories and
//! processes may disappear at any time.
//!
//! No function waits or retries. Functions that list members or remove directories visit the
//! directory and all directories below it; the other functions access at most a few files.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use usher_model::{CpuSet, ProcessTree};

use crate::error::{ActError, file_error};
use crate::files;
use crate::journal::{Dir, DirKind};
use crate::mounts::nearest;

const PROCS: &str = "cgroup.procs";

/// Returns the pids of the processes in a cgroup directory and in all directories below it.
pub(crate) fn members(dir: &Path) -> BTreeSet<i32> {
    let dirs = with_subdirs(dir);
    dirs.iter().flat_map(|dir| members_of(dir)).collect()
}

/// Returns the pids of the processes in a cgroup directory, without the directories below it.
pub(crate) fn members_of(dir: &Path) -> BTreeSet<i32> {
    // A directory that is gone has no members. The list of a threaded cgroup cannot be read; the
    // kernel lists its processes in the threaded cgroup's domain, a directory above.
    let text = files::read_text(&dir.join(PROCS)).unwrap_or_default();
    let pids = text.lines().filter_map(|pid| pid.parse::<i32>().ok());
    // The kernel writes 0 for a process that is outside this PID namespace.
    pids.filter(|pid| *pid != 0).collect()
}

/// Returns a directory and all directories below it, the deepest first.
fn with_subdirs(dir: &Path) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    // Cgroup file systems count the directory's own two links and one link per subdirectory. The
    // count costs one system call, a list five.
    if fs::metadata(dir).is_ok_and(|data| data.nlink() != 2) {
        let below = files::subdirs(dir).into_iter();
        dirs.extend(below.flat_map(|sub| with_subdirs(&sub)));
    }
    dirs.push(dir.to_owned());
    dirs
}

/// Returns whether a cgroup and the cgroups below it contain only processes of this set. Returns
/// `false` for the root cgroup and for a cgroup with processes outside this PID namespace.
pub(crate) fn holds_only(dir: &Path, pids: &BTreeSet<i32>) -> bool {
    // The root cgroup has no file `cgroup.events`.
    if !dir.join("cgroup.events").exists() {
        return false;
    }
    let lists = with_subdirs(dir).into_iter().map(|dir| {
        let text = files::read_text(&dir.join(PROCS)).ok()?;
        let pids = text.lines().map(|pid| pid.parse::<i32>().ok());
        pids.collect::<Option<Vec<i32>>>()
    });
    let Some(lists) = lists.collect::<Option<Vec<_>>>() else {
        return false;
    };
    let mut members = lists.iter().flatten();
    members.clone().next().is_some() && members.all(|pid| pids.contains(pid))
}

/// Moves a process, with all its threads, into a directory. Returns `Ok(false)` if the process is
/// gone.
pub(crate) fn enter(dir: &Path, pid: i32) -> Result<bool, ActError> {
    let path = dir.join(PROCS);
    match files::put(&path, &pid.to_string()) {
        Ok(()) => Ok(true),
        Err(error) if files::is(&error, Errno::SRCH) => Ok(false),
        Err(error) => Err(file_error(
            "moving a process into a cgroup by writing",
            path,
        )(error)),
    }
}

/// Moves a process back to a directory, or to the nearest existing ancestor that accepts it.
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
        None => Err(file_error(
            "moving a process into a cgroup by writing",
            dir.join(PROCS),
        )(io::ErrorKind::NotFound.into())),
    }
}

/// Kills every process of a program at once, including processes that have left the program's
/// session. If the program has no cgroup, its processes are unknown here, and the call has no
/// effect.
pub fn kill_all(home: &ProcessTree) {
    if let Some(dir) = &home.cgroup {
        // The write may fail, because the directory is gone if the program had no process left.
        let _ = files::put(&dir.join("cgroup.kill"), "1");
    }
}

/// Freezes or thaws all processes in a cgroup v2 directory. A missing directory is no error.
pub(crate) fn freeze(dir: &Path, frozen: bool) -> Result<(), ActError> {
    let path = dir.join("cgroup.freeze");
    match files::put(&path, if frozen { "1" } else { "0" }) {
        Err(error) if !files::is_gone(&error) => Err(file_error("writing", path)(error)),
        _ => Ok(()),
    }
}

/// Returns whether this process may freeze a cgroup.
pub(crate) fn can_freeze(dir: &Path) -> bool {
    OpenOptions::new()
        .write(true)
        .open(dir.join("cgroup.freeze"))
        .is_ok()
}

/// Returns whether a cgroup's `cgroup.freeze` is 1, whichever process wrote it.
pub(crate) fn is_freeze_set(dir: &Path) -> bool {
    files::read(&dir.join("cgroup.freeze")).is_ok_and(|text| text == "1")
}

/// The open file `cgroup.freeze` of a cgroup v2 directory. Frequent freezes and thaws need no
/// further open.
#[derive(Debug)]
pub(crate) struct Freezer {
    path: PathBuf,
    /// `None`: the directory is gone.
    file: Option<File>,
}

/// Opens the file `cgroup.freeze` of a directory.
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

/// Does the same as [`freeze()`] through the open file.
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

/// Removes a directory and the empty directories below it. Returns `Ok(false)` if a process is
/// still inside.
pub(crate) fn remove(dir: &Path) -> Result<bool, ActError> {
    for dir in with_subdirs(dir) {
        match fs::remove_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if files::is(&error, Errno::BUSY) => return Ok(false),
            // A read-only file system returns the error `EROFS` even for a missing directory.
            Err(error) if files::is(&error, Errno::ROFS) && !dir.exists() => {}
            Err(error) => return Err(file_error("removing cgroup", dir)(error)),
        }
    }
    Ok(true)
}

/// Returns the CPUs that processes in a directory may use now.
pub(crate) fn effective_cpus(dir: &Path, kind: DirKind) -> Result<CpuSet, ActError> {
    let file = match kind {
        DirKind::CpusetV1 => "cpuset.effective_cpus",
        DirKind::V2 | DirKind::Scope | DirKind::Unit => "cpuset.cpus.effective",
        DirKind::CpuV1 => return Ok(CpuSet::new()), // this controller restricts no CPUs
    };
    files::read_cpus(&dir.join(file))
}

impl Dir {
    /// Returns whether this directory restricts the CPUs of the program. Only journals of version 1
    /// contain such directories.
    pub(crate) fn narrows(&self) -> bool {
        !self.wide.is_empty()
    }

    /// Returns the CPUs that the program could use now without the restriction by this directory.
    pub(crate) fn allowed(&self) -> Result<CpuSet, ActError> {
        let parent = self.dir.parent().unwrap_or(&self.dir);
        if self.kind == DirKind::CpusetV1 {
            reopen_v1(parent)?;
        }
        Ok(self.wide.and(&effective_cpus(parent, self.kind)?))
    }

    /// Removes the CPU restriction. A missing directory is no error.
    pub(crate) fn widen(&self) -> Result<(), ActError> {
        if !self.narrows() || !self.dir.is_dir() {
            return Ok(());
        }
        let allowed = self.allowed()?;
        // A cgroup v2 with an empty `cpuset.cpus` may use the CPUs of its parent.
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

    /// Sets or clears `cpu.idle` of this directory. Returns `Ok(false)` if the directory has no cpu
    /// controller with that file, or is gone.
    pub(crate) fn set_idle(&self, idle: bool) -> Result<bool, ActError> {
        let path = self.dir.join("cpu.idle");
        match files::put(&path, if idle { "1" } else { "0" }) {
            Ok(()) => Ok(true),
            Err(error) if files::is_gone(&error) => Ok(false),
            Err(error) => Err(file_error("writing", path)(error)),
        }
    }
}

/// Gives a v1 cpuset that Usher made all CPUs of its parent again. The reset is necessary after CPU
/// hotplug, because the kernel removes an unplugged CPU from every v1 cpuset and does not add the
/// CPU again.
fn reopen_v1(base: &Path) -> Result<(), ActError> {
    let parent = base.parent().unwrap_or(base);
    let all = effective_cpus(parent, DirKind::CpusetV1)?;
    let own = files::read_cpus(&base.join("cpuset.cpus"))?;
    if own == all {
        return Ok(());
    }
    files::write(&base.join("cpuset.cpus"), &all.to_string())
}
