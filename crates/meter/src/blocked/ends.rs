// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the pipe, FIFO or unix socket that a thread waits for, and the processes that have the
//! other end open.
//!
//! 1. [`wait_of`] reads in `/proc` in which kernel function the thread waits, and for which
//!    descriptor.
//! 2. [`OpenEnds`] lists the open pipes and sockets of all processes, once, at the first use.
//! 3. [`OpenEnds::of`] returns the processes that can end the wait. For a pipe, these are processes
//!    with a descriptor of the opposite access mode; for a socket, processes with the peer socket
//!    (`unix.rs`).
//!
//! Step 2 costs a read of the type of each open file of all processes, and a read of the flags of
//! each pipe and socket. The other steps read a few files per waiting thread. Files that cannot be
//! read count as no wait and no end. No function waits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::{line, unix};
use crate::{files, proc_tree};

/// Kernel functions in which a thread waits for the other end, as named in `/proc/PID/wchan`. The
/// first name of a pipe function is used since Linux 6.14, the second name before.
const READS_PIPE: [&str; 2] = ["anon_pipe_read", "pipe_read"];
const WRITES_PIPE: [&str; 2] = ["anon_pipe_write", "pipe_write"];
const UNIX_SOCKET: [&str; 4] = [
    "sock_alloc_send_pskb",
    "unix_stream_data_wait",
    "unix_stream_read_generic",
    "unix_wait_for_peer",
];

/// Mask of the access mode, which is in the low bits of a descriptor's flags.
const ACCESS: u32 = 0o3;
const READS_ONLY: u32 = 0o0;
const WRITES_ONLY: u32 = 0o1;

/// The operation of the other end that a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitedOperation {
    /// A write to the pipe.
    Write,
    /// A read from the pipe.
    Read,
    /// A send to or receive from the socket.
    Socket,
}

/// The operation in which a thread is blocked, and the descriptor of the pipe or socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockedOperation {
    kind: AwaitedOperation,
    fd: u32,
}

/// Returns the pipe or socket operation in which a thread is blocked; `None` if there is no such
/// operation. `task` is the thread's directory below `/proc/PID/task`.
pub(super) fn wait_of(task: &Path) -> Option<BlockedOperation> {
    let function = line(&task.join("wchan"));
    let is = |names: &[&str]| names.contains(&function.as_str());
    let kind = match () {
        () if is(&READS_PIPE) => AwaitedOperation::Write,
        () if is(&WRITES_PIPE) => AwaitedOperation::Read,
        () if is(&UNIX_SOCKET) => AwaitedOperation::Socket,
        () => return None,
    };
    // The file contains the number of the system call, followed by its arguments. The descriptor is
    // the first argument of the calls that read, write, send and receive.
    let call = line(&task.join("syscall"));
    let fd = call.split_whitespace().nth(1)?.strip_prefix("0x")?;
    let fd = u32::from_str_radix(fd, 16).ok()?;
    Some(BlockedOperation { kind, fd })
}

/// A pipe or socket that a thread waits for, and the processes at its other ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AwaitedEnd {
    pub what: &'static str,
    pub pids: BTreeSet<i32>,
}

/// A file by its device and inode.
type FileNumber = ((u32, u32), u64);

/// The open pipes and sockets of all processes, with access modes. The list is read at the first
/// use.
#[derive(Debug)]
pub(super) struct OpenEnds {
    proc: PathBuf,
    open: Option<BTreeMap<FileNumber, Vec<(i32, u32)>>>,
}

