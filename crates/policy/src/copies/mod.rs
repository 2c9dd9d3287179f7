// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recognises the copies that a launcher inside a managed program starts (worker processes of
//! `pytest -n`, joblib, `xargs -P`, `make -j`), and divides the program's seat among them.
//!
//! **Problem.** A thread pool usually reads its affinity mask at its start, and starts one thread
//! per CPU. Four workers on 16 CPUs then run 64 threads.
//!
//! **Idea.** A copy that can use four CPUs when its pool starts gets a pool of four threads. The
//! copy's mask is narrowed before that, and widened later.
//!
//! 1. *Recognition.* Siblings are copies if they run one executable, have the same shape of command
//!    line ([`TreeProcess::shape`]) and were found within `WINDOW_NS`. The name of the launcher
//!    does not matter. Siblings that have not executed a program (forks) are recognised when they
//!    are `FORK_NS` old, because most forks execute another program at once. A group of copies
//!    admits later siblings while it has a copy.
//! 2. *Division.* Each copy gets a part of the seat ([`divide()`]). The launcher of a group may
//!    itself be a copy, whose part is then divided. The division follows the number of copies: a
//!    rise at once, a fall after `FEWER_NS`. Copies that wait while other copies start processes
//!    are not counted (`waiting`).
//! 3. *Balance.* If copies share parts, a running copy of an overloaded part is exchanged with a
//!    sleeping copy of an idle part (`balance`).
//! 4. *Widening.* A copy may use the whole seat again when it has used `MATURE_NS` of CPU time,
//!    and has mapped no library in the last `SETTLED_NS` of this time. The copy must not work
//!    with more threads than the CPUs of its part. A fork with more working threads, which has its
//!    parent's pool, is confined until its end. A copy that has executed a program and works with
//!    more threads may use the whole seat at once: threads that busy-wait for one another, such as
//!    those of GNU OpenMP, are many times slower on fewer CPUs than threads.
//! 5. *Launcher.* If copies that have executed a program work with too many threads, their thread
//!    pools read the mask before the scan. The launcher itself is then narrowed to the part of the
//!    next copy, which a new process inherits. This requires that the launcher has one thread and
//!    uses at most `LAUNCHER_SHARE` of a CPU. The launcher gets its mask back when it has at most
//!    one copy and has started no copy for `LAUNCHER_NS`.
//! 6. *Serial programs.* After `TRIALS` copies of an executable ended with one working thread
//!    each, later copies are not confined (compilers under `make -j`). Copies that used less
//!    than 10 ms of CPU time show nothing about threads, and do not count. When a copy works with
//!    several threads, all later copies of the executable are confined again.
//!
//! *Cost.* [`CopyPlanner::step`] takes O(n²) time for n processes, O(k²) for each new copy of a
//! group with k copies, and the time of the division of changed groups.
//!
//! *Limits.* A pool that starts more than `MATURE_NS` after its process uses the whole seat.
//! Copies whose pools read the mask before the first scan keep too many threads.

mod balance;
mod divide;
pub mod hints;
mod tree;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use usher_model::{CpuSet, ProcessId, Topology, TreeProcess};

pub use divide::divide;

use balance::Imbalance;
use tree::Tree;

/// Longest time between the first scans that found two siblings, for siblings to form a group.
const WINDOW_NS: u64 = 2_000_000_000;
/// Age from which a fork that has not executed a program counts as a worker.
const FORK_NS: u64 = 20_000_000;
/// Time for which a group must have fewer copies before the seat is divided among fewer copies.
const FEWER_NS: u64 = 250_000_000;
/// CPU time of a copy after which it may use the whole seat.
const MATURE_NS: u64 = 1_000_000_000;
/// CPU time without a newly mapped library before a copy may use the whole seat.
const SETTLED_NS: u64 = 500_000_000;
/// Number of confined copies of one executable that must run and end with one working thread before
/// later copies are not confined.
const TRIALS: u32 = 4;
/// A launcher that used more than this share of a CPU since it was found is not narrowed.
const LAUNCHER_SHARE: f64 = 0.1;
/// Time for which a narrowed launcher with a single copy keeps its mask without starting another
/// copy.
const LAUNCHER_NS: u64 = 2_000_000_000;

type Executable = (u64, u64);

/// A change of the affinity mask of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskChange {
    /// The process, without its descendants.
    pub process: ProcessId,
    /// The CPUs to which the process is confined; `None` for the whole seat.
    pub cpus: Option<CpuSet>,
}

