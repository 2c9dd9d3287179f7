// SPDX-License-Identifier: MIT OR Apache-2.0
//! Foreground processes that are blocked by a background program.
//!
//! While a background program is stopped, processes that wait for it make no progress. Dependencies
//! that `/proc` shows are detected:
//!
//! - **file locks** (`flock`, POSIX, open file descriptions; used by databases and package
//!   managers): `/proc/locks` lists waiters and holders;
//! - **pipes and FIFOs**: a thread reads or writes a pipe, and only background processes have its
//!   other ends open;
//! - **unix sockets**: a thread reads or writes a socket, and only background processes have
//!   the peer of the socket open.
//!
//! Not detected:
//!
//! - futexes in shared memory and semaphores, which record no holder;
//! - threads that wait in `poll`, `select` or `epoll`, because the descriptor that they wait
//!   for is not visible;
//! - TCP connections within the machine;
//! - mounts that a stopped process serves (FUSE);
//! - locks in the kernel: a stopped process holds none, but a slowly freezing process may.
//!
//! For these cases the duration of every freeze is limited.

mod ends;
mod locks;
mod unix;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use usher_model::{BlockedProcess, ProgramId};

use crate::proc_tree;
use crate::text;
use ends::OpenEnds;

/// Finds foreground processes that cannot continue before a background program does. `holder` maps
/// a process to its background program; `proc` is the path of `/proc`. The launcher of a background
/// program counts as part of the program, because the launcher keeps open the files that it was
/// given and waits for no other process.
///
/// Reads a small file for each thread on the machine, and the descriptors of every process
/// if some thread waits for a pipe or a socket. Call it after background work has been
/// stopped for a while, not with every sample.
pub fn find_blocked(proc: &Path, holder: &dyn Fn(i32) -> Option<ProgramId>) -> Vec<BlockedProcess> {
    let pids = proc_tree::pids(proc);
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
    let mut found = locks::find_blocked(proc, &programs);
    found.extend(by_descriptor(proc, &programs, &others));
    found.sort_by(|a, b| {
        (a.pid, a.blocked_by, &a.waits_for).cmp(&(b.pid, b.blocked_by, &b.waits_for))
    });
    found.dedup();
    found
}

/// Returns the processes outside the programs that wait for a pipe or a socket of a program.
fn by_descriptor(
    proc: &Path,
    programs: &BTreeMap<i32, ProgramId>,
    others: &BTreeSet<i32>,
) -> Vec<BlockedProcess> {
    let mut ends = OpenEnds::new(proc);
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

/// Returns the first holder and its program if all holders belong to background programs.
fn background_alone(
    holders: &BTreeSet<i32>,
    programs: &BTreeMap<i32, ProgramId>,
) -> Option<(i32, ProgramId)> {
    let all = holders.iter().all(|pid| programs.contains_key(pid));
    let first = holders.first().filter(|_| all)?;
    Some((*first, *programs.get(first)?))
}

/// Returns the content of a one-line file of a process; empty if the file cannot be read.
fn line(path: &Path) -> String {
    text::read(path).unwrap_or_default().trim().to_owned()
}
