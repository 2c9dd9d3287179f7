// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time, waiting time, members and end of a program that has its own cgroup v2.
//!
//! The kernel counts the use of the whole cgroup subtree in `cpu.stat`, including ended processes
//! and processes that were never sampled. `cpu.stat` exists with and without the cpu controller.
//! Polling `cgroup.events` returns POLLPRI when the last process leaves the cgroup.
//!
//! CPU time, waiting time and the check for the end cost one read of an open file each, of at most
//! 4 KiB. Only [`Cgroup::threads`] and [`Cgroup::processes`] walk the subtree: one directory and
//! one file per cgroup, in time proportional to the number of ids. Cgroups that are removed
//! meanwhile are skipped; other errors are returned. Without pressure files there is no waiting
//! time.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::ProbeError;
use crate::file::{self, OpenFile};
use crate::text;

/// The open files of a program's cgroup.
#[derive(Debug)]
pub(crate) struct Cgroup {
    dir: PathBuf,
    cpu: OpenFile,
    pressure: Option<OpenFile>,
    events: OpenFile,
}

impl Cgroup {
    pub(crate) fn open(dir: &Path) -> Result<Self, ProbeError> {
        let mut events = OpenFile::open(dir.join("cgroup.events"))?;
        // Polling returns POLLPRI only for changes after the last read. The first read therefore
        // makes later changes visible.
        events.parse("a cgroup.events file", populated)?;
        Ok(Self {
            cpu: OpenFile::open(dir.join("cpu.stat"))?,
            pressure: OpenFile::open(dir.join("cpu.pressure")).ok(),
            events,
            dir: dir.to_owned(),
        })
    }

    pub(crate) fn cpu_ns(&mut self) -> Result<u64, ProbeError> {
        self.cpu.parse("a cpu.stat file", text::cpu_stat_ns)
    }

    /// Returns the nanoseconds in which some task waited for a CPU. `None` if the kernel has no
    /// pressure files, or they are disabled (`cgroup.pressure` 0, `psi=0`).
    pub(crate) fn wait_ns(&mut self) -> Option<u64> {
        let pressure = self.pressure.as_mut()?;
        let read = pressure.parse("a pressure file", text::pressure).ok()?;
        Some(read.some_ns)
    }

    /// Returns whether the cgroup contains no process or is removed.
    pub(crate) fn has_ended(&mut self) -> Result<bool, ProbeError> {
        match self.events.parse("a cgroup.events file", populated) {
            Ok(populated) => Ok(!populated),
            Err(error) if error.is_gone() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the thread ids of the cgroup and of all cgroups below it.
    pub(crate) fn threads(&self) -> Result<BTreeSet<i32>, ProbeError> {
        let mut tids = BTreeSet::new();
        each_cgroup(&self.dir, &mut |dir| {
            tids.extend(numbers(&dir.join("cgroup.threads"))?);
            Ok(())
        })?;
        Ok(tids)
    }

    /// Returns the process ids of the cgroup and of all cgroups below it.
    pub(crate) fn processes(&self) -> Result<BTreeSet<i32>, ProbeError> {
        let mut pids = BTreeSet::new();
        each_cgroup(&self.dir, &mut |dir| {
            pids.extend(numbers(&dir.join("cgroup.procs"))?);
            Ok(())
        })?;
        Ok(pids)
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn populated(text: &str) -> Option<bool> {
    Some(text::keyed(text, "populated")? != 0)
}

/// Calls `visit` for a cgroup and all cgroups below it, except those that are removed meanwhile.
fn each_cgroup(
    dir: &Path,
    visit: &mut dyn FnMut(&Path) -> Result<(), ProbeError>,
) -> Result<(), ProbeError> {
    match visit(dir) {
        Err(error) if !error.is_gone() => return Err(error),
        _ => {}
    }
    // Cgroup file systems count the directory's own two links and one link per subdirectory. The
    // count costs one system call, a list five.
    if std::fs::metadata(dir).map_or(true, |data| data.nlink() == 2) {
        return Ok(());
    }
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            each_cgroup(&entry.path(), visit)?;
        }
    }
    Ok(())
}

fn numbers(path: &Path) -> Result<Vec<i32>, ProbeError> {
    file::parse(path, "a list of process or thread ids", |text| {
        text.lines().map(|line| line.trim().parse().ok()).collect()
    })
}