/// How a copy runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// The copy may use its part of the seat.
    Confined,
    /// The copy may use its part of the seat, and so may the other copies, because the copy waits.
    Waiting,
    /// The copy may use the whole seat: its thread pools exist.
    Widened,
    /// The copy may use the whole seat, because copies of this executable have one thread.
    Serial,
    /// The copy has set an affinity mask itself, or may not be changed.
    LeftAlone,
}

/// A copy, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// The process.
    pub process: ProcessId,
    /// The part of the seat. In the status of an engine, a copy that is left alone has the CPUs of
    /// its own masks here.
    pub cpus: CpuSet,
    /// How the copy runs.
    pub state: CopyState,
    /// Most working threads of a process of the copy.
    pub threads: u32,
}

/// A launcher with its copies, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Pid of the launcher.
    pub launcher: i32,
    /// Name of the copies.
    pub name: String,
    /// Whether the copies are forks of the launcher, which have not executed a program.
    pub forked: bool,
    /// Whether the launcher itself is narrowed, so that new copies inherit their part.
    pub narrows_launcher: bool,
    /// The copies, by pid.
    pub copies: Vec<CopyReport>,
}

/// The property that copies share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    launcher: i32,
    executable: Executable,
    executed: bool,
    shape: String,
}

#[derive(Debug)]
struct TrackedCopy {
    slot: usize,
    state: CopyState,
    /// Most working threads of a process of the copy until now.
    threads: u32,
    /// Whether the copy has executed a program and worked with more threads than CPUs.
    late: bool,
    /// Whether the copy or a descendant has used CPU time. The kernel counts in steps of 10 ms.
    has_run: bool,
    /// CPU time of the copy when it last slept.
    slept_cpu_ns: u64,
}

#[derive(Debug, Default)]
struct Group {
    name: String,
    copies: BTreeMap<ProcessId, TrackedCopy>,
    /// Number of parts of the seat.
    slots: usize,
    /// Time since which the group has had fewer copies than slots.
    fewer_since_ns: Option<u64>,
    /// Time at which the last copy was added.
    grown_ns: u64,
    narrows_launcher: bool,
    parts: Vec<CpuSet>,
    /// The CPUs, the number of slots and the slots of waiting copies from which `parts` was
    /// computed.
    divided: Option<(CpuSet, usize, BTreeSet<usize>)>,
    imbalance: Imbalance,
}

/// The use of threads by the copies of one executable.
#[derive(Debug, Default)]
struct ThreadUse {
    /// Whether a copy worked with several threads.
    has_pools: bool,
    /// Number of confined copies that ended with one working thread.
    ended: u32,
}

impl ThreadUse {
    /// Returns whether a new copy needs no confinement.
    fn is_serial(&self) -> bool {
        !self.has_pools && self.ended >= TRIALS
    }
}

/// Recognises and divides the copies of one managed program.
#[derive(Debug, Default)]
pub struct CopyPlanner {
    groups: BTreeMap<GroupKey, Group>,
    uses: BTreeMap<Executable, ThreadUse>,
    /// The mask of each process that has a mask of this planner; `None` if the mask is not known,
    /// because the process may have inherited it.
    applied: BTreeMap<ProcessId, Option<CpuSet>>,
    known: BTreeSet<ProcessId>,
    left_alone: BTreeSet<ProcessId>,
    /// Processes of the last step that no group contains, apart from launchers.
    others: usize,
}

impl CopyPlanner {
    /// Updates the groups by the program's present processes. Returns the masks to change.
    pub fn step(
        &mut self,
        at_ns: u64,
        topology: &Topology,
        seat: &CpuSet,
        processes: &[TreeProcess],
    ) -> Vec<MaskChange> {
        let tree = Tree::new(processes);
        self.forget_ended(&tree);
        self.inherit(&tree);
        self.recognise(at_ns, &tree);
        for (key, group) in &mut self.groups {
            let uses = self.uses.entry(key.executable).or_default();
            group.note_threads(&tree, key, uses);
            group.note_waiting(at_ns, &tree);
            group.balance(at_ns, &tree);
            group.resize(at_ns);
        }
        self.divide_all(topology, seat, &tree);
        self.widen(&tree);
        self.narrow_launchers(at_ns, &tree);
        self.changes(&tree)
    }

