// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures a whole process tree: moves all its processes into the program's cgroups, although the
//! tree may fork during the capture.
//!
//! **Idea.** A process that was moved into the program's cgroup can create children only inside
//! this cgroup. Each round finds the processes of the tree that are outside and moves them inside.
//! After each round, fewer processes can create children outside. The rounds end when two
//! consecutive scans find no process outside. A process is inside if it is in the same cgroups as
//! the root process of the tree. By this method, the capture succeeds for a tree that forks at any
//! rate. If the program has no cgroup, the capture succeeds only when the tree creates no process
//! during two scans.
//!
//! **Orphans.** If the parent of a process died between two scans, an ancestor of the tree, called
//! the reaper, has adopted the process. A process counts as an orphan of the tree if it meets four
//! conditions:
//!
//! - The process has the process group or session of a process of the tree.
//! - The process started after the capture began.
//! - A reaper (init, a service manager, a container's shim) has adopted the process. A reaper has a
//!   session of its own. An ancestor in the session of the tree, such as a shell, is no reaper: its
//!   new children may belong to other programs. Only init can be a reaper in the session of the
//!   tree, because a machine or a container may start programs without a session of their own. In
//!   this case, an orphan must also run the same executable as a process of the tree.
//! - The process is not in the home of another program.
//!
//! **Limits.** Orphans of two programs in one session cannot be distinguished if both programs are
//! being attached while they create orphans. A running program that is a chain of processes, each
//! of which forks once and ends at once, may escape between two scans; its attachment may also be
//! rejected. Launched programs do not have these problems, because they are created in their homes.
//!
//! **Cost.** In the usual case, a new process that has never forked, no listing of all processes is
//! necessary. The `children` file of the process is empty. The capture then examines only the pids
//! that the kernel has assigned since the capture began, if these are fewer than 64
//! ([`NEW_PIDS_MAX`]). Other cases cost one listing of all processes of the machine per round, for
//! at most 60 rounds ([`ROUNDS_MAX`]). After that, the capture fails. Finding the tree in a listing
//! takes at most one pass per level of the tree.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use usher_model::ProcessId;

use crate::error::ActError;
use crate::procs::{Process, Procs};

/// Upper limit of rounds before the capture fails. Each round admits all processes that the
/// previous round left outside. The limit is therefore reached only by a tree that creates
/// processes faster than every round admits them.
const ROUNDS_MAX: usize = 60;

/// Fewer new pids than this number are examined individually. For more new pids, all processes are
/// listed instead.
const NEW_PIDS_MAX: i32 = 64;

/// The pid of init, which adopts every orphan that no other reaper adopts.
const INIT: i32 = 1;

/// A part of the path of each cgroup directory that an Usher instance made.
const HOME: &str = "/usher-";

/// The processes of a tree.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    procs: &'a Procs,
    root: ProcessId,
    /// Processes that adopt the tree's orphans, with their sessions.
    reapers: BTreeMap<i32, i32>,
    born_since_ticks: u64,
    /// The pid of this Usher process, which is never an orphan of the tree. If the tree's launcher
    /// created this Usher process in the clock tick in which the capture begins, this process would
    /// otherwise meet the conditions of an orphan.
    own: i32,
    /// The cgroups of the root process before it was admitted.
    origin: String,
}

impl<'a> Tree<'a> {
    /// Begins the capture of the tree with this root process. Only processes that start from now on
    /// can be orphans of the tree.
    pub(crate) fn new(procs: &'a Procs, root: ProcessId) -> Self {
        let above = procs.lineage(root.pid).into_iter().skip(2);
        let mut reapers: BTreeMap<i32, i32> = above.map(|one| (one.id.pid, one.session)).collect();
        // Init adopts orphans also if it is the parent of the root.
        if let Entry::Vacant(entry) = reapers.entry(INIT)
            && let Some(init) = procs.get(INIT)
        {
            entry.insert(init.session);
        }
        Self {
            procs,
            root,
            reapers,
            born_since_ticks: now_ticks(),
            own: rustix::process::getpid().as_raw_nonzero().get(),
            origin: procs.cgroup_lines(root.pid),
        }
    }

