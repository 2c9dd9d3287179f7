// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the time that the threads of a program waited for a CPU while they were runnable, as
//! `/proc/TID/schedstat` reports it, summed over all threads. Unlike the pressure of a cgroup, the
//! sum shows how many threads waited, and needs no cgroup.
//!
//! The time of an ended thread is kept from its last sample; its last wait is lost. A sample reads
//! one file per thread. The count ends permanently when the program has more than 256 threads
//! ([`THREADS_MAX`]), or when the kernel has no such files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::file;
use crate::text;

/// Maximum number of threads of a program whose waits are counted.
const THREADS_MAX: usize = 256;

/// A sum of waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunDelay {
    /// Sum of the waits of all threads, in nanoseconds.
    pub ns: u64,
    /// Whether no thread has ended since the previous sample, so that no wait is missing.
    pub is_complete: bool,
}

/// The waits of one program's threads.
#[derive(Debug)]
pub(crate) struct RunDelays {
    proc_root: PathBuf,
    threads: BTreeMap<i32, u64>,
    ended_ns: u64,
    has_failed: bool,
}

impl RunDelays {
    pub(crate) fn new(proc_root: &Path) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            threads: BTreeMap::new(),
            ended_ns: 0,
            has_failed: false,
        }
    }

    /// Samples the given threads, which are all threads of the program. Returns the sum of all
    /// waits, which never decreases; `None` if the waits cannot be counted.
    pub(crate) fn sample(&mut self, tids: &BTreeSet<i32>) -> Option<RunDelay> {
        self.has_failed |= tids.len() > THREADS_MAX;
        if self.has_failed {
            return None;
        }
        let mut living = BTreeMap::new();
        for &tid in tids {
            let path = self.proc_root.join(tid.to_string()).join("schedstat");
            match file::parse(&path, "a schedstat file", text::sched_stat) {
                Ok(stat) => drop(living.insert(tid, stat.queued_ns)),
                Err(error) if error.is_gone() => {
                    // The file is also missing if the kernel does not count waits.
                    if self.proc_root.join(tid.to_string()).join("stat").exists() && !path.exists()
                    {
                        self.has_failed = true;
                        return None;
                    }
                }
                Err(_) => {
                    self.has_failed = true;
                    return None;
                }
            }
        }
        let mut is_complete = true;
        for (tid, then_ns) in &self.threads {
            // A lower value belongs to a later thread with the same number.
            if living.get(tid).is_none_or(|now_ns| now_ns < then_ns) {
                self.ended_ns += then_ns;
                is_complete = false;
            }
        }
        self.threads = living;
        Some(RunDelay {
            ns: self.ended_ns + self.threads.values().sum::<u64>(),
            is_complete,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A root with the waits of these threads.
    fn root(waits: &[(i32, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        set(root.path(), waits);
        root
    }

    fn set(root: &Path, waits: &[(i32, u64)]) {
        for (tid, wait_ns) in waits {
            let dir = root.join(tid.to_string());
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("stat"), "").unwrap();
            fs::write(dir.join("schedstat"), format!("77 {wait_ns} 3\n")).unwrap();
        }
    }

    #[test]
    fn adds_the_waits_of_living_and_ended_threads() {
        let root = root(&[(1, 10), (2, 20)]);
        let mut delays = RunDelays::new(root.path());
        let mut sample = |tids: &[i32]| {
            let tids = tids.iter().copied().collect();
            delays
                .sample(&tids)
                .map(|delay| (delay.ns, delay.is_complete))
        };
        assert_eq!(sample(&[1, 2]), Some((30, true)));
        set(root.path(), &[(1, 15)]);
        assert_eq!(sample(&[1]), Some((35, false)), "2 has ended");
        set(root.path(), &[(1, 5)]);
        assert_eq!(sample(&[1, 9]), Some((40, false)), "1 is another thread");
    }

    #[test]
    fn ends_for_ever_without_files_and_with_too_many_threads() {
        let root = root(&[(1, 10)]);
        let mut delays = RunDelays::new(root.path());
        fs::remove_file(root.path().join("1/schedstat")).unwrap();
        assert_eq!(delays.sample(&[1].into()), None);
        set(root.path(), &[(1, 10)]);
        assert_eq!(delays.sample(&[1].into()), None);
        let mut delays = RunDelays::new(root.path());
        assert_eq!(delays.sample(&(1..300).collect()), None);
    }

    #[test]
    fn reads_the_waits_of_this_process() {
        let own = std::process::id().cast_signed();
        let mut delays = RunDelays::new(Path::new("/proc"));
        if Path::new("/proc/self/schedstat").exists() {
            assert!(delays.sample(&[own].into()).is_some());
        }
    }
}
