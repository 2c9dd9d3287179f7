// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time and processes of a program without a cgroup: its processes, the *members*, are tracked
//! by their numbers.
//!
//! Each sample visits the known members, finds their children, and adds up CPU time: the members'
//! own time, plus the time of children that the members have waited for (`cutime`, `cstime`). A
//! member that has ended since the last sample is handled as follows:
//!
//! 1. If the nearest living ancestor has waited for the ended member, the ancestor's `cutime` and
//!    `cstime` have risen by the member's time.
//! 2. If not (the ancestor ignores SIGCHLD, or init has adopted the member), the last known CPU
//!    time of the member is added to the sum of ended members.
//!
//! Lost time:
//!
//! - the time between the last sample and the end of a member that no process waited for;
//! - the whole time of members that another process adopted before their first sample.
//!
//! A sample reads one file per member and one per thread of each member. Kernels without `children`
//! files require one file per process of the machine instead. The time of an ended member is
//! assigned by a walk over at most all members. A process that cannot be read counts as ended.
//!
//! The CPU time of a program that starts thousands of short-lived orphans is therefore measured too
//! low; the CPU time of a cgroup is exact. The resolution is the clock tick (10 ms on nearly all
//! kernels).

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_model::{ChildList, ProcStat, ProcessId, read_children};

use crate::error::ProbeError;
use crate::file;

/// A process tree and its CPU time.
#[derive(Debug)]
pub(crate) struct TrackedProcesses {
    proc_root: PathBuf,
    ns_per_tick: u64,
    /// The members at the last sample.
    members: BTreeMap<i32, ProcStat>,
    /// CPU time of ended members that no ancestor's `cutime` and `cstime` contain, in clock ticks.
    ended_ticks: u64,
    highest_ticks: u64,
}

impl TrackedProcesses {
    /// Starts to track the tree below a process.
    ///
    /// # Errors
    /// The process has ended, or its number belongs to a later process.
    pub(crate) fn open(proc_root: &Path, root: ProcessId) -> Result<Self, ProbeError> {
        let mut tree = Self::empty(proc_root);
        tree.add(root)?;
        tree.sample();
        Ok(tree)
    }

