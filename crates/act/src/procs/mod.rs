// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads processes and threads from `/proc`: identity (pid and start time), state, users, cgroups,
//! threads, children, locks. Module `liveness` checks by pidfds whether a process lives, and sends
//! signals.
//!
//! A process is identified by its pid and start time, because the kernel reuses pids. If a thread
//! ends during a listing of `/proc/PID/task`, the kernel may end the listing early. Therefore a
//! listing is repeated, at most 32 times, until its length matches the thread count in the
//! process's status. The last listing is then used although it may be incomplete.
//!
//! [`Procs::all`] reads one file for each process of the machine. Only `Procs::stays_alive` waits,
//! until the deadline that its caller gives.
//!
//! The kernel removes the files of a process when it ends. A thread that opens such a file at this
//! moment busy-waits for the removal (`shrink_dcache_parent`). The daemon's loop runs in a
//! real-time thread. If this thread has preempted the removing thread, it busy-waits until the
//! kernel's limit for real-time threads interrupts it, after 0.95 s. To make this case rare, scans
//! test by `kill` with signal 0 that the process exists before they open its files.

mod liveness;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use usher_model::cpuset::CPU_ID_MAX;
use usher_model::{ChildList, CpuSet, ProcStat, ProcessId, read_children};

pub(crate) use self::liveness::has_died;
use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::files;
use crate::journal::ThreadId;

/// The flag `PF_KTHREAD` of kernel threads, from the kernel's `linux/sched.h`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Upper limit of the length of `/proc/PID/stat` in bytes. The file contains a name of at most 64
/// bytes and 51 numbers.
const STAT_BYTES: usize = 2048;

/// Upper limit of repeated listings of a process's threads. If threads start and end all the time,
/// the last listing is used although it may be incomplete.
const LISTINGS_MAX: usize = 32;

/// The processes under one mount of procfs.
#[derive(Debug, Clone)]
pub(crate) struct Procs {
    root: PathBuf,
    /// Whether `root` shows the processes of this process's own PID namespace.
    is_own_namespace: bool,
    online: PathBuf,
}

/// The attributes of a process that the actuator uses.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub id: ProcessId,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// The state letter of `/proc/PID/stat`.
    pub state: char,
    pub threads: i64,
    pub kernel_thread: bool,
}

impl Process {
    /// Returns whether the process has ended but is not yet reaped. The state letter is the same if
    /// only the first thread has ended; the thread count distinguishes the two cases.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    /// Returns whether a signal or a tracer has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

impl Procs {
    pub(crate) fn new(config: &ActConfig) -> Self {
        Self {
            is_own_namespace: fs::read_link(config.proc_root.join("self"))
                .is_ok_and(|own| own == Path::new(&std::process::id().to_string())),
            root: config.proc_root.clone(),
            online: config.sys_root.join("devices/system/cpu/online"),
        }
    }

    /// Checks that the procfs shows the processes of this process's own PID namespace. Otherwise, a
    /// pid would name different processes in the procfs and in system calls.
    ///
    /// # Errors
    /// The procfs belongs to another PID namespace, or cannot be read.
    pub(crate) fn check_namespace(&self) -> Result<(), ActError> {
        match self.own()?.pid.cast_unsigned() == std::process::id() {
            true => Ok(()),
            false => Err(ActError::ForeignProc {
                root: self.root.clone(),
            }),
        }
    }

    /// Returns the online CPUs; all possible CPUs if the kernel does not report them.
    pub(crate) fn online_cpus(&self) -> CpuSet {
        crate::files::read_cpus(&self.online).unwrap_or_else(|_| CpuSet::range(0, CPU_ID_MAX))
    }

    /// Returns all CPUs that may ever be online; all numbers of CPUs if the kernel does not report
    /// them.
    pub(crate) fn possible_cpus(&self) -> CpuSet {
        let possible = self.online.with_file_name("possible");
        crate::files::read_cpus(&possible).unwrap_or_else(|_| CpuSet::range(0, CPU_ID_MAX))
    }

    /// Returns the path of a file of a process.
    pub(crate) fn path(&self, pid: i32, file: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(file)
    }

    /// Returns whether a process or thread with this number exists. A zombie also exists. The
    /// function opens no file. If `root` shows another PID namespace, it returns true for each
    /// positive number.
    pub(crate) fn exists(&self, number: i32) -> bool {
        if number <= 0 {
            return false;
        }
        let is_gone = |number| test_kill_process(number) == Err(Errno::SRCH);
        !(self.is_own_namespace && Pid::from_raw(number).is_some_and(is_gone))
    }

