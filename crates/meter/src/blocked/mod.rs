// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds foreground processes that a background program blocks.
//!
//! While a background program is stopped, processes that wait for the program make no progress. The
//! following dependencies are visible in `/proc` and are detected:
//!
//! - **file locks** (`flock`, POSIX, open file descriptions), which databases and package managers
//!   use: `/proc/locks` lists waiters and holders;
//! - **pipes and FIFOs**: a thread reads or writes a pipe, and only background processes have the
//!   other end of the pipe open;
//! - **unix sockets**: a thread reads or writes a socket, and only background processes have
//!   the peer of the socket open.
//!
//! The following dependencies are not detected:
//!
//! - futexes in shared memory, and semaphores: the kernel records no holder;
//! - waits in `poll`, `select` or `epoll`: the descriptors of the wait are not visible;
//! - TCP connections within the machine;
//! - mounts that a stopped process serves (FUSE);
//! - locks in the kernel: a stopped process holds no such lock, but a process that freezes slowly
//!   may hold one.
//!
//! Because of these cases, the policies limit the duration of every freeze.
//!
//! A search reads a small file for each thread of the machine and, if a thread waits for a pipe or
//! a socket, the descriptors of every process. The search never waits, and ignores files that it
//! cannot read.

mod ends;
mod locks;
mod unix;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use usher_model::{BlockedProcess, ProgramId};

use crate::proc_tree;
use crate::text;
use ends::OpenEnds;

/// Returns the foreground processes that cannot continue before a background program continues.
/// `holder` maps a process to its background program; `proc` is the path of `/proc`. The launcher
/// of a background program counts as a part of the program, because the launcher keeps its
/// inherited files open and waits only for the program.
///
/// The function reads a small file for each thread on the machine and, if a thread waits for a pipe
/// or a socket, the descriptors of every process. Because of this cost, call the function only
/// after background work has been stopped for a while, not with every sample.
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
