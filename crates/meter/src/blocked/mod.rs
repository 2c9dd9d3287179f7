// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who in the foreground waits for what a background program holds.
//!
//! While a background program is stopped, nobody who waits for it goes on. What
//! can be seen from outside, and so is covered:
//!
//! - **file locks** (`flock`, POSIX, open file descriptions; files that
//!   databases and package managers lock): `/proc/locks` names who waits and
//!   who holds;
//! - **pipes and FIFOs**: a thread that reads or writes one whose other ends
//!   are background's alone;
//! - **unix sockets**: a thread that reads or writes one whose peer is held by
//!   background processes alone.
//!
//! Not covered: futexes in shared memory and semaphores, which name no holder;
//! threads that wait with `poll`, `select` or `epoll`, of which cannot be said
//! for which of their descriptors; connections by TCP within the machine;
//! mounts that a stopped process serves (FUSE); locks in the kernel (a stopped
//! process holds none, but one that is frozen slowly may). Against these helps
//! only that no freeze lasts for ever.

mod ends;
mod locks;
mod unix;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use usher_model::{BlockedProcess, ProgramId};

use crate::kin;
use crate::text;
use ends::Ends;

/// Foreground processes that cannot go on before a background program does.
/// `holder` says which background program a process belongs to (its launcher, too,
/// which keeps open what it was given and waits for nobody else); `proc` is `/proc`.
///
/// Costs a read of a small file for each thread on the machine, and of every
/// process's list of descriptors if one waits for a pipe or a socket: for when
/// background work has been stopped for a while, not for every look.
pub fn held_up(proc: &Path, holder: &dyn Fn(i32) -> Option<ProgramId>) -> Vec<BlockedProcess> {
    let pids = kin::pids(proc);
    let programs: BTreeMap<i32, ProgramId> = pids
        .iter()
        .filter_map(|pid| Some((*pid, holder(*pid)?)))
        .collect();
    if programs.is_empty() {
        return Vec::new();
    }
    let others: BTreeSet<i32> = pids
        .into_iter()
        .filter(|pid| !programs.contains_key(pid))
        .collect();
    let mut found = locks::held_up(proc, &programs);
    found.extend(by_descriptor(proc, &programs, &others));
    found.sort_by(|a, b| {
        (a.pid, a.blocked_by, &a.waits_for).cmp(&(b.pid, b.blocked_by, &b.waits_for))
    });
    found.dedup();
    found
}

/// Those that wait for a pipe or a socket.
fn by_descriptor(
    proc: &Path,
    programs: &BTreeMap<i32, ProgramId>,
    others: &BTreeSet<i32>,
) -> Vec<BlockedProcess> {
    let mut ends = Ends::new(proc);
    let mut found = Vec::new();
    for &pid in others {
        let process = proc.join(pid.to_string());
        let tasks = std::fs::read_dir(process.join("task"))
            .into_iter()
            .flatten();
        for task in tasks.flatten().map(|task| task.path()) {
            let Some(wait) = ends::wait_of(&task) else {
                continue;
            };
            let Some(holders) = ends.of(pid, &process, wait) else {
                continue;
            };
            if let Some(by) = background_alone(&holders.pids, programs) {
                let waits_for = format!("{} held by process {}", holders.what, by.0);
                found.push(BlockedProcess {
                    blocked_by: by.1,
                    pid,
                    waits_for,
                });
            }
        }
    }
    found
}

/// The first of the holders and its program, if all are background's.
fn background_alone(
    holders: &BTreeSet<i32>,
    programs: &BTreeMap<i32, ProgramId>,
) -> Option<(i32, ProgramId)> {
    let all = holders.iter().all(|pid| programs.contains_key(pid));
    let first = holders.first().filter(|_| all)?;
    Some((*first, *programs.get(first)?))
}

/// A short file of a process; empty where it cannot be read.
fn line(path: &Path) -> String {
    text::read(path).unwrap_or_default().trim().to_owned()
}