    /// Returns a process by pid.
    pub(crate) fn get(&self, pid: i32) -> Option<Process> {
        if !self.exists(pid) {
            return None;
        }
        let stat = read_stat(&self.path(pid, "stat")).ok()?;
        Some(Process {
            id: ProcessId {
                pid: stat.pid,
                start_ticks: stat.start_ticks,
            },
            parent: stat.parent,
            group: stat.group,
            session: stat.session,
            state: stat.state,
            threads: stat.threads,
            kernel_thread: stat.flags & KERNEL_THREAD != 0,
        })
    }

    /// Returns the user that a process runs as; `None` if the process is gone.
    pub(crate) fn uid(&self, pid: i32) -> Option<u32> {
        if !self.exists(pid) {
            return None;
        }
        let data = fs::metadata(self.root.join(pid.to_string())).ok()?;
        Some(data.uid())
    }

    /// Returns the cgroups of a process, one line each as the kernel writes them; empty if the
    /// process is gone. Bytes of a path that are not UTF-8 are replaced.
    pub(crate) fn cgroup_lines(&self, pid: i32) -> String {
        if !self.exists(pid) {
            return String::new();
        }
        files::read_text(&self.path(pid, "cgroup")).unwrap_or_default()
    }

    /// Returns the file that a process executes; `None` if the process is gone or a kernel thread.
    pub(crate) fn executable(&self, pid: i32) -> Option<PathBuf> {
        if !self.exists(pid) {
            return None;
        }
        fs::read_link(self.path(pid, "exe")).ok()
    }

    /// Returns the start time of a thread, in clock ticks since boot.
    pub(crate) fn thread_start(&self, pid: i32, tid: i32) -> Option<u64> {
        if !self.exists(tid) {
            return None;
        }
        let path = self.path(pid, "task").join(tid.to_string()).join("stat");
        read_stat(&path).ok().map(|stat| stat.start_ticks)
    }

    /// Returns the thread with this number; `None` if it is gone.
    pub(crate) fn thread_id(&self, pid: i32, tid: i32) -> Option<ThreadId> {
        let start_ticks = self.thread_start(pid, tid)?;
        Some(ThreadId {
            pid,
            tid,
            start_ticks,
        })
    }

    /// Returns the process that a thread belongs to; `None` if the thread is gone.
    pub(crate) fn process_of(&self, tid: i32) -> Option<i32> {
        if !self.exists(tid) {
            return None;
        }
        let status = files::read_text(&self.path(tid, "status")).ok()?;
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("Tgid:"))?;
        line.trim().parse().ok()
    }

    /// Returns the CPU time of a thread in nanoseconds, if the thread is in one of `states` (state
    /// letters of `/proc/PID/stat`).
    pub(crate) fn run_ns_if_in(&self, states: &[char], pid: i32, tid: i32) -> Option<u64> {
        if !self.exists(tid) {
            return None;
        }
        let task = self.path(pid, "task").join(tid.to_string());
        let stat = read_stat(&task.join("stat")).ok()?;
        if !states.contains(&stat.state) {
            return None;
        }
        let times = files::read_text(&task.join("schedstat")).ok()?;
        times.split(' ').next()?.parse().ok()
    }

    /// Returns the process with this pid if its start time matches.
    pub(crate) fn same(&self, id: ProcessId) -> Option<Process> {
        self.get(id.pid).filter(|process| process.id == id)
    }

    /// Returns all processes in the order of rising pids.
    pub(crate) fn all(&self) -> Vec<Process> {
        let mut all: Vec<Process> = numbers(&self.root)
            .into_iter()
            .filter_map(|pid| self.get(pid))
            .collect();
        all.sort_by_key(|process| process.id);
        all
    }

    /// Returns the threads of a process; empty if the process is gone.
    ///
    /// If a thread ends while the kernel lists it, the kernel ends the list early. Therefore the
    /// list is read again while it is shorter than the thread count in the process's status, at
    /// most [`LISTINGS_MAX`] times.
    pub(crate) fn threads(&self, pid: i32) -> Vec<i32> {
        let mut threads = Vec::new();
        for _ in 0..LISTINGS_MAX {
            threads = self.listed_threads(pid);
            if threads.len() >= self.thread_count(pid).unwrap_or(0) {
                break;
            }
        }
        threads
    }