    /// Creates a tracker without processes.
    pub(crate) fn empty(proc_root: &Path) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            ns_per_tick: 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1),
            members: BTreeMap::new(),
            ended_ticks: 0,
            highest_ticks: 0,
        }
    }

    /// Tracks one more process and its descendants. Returns the present CPU time of the process in
    /// nanoseconds; 0 if it is tracked already.
    ///
    /// # Errors
    /// The process has ended, or its number belongs to a later process.
    pub(crate) fn add(&mut self, root: ProcessId) -> Result<u64, ProbeError> {
        let stat = read_stat(&self.proc_root, root.pid)?;
        if stat.start_ticks != root.start_ticks {
            return Err(ProbeError::Gone { pid: root.pid });
        }
        let ticks = total(&stat);
        Ok(match self.members.insert(root.pid, stat) {
            Some(_) => 0,
            None => ticks.saturating_mul(self.ns_per_tick),
        })
    }

    /// Samples the members.
    pub(crate) fn sample(&mut self) {
        let living = self.living();
        self.keep_ended(&living);
        self.members = living;
        let now: u64 = self.members.values().map(total).sum();
        self.highest_ticks = self.highest_ticks.max(now + self.ended_ticks);
    }

    /// Total CPU time in nanoseconds; never decreases.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.highest_ticks.saturating_mul(self.ns_per_tick)
    }

    /// Returns whether all members have ended. A zombie counts as ended, because it will not run
    /// again.
    pub(crate) fn has_ended(&self) -> bool {
        self.members.values().all(ProcStat::is_dead)
    }

    /// Returns a pidfd of the member that has run longest; `None` if all have ended.
    pub(crate) fn oldest(&self) -> Option<OwnedFd> {
        let living = self.members.iter().filter(|(_, stat)| !stat.is_dead());
        let mut by_age: Vec<_> = living.map(|(&pid, stat)| (stat.start_ticks, pid)).collect();
        by_age.sort_unstable();
        by_age.into_iter().find_map(|(start_ticks, pid)| {
            let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            let now = read_stat(&self.proc_root, pid).ok()?;
            (now.start_ticks == start_ticks && !now.is_dead()).then_some(pidfd)
        })
    }

    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        self.members.keys().copied().collect()
    }

    /// Returns the threads of all members, without main threads that have ended.
    pub(crate) fn threads(&self) -> BTreeSet<i32> {
        let tasks = |(&pid, stat): (&i32, &ProcStat)| {
            let main_ended = matches!(stat.state, 'Z' | 'X');
            let all = tasks(&self.proc_root, pid).into_iter();
            all.filter(move |&tid| !(main_ended && tid == pid))
        };
        self.members.iter().flat_map(tasks).collect()
    }

    /// Returns the members that still run, and all their descendants.
    fn living(&self) -> BTreeMap<i32, ProcStat> {
        let mut found = BTreeMap::new();
        let mut known: Vec<(i32, Option<u64>)> = self
            .members
            .iter()
            .map(|(&pid, stat)| (pid, Some(stat.start_ticks)))
            .collect();
        let by_parent = children_by_scan(&self.proc_root, &known);
        while let Some((pid, start)) = known.pop() {
            if found.contains_key(&pid) {
                continue;
            }
            let Ok(stat) = read_stat(&self.proc_root, pid) else {
                continue;
            };
            if start.is_some_and(|start| start != stat.start_ticks) {
                continue;
            }
            let children = match &by_parent {
                Some(scan) => scan.get(&pid).cloned().unwrap_or_default(),
                None => children(&self.proc_root, pid, stat.threads),
            };
            found.insert(pid, stat);
            known.extend(children.into_iter().map(|child| (child, None)));
        }
        found
    }

    /// Adds the time of members that are now missing to `ended_ticks`, minus the rise of their
    /// nearest living ancestor's time for children.
    fn keep_ended(&mut self, living: &BTreeMap<i32, ProcStat>) {
        let mut missing: BTreeMap<Option<i32>, u64> = BTreeMap::new();
        for (pid, stat) in &self.members {
            if !living.contains_key(pid) {
                let ancestor = self.living_ancestor(stat.parent, living);
                *missing.entry(ancestor).or_default() += total(stat);
            }
        }
        for (ancestor, ticks) in missing {
            let handed = |members: &BTreeMap<i32, ProcStat>| {
                let pid = ancestor?;
                members.get(&pid).map(|stat| stat.children_ticks)
            };
            let rise = match (handed(&self.members), handed(living)) {
                (Some(before), Some(now)) => now.saturating_sub(before),
                _ => 0,
            };
            self.ended_ticks += ticks.saturating_sub(rise);
        }
    }

    fn living_ancestor(&self, mut pid: i32, living: &BTreeMap<i32, ProcStat>) -> Option<i32> {
        // The loop ends after as many ancestors as there are members: a longer chain would be a
        // cycle, which only reused pids could cause.
        for _ in 0..=self.members.len() {
            if living.contains_key(&pid) {
                return Some(pid);
            }
            pid = self.members.get(&pid)?.parent;
        }
        None
    }
}

fn total(stat: &ProcStat) -> u64 {
    stat.own_ticks.saturating_add(stat.children_ticks)
}

pub(crate) fn read_stat(proc_root: &Path, pid: i32) -> Result<ProcStat, ProbeError> {
    let path = proc_root.join(pid.to_string()).join("stat");
    match file::parse(&path, "a process's stat", ProcStat::parse) {
        Err(error) if error.is_gone() => Err(ProbeError::Gone { pid }),
        other => other,
    }
}

/// Thread ids of a process; empty if it has ended.
pub(crate) fn tasks(proc_root: &Path, pid: i32) -> Vec<i32> {
    numbered(&proc_root.join(pid.to_string()).join("task"))
}

fn numbered(dir: &Path) -> Vec<i32> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns the children from `task/TID/children`, a file of kernels with `CONFIG_PROC_CHILDREN`.
/// `threads`: the number of threads of the process.
fn children(proc_root: &Path, pid: i32, mut threads: i64) -> BTreeSet<i32> {
    let task = proc_root.join(pid.to_string()).join("task");
    let read = || {
        let mut list = ChildList::default();
        let tids = tasks(proc_root, pid);
        // If a thread ends while the kernel lists the threads, the list may lack other threads.
        if (tids.len() as i64) < threads {
            list.lacks_threads = true;
            threads = read_stat(proc_root, pid).map_or(0, |stat| stat.threads);
        }
        for tid in tids {
            let text = file::read(&task.join(tid.to_string()).join("children"));
            list.add_thread(text.ok().as_deref());
        }
        Some(list)
    };
    read_children(read).unwrap_or_default()
}

