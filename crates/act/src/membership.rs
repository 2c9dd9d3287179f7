// SPDX-License-Identifier: MIT OR Apache-2.0
//! Determines which processes belong to a managed program: the processes in its cgroups, the
//! descendants of its recorded members, and orphans that members left.
//!
//! 1. [`Membership::list`] reads the processes in the program's cgroups.
//! 2. If a member is outside these cgroups, [`Membership::list`] lists all processes of the machine
//!    and adds the descendants of such members.
//! 3. [`Membership::list`] adds orphans. When the parent of a process ends, init or another reaper
//!    adopts the process, whose parent then no longer shows its origin. An orphan belongs to the
//!    program if it has the process group or session of a member, is in the cgroup of a member, and
//!    was adopted. A process that has its parent's session or leads a session was launched, not
//!    adopted, and is no orphan. The user's shell and other jobs of the shell are excluded by this
//!    rule.
//!
//! Only the restoring of masks and priorities considers orphans, and only orphans with a value of
//! Usher's. No new change is applied to a process of unknown origin. [`Membership::process_of`]
//! traces a single new thread to a member through at most [`ANCESTORS_MAX`] ancestors. A full list
//! costs a few reads of `/proc` per process of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use usher_model::ProcessId;

use crate::journal::ProgramState;
use crate::procs::{Process, Procs};
use crate::{cgroups, tree};

/// Upper limit of the ancestors of a new process among which a member is searched.
const ANCESTORS_MAX: usize = 16;
/// Upper limit of the processes that are probed with `tgkill` for a thread. Above a few processes,
/// a read of `/proc` is cheaper.
const TGKILL_MAX: usize = 16;
/// The pid of init, which adopts every orphan that no other reaper adopts.
const INIT: i32 = 1;

/// The processes, process groups and cgroups of a program that earlier scans found.
#[derive(Debug, Default)]
pub(crate) struct KnownProcesses {
    /// The program's processes outside its cgroups, with their start times.
    outside: BTreeMap<i32, u64>,
    /// Process groups and sessions of members.
    groups: BTreeSet<i32>,
    /// Cgroups of members, as `/proc/PID/cgroup` lists them.
    places: BTreeSet<String>,
    executables: BTreeSet<PathBuf>,
}

/// The processes of one program.
#[derive(Debug)]
pub(crate) struct Membership<'a> {
    procs: &'a Procs,
    /// The program's cgroups.
    dirs: Vec<PathBuf>,
    members: Vec<ProcessId>,
    /// The processes found until now.
    pids: BTreeSet<i32>,
    known: KnownProcesses,
    /// The uid to which the list is restricted.
    owner: Option<u32>,
}

impl<'a> Membership<'a> {
    /// Creates the membership of a program from its state in the journal.
    pub(crate) fn new(procs: &'a Procs, state: &ProgramState) -> Self {
        Self::with_known(procs, state, KnownProcesses::default())
    }

    /// Creates the membership of a program from the processes that earlier steps of a scan found.
    pub(crate) fn with_known(
        procs: &'a Procs,
        state: &ProgramState,
        mut known: KnownProcesses,
    ) -> Self {
        // A member's pid is added as a group number, because the group or session that a member led
        // keeps this number after the member's end.
        known
            .groups
            .extend(state.members.keys().map(|member| member.pid));
        Self {
            procs,
            dirs: state.dirs.iter().map(|dir| dir.dir.clone()).collect(),
            members: state.members.keys().copied().collect(),
            pids: known.outside.keys().copied().collect(),
            known,
            owner: None,
        }
    }

    /// Returns the processes that were found, for the next step of the scan.
    pub(crate) fn into_known(self) -> KnownProcesses {
        self.known
    }

    /// Restricts the list to processes of this user.
    pub(crate) fn owned_by(mut self, owner: Option<u32>) -> Self {
        self.owner = owner;
        self
    }

    fn is_owned(&self, pid: i32) -> bool {
        self.owner
            .is_none_or(|owner| self.procs.belongs_to(pid, owner))
    }

    /// Returns whether the program has a cgroup. A cgroup lists all processes of the program except
    /// processes that left the cgroup.
    pub(crate) fn has_cgroup(&self) -> bool {
        !self.dirs.is_empty()
    }

    fn inside(&self) -> BTreeSet<i32> {
        let dirs = self.dirs.iter();
        dirs.flat_map(|dir| cgroups::members(dir)).collect()
    }

    /// Lists the program's processes anew. Orphans are included if `is_ours` returns true for their
    /// pid, which means that their first thread has a value that Usher set.
    pub(crate) fn list(&mut self, is_ours: impl Fn(i32) -> bool) -> BTreeSet<i32> {
        self.pids = self.inside();
        self.known.outside.clear();
        let outside = |one: &ProcessId| !self.pids.contains(&one.pid);
        let outside: Vec<_> = self.members.iter().copied().filter(outside).collect();
        if !outside.is_empty() {
            let all = self.procs.all();
            let below = tree::descendants_among(&all, outside);
            below.iter().for_each(|process| self.add(process.id));
            self.record_members(&all);
            let strange = |process: &&Process| !self.pids.contains(&process.id.pid);
            let candidates = all.iter().filter(strange);
            let candidates = candidates.filter(|process| is_ours(process.id.pid));
            let orphans: Vec<_> = candidates.filter(|one| self.is_orphan(one)).collect();
            orphans.iter().for_each(|process| self.add(process.id));
        }
        self.owned()
    }