    /// Passes each process of the tree once to `take`, which admits the process, until no process
    /// of the tree is outside.
    ///
    /// # Errors
    /// An error of `take`, or an error which states that the tree grows faster than it can be
    /// admitted.
    pub(crate) fn capture(
        &self,
        mut take: impl FnMut(&Process) -> Result<(), ActError>,
    ) -> Result<(), ActError> {
        let mut inside: BTreeMap<ProcessId, Process> = BTreeMap::new();
        let last_pid = self.procs.last_pid();
        if self
            .procs
            .children(self.root.pid)
            .is_some_and(|c| c.is_empty())
        {
            let root = self.root()?;
            take(&root)?;
            inside.insert(root.id, root);
            let born = last_pid.and_then(|last| self.created_since(last));
            if born.is_some_and(|born| self.outside(&inside, born).is_empty()) {
                return Ok(());
            }
        }
        if let Some(root) = self.procs.same(self.root)
            && !inside.contains_key(&root.id)
        {
            // The root process is admitted first, because its new cgroups determine which processes
            // are inside.
            take(&root)?;
            inside.insert(root.id, root);
        }
        let mut scans_without_new = 0;
        for _ in 0..ROUNDS_MAX {
            let outside = self.outside(&inside, self.procs.all());
            scans_without_new = if outside.is_empty() {
                scans_without_new + 1
            } else {
                0
            };
            if scans_without_new == 2 {
                return Ok(());
            }
            for process in outside {
                take(&process)?;
                inside.insert(process.id, process);
            }
        }
        Err(ActError::Refused {
            pid: self.root.pid,
            reason: "the program forks faster than Usher can admit its processes: stop the \
                     program first (kill -STOP)",
        })
    }

    fn root(&self) -> Result<Process, ActError> {
        let pid = self.root.pid;
        self.procs.same(self.root).ok_or(ActError::Gone { pid })
    }

    /// Returns the processes that were created since the kernel assigned the pid `last`. The kernel
    /// assigns pids in rising order. Returns `None` if these processes cannot be determined
    /// cheaply.
    fn created_since(&self, last: i32) -> Option<Vec<Process>> {
        let now = self.procs.last_pid()?;
        let few = (0..NEW_PIDS_MAX).contains(&now.checked_sub(last)?);
        few.then(|| {
            (last + 1..=now)
                .filter_map(|pid| self.procs.get(pid))
                .collect()
        })
    }

    /// Returns the cgroups of the admitted root process, if they differ from its former cgroups.
    fn home(&self) -> Option<String> {
        let now = self.procs.cgroup_lines(self.root.pid);
        (!now.is_empty() && now != self.origin).then_some(now)
    }

    /// Returns whether a process is in the home of another program.
    fn is_in_other_program(&self, pid: i32, home: Option<&String>) -> bool {
        let cgroups = self.procs.cgroup_lines(pid);
        let known = |line| {
            [Some(&self.origin), home]
                .into_iter()
                .flatten()
                .any(|text| text.lines().any(|l| l == line))
        };
        cgroups
            .lines()
            .any(|line| line.contains(HOME) && !known(line))
    }

    /// Returns whether a process was created since the capture began and adopted by a reaper.
    fn is_orphan(
        &self,
        process: &Process,
        inside: &BTreeMap<ProcessId, Process>,
        home: Option<&String>,
    ) -> bool {
        process.id.start_ticks >= self.born_since_ticks
            && process.id.pid != self.own
            && !process.is_dead()
            && self.is_adopted(process, inside)
            && !self.is_in_other_program(process.id.pid, home)
    }

    /// Returns whether a process was adopted by a reaper, not launched.
    fn is_adopted(&self, process: &Process, inside: &BTreeMap<ProcessId, Process>) -> bool {
        match self.reapers.get(&process.parent) {
            None => return false,
            Some(session) if *session != process.session => return true,
            Some(_) => {}
        }
        let executable = self.procs.executable(process.id.pid);
        let of_tree = |pid| self.procs.executable(pid) == executable;
        process.parent == INIT
            && executable.is_some()
            && (of_tree(self.root.pid) || inside.keys().any(|id| of_tree(id.pid)))
    }

    /// Returns the processes in the list `all` that belong to the tree and are not inside yet. A
    /// process that was inside still counts as a parent after its death.
    fn outside(&self, inside: &BTreeMap<ProcessId, Process>, all: Vec<Process>) -> Vec<Process> {
        let mut tree: BTreeSet<i32> = inside.keys().map(|id| id.pid).collect();
        tree.insert(self.root.pid);
        let mut groups: BTreeSet<i32> = inside.values().map(|p| p.group).collect();
        let mut sessions: BTreeSet<i32> = inside.values().map(|p| p.session).collect();
        let home = self.home();
        // The search is repeated, because pids wrap around, and a child may be listed before its
        // parent.
        loop {
            let known = tree.len();
            for process in &all {
                let orphan = (groups.contains(&process.group)
                    || sessions.contains(&process.session))
                    && self.is_orphan(process, inside, home.as_ref());
                if tree.contains(&process.parent) || orphan || process.id == self.root {
                    tree.insert(process.id.pid);
                    groups.insert(process.group);
                    sessions.insert(process.session);
                }
            }
            if tree.len() == known {
                break;
            }
        }
        let outside = |process: &Process| {
            tree.contains(&process.id.pid)
                && !inside.contains_key(&process.id)
                && !process.is_dead()
        };
        let born_inside = |process: &Process| {
            let home = home.as_ref();
            home.is_some_and(|home| self.procs.cgroup_lines(process.id.pid) == *home)
        };
        // Dead processes are left out, because they are in no cgroup. Many processes may have ended
        // since the list was made.
        let is_alive = |process: &Process| {
            let now = self.procs.same(process.id);
            now.is_some_and(|now| !now.is_dead())
        };
        all.into_iter()
            .filter(|process| outside(process) && !born_inside(process) && is_alive(process))
            .collect()
    }
}

