// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pipes, FIFOs and unix sockets: which one a thread waits for, and who has
//! its other ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::{line, unix};
use crate::{files, kin};

/// Functions of the kernel in which a thread waits for the other end, as
/// `/proc/PID/wchan` names them: of pipes, since 6.14 and before, and of unix
/// sockets.
const READS_PIPE: [&str; 2] = ["anon_pipe_read", "pipe_read"];
const WRITES_PIPE: [&str; 2] = ["anon_pipe_write", "pipe_write"];
const UNIX_SOCKET: [&str; 4] = [
    "sock_alloc_send_pskb",
    "unix_stream_data_wait",
    "unix_stream_read_generic",
    "unix_wait_for_peer",
];

/// How a descriptor may be used: the low bits of its flags.
const ACCESS: u32 = 0o3;
const READS_ONLY: u32 = 0o0;
const WRITES_ONLY: u32 = 0o1;

/// What a thread waits for the other end to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To write into a pipe.
    Write,
    /// To read from a pipe.
    Read,
    /// To take or give something by a socket.
    Socket,
}

/// A thread's wait: for what, by which of its descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    kind: Kind,
    fd: u32,
}

/// What a thread waits for, by its directory below `task`.
pub(super) fn wait_of(task: &Path) -> Option<Wait> {
    let function = line(&task.join("wchan"));
    let is = |names: &[&str]| names.contains(&function.as_str());
    let kind = match () {
        () if is(&READS_PIPE) => Kind::Write,
        () if is(&WRITES_PIPE) => Kind::Read,
        () if is(&UNIX_SOCKET) => Kind::Socket,
        () => return None,
    };
    // The call's number, then its arguments: all calls that wait so take the
    // descriptor first.
    let call = line(&task.join("syscall"));
    let fd = call.split_whitespace().nth(1)?.strip_prefix("0x")?;
    let fd = u32::from_str_radix(fd, 16).ok()?;
    Some(Wait { kind, fd })
}

/// What is waited for, and who can give it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holders {
    pub what: &'static str,
    pub pids: BTreeSet<i32>,
}

/// A file by its device and number.
type File = ((u32, u32), u64);

/// All pipes and sockets on the machine, with who has them open and how; read
/// when first asked for.
#[derive(Debug)]
pub(super) struct Ends {
    proc: PathBuf,
    open: Option<BTreeMap<File, Vec<(i32, u32)>>>,
}

impl Ends {
    pub fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            open: None,
        }
    }

    /// Who has the other ends of what a process waits for; `None`: nobody.
    pub fn of(&mut self, pid: i32, process: &Path, wait: Wait) -> Option<Holders> {
        let (system, number) = files::known(&process.join("fd").join(wait.fd.to_string()))?.file;
        let file = match wait.kind {
            Kind::Socket => (system, u64::from(unix::peer_of(number as u32)?)),
            _ => (system, number),
        };
        let can_give = |access: u32| match wait.kind {
            Kind::Write => access != READS_ONLY,
            Kind::Read => access != WRITES_ONLY,
            Kind::Socket => true,
        };
        let ends = self.open().get(&file)?;
        let others = ends.iter().filter(|(other, _)| *other != pid);
        let pids = others.filter(|(_, access)| can_give(*access));
        Some(Holders {
            what: match wait.kind {
                Kind::Socket => "a socket",
                _ => "a pipe",
            },
            pids: pids.map(|(pid, _)| *pid).collect(),
        })
    }

    fn open(&mut self) -> &BTreeMap<File, Vec<(i32, u32)>> {
        let proc = &self.proc;
        self.open.get_or_insert_with(|| {
            let mut open: BTreeMap<File, Vec<(i32, u32)>> = BTreeMap::new();
            for pid in kin::pids(proc) {
                for (file, access) in descriptors(&proc.join(pid.to_string())) {
                    open.entry(file).or_default().push((pid, access));
                }
            }
            open
        })
    }
}

/// The pipes and sockets that a process has open.
fn descriptors(process: &Path) -> Vec<(File, u32)> {
    let fds = fs::read_dir(process.join("fd")).into_iter().flatten();
    fds.flatten()
        .filter_map(|fd| {
            let of = files::known(&fd.path())?;
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

    /// A `/proc` of processes with one descriptor each, all of one FIFO.
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
    fn a_reader_waits_for_who_can_write() {
        let dir = machine(&[(1, "0100000"), (2, "01"), (3, "0100002"), (4, "00")]);
        let wait = |kind| Wait { kind, fd: 3 };
        let process = dir.path().join("1");
        let of = |kind| {
            Ends::new(dir.path())
                .of(1, &process, wait(kind))
                .unwrap()
                .pids
        };
        assert_eq!(of(Kind::Write), BTreeSet::from([2, 3]));
        assert_eq!(of(Kind::Read), BTreeSet::from([3, 4]));
    }

    #[test]
    fn what_a_thread_waits_for_is_where_it_waits() {
        let dir = tempfile::tempdir().unwrap();
        let waits = |function: &str, call: &str| {
            fs::write(dir.path().join("wchan"), function).unwrap();
            fs::write(dir.path().join("syscall"), call).unwrap();
            wait_of(dir.path())
        };
        let read = Some(Wait {
            kind: Kind::Write,
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
