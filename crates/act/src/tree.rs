// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding every process of a tree that is forking while it is looked at.
//!
//! A process that has been taken into the program's cgroup can only bear
//! children inside, so each round of *find those outside, take them in*
//! leaves fewer that can bear outside. The rounds end when two looks running
//! find nobody outside. Who was born inside is told by its cgroups: they are
//! those that the root is in by now. So a tree may fork as fast as it likes;
//! only without cgroups it must pause for two looks.
//!
//! A process whose parent died between two looks hangs on an ancestor by
//! then, its reaper; it is known by its process group or session and by having
//! been born since we began. A reaper (init, a service manager, a container's
//! shim) stands in a session of its own; an ancestor in the same session, a
//! shell say, is not one but may at the same moment be launching another
//! program, which is none of ours. Only init can be both, where a machine or a
//! container starts programs without a session of their own; there an orphan
//! has to run the same executable as one of the tree, too. Neither is an
//! orphan in the home of another program.
//!
//! What cannot be told apart: orphans of two programs in one session that
//! fork, and lose parents, while both are being attached. And a chain of
//! processes that each fork once and end at once, if it is attached while it
//! runs, may be refused, or slip between two looks. A launched program is
//! never in doubt: it is born in its home.
//!
//! A fresh process that has never forked is the common case, and cheap: its
//! `children` file is empty, and whoever was born while it was taken in has
//! one of the few pids that the machine has given out meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::ProcessId;

use crate::error::ActError;
use crate::procs::{Process, Procs};

/// Rounds before a tree is declared impossible to catch. Each takes in all
/// that the last left outside; a tree would have to outgrow this every time.
const ROUNDS_MAX: usize = 60;

/// New pids up to which they are looked at one by one instead of all.
const BORN_MAX: i32 = 64;

/// The process that adopts every orphan that no other one does.
const INIT: i32 = 1;

/// What the directories of all instances have in their names.
const HOME: &str = "/usher-";

/// Who belongs to a tree.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    procs: &'a Procs,
    root: ProcessId,
    /// Processes that adopt the tree's orphans, with their sessions.
    reapers: BTreeMap<i32, i32>,
    born_since_ticks: u64,
    /// This process, which may have been born in the very tick in which we
    /// begin, by the tree's launcher: it is nobody's orphan.
    own: i32,
    /// Cgroups of the root before it was taken in.
    origin: String,
}

impl<'a> Tree<'a> {
    /// The tree rooted at a process, orphans counted from now on.
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

    /// Hands each process of the tree to `take`, once, until none is left
    /// outside. `take` says whether it took the process in.
    ///
    /// # Errors
    /// What `take` says, or that the tree grows faster than it is taken in.
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
            let born = last_pid.and_then(|last| self.born_since(last));
            if born.is_some_and(|born| self.outside(&inside, born).is_empty()) {
                return Ok(());
            }
        }
        if let Some(root) = self.procs.same(self.root)
            && !inside.contains_key(&root.id)
        {
            // First of all: where it is then is what "inside" means.
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
            reason: "it forks faster than its processes can be taken in; stop it first (kill -STOP)",
        })
    }

    fn root(&self) -> Result<Process, ActError> {
        let pid = self.root.pid;
        self.procs.same(self.root).ok_or(ActError::Gone { pid })
    }

    /// Processes born since the last pid of the machine was this one, as pids
    /// are given out in rising order; `None` where that cannot be told cheaply.
    fn born_since(&self, last: i32) -> Option<Vec<Process>> {
        let now = self.procs.last_pid()?;
        let few = (0..BORN_MAX).contains(&now.checked_sub(last)?);
        few.then(|| {
            (last + 1..=now)
                .filter_map(|pid| self.procs.get(pid))
                .collect()
        })
    }

    /// The cgroups of those inside, where these differ from those before.
    fn home(&self) -> Option<String> {
        let now = self.procs.cgroup_lines(self.root.pid);
        (!now.is_empty() && now != self.origin).then_some(now)
    }

    /// Whether a process is in the home of another program.
    fn is_somebody_elses(&self, pid: i32, home: Option<&String>) -> bool {
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

    /// Whether a process was born since we began and adopted by a reaper.
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
            && !self.is_somebody_elses(process.id.pid, home)
    }

    /// Whether a process was adopted by a reaper, not launched.
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

    /// Processes of the tree, of those listed, that are not inside yet. Those
    /// inside still count as parents when they have died.
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
        // The dead are nowhere, and many die while the list is gone through.
        let lives = |process: &Process| {
            let now = self.procs.same(process.id);
            now.is_some_and(|now| !now.is_dead())
        };
        all.into_iter()
            .filter(|process| outside(process) && !born_inside(process) && lives(process))
            .collect()
    }
}

/// All living processes that descend from these, themselves included.
pub(crate) fn descendants(
    procs: &Procs,
    roots: impl IntoIterator<Item = ProcessId>,
) -> Vec<Process> {
    descendants_among(&procs.all(), roots)
}

/// As [`descendants`], of the processes listed.
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

/// Clock ticks since boot, as processes' start times count them.
fn now_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}