/// Returns all living processes that descend from these processes, and these processes themselves.
pub(crate) fn descendants(
    procs: &Procs,
    roots: impl IntoIterator<Item = ProcessId>,
) -> Vec<Process> {
    descendants_among(&procs.all(), roots)
}

/// Does the same as [`descendants`], but finds the processes by the kernel's lists of children, and
/// reads no other processes. Returns `None` if the kernel has no such lists, or if the tree has more
/// than `threads_max` threads. Each thread has a list of its own, so that a search of all processes
/// of the machine is cheaper for many threads.
pub(crate) fn descendants_by_children(
    procs: &Procs,
    roots: &[ProcessId],
    threads_max: i64,
) -> Option<Vec<Process>> {
    let mut pending: Vec<Process> = roots.iter().filter_map(|&id| procs.same(id)).collect();
    let mut tree: BTreeMap<i32, Process> = BTreeMap::new();
    let mut threads = 0;
    while let Some(process) = pending.pop() {
        let pid = process.id.pid;
        if process.is_dead() || tree.contains_key(&pid) {
            continue;
        }
        threads += process.threads;
        if threads > threads_max {
            return None;
        }
        let children = procs.children(pid)?.into_iter();
        // A child may have ended, and another process may have its pid now.
        let children = children.filter_map(|child| procs.get(child));
        pending.extend(children.filter(|child| child.parent == pid));
        tree.insert(pid, process);
    }
    Some(tree.into_values().collect())
}

/// Does the same as [`descendants`], but considers only the processes in the list `all`.
pub(crate) fn descendants_among(
    all: &[Process],
    roots: impl IntoIterator<Item = ProcessId>,
) -> Vec<Process> {
    let roots: BTreeSet<ProcessId> = roots.into_iter().collect();
    let mut tree: BTreeSet<i32> = BTreeSet::new();
    loop {
        let known = tree.len();
        for process in all {
            if roots.contains(&process.id) || tree.contains(&process.parent) {
                tree.insert(process.id.pid);
            }
        }
        if tree.len() == known {
            break;
        }
    }
    let living = |process: &Process| tree.contains(&process.id.pid) && !process.is_dead();
    all.iter()
        .filter(|process| living(process))
        .cloned()
        .collect()
}

/// Returns the time since boot in clock ticks, which are the unit of processes' start times.
fn now_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::ActConfig;

    #[test]
    fn lists_of_children_show_the_same_tree_as_all_processes() {
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        let mut shell = Command::new("sh");
        let mut shell = shell
            .args(["-c", "sleep 1000 & echo; exec sleep 1000"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        let output = shell.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut line).unwrap();
        let root = procs.get(shell.id().cast_signed()).unwrap().id;
        let ids = |tree: Vec<Process>| -> Vec<ProcessId> {
            tree.into_iter().map(|process| process.id).collect()
        };
        let all = ids(descendants(&procs, [root]));
        let walked = descendants_by_children(&procs, &[root], 32).map(ids);
        let has_lists = procs.children(root.pid).is_some();
        let limited = descendants_by_children(&procs, &[root], 1);
        let child = all.iter().copied().find(|id| *id != root).unwrap();
        for pid in [child.pid, root.pid] {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        shell.wait().unwrap();

        assert_eq!(all.len(), 2);
        assert_eq!(walked, has_lists.then_some(all));
        assert!(limited.is_none(), "two processes exceed the limit");

        let deadline = Instant::now() + Duration::from_secs(60);
        while procs.same(child).is_some_and(|child| !child.is_dead()) {
            assert!(Instant::now() < deadline, "the child does not end");
            std::thread::yield_now();
        }
        let after = descendants_by_children(&procs, &[root, child], 32);
        assert!(after.unwrap().is_empty(), "ended processes are left out");
    }
}
