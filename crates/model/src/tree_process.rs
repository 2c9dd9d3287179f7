// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process of a managed program, as the scan of the program's process tree reports it. A policy
//! recognises copies of one program (worker processes) by these values.

use crate::ProcessId;

/// A process of a managed program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeProcess {
    /// Pid and start time.
    pub id: ProcessId,
    /// Pid of the parent when the scan found the process. The pid stays the same if the parent
    /// ends. If the parent ended before the scan, the pid of the program's first process.
    pub parent: i32,
    /// Name of the process for display, at most 15 bytes.
    pub name: String,
    /// Device and inode of the executable; `None` if they cannot be read.
    pub executable: Option<(u64, u64)>,
    /// The number of words of the command line and its options, with each number replaced by `0`.
    /// Two worker processes of one launcher usually differ in their operands and in numbers only.
    pub shape: String,
    /// Whether the process has executed a program since its creation. If false, the process is a
    /// fork of its parent, and its thread pools may be those of its parent.
    pub executed: bool,
    /// Number of threads.
    pub threads: u32,
    /// Number of threads that use a considerable part of the process's CPU time; at least 1. Only
    /// the threads of copies are counted.
    pub working_threads: u32,
    /// Whether the main thread was running or waited for a CPU at the last scan.
    pub is_runnable: bool,
    /// CPU time of the process in nanoseconds.
    pub cpu_ns: u64,
    /// Time of the first scan since which the main thread was asleep at every scan and the CPU time did
    /// not rise; `None` if the last scan found otherwise. The kernel counts CPU time in steps of 10 ms.
    pub idle_since_ns: Option<u64>,
    /// Time at which a scan found the process for the first time, in nanoseconds.
    pub found_ns: u64,
    /// The CPU time of the process when a scan last found a newly mapped executable file (a shared
    /// library); `None` if the mappings have not been read.
    pub mapped_at_cpu_ns: Option<u64>,
}
