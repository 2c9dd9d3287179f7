// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the bytes that a program reads and writes, as a possible measure of its progress.
//!
//! The count is the sum of `rchar` and `wchar` in `/proc/PID/io` over all processes of the program:
//! bytes passed to read(2), write(2) and similar calls on files, pipes and sockets. The kernel adds
//! the bytes of an ended process to the process that waited for it. The bytes of an ended process
//! that no process of the program waited for are kept from the last sample.
//!
//! Not counted: accesses to mapped files, io_uring, and the bytes between the last sample and the end
//! of a process that no process of the program waited for.
//!
//! A sample reads two files per process. The count ends permanently when the program has more than 64
//! processes ([`PROCESSES_MAX`]), or when a file of a living process cannot be read. Reading such a
//! file requires the rights of ptrace(2).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::file;
use crate::text;
use crate::tree::read_stat;

/// Maximum number of processes of a program whose bytes are counted.
const PROCESSES_MAX: usize = 64;

/// The bytes of one program.
#[derive(Debug)]
pub(crate) struct ByteCounter {
    proc_root: PathBuf,
    processes: BTreeMap<i32, ProcessBytes>,
    /// Bytes of ended processes that no other process of the program counts.
    ended: u64,
    highest: u64,
    /// The count at the first sample.
    first: Option<u64>,
    has_failed: bool,
}

#[derive(Debug, Clone, Copy)]
struct ProcessBytes {
    start_ticks: u64,
    parent: i32,
    total: u64,
}

impl ByteCounter {
    pub(crate) fn new(proc_root: &Path) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            processes: BTreeMap::new(),
            ended: 0,
            highest: 0,
            first: None,
            has_failed: false,
        }
    }

    /// Samples the given processes, which are all processes of the program. Returns the bytes since
    /// the first sample, which never decrease; `None` if the bytes cannot be counted.
    pub(crate) fn sample(&mut self, pids: &BTreeSet<i32>) -> Option<u64> {
        if pids.len() > PROCESSES_MAX {
            self.has_failed = true;
        }
        if self.has_failed {
            return None;
        }
        let mut living = BTreeMap::new();
        for &pid in pids {
            match self.read(pid) {
                Ok(Some(process)) => drop(living.insert(pid, process)),
                Ok(None) => {}
                Err(CannotCount) => {
                    self.has_failed = true;
                    return None;
                }
            }
        }
        self.keep_ended(&living);
        self.processes = living;
        let now: u64 = self.processes.values().map(|one| one.total).sum();
        self.highest = self.highest.max(now.saturating_add(self.ended));
        let first = *self.first.get_or_insert(self.highest);
        Some(self.highest - first)
    }

    /// Reads the bytes of a process; `None` if it has ended.
    fn read(&self, pid: i32) -> Result<Option<ProcessBytes>, CannotCount> {
        let Ok(stat) = read_stat(&self.proc_root, pid) else {
            return Ok(None);
        };
        // The file of a process that has ended, but was not waited for, cannot be read.
        if stat.is_dead() {
            return Ok(None);
        }
        let path = self.proc_root.join(pid.to_string()).join("io");
        match file::parse(&path, "a process's bytes", text::io_bytes) {
            Ok(total) => Ok(Some(ProcessBytes {
                start_ticks: stat.start_ticks,
                parent: stat.parent,
                total,
            })),
            Err(_) if read_stat(&self.proc_root, pid).is_ok_and(|stat| !stat.is_dead()) => {
                Err(CannotCount)
            }
            Err(_) => Ok(None),
        }
    }

    /// Adds the bytes of processes that are now missing to `ended`, minus the rise of the count of
    /// their nearest living ancestor, which may contain them.
    fn keep_ended(&mut self, living: &BTreeMap<i32, ProcessBytes>) {
        let same = |pid: &i32, then: &ProcessBytes| {
            let now = living.get(pid);
            now.filter(|now| now.start_ticks == then.start_ticks)
        };
        let mut missing: BTreeMap<Option<i32>, u64> = BTreeMap::new();
        for (pid, then) in &self.processes {
            if same(pid, then).is_none() {
                let ancestor = self.living_ancestor(then.parent, living);
                *missing.entry(ancestor).or_default() += then.total;
            }
        }
        for (ancestor, bytes) in missing {
            let rise = ancestor.and_then(|pid| {
                let (then, now) = (self.processes.get(&pid)?, living.get(&pid)?);
                Some(now.total.saturating_sub(then.total))
            });
            self.ended += bytes.saturating_sub(rise.unwrap_or(0));
        }
    }

    fn living_ancestor(&self, mut pid: i32, living: &BTreeMap<i32, ProcessBytes>) -> Option<i32> {
        // A chain longer than the number of processes would be a cycle of reused pids.
        for _ in 0..=self.processes.len() {
            if living.contains_key(&pid) {
                return Some(pid);
            }
            pid = self.processes.get(&pid)?.parent;
        }
        None
    }
}

/// The bytes of a living process cannot be read.
struct CannotCount;

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    fn count(counter: &mut ByteCounter, pids: &[u32]) -> u64 {
        let pids = pids.iter().map(|&pid| pid.cast_signed()).collect();
        counter.sample(&pids).unwrap()
    }

    #[test]
    fn counts_bytes_of_living_and_of_ended_children() {
        // The shell lets a child copy 1 MB, waits for it, and reports.
        let script = "read go; head -c 1000000 /dev/zero > /dev/null; echo done; read end";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut shell = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        let mut counter = ByteCounter::new(Path::new("/proc"));
        assert_eq!(count(&mut counter, &[shell.id()]), 0);
        input.write_all(b"go\n").unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let bytes = count(&mut counter, &[shell.id()]);
        // The child also reads its libraries.
        assert!((2_000_000..2_100_000).contains(&bytes), "{bytes}");
        drop(input);
        shell.wait().unwrap();
        assert!(count(&mut counter, &[]) >= bytes, "the count decreased");
    }

    #[test]
    fn a_program_with_many_processes_is_not_counted() {
        let mut counter = ByteCounter::new(Path::new("/proc"));
        assert_eq!(counter.sample(&(1..100).collect()), None);
        assert_eq!(counter.sample(&BTreeSet::new()), None, "for ever");
    }
}
