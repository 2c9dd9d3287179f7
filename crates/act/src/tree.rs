// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capture of a whole process tree that may fork during the capture.
//!
//! **Idea.** A process that was moved into the program's cgroup can only create children inside.
//! Each round of *find the processes outside, admit them* therefore leaves fewer processes that can
//! create children outside. The rounds end when two consecutive scans find no process outside. A
//! process that was created inside is in the same cgroups as the root process of the tree. So the
//! tree may fork at any rate; only without cgroups must it pause for two scans.
//!
//! **Orphans.** If the parent of a process died between two scans, an ancestor, its reaper, has
//! adopted the process. It is recognised by its process group or session and by its start after the
//! capture began. A reaper (init, a service manager, a container's shim) is in a session of its
//! own. An ancestor in the same session, such as a shell, is no reaper, and may at the same moment
//! be launching another program that does not belong to the tree. Only init can be both: a machine
//! or a container may start programs without a session of their own. There an orphan must also run
//! the same executable as a process of the tree. A process in the home of another program is never
//! an orphan of this tree.
//!
//! **Limits.** Orphans of two programs in one session cannot be distinguished while both programs
//! fork, lose parents and are being attached. A chain of processes that each fork once and end at
//! once may be refused if it is attached while it runs, or escape between two scans. A launched
//! program is never in doubt, because it is created in its home.
//!
//! **Cost.** The usual case, a new process that has never forked, is cheap. Its `children` file is
//! empty, and a process created during the capture has one of the few pids that the machine has
//! assigned since.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::ProcessId;

use crate::error::ActError;
use crate::procs::{Process, Procs};

/// Upper limit of rounds before the capture fails. Each round admits all processes that the last
/// one left outside, so the tree would have to outgrow every round.
const ROUNDS_MAX: usize = 60;

/// Upper limit of new pids that are examined one by one instead of listing all.
const NEW_PIDS_MAX: i32 = 64;

/// Init, which adopts every orphan that no other reaper adopts.
const INIT: i32 = 1;

/// Part of the name of every instance's directories.
const HOME: &str = "/usher-";

/// The processes of a tree.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    procs: &'a Procs,
    root: ProcessId,
    /// Processes that adopt the tree's orphans, with their sessions.
    reapers: BTreeMap<i32, i32>,
    born_since_ticks: u64,
    /// This process. The tree's launcher may have created it in the clock tick in which the capture
    /// begins; it is no orphan of the tree.
    own: i32,
    /// Cgroups of the root before it was admitted.
    origin: String,
}

impl<'a> Tree<'a> {
    /// Starts the capture of the tree with this root. Orphans count from now on.
    pub(crate) fn new(procs: &'a Procs, root: ProcessId) -> Self {
        let above = procs.ancestors(root.pid).into_iter().skip(2);
        let reapers = above.chain([INIT]).filter_map(|pid| procs.get(pid));
        Self {
            procs,
            root,
            reapers: reapers.map(|one| (one.id.pid, one.session)).collect(),
            born_since_ticks: now_ticks(),
            own: rustix::process::getpid().as_raw_nonzero().get(),
            origin: procs.cgroup_lines(root.pid),
        }
    }

    /// Passes each process of the tree to `take`, once, until none is left outside. `take` returns
    /// whether it admitted the process.
    ///
    /// # Errors
    /// The error of `take`, or that the tree grows faster than it is admitted.
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
            // The root comes first: its cgroups afterwards define "inside".
            take(&root)?;
            inside.insert(root.id, root);
        }
        let mut quiet_looks = 0;
        for _ in 0..ROUNDS_MAX {
            let outside = self.outside(&inside, self.procs.all());
            quiet_looks = if outside.is_empty() {
                quiet_looks + 1
            } else {
                0
            };
            if quiet_looks == 2 {
                return Ok(());
            }
            for process in outside {
                take(&process)?;
                inside.insert(process.id, process);
            }
        }
        Err(ActError::Refused {
            pid: self.root.pid,
            reason: "the program forks faster than Usher can admit its processes; stop it first \
                     (kill -STOP)",
        })
    }

    fn root(&self) -> Result<Process, ActError> {
        let pid = self.root.pid;
        self.procs.same(self.root).ok_or(ActError::Gone { pid })
    }

    /// Returns processes created since this was the machine's last pid, as pids are assigned in
    /// rising order; `None` if they cannot be determined cheaply.
    fn created_since(&self, last: i32) -> Option<Vec<Process>> {
        let now = self.procs.last_pid()?;
        let few = (0..NEW_PIDS_MAX).contains(&now.checked_sub(last)?);
        few.then(|| {
            (last + 1..=now)
                .filter_map(|pid| self.procs.get(pid))
                .collect()
        })
    }

    /// Returns the cgroups of the processes inside, if they differ from those before.
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

    /// Returns the processes of the tree, among those listed, that are not inside yet. Processes
    /// inside count as parents even after their death.
    fn outside(&self, inside: &BTreeMap<ProcessId, Process>, all: Vec<Process>) -> Vec<Process> {
        let mut tree: BTreeSet<i32> = inside.keys().map(|id| id.pid).collect();
        tree.insert(self.root.pid);
        let mut groups: BTreeSet<i32> = inside.values().map(|p| p.group).collect();
        let mut sessions: BTreeSet<i32> = inside.values().map(|p| p.session).collect();
        let home = self.home();
        // Pids wrap around, so a child may be listed before its parent.
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
        // Dead processes are in no cgroup, and many die while the list is processed.
        let lives = |process: &Process| {
            let now = self.procs.same(process.id);
            now.is_some_and(|now| !now.is_dead())
        };
        all.into_iter()
            .filter(|process| outside(process) && !born_inside(process) && lives(process))
            .collect()
    }
}

/// Returns all living processes that descend from these, themselves included.
pub(crate) fn descendants(
    procs: &Procs,
    roots: impl IntoIterator<Item = ProcessId>,
) -> Vec<Process> {
    descendants_among(&procs.all(), roots)
}

/// As [`descendants`], among the processes listed.
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

/// Returns the clock ticks since boot, the unit of processes' start times.
fn now_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}
