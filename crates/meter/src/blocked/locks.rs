// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds processes that wait for a file lock which a background program holds, from `/proc/locks`.
//!
//! A held lock has a line `ID: KIND MODE TYPE PID DEVICE:INODE START END`. For each waiting
//! process, a line with the same `ID` and an arrow follows. For two kinds of locks, `PID` does not
//! identify the holder:
//!
//! - a lock of an open file description has the pid -1;
//! - a lock taken with `flock` has the pid of the process that took the lock; children of this
//!   process may still hold the lock after its end.
//!
//! For these locks, the processes of the background programs are searched for a process with the
//! lock at one of its descriptors (`/proc/PID/fdinfo`). The cost is one read of `/proc/locks`, and
//! a read for each descriptor of the programs for each such lock. The name of the locked file costs
//! a read of the descriptors of each waiting process. If several programs have the lock open, the
//! program of the process with the lowest pid is returned.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use usher_model::{BlockedProcess, ProgramId};

use super::line;
use crate::{files, text};

/// A line of `/proc/locks`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LockLine {
    id: u64,
    waits: bool,
    kind: String,
    pid: i32,
    file: String,
}

fn lock(line: &str) -> Option<LockLine> {
    let (id, rest) = line.split_once(':')?;
    let mut words = rest.split_whitespace().peekable();
    let waits = words.next_if_eq(&"->").is_some();
    let kind = words.next()?.to_owned();
    let pid = words.nth(2)?.parse().ok()?;
    Some(LockLine {
        id: text::number(id.trim())?,
        waits,
        kind,
        pid,
        file: words.next()?.to_owned(),
    })
}

/// Returns the processes outside the programs that wait for a lock which a program holds.
pub(super) fn find_blocked(
    proc: &Path,
    programs: &BTreeMap<i32, ProgramId>,
) -> Vec<BlockedProcess> {
    let text = text::read(&proc.join("locks")).unwrap_or_default();
    let locks: Vec<LockLine> = text.lines().filter_map(lock).collect();
    let waiting = locks.iter().filter(|lock| lock.waits);
    waiting
        .filter(|waiter| waiter.pid > 0 && !programs.contains_key(&waiter.pid))
        .filter_map(|waiter| {
            let held = locks
                .iter()
                .find(|lock| !lock.waits && lock.id == waiter.id)?;
            Some(BlockedProcess {
                blocked_by: holder(proc, held, programs)?,
                pid: waiter.pid,
                waits_for: format!("a lock on {}", name(proc, waiter)),
            })
        })
        .collect()
}

fn holder(proc: &Path, lock: &LockLine, programs: &BTreeMap<i32, ProgramId>) -> Option<ProgramId> {
    if let Some(program) = programs.get(&lock.pid) {
        return Some(*program);
    }
    // If the process that took the lock lives, this process is the holder, and it belongs to no
    // program.
    if lock.pid > 0 && proc.join(lock.pid.to_string()).exists() {
        return None;
    }
    let has = |pid: &i32| has_on_a_descriptor(&proc.join(pid.to_string()), lock);
    let (_, program) = programs.iter().find(|(pid, _)| has(pid))?;
    Some(*program)
}

fn has_on_a_descriptor(process: &Path, wanted: &LockLine) -> bool {
    let infos = fs::read_dir(process.join("fdinfo")).into_iter().flatten();
    infos.flatten().any(|info| {
        let text = line(&info.path());
        let locks = text.lines().filter_map(|line| line.strip_prefix("lock:"));
        let mut locks = locks.filter_map(lock);
        locks.any(|lock| lock.kind == wanted.kind && lock.file == wanted.file)
    })
}

/// Returns the path of the locked file if the waiting process has the file open. Otherwise returns
/// the file's device and inode.
fn name(proc: &Path, waiter: &LockLine) -> String {
    let inode = waiter.file.rsplit(':').next().and_then(text::number);
    let fds = fs::read_dir(proc.join(waiter.pid.to_string()).join("fd"));
    let mut fds = fds.into_iter().flatten().flatten().map(|fd| fd.path());
    let found = fds.find(|fd| files::file_id(fd).map(|of| of.file.1) == inode);
    match found.and_then(|fd| fs::read_link(fd).ok()) {
        Some(path) => path.display().to_string(),
        None => format!("file {}", waiter.file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
        1: POSIX  ADVISORY  WRITE 10 fe:00:77 0 EOF\n\
        1: -> POSIX  ADVISORY  WRITE 20 fe:00:77 0 EOF\n\
        1:  -> POSIX  ADVISORY  READ 21 fe:00:77 0 EOF\n\
        2: FLOCK  ADVISORY  WRITE 30 fe:00:78 0 EOF\n\
        2: -> FLOCK  ADVISORY  WRITE 10 fe:00:78 0 EOF\n\
        3: OFDLCK ADVISORY  WRITE -1 fe:00:79 0 EOF\n\
        3: -> FLOCK  ADVISORY  WRITE 22 fe:00:79 0 EOF\n\
        4: FLOCK  ADVISORY  READ 99 fe:00:80 0 EOF\n\
        4: -> FLOCK  ADVISORY  WRITE 23 fe:00:80 0 EOF\n";

    #[test]
    fn waiters_are_matched_with_holders() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("locks", LOCKS);
        put("30/stat", "");
        let ofd = "pos:\t0\nlock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:79 0 EOF\n";
        put("11/fdinfo/3", ofd);
        put(
            "11/fdinfo/4",
            "lock:\t1: FLOCK  ADVISORY  READ 99 fe:00:80 0 EOF\n",
        );
        let programs = BTreeMap::from([(10, ProgramId(1)), (11, ProgramId(2))]);
        let found = find_blocked(dir.path(), &programs);
        let found: Vec<(u64, i32)> = found
            .iter()
            .map(|held| (held.blocked_by.0, held.pid))
            .collect();
        assert_eq!(found, [(1, 20), (1, 21), (2, 22), (2, 23)]);
    }

    #[test]
    fn malformed_lines_are_no_lock() {
        for text in [
            "",
            ":",
            "1: ->",
            "x: FLOCK A W 1 f",
            "1: FLOCK A W",
            "1:->->",
        ] {
            assert_eq!(lock(text), None, "{text}");
        }
    }
}