    /// Returns the masks of processes that this planner has chosen, to verify them.
    pub fn applied(&self) -> Vec<MaskChange> {
        let change = |(&process, cpus): (&ProcessId, &Option<CpuSet>)| {
            let cpus = Some(cpus.clone()?);
            Some(MaskChange { process, cpus })
        };
        self.applied.iter().filter_map(change).collect()
    }

    /// Records that a process keeps its own mask: it pinned itself or may not be changed.
    pub fn leave_alone(&mut self, process: ProcessId) {
        self.applied.remove(&process);
        self.left_alone.insert(process);
        for group in self.groups.values_mut() {
            if let Some(copy) = group.copies.get_mut(&process) {
                copy.state = CopyState::LeftAlone;
            }
        }
    }

    /// Forgets the masks that were applied, because other code has set the program's masks since.
    pub fn masks_changed(&mut self) {
        for mask in self.applied.values_mut() {
            *mask = None;
        }
    }

    /// Returns whether copies were recognised, or processes may have a mask of this planner.
    pub fn is_active(&self) -> bool {
        !self.applied.is_empty() || !self.groups.is_empty()
    }

    /// Returns the recognised copies.
    pub fn report(&self) -> Vec<GroupReport> {
        let copy = |group: &Group, (&process, copy): (&ProcessId, &TrackedCopy)| CopyReport {
            process,
            cpus: group.parts.get(copy.slot).cloned().unwrap_or_default(),
            state: copy.state,
            threads: copy.threads,
        };
        let groups = self.groups.iter();
        groups
            .map(|(key, group)| GroupReport {
                launcher: key.launcher,
                name: group.name.clone(),
                forked: !key.executed,
                narrows_launcher: group.narrows_launcher,
                copies: group.copies.iter().map(|one| copy(group, one)).collect(),
            })
            .collect()
    }

    /// Returns the pids of the copies and of their descendants, whose working threads matter.
    pub fn copy_pids(&self, processes: &[TreeProcess]) -> BTreeSet<i32> {
        let tree = Tree::new(processes);
        let is_below = |pid: &i32| tree.ancestors(*pid).any(|one| self.copy(one.id).is_some());
        tree.by_pid.keys().copied().filter(is_below).collect()
    }

    /// Returns the number of children of launchers that run as a part of their launcher, because
    /// they are no copies.
    pub fn unrecognised(&self) -> usize {
        self.others
    }

    fn forget_ended(&mut self, tree: &Tree<'_>) {
        let lives = |id: &ProcessId| tree.get(id.pid).is_some_and(|one| one.id == *id);
        self.applied.retain(|id, _| lives(id));
        self.known.retain(lives);
        self.left_alone.retain(lives);
    }

    /// A new process has the mask of its parent, unless its parent was narrowed after the fork.
    fn inherit(&mut self, tree: &Tree<'_>) {
        for process in tree.by_pid.values() {
            if !self.known.insert(process.id) {
                continue;
            }
            let parent = tree.get(process.parent);
            if parent.is_some_and(|parent| self.applied.contains_key(&parent.id)) {
                self.applied.insert(process.id, None);
            }
        }
    }

    fn recognise(&mut self, at_ns: u64, tree: &Tree<'_>) {
        let mut siblings: BTreeMap<GroupKey, Vec<&TreeProcess>> = BTreeMap::new();
        for process in tree.by_pid.values() {
            if let Some(key) = key_of(process, at_ns, tree) {
                siblings.entry(key).or_default().push(process);
            }
        }
        for (key, group) in &mut self.groups {
            let present = siblings.get(key).map_or(&[][..], Vec::as_slice);
            let uses = self.uses.entry(key.executable).or_default();
            group.drop_missing(present, uses);
        }
        self.groups.retain(|_, group| !group.copies.is_empty());
        for (key, present) in siblings {
            let is_known = self.groups.contains_key(&key);
            if !is_known && !started_together(&present) {
                continue;
            }
            let uses = self.uses.entry(key.executable).or_default();
            let group = self.groups.entry(key).or_default();
            for process in present {
                // A process that has executed another program keeps the mask that it chose before.
                let is_left_alone = self.left_alone.contains(&process.id);
                group.add(process, at_ns, uses, is_left_alone);
            }
        }
    }