    /// Lists the threads of a process once. If a thread ends during the listing, the list may lack
    /// other threads.
    pub(crate) fn listed_threads(&self, pid: i32) -> Vec<i32> {
        if !self.exists(pid) {
            return Vec::new();
        }
        numbers(&self.path(pid, "task"))
    }

    /// Returns the number of threads of a process; `None` if the process is gone.
    pub(crate) fn thread_count(&self, pid: i32) -> Option<usize> {
        if !self.exists(pid) {
            return None;
        }
        let stat = read_stat(&self.path(pid, "stat")).ok()?;
        usize::try_from(stat.threads).ok()
    }

    /// Returns the children of a process, from each thread's `children` file. `None` if the kernel
    /// has no such file (`CONFIG_PROC_CHILDREN`).
    pub(crate) fn children(&self, pid: i32) -> Option<BTreeSet<i32>> {
        read_children(|| self.listed_children(pid))
    }

    /// Reads the children of a process once. If a child ends while the kernel lists it, the list may
    /// lack the next child.
    fn listed_children(&self, pid: i32) -> Option<ChildList> {
        let mut children = ChildList::default();
        for tid in self.threads(pid) {
            if !self.exists(tid) {
                children.add_thread(None);
                continue;
            }
            let path = self
                .path(pid, "task")
                .join(tid.to_string())
                .join("children");
            match files::read_text(&path) {
                Ok(text) => children.add_thread(Some(&text)),
                Err(_) if self.get(pid).is_none() => return Some(ChildList::default()),
                Err(_) => return None,
            }
        }
        Some(children)
    }

    /// Returns the number that the kernel assigned last to a process or thread of this PID
    /// namespace. As long as this number stays the same, no process or thread has been created.
    pub(crate) fn last_pid(&self) -> Option<i32> {
        let text = files::read_text(&self.root.join("loadavg")).ok()?;
        text.split_whitespace().last()?.parse().ok()
    }

    /// Returns the lowest nice value that an unprivileged process may set for a process; 20 if it
    /// may not lower any nice value, or the process is gone.
    pub(crate) fn nice_min(&self, pid: i32) -> i32 {
        let limits = files::read_text(&self.path(pid, "limits")).unwrap_or_default();
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max nice priority"));
        let limit = line.and_then(|line| line.split_whitespace().next());
        match limit {
            Some("unlimited") => -20,
            limit => 20 - limit.and_then(|limit| limit.parse().ok()).unwrap_or(0),
        }
    }

    /// Returns whether this process's capabilities apply to the machine and not only to a container
    /// (a user namespace).
    pub(crate) fn has_machine_capabilities(&self) -> bool {
        let map = files::read_text(&self.root.join("self/uid_map"));
        map.map_or(true, |map| {
            map.split_whitespace().eq(["0", "0", "4294967295"])
        })
    }

    /// Returns the pid and start time of the calling process.
    pub(crate) fn own(&self) -> Result<ProcessId, ActError> {
        let path = self.root.join("self/stat");
        let stat = read_stat(&path).map_err(file_error("reading", &path))?;
        Ok(ProcessId {
            pid: stat.pid,
            start_ticks: stat.start_ticks,
        })
    }

    /// Returns a process and its ancestors, beginning with the process itself. Reads one file for
    /// each of them. A process that is gone ends the list.
    pub(crate) fn lineage(&self, pid: i32) -> Vec<Process> {
        let mut line: Vec<Process> = Vec::new();
        let mut at = pid;
        while at > 0 && line.iter().all(|one| one.id.pid != at) {
            let Some(process) = self.get(at) else {
                break;
            };
            at = process.parent;
            line.push(process);
        }
        line
    }

    /// Returns the processes that hold a `flock(2)` lock on a file, which is named as in
    /// `/proc/locks`: `MAJOR:MINOR:INODE`. A lock holder outside this PID namespace has no pid in
    /// the namespace, and is left out.
    pub(crate) fn lock_holders(&self, of_file: &str) -> Vec<i32> {
        let text = files::read_text(&self.root.join("locks")).unwrap_or_default();
        let holder = |line: &str| {
            // A line has the form `3: FLOCK ADVISORY WRITE 1234 00:1a:567 0 EOF`. The line of a
            // process that waits for the lock has `->` after the number.
            let mut words = line.split_whitespace().skip(1);
            let held = words.next()? == "FLOCK";
            let pid: i32 = words.nth(2)?.parse().ok()?;
            (held && pid > 0 && words.next()? == of_file).then_some(pid)
        };
        text.lines().filter_map(holder).collect()
    }