/// Returns all processes by parent if the kernel has no `children` files; `None` if it has such
/// files, or if there are no `known` processes, whose children the caller would look up.
fn children_by_scan(
    proc_root: &Path,
    known: &[(i32, Option<u64>)],
) -> Option<BTreeMap<i32, BTreeSet<i32>>> {
    if known.is_empty() {
        return None;
    }
    let has_children_file = known.iter().any(|&(pid, _)| {
        let pid = pid.to_string();
        let task = proc_root.join(&pid).join("task").join(&pid);
        task.join("children").exists()
    });
    if has_children_file {
        return None;
    }
    let mut by_parent: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
    for pid in numbered(proc_root) {
        if let Ok(stat) = read_stat(proc_root, pid) {
            by_parent.entry(stat.parent).or_default().insert(pid);
        }
    }
    Some(by_parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An artificial /proc.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn process(&self, pid: i32, ppid: i32, own: u64, handed: u64) -> &Self {
            let dir = self.0.path().join(pid.to_string());
            std::fs::create_dir_all(dir.join("task").join(pid.to_string())).unwrap();
            let stat = format!(
                "{pid} (x) S {ppid} 1 1 0 -1 0 0 0 0 0 {own} 0 {handed} 0 20 0 2 0 {pid} 0 0"
            );
            std::fs::write(dir.join("stat"), stat).unwrap();
            self
        }

        fn end(&self, pid: i32) -> &Self {
            std::fs::remove_dir_all(self.0.path().join(pid.to_string())).unwrap();
            self
        }

        fn tree(&self, pid: i32) -> TrackedProcesses {
            let start_ticks = pid as u64;
            TrackedProcesses::open(self.0.path(), ProcessId { pid, start_ticks }).unwrap()
        }
    }

    fn ticks(tree: &mut TrackedProcesses) -> u64 {
        tree.sample();
        tree.cpu_ns() / tree.ns_per_tick
    }

    #[test]
    fn sums_the_tree_without_other_processes() {
        let machine = Machine::new();
        machine.process(10, 1, 5, 2).process(11, 10, 7, 0);
        machine.process(12, 11, 1, 0).process(20, 1, 1000, 0);
        let mut tree = machine.tree(10);
        assert_eq!(ticks(&mut tree), 15);
        assert_eq!(tree.threads(), BTreeSet::from([10, 11, 12]));
        assert_eq!(tree.processes(), BTreeSet::from([10, 11, 12]));
    }

    #[test]
    fn a_reaped_child_is_counted_once() {
        let machine = Machine::new();
        machine.process(10, 1, 5, 0).process(11, 10, 7, 0);
        let mut tree = machine.tree(10);
        machine.end(11).process(10, 1, 5, 9);
        assert_eq!(ticks(&mut tree), 14);
    }

    #[test]
    fn a_child_without_a_waiting_parent_keeps_its_last_value() {
        let machine = Machine::new();
        machine
            .process(10, 1, 5, 0)
            .process(11, 10, 7, 0)
            .process(12, 10, 8, 0);
        let mut tree = machine.tree(10);
        machine.end(11).end(12).process(10, 1, 6, 7);
        assert_eq!(ticks(&mut tree), 21, "6 of the root, 7 handed, 8 kept");
        machine.end(10);
        assert_eq!(ticks(&mut tree), 21);
        assert!(tree.has_ended());
    }

    #[test]
    fn an_orphan_stays_a_member() {
        let machine = Machine::new();
        machine
            .process(10, 1, 5, 0)
            .process(11, 10, 7, 0)
            .process(12, 11, 3, 0);
        let mut tree = machine.tree(10);
        machine.end(11).process(12, 1, 4, 0).process(10, 1, 5, 7);
        assert_eq!(ticks(&mut tree), 16);
        assert!(!tree.has_ended());
    }

    #[test]
    fn the_machines_processes_are_listed_only_for_known_members() {
        let machine = Machine::new();
        machine.process(10, 1, 5, 0).process(11, 10, 7, 0);
        let root = machine.0.path();
        assert_eq!(children_by_scan(root, &[]), None);
        let listed = children_by_scan(root, &[(10, Some(10))]).unwrap();
        assert_eq!(listed[&10], BTreeSet::from([11]));
    }

    #[test]
    fn a_reused_number_is_another_process() {
        let machine = Machine::new();
        machine.process(10, 1, 5, 0);
        let gone = ProcessId {
            pid: 10,
            start_ticks: 3,
        };
        let error = TrackedProcesses::open(machine.0.path(), gone).unwrap_err();
        assert_eq!(error.to_string(), "process 10 has ended");
    }
}