    /// Divides the seat among the groups, the groups of outer launchers first.
    fn divide_all(&mut self, topology: &Topology, seat: &CpuSet, tree: &Tree<'_>) {
        let mut keys: Vec<(usize, GroupKey)> = self
            .groups
            .keys()
            .map(|key| (tree.ancestors(key.launcher).count(), key.clone()))
            .collect();
        keys.sort();
        for (_, key) in keys {
            let base = self.part_of(key.launcher, tree).unwrap_or(seat).clone();
            if let Some(group) = self.groups.get_mut(&key) {
                group.divide(topology, &base);
            }
        }
    }

    /// Returns the part of the seat to which a process is confined as a copy or as a descendant of
    /// a copy.
    fn part_of(&self, pid: i32, tree: &Tree<'_>) -> Option<&CpuSet> {
        let lineage = tree.ancestors(pid);
        lineage
            .filter_map(|process| self.copy(process.id))
            .find_map(|(group, copy)| match copy.state {
                CopyState::Confined | CopyState::Waiting => group.parts.get(copy.slot),
                CopyState::Widened | CopyState::Serial | CopyState::LeftAlone => None,
            })
    }

    fn copy(&self, process: ProcessId) -> Option<(&Group, &TrackedCopy)> {
        let mut groups = self.groups.values();
        groups.find_map(|group| Some((group, group.copies.get(&process)?)))
    }

    fn widen(&mut self, tree: &Tree<'_>) {
        for group in self.groups.values_mut() {
            for (process, copy) in &mut group.copies {
                let part = group.parts.get(copy.slot).map_or(0, CpuSet::len);
                let is_ready = tree.get(process.pid).is_some_and(is_mature);
                let fits = copy.threads as usize <= part.max(1);
                if copy.state == CopyState::Confined && is_ready && fits {
                    copy.state = CopyState::Widened;
                }
            }
        }
    }

    fn narrow_launchers(&mut self, at_ns: u64, tree: &Tree<'_>) {
        for (key, group) in &mut self.groups {
            let is_idle = tree.get(key.launcher).is_some_and(|launcher| {
                let age_ns = at_ns.saturating_sub(launcher.found_ns).max(1);
                launcher.threads == 1 && launcher.cpu_ns as f64 <= LAUNCHER_SHARE * age_ns as f64
            });
            let is_late = group.copies.values().any(|copy| copy.late);
            let is_recent = at_ns.saturating_sub(group.grown_ns) < LAUNCHER_NS;
            let is_starting = group.copies.len() > 1 || is_recent;
            group.narrows_launcher =
                key.executed && is_idle && is_starting && (is_late || group.narrows_launcher);
        }
    }

    /// Returns the masks that differ from the applied masks, and records them as applied.
    fn changes(&mut self, tree: &Tree<'_>) -> Vec<MaskChange> {
        let mut wanted: BTreeMap<ProcessId, CpuSet> = BTreeMap::new();
        for process in tree.by_pid.values() {
            if let Some(cpus) = self.part_of(process.id.pid, tree) {
                wanted.insert(process.id, cpus.clone());
            }
        }
        for (key, group) in &self.groups {
            let launcher = tree.get(key.launcher).filter(|_| group.narrows_launcher);
            if let (Some(launcher), Some(cpus)) = (launcher, group.next_part()) {
                wanted.insert(launcher.id, cpus.clone());
            }
        }
        self.count_others(tree);
        let mut changes = Vec::new();
        for process in tree.by_pid.values().map(|process| process.id) {
            if self.left_alone.contains(&process) {
                continue;
            }
            let applied = self.applied.get(&process);
            match wanted.remove(&process) {
                Some(cpus) if applied.and_then(Option::as_ref) != Some(&cpus) => {
                    self.applied.insert(process, Some(cpus.clone()));
                    let cpus = Some(cpus);
                    changes.push(MaskChange { process, cpus });
                }
                None if applied.is_some() => {
                    self.applied.remove(&process);
                    let cpus = None;
                    changes.push(MaskChange { process, cpus });
                }
                _ => {}
            }
        }
        changes
    }

    fn count_others(&mut self, tree: &Tree<'_>) {
        let launchers: BTreeSet<i32> = self.groups.keys().map(|key| key.launcher).collect();
        let is_other = |process: &&&TreeProcess| {
            let mut lineage = tree.ancestors(process.id.pid);
            let is_copy = lineage.any(|one| self.copy(one.id).is_some());
            !is_copy && !launchers.contains(&process.id.pid) && launchers.contains(&process.parent)
        };
        self.others = tree.by_pid.values().filter(is_other).count();
    }
}