impl OpenEnds {
    pub fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            open: None,
        }
    }

    /// Returns the processes at the other ends of the pipe or socket that `pid` waits for; `None`
    /// if no such process is known.
    pub fn of(&mut self, pid: i32, process: &Path, wait: BlockedOperation) -> Option<AwaitedEnd> {
        let (system, number) = files::file_id(&process.join("fd").join(wait.fd.to_string()))?.file;
        let file = match wait.kind {
            AwaitedOperation::Socket => (system, u64::from(unix::peer_of(number as u32)?)),
            _ => (system, number),
        };
        let can_give = |access: u32| match wait.kind {
            AwaitedOperation::Write => access != READS_ONLY,
            AwaitedOperation::Read => access != WRITES_ONLY,
            AwaitedOperation::Socket => true,
        };
        let ends = self.open().get(&file)?;
        let others = ends.iter().filter(|(other, _)| *other != pid);
        let pids = others.filter(|(_, access)| can_give(*access));
        Some(AwaitedEnd {
            what: match wait.kind {
                AwaitedOperation::Socket => "a socket",
                _ => "a pipe",
            },
            pids: pids.map(|(pid, _)| *pid).collect(),
        })
    }

    fn open(&mut self) -> &BTreeMap<FileNumber, Vec<(i32, u32)>> {
        let proc = &self.proc;
        self.open.get_or_insert_with(|| {
            let mut open: BTreeMap<FileNumber, Vec<(i32, u32)>> = BTreeMap::new();
            for pid in proc_tree::pids(proc) {
                for (file, access) in descriptors(&proc.join(pid.to_string())) {
                    open.entry(file).or_default().push((pid, access));
                }
            }
            open
        })
    }
}

/// Returns the open pipes and sockets of a process, with access modes.
fn descriptors(process: &Path) -> Vec<(FileNumber, u32)> {
    let fds = fs::read_dir(process.join("fd")).into_iter().flatten();
    fds.flatten()
        .filter_map(|fd| {
            let of = files::file_id(&fd.path())?;
            if !matches!(of.kind, FileType::Fifo | FileType::Socket) {
                return None;
            }
            let info = line(&process.join("fdinfo").join(fd.file_name()));
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
            let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
            Some((of.file, flags & ACCESS))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a directory like `/proc`, with processes that have one descriptor each. All
    /// descriptors refer to the same FIFO.
    fn machine(ends: &[(i32, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        for (pid, flags) in ends {
            let process = dir.path().join(pid.to_string());
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::create_dir_all(process.join("fdinfo")).unwrap();
            std::os::unix::fs::symlink(&fifo, process.join("fd/3")).unwrap();
            fs::write(
                process.join("fdinfo/3"),
                format!("pos:\t0\nflags:\t{flags}\n"),
            )
            .unwrap();
        }
        dir
    }

    #[test]
    fn a_reader_waits_for_processes_that_can_write() {
        let dir = machine(&[(1, "0100000"), (2, "01"), (3, "0100002"), (4, "00")]);
        let wait = |kind| BlockedOperation { kind, fd: 3 };
        let process = dir.path().join("1");
        let of = |kind| {
            OpenEnds::new(dir.path())
                .of(1, &process, wait(kind))
                .unwrap()
                .pids
        };
        assert_eq!(of(AwaitedOperation::Write), BTreeSet::from([2, 3]));
        assert_eq!(of(AwaitedOperation::Read), BTreeSet::from([3, 4]));
    }

    #[test]
    fn a_wait_is_recognised_by_kernel_function_and_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let waits = |function: &str, call: &str| {
            fs::write(dir.path().join("wchan"), function).unwrap();
            fs::write(dir.path().join("syscall"), call).unwrap();
            wait_of(dir.path())
        };
        let read = Some(BlockedOperation {
            kind: AwaitedOperation::Write,
            fd: 11,
        });
        assert_eq!(
            waits("pipe_read", "0 0xb 0x7f 0x1 0x0 0x0 0x0 0x7f 0x7f"),
            read
        );
        assert_eq!(waits("do_poll", "7 0xb 0x7f"), None);
        assert_eq!(waits("pipe_write", "running"), None);
        assert_eq!(waits("pipe_write", "1 0xfffffffffff"), None);
    }
}
