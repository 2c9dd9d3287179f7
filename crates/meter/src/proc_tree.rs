// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the process tree from `/proc`: all processes with their statistics, the descendants of
//! given processes, and the members of a cgroup. Processes that end during the reading are left
//! out. A reading of all processes costs one small file per process. Descendants are found by at
//! most one pass over the list per level of the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use usher_model::ProcStat;

use crate::text;

/// Returns all processes by pid.
pub(crate) fn processes(proc: &Path) -> BTreeMap<i32, ProcStat> {
    pids(proc)
        .into_iter()
        .filter_map(|pid| Some((pid, process(proc, pid)?)))
        .collect()
}

/// Returns the pids of all processes.
pub(crate) fn pids(proc: &Path) -> BTreeSet<i32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns a process; `None` if the process has ended.
pub(crate) fn process(proc: &Path, pid: i32) -> Option<ProcStat> {
    text::parse_optional(&proc.join(pid.to_string()).join("stat"), ProcStat::parse)
}

/// Returns these processes and all their descendants. A descendant is found only if all processes
/// between it and a root live.
pub(crate) fn with_descendants(
    roots: &BTreeSet<i32>,
    processes: &BTreeMap<i32, ProcStat>,
) -> BTreeSet<i32> {
    let mut found = roots.clone();
    loop {
        let of_found = |(_, stat): &(&i32, &ProcStat)| found.contains(&stat.parent);
        let more: Vec<i32> = processes
            .iter()
            .filter(of_found)
            .map(|(pid, _)| *pid)
            .collect();
        let before = found.len();
        found.extend(more);
        if found.len() == before {
            return found;
        }
    }
}

/// Returns the processes of a cgroup and of all cgroups below it.
pub(crate) fn members(cgroup: &Path) -> BTreeSet<i32> {
    let text = text::read(&cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut members: BTreeSet<i32> = text.lines().filter_map(|pid| pid.parse().ok()).collect();
    let entries = std::fs::read_dir(cgroup).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            members.extend(self::members(&entry.path()));
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_in_any_order() {
        let stat = |parent: i32| {
            let text = format!("1 (a) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 9 0 0");
            ProcStat::parse(&text).unwrap()
        };
        let processes = BTreeMap::from([(2, stat(9)), (5, stat(1)), (7, stat(5)), (9, stat(7))]);
        let found = with_descendants(&BTreeSet::from([5]), &processes);
        assert_eq!(found, BTreeSet::from([2, 5, 7, 9]));
    }
}