impl Group {
    fn drop_missing(&mut self, present: &[&TreeProcess], uses: &mut ThreadUse) {
        self.copies.retain(|process, copy| {
            let is_present = present.iter().any(|one| one.id == *process);
            let is_serial = copy.has_run && copy.threads == 1 && copy.state == CopyState::Confined;
            uses.ended += u32::from(!is_present && is_serial);
            is_present
        });
    }

    fn add(&mut self, process: &TreeProcess, at_ns: u64, uses: &ThreadUse, is_left_alone: bool) {
        if self.copies.contains_key(&process.id) {
            return;
        }
        let state = match uses.is_serial() {
            _ if is_left_alone => CopyState::LeftAlone,
            true => CopyState::Serial,
            false => CopyState::Confined,
        };
        let copy = TrackedCopy {
            slot: self.free_slot(),
            state,
            threads: 1,
            late: false,
            has_run: false,
            slept_cpu_ns: 0,
        };
        self.name.clone_from(&process.name);
        self.copies.insert(process.id, copy);
        self.grown_ns = at_ns;
    }

    /// Returns the lowest slot with the fewest copies.
    fn emptiest_slot(&self) -> Option<usize> {
        let copies = |slot: &usize| self.copies.values().filter(|c| c.slot == *slot).count();
        (0..self.slots).min_by_key(copies)
    }

    /// Returns the slot of a new copy: a slot without a copy, or else a slot beyond the present
    /// slots.
    fn free_slot(&self) -> usize {
        let is_free = |slot: &usize| self.copies.values().all(|copy| copy.slot != *slot);
        (0..).find(is_free).unwrap_or(0)
    }

    /// Returns the part that the next copy will get.
    fn next_part(&self) -> Option<&CpuSet> {
        self.parts.get(self.emptiest_slot()?)
    }

    fn note_threads(&mut self, tree: &Tree<'_>, key: &GroupKey, uses: &mut ThreadUse) {
        for (process, copy) in &mut self.copies {
            let part = self.parts.get(copy.slot).map_or(usize::MAX, CpuSet::len);
            let threads = tree.working_threads(process.pid);
            copy.threads = copy.threads.max(threads);
            copy.has_run |= tree.below(process.pid).any(|one| one.cpu_ns > 0);
            uses.has_pools |= threads > 1;
            if threads as usize > part && self.slots > 1 {
                copy.late |= key.executed;
                copy.state = match copy.state {
                    CopyState::LeftAlone => CopyState::LeftAlone,
                    _ if key.executed => CopyState::Widened,
                    _ => CopyState::Confined,
                };
            }
        }
    }

    /// Adapts the number of slots to the number of copies.
    fn resize(&mut self, at_ns: u64) {
        let copies = self.copies.len();
        let highest = self.copies.values().map(|copy| copy.slot + 1).max();
        self.slots = self.slots.max(highest.unwrap_or(0));
        if copies >= self.slots {
            self.fewer_since_ns = None;
            return;
        }
        let since_ns = *self.fewer_since_ns.get_or_insert(at_ns);
        if at_ns.saturating_sub(since_ns) >= FEWER_NS {
            for (slot, copy) in self.copies.values_mut().enumerate() {
                copy.slot = slot;
            }
            (self.slots, self.fewer_since_ns) = (copies, None);
        }
    }
}

/// Returns what the siblings of a process must have in common with it; `None` if the process cannot
/// be a copy.
fn key_of(process: &TreeProcess, at_ns: u64, tree: &Tree<'_>) -> Option<GroupKey> {
    tree.get(process.parent)?;
    let is_old = at_ns.saturating_sub(process.found_ns) >= FORK_NS;
    (process.executed || is_old).then_some(GroupKey {
        launcher: process.parent,
        executable: process.executable?,
        executed: process.executed,
        shape: process.shape.clone(),
    })
}

/// Returns whether two of the siblings were found within the window.
fn started_together(siblings: &[&TreeProcess]) -> bool {
    let mut times: Vec<u64> = siblings.iter().map(|process| process.found_ns).collect();
    times.sort_unstable();
    times.windows(2).any(|two| two[1] - two[0] <= WINDOW_NS)
}

fn is_mature(process: &TreeProcess) -> bool {
    let settled_ns = process.mapped_at_cpu_ns.map(|then| then + SETTLED_NS);
    process.cpu_ns >= MATURE_NS.max(settled_ns.unwrap_or(MATURE_NS + SETTLED_NS))
}
