// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recognises the orphans of a program: processes that outlived their parents.
//!
//! 1. If a launcher started the program with the variable [`RUN_VARIABLE`], a process belongs to the
//!    program if it has the same value. The environment is that of the latest `exec`, or of the
//!    parent for a process that has executed nothing. The value of the program is read once, after
//!    the first process of the program has executed its file.
//! 2. Otherwise, a process belongs to the program if it has the process group of a known process and
//!    the cgroups of the program, and its parent has another session.
//!
//! Both rules require that the process is not older than the program, has the session of a process
//! of the program, and leads no session. Rule 2 may also find a process of another program, if both
//! programs have one process group. It finds nothing where the first process of the machine and all
//! others have one session, as often in a container.
//!
//! *Cost.* 10 us per new process of another program in a session of the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use usher_model::{ProcStat, ProcessId};

use super::{FORK_NO_EXEC, KnownProcess};
use crate::file;
use crate::tree::read_stat;

/// An environment variable with a value that is unique to one run of a program. The value starts with
/// the pid of the launcher, which is the parent of the program, and a dot.
pub const RUN_VARIABLE: &str = "USHER_RUN";

/// Whether a process belongs to the program although its parent is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The process has the value of the launcher.
    Certain,
    /// The process has the process group of the program.
    Likely,
    /// The environment cannot be read during an `exec`; it must be read again.
    Unread,
    /// The process does not belong to the program.
    Other,
}

/// The properties by which the orphans of one program are recognised.
#[derive(Debug)]
pub(super) struct OrphanRules {
    proc_root: PathBuf,
    root: ProcessId,
    /// The cgroups of the root process at the start.
    cgroup: Option<String>,
    session: Option<i32>,
    /// The value of the launcher.
    run: Option<Vec<u8>>,
    /// Whether `run` is final.
    is_read: bool,
}

impl OrphanRules {
    pub fn new(proc_root: &Path, root: ProcessId) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            root,
            cgroup: cgroup(proc_root, root.pid),
            session: None,
            run: None,
            is_read: false,
        }
    }

    /// Reads the properties of the root process that are not known yet.
    pub fn note_root(&mut self, stat: &ProcStat) {
        self.session = Some(stat.session);
        // Before its first `exec`, the process has the environment of its launcher.
        if self.is_read || stat.flags & FORK_NO_EXEC != 0 {
            return;
        }
        let Some(value) = run_variable(&self.proc_root, stat.pid) else {
            return;
        };
        self.is_read = true;
        // A process that another program has started inherits the value of that program's launcher.
        let launcher = format!("{}.", stat.parent);
        self.run = value.filter(|value| value.starts_with(launcher.as_bytes()));
    }

    /// Applies the rules to a process with an unknown parent.
    pub fn origin(&self, stat: &ProcStat, known: &BTreeMap<i32, KnownProcess>) -> Origin {
        let mut sessions = known.values().map(|one| one.stat.session);
        let has_session = self.session == Some(stat.session) || sessions.any(|s| s == stat.session);
        let is_older = stat.start_ticks < self.root.start_ticks;
        if is_older || !has_session || stat.session == stat.pid {
            return Origin::Other;
        }
        let Some(run) = &self.run else {
            return match self.has_group_and_other_parent(stat, known) {
                true => Origin::Likely,
                false => Origin::Other,
            };
        };
        match run_variable(&self.proc_root, stat.pid) {
            Some(value) if value.as_ref() == Some(run) => Origin::Certain,
            Some(_) => Origin::Other,
            None => Origin::Unread,
        }
    }

    fn has_group_and_other_parent(
        &self,
        stat: &ProcStat,
        known: &BTreeMap<i32, KnownProcess>,
    ) -> bool {
        if !known.values().any(|one| one.stat.group == stat.group) {
            return false;
        }
        let reaper = read_stat(&self.proc_root, stat.parent);
        let is_adopted = reaper.is_ok_and(|reaper| reaper.session != stat.session);
        is_adopted && self.cgroup.is_some() && self.cgroup == cgroup(&self.proc_root, stat.pid)
    }
}

/// Returns the cgroups of a process, as `/proc` lists them.
fn cgroup(proc_root: &Path, pid: i32) -> Option<String> {
    file::read(&proc_root.join(pid.to_string()).join("cgroup")).ok()
}

/// Returns the value of [`RUN_VARIABLE`] in the environment of a process, if it has one. Returns
/// `None` if the environment cannot be read, or is empty, as in the middle of an `exec`.
#[allow(
    clippy::option_option,
    reason = "the outer level means that nothing was read"
)]
fn run_variable(proc_root: &Path, pid: i32) -> Option<Option<Vec<u8>>> {
    let path = proc_root.join(pid.to_string()).join("environ");
    let environment = std::fs::read(path).ok().filter(|bytes| !bytes.is_empty())?;
    let mut variables = environment.split(|&byte| byte == 0);
    let value = |variable: &[u8]| {
        let value = variable.strip_prefix(RUN_VARIABLE.as_bytes())?;
        Some(value.strip_prefix(b"=")?.to_owned())
    };
    Some(variables.find_map(value))
}
