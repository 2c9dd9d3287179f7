// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about one process (names, user ids, CPUs), which Usher reads before it manages the
//! process.
//!
//! A process chooses its own name, and the kernel truncates the name to 15 bytes, possibly in the
//! middle of a character. All texts are therefore read as bytes.
//!
//! The main thread of a process may have ended while other threads run. After the end of the main
//! thread, files that belong to the address space (`exe`, `cwd`, `environ`, `maps`) are empty or
//! missing in `/proc/PID`. The files are readable in `/proc/PID/task/TID` of a living thread;
//! [`live_dir`] returns this directory.
//!
//! [`ProcessFacts::read`] reads two files. [`live_dir`] reads one file, and after the end of the
//! main thread one more per thread, until a living thread is found. A process that ends meanwhile
//! leads to [`ProbeError::Gone`]. The facts of one reading may come from different times.

use std::path::{Path, PathBuf};

use usher_model::{CpuSet, ProcStat, ProcessId};

use crate::error::ProbeError;
use crate::file;
use crate::text;
use crate::tree::{read_stat, tasks};

/// `PF_KTHREAD` of the kernel's `linux/sched.h`.
pub(crate) const KERNEL_THREAD: u64 = 0x0020_0000;

/// The data that `/proc` contains about a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Pid and start time of the process.
    pub id: ProcessId,
    /// Name of the process, with bytes that are not UTF-8 replaced.
    pub name: String,
    /// Real, effective, saved and file-system user ids.
    pub uids: [u32; 4],
    /// The real group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// CPUs that the affinity mask of the process allows.
    pub cpus_allowed: CpuSet,
    /// Whether no thread of the process will run again.
    pub has_ended: bool,
    /// Whether the process is a thread of the kernel.
    pub is_kernel_thread: bool,
    /// Pids of the process, from this pid namespace to the innermost one. For a process in a
    /// container, the last number is the pid in the container.
    pub numbers: Vec<i32>,
}

impl ProcessFacts {
    /// Reads the data about a process.
    ///
    /// # Errors
    /// There is no such process, or its files cannot be read.
    pub fn read(proc_root: &Path, pid: i32) -> Result<Self, ProbeError> {
        let dir = proc_root.join(pid.to_string());
        let stat = read_stat(proc_root, pid)?;
        let gone = |error: ProbeError| match error.is_gone() {
            true => ProbeError::Gone { pid },
            false => error,
        };
        let status = dir.join("status");
        let of = file::parse(&status, "a process's status", text::credentials).map_err(gone)?;
        Ok(Self {
            id: ProcessId {
                pid,
                start_ticks: stat.start_ticks,
            },
            has_ended: stat.is_dead(),
            name: stat.name,
            uids: of.uids,
            gid: of.gid,
            groups: of.groups,
            cpus_allowed: of.cpus_allowed,
            is_kernel_thread: stat.flags & KERNEL_THREAD != 0,
            numbers: of.numbers,
        })
    }
}

/// Returns the directory with the files of a process's address space: the process's own, or that of
/// a living thread if the main thread has ended.
pub(crate) fn live_dir(proc_root: &Path, pid: i32) -> PathBuf {
    let dir = proc_root.join(pid.to_string());
    let main_ended = read_stat(proc_root, pid).is_ok_and(|stat| matches!(stat.state, 'Z' | 'X'));
    if !main_ended {
        return dir;
    }
    let mut tids = tasks(proc_root, pid);
    tids.sort_unstable();
    let task = |tid: i32| dir.join("task").join(tid.to_string());
    let is_alive = |tid: &i32| {
        let stat = file::parse(&task(*tid).join("stat"), "a thread's stat", ProcStat::parse);
        stat.is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'))
    };
    tids.into_iter()
        .find(is_alive)
        .map_or_else(|| dir.clone(), task)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;

    /// Starts a shell that sets its own name to the given bytes, and waits.
    fn child_named(name: &[u8]) -> std::process::Child {
        let octal: String = name.iter().map(|byte| format!("\\{byte:03o}")).collect();
        let script = format!("printf '{octal}' > /proc/self/comm && echo named && read line");
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "named\n");
        child
    }

    #[test]
    fn names_may_be_any_bytes() {
        for (name, shown) in [
            (&b"t\xc3\xb6\xc3"[..], "tö\u{fffd}"),
            (b"\xff\xfe", "\u{fffd}\u{fffd}"),
            (b"a) R 1 (b", "a) R 1 (b"),
            (b"a\nb) S 3", "a\nb) S 3"),
        ] {
            let mut child = child_named(name);
            let pid = child.id() as i32;
            let facts = ProcessFacts::read(Path::new("/proc"), pid);
            child.kill().unwrap();
            child.wait().unwrap();
            let facts = facts.unwrap();
            assert_eq!(facts.name, shown);
            assert_eq!((facts.id.pid, facts.has_ended), (pid, false));
            assert_eq!(facts.uids[0], rustix::process::getuid().as_raw());
            assert_eq!(facts.numbers.first(), Some(&pid));
        }
    }

    #[test]
    fn a_process_without_its_main_thread_is_read_through_a_live_thread() {
        // In this script the main thread ends itself and the other thread continues.
        let script = "import ctypes,threading,time\n\
                      threading.Thread(target=lambda: time.sleep(600)).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let python = std::process::Command::new("python3")
            .args(["-c", script])
            .spawn();
        let Ok(mut child) = python else {
            usher_skip::skip!("there is no python3");
            return;
        };
        let (proc, pid) = (Path::new("/proc"), child.id() as i32);
        let deadline = Instant::now() + Duration::from_secs(30);
        while read_stat(proc, pid).unwrap().state != 'Z' {
            assert!(Instant::now() < deadline, "the main thread never ended");
            std::thread::yield_now();
        }
        let facts = ProcessFacts::read(proc, pid).unwrap();
        let command = crate::command_of(proc, pid).unwrap();
        let key = crate::identify(&command);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!facts.has_ended);
        assert_eq!(command.arguments[0], "-c");
        assert!(key.unwrap().executable.starts_with("build-id:"));
    }
}