    /// Lists the processes in the program's cgroups anew, and adds the known processes outside the
    /// cgroups that still live. A call is much cheaper than a call of [`Self::list`].
    pub(crate) fn list_known(&mut self) -> BTreeSet<i32> {
        self.pids = self.inside();
        let is_alive = |pid: i32, start_ticks: u64| {
            let process = self.procs.same(ProcessId { pid, start_ticks });
            process.is_some_and(|process| !process.is_dead())
        };
        self.known
            .outside
            .retain(|&pid, &mut start_ticks| is_alive(pid, start_ticks));
        self.pids.extend(self.known.outside.keys());
        self.owned()
    }

    fn owned(&self) -> BTreeSet<i32> {
        let mut listed = self.pids.clone();
        listed.retain(|&pid| self.is_owned(pid));
        listed
    }

    fn add(&mut self, process: ProcessId) {
        if self.pids.insert(process.pid) {
            self.known.outside.insert(process.pid, process.start_ticks);
        }
    }

    /// Records groups, sessions and cgroups of the members among these processes.
    fn record_members(&mut self, all: &[Process]) {
        for process in all.iter().filter(|one| self.pids.contains(&one.id.pid)) {
            self.known.groups.extend([process.group, process.session]);
            self.known
                .places
                .insert(self.procs.cgroup_lines(process.id.pid));
            self.known
                .executables
                .extend(self.procs.executable(process.id.pid));
        }
    }

    /// Returns the process of a thread if it belongs to the program.
    pub(crate) fn process_of(&mut self, tid: i32, with_orphans: bool) -> Option<i32> {
        let found = self.find_process_of(tid, with_orphans);
        found.filter(|&pid| self.is_owned(pid))
    }

    fn find_process_of(&mut self, tid: i32, with_orphans: bool) -> Option<i32> {
        let few = self.pids.iter().take(TGKILL_MAX);
        let known = few.copied().find(|&pid| is_thread_of(pid, tid));
        if known.is_some() {
            return known;
        }
        let pid = self.procs.process_of(tid)?;
        if self.pids.contains(&pid) {
            return Some(pid);
        }
        let process = self.procs.get(pid)?;
        let is_known = self.descends(&process)
            || self.inside().contains(&pid)
            || (with_orphans && self.is_orphan(&process));
        is_known.then(|| {
            self.add(process.id);
            pid
        })
    }

    /// Returns whether a process belongs to the program: it is in one of the program's cgroups, or it
    /// is a recorded member or a descendant of one. Does not list the processes of the machine, and
    /// therefore finds no descendant of an ended process that was never recorded.
    pub(crate) fn contains(&self, id: ProcessId) -> bool {
        if !self.is_owned(id.pid) {
            return false;
        }
        let Some(process) = self.procs.same(id) else {
            return false;
        };
        let parent = |process: &Process| self.procs.get(process.parent);
        let lineage = std::iter::successors(Some(process), parent);
        let mut lineage = lineage.take(ANCESTORS_MAX);
        // The list of the cgroups is read first, because it costs less than the ancestors.
        self.inside().contains(&id.pid) || lineage.any(|process| self.members.contains(&process.id))
    }

    fn descends(&self, process: &Process) -> bool {
        let mut at = process.parent;
        for _ in 0..ANCESTORS_MAX {
            if self.pids.contains(&at) {
                return true;
            }
            match self.procs.get(at) {
                Some(process) if process.parent > INIT => at = process.parent,
                _ => return false,
            }
        }
        false
    }

    /// Returns whether a process is an orphan of the program: a reaper adopted it after its parent,
    /// a member, ended.
    fn is_orphan(&self, process: &Process) -> bool {
        let groups = [process.group, process.session];
        // If no member lives, the members' cgroups are unknown, and any cgroup is accepted.
        let is_beside = || {
            let places = self.procs.cgroup_lines(process.id.pid);
            self.known.places.is_empty() || self.known.places.contains(&places)
        };
        let is_related = groups.iter().any(|group| self.known.groups.contains(group));
        is_related && is_beside() && !process.is_dead() && self.is_adopted(process)
    }

    fn is_adopted(&self, process: &Process) -> bool {
        if process.session == process.id.pid {
            // The process was launched into a session of its own, as a login shell is.
            return false;
        }
        let parent = self.procs.get(process.parent);
        if parent.is_some_and(|parent| parent.session != process.session) {
            return true;
        }
        // If init itself launched the program, an orphan has the session of its parent init, too.
        // Such a process counts as adopted only if it has the executable of a member.
        let executable = || self.procs.executable(process.id.pid);
        process.parent == INIT
            && executable().is_some_and(|exe| self.known.executables.contains(&exe))
    }
}

/// Returns whether the thread `tid` belongs to the process `pid`.
pub(crate) fn is_thread_of(pid: i32, tid: i32) -> bool {
    // SAFETY: `tgkill` takes three numbers and accesses no memory; signal 0 only tests for the
    // thread.
    let found = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
    found == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;
    use crate::config::ActConfig;

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A session leader of this kind is a shell that a terminal or a login started.
    #[test]
    fn the_leader_of_a_members_session_is_no_orphan() {
        let mut command = Command::new("sleep");
        // SAFETY: the closure calls only `setsid`, which is async-signal-safe.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(|_| ())?)) };
        let leader = Sleeper(command.arg("60").spawn().unwrap());
        let pid = leader.0.id() as i32;
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        let process = procs.get(pid).unwrap();
        assert_eq!(process.session, pid, "it leads a session");
        let mut membership = Membership::new(&procs, &ProgramState::default());
        membership.known.groups.insert(process.session);
        membership.known.places.insert(procs.cgroup_lines(pid));
        assert!(!membership.is_orphan(&process));
    }
}