    /// Returns the identifier of this boot of the machine.
    pub(crate) fn boot_id(&self) -> Result<String, ActError> {
        crate::files::read(&self.root.join("sys/kernel/random/boot_id"))
    }

    /// Returns the inode number of this process's PID namespace; 0 if unknown.
    pub(crate) fn pid_namespace(&self) -> u64 {
        fs::metadata(self.root.join("self/ns/pid")).map_or(0, |data| data.ino())
    }

    /// Returns the real, effective, saved and file-system user ids of a process; `None` if it is
    /// gone.
    fn user_ids(&self, pid: i32) -> Option<[u32; 4]> {
        let status = files::read_text(&self.path(pid, "status")).ok()?;
        let mut lines = status.lines();
        let ids = lines.find_map(|line| line.strip_prefix("Uid:"))?;
        let mut ids = ids.split_whitespace().map(|id| id.parse().ok());
        let mut next = || ids.next().flatten();
        Some([next()?, next()?, next()?, next()?])
    }

    /// Returns whether all four user IDs of a process are `owner`. As in the rules of `ptrace(2)`,
    /// a setuid program does not belong to the user that executes it.
    pub(crate) fn belongs_to(&self, pid: i32, owner: u32) -> bool {
        let ids = self.user_ids(pid);
        ids.is_some_and(|ids| ids.iter().all(|&id| id == owner))
    }
}

fn read_stat(path: &Path) -> io::Result<ProcStat> {
    // The file is read by one call, because a scan reads one such file for each process of the
    // machine. Reading to the end of the file would take several calls.
    let mut bytes = [0; STAT_BYTES];
    let read = fs::File::open(path)?.read(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes[..read]);
    let malformed = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the content does not have the format of /proc/PID/stat",
        )
    };
    ProcStat::parse(&text).ok_or_else(malformed)
}

/// Returns the entries of a directory that are numbers, in rising order.
fn numbers(dir: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut numbers: Vec<i32> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns the thread ID of the calling thread.
    fn own_tid() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    #[test]
    fn living_and_unreaped_numbers_exist() {
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        assert!(procs.exists(std::process::id() as i32));
        let tid = std::thread::scope(|scope| {
            let other = scope.spawn(|| procs.exists(own_tid()).then(own_tid));
            other.join().unwrap()
        });
        assert!(tid.is_some(), "a thread that is not the first");
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        while procs.get(pid).is_none_or(|process| process.state != 'Z') {
            std::thread::yield_now();
        }
        assert!(procs.exists(pid), "a zombie");
        child.wait().unwrap();
        assert!(!procs.exists(pid), "a reaped process");
        assert!(!procs.exists(0) && !procs.exists(-1));
    }

    /// The first reading is interrupted after the entry of a child, which then ends. The kernel omits
    /// the next child.
    #[test]
    fn a_child_that_one_reading_omits_is_found() {
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        let path = format!("/proc/self/task/{}/children", own_tid());
        let Ok(mut file) = fs::File::open(path) else {
            usher_skip::skip!("the kernel has no lists of children");
            return;
        };
        let mut children = [(); 3].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        let [first, others @ ..] = &mut children;
        let mut interrupted = Some(|| {
            let mut text = vec![0];
            file.read_exact(&mut text).unwrap();
            first.kill().unwrap();
            first.wait().unwrap();
            file.read_to_end(&mut text).unwrap();
            let mut list = ChildList::default();
            list.add_thread(str::from_utf8(&text).ok());
            list
        });
        let found = read_children(|| match interrupted.take() {
            Some(mut read) => Some(read()),
            None => procs.listed_children(std::process::id() as i32),
        });
        for child in others.iter_mut() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let found = found.unwrap();
        let expected = others.iter().map(|child| child.id() as i32);
        assert!(
            expected.clone().all(|pid| found.contains(&pid)),
            "{found:?}"
        );
    }

    #[test]
    fn numbers_of_another_namespace_are_not_judged() {
        let mut config = ActConfig::new("/nonexistent");
        config.proc_root = "/nonexistent".into();
        let procs = Procs::new(&config);
        assert!(procs.exists(i32::MAX));
        assert!(!procs.exists(0));
    }
}
