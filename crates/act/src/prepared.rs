// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates a process directly inside a program's cgroups, which avoids a slow move between cgroups.
//!
//! Moving a process between cgroups takes a lock for writing that every fork on the machine takes
//! for reading. If no process has taken this lock for writing for a while, the kernel first waits
//! for an RCU grace period. A move then takes 8 to 20 ms (median 7.9 ms at HZ=250); while moves are
//! frequent, a move takes 20 to 60 us. [`PreparedHome::fork`] uses two ways into a cgroup that need
//! no wait:
//!
//! 1. cgroup v2: `clone3` with `CLONE_INTO_CGROUP` creates the child in the directory. If the
//!    kernel rejects this, `clone` creates the child outside, and [`crate::Actuator::admit`] moves
//!    it.
//! 2. cgroup v1: the child, which has one thread, writes `0` to `tasks` of each directory and
//!    thereby moves itself.
//!
//! A process without the journal opens the home by its directories ([`HomeDirs`]): the daemon's
//! client that launches the program is the process that forks.
//!
//! The parent waits, without a time limit, until the child is inside the directories or has died.
//! [`PreparedHome::fork`] fails only if no process can be created, or if the child dies before its
//! pidfd is opened. It makes no further attempt.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_model::{ProcessId, ProcessTree, ProgramId};

use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::journal::{Dir, DirKind};
use crate::procs::Procs;

/// The value in the kernel's `linux/sched.h`. The type of libc's constant has too few bits.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The cgroups of a prepared program, which has no process yet.
#[derive(Debug)]
pub struct PreparedHome {
    program: ProgramId,
    cgroup: Option<PathBuf>,
    procs: Procs,
    /// The cgroup v2 directory in which the process is created.
    v2: Option<OwnedFd>,
    /// The open `tasks` files of the v1 directories that the child enters.
    v1_tasks: Vec<OwnedFd>,
}

/// The directories of a prepared home, by which another process opens the home.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HomeDirs {
    /// The directory of cgroup v2.
    pub v2: Option<PathBuf>,
    /// The directories of cgroup v1.
    pub v1: Vec<PathBuf>,
}

/// The result of a fork, in the child and in the parent.
#[derive(Debug)]
pub enum ForkResult {
    /// The caller is the new process.
    Child,
    /// The caller is the process that forked.
    Parent {
        /// The new process.
        child: ProcessId,
        /// Pidfd of the child.
        pidfd: OwnedFd,
    },
}

impl HomeDirs {
    /// Returns the directories in which a process can be created.
    pub(crate) fn of(dirs: &[Dir]) -> Self {
        let mut home = Self::default();
        for dir in dirs {
            match dir.kind {
                DirKind::CpusetV1 | DirKind::CpuV1 => home.v1.push(dir.dir.clone()),
                // A scope and the cgroup of an attached program cannot exist before the program has
                // a process.
                DirKind::Scope | DirKind::Unit => {}
                DirKind::V2 => home.v2 = Some(dir.dir.clone()),
            }
        }
        home
    }
}

impl PreparedHome {
    pub(crate) fn open(procs: &Procs, program: ProgramId, dirs: &[Dir]) -> Result<Self, ActError> {
        Self::open_in(procs.clone(), program, &HomeDirs::of(dirs))
    }

    /// Opens the home of a program that another process of Usher has prepared.
    ///
    /// # Errors
    /// A directory does not exist, or this process may not use it.
    pub fn open_dirs(
        config: &ActConfig,
        program: ProgramId,
        dirs: &HomeDirs,
    ) -> Result<Self, ActError> {
        Self::open_in(Procs::new(config), program, dirs)
    }

    fn open_in(procs: Procs, program: ProgramId, dirs: &HomeDirs) -> Result<Self, ActError> {
        let open = |path: PathBuf, flags: OFlags| {
            open(&path, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| file_error("opening", path)(errno.into()))
        };
        let v2 = dirs.v2.clone();
        let v2 = v2.map(|dir| open(dir, OFlags::PATH | OFlags::DIRECTORY));
        let v1_tasks = dirs.v1.iter();
        let v1_tasks = v1_tasks.map(|dir| open(dir.join("tasks"), OFlags::WRONLY));
        Ok(Self {
            program,
            cgroup: dirs.v2.clone(),
            procs,
            v2: v2.transpose()?,
            v1_tasks: v1_tasks.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the number of the program.
    pub fn program(&self) -> ProgramId {
        self.program
    }

    /// Returns the home that the program will have when its first process is `root`.
    pub fn home(&self, root: ProcessId) -> ProcessTree {
        ProcessTree {
            program: self.program,
            root,
            cgroup: self.cgroup.clone(),
        }
    }

    /// Forks a child into the program's cgroups. When the function returns, in the parent or in the
    /// child, the child is inside the cgroups. If the kernel rejects the creation inside cgroup v2,
    /// the child is created outside, and [`crate::Actuator::admit`] moves it.
    ///
    /// # Errors
    /// A system call failed, and no child was created.
    ///
    /// # Safety
    /// The rules after `fork` apply: if the calling process has several threads, the child may call
    /// only async-signal-safe functions until it executes a program or exits. No `pthread_atfork`
    /// handlers run.
    pub unsafe fn fork(&self) -> io::Result<ForkResult> {
        let (entered, says_entered) = pipe_with(PipeFlags::CLOEXEC)?;
        // The kernel, the cgroup or a seccomp filter may reject `clone3`. The child is then created
        // outside the cgroup. SAFETY: the caller has accepted the contract of this function.
        let inside = self
            .v2
            .as_ref()
            .and_then(|cgroup| unsafe { clone_into(cgroup) }.ok());
        let pid = match inside {
            Some(pid) => pid,
            // SAFETY: the caller has accepted the contract of this function.
            None => unsafe { clone() }?,
        };
        if pid == 0 {
            for tasks in &self.v1_tasks {
                let _ = rustix::io::write(tasks, b"0");
            }
            let _ = rustix::io::write(&says_entered, b"x");
            return Ok(ForkResult::Child);
        }
        drop(says_entered);
        // The read ends when the child has entered its cgroups or, without a byte, when the child
        // has died.
        let _ = File::from(entered).read(&mut [0]);
        let child = Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?;
        let pidfd = pidfd_open(child, PidfdFlags::empty())?;
        let id = self.procs.get(pid).ok_or(io::ErrorKind::NotFound)?.id;
        Ok(ForkResult::Parent { child: id, pidfd })
    }
}

/// Forks into a cgroup v2. Returns 0 in the child.
///
/// # Safety
/// The rules of [`PreparedHome::fork`] apply.
unsafe fn clone_into(cgroup: &OwnedFd) -> io::Result<i32> {
    // SAFETY: all fields of `clone_args` are integers, for which zero is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.flags = CLONE_INTO_CGROUP;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: `args` is valid for the given size. Its flags share no memory with the child, which
    // continues on a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of_val(&args)) };
    child_of(pid)
}

/// Forks without `clone3`, which the seccomp filters of docker and podman reject. Returns 0 in the
/// child.
///
/// # Safety
/// The rules of [`PreparedHome::fork`] apply.
unsafe fn clone() -> io::Result<i32> {
    // SAFETY: the flags share no memory with the child, which continues on a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    child_of(pid)
}

/// Converts the result of a forking system call: returns the child's pid, 0 in the child, or an
/// error.
fn child_of(pid: libc::c_long) -> io::Result<i32> {
    match pid {
        pid if pid >= 0 => Ok(pid as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitOptions, waitpid};

    use crate::ActConfig;

    /// Makes `clone3` fail with ENOSYS in the calling thread, as docker does.
    fn refuse_clone3() {
        let code = |code: u32| u16::try_from(code).unwrap();
        let step = |op: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
            code: code(op),
            jt,
            jf,
            k,
        };
        let clone3 = u32::try_from(libc::SYS_clone3).unwrap();
        let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
        let mut steps = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, clone3),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: steps.as_mut_ptr(),
        };
        let filter = libc::SECCOMP_MODE_FILTER;
        // SAFETY: the seccomp program outlives both calls of `prctl`, which affect only the calling
        // thread.
        let set = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program),
            ]
        };
        assert_eq!(set, [0, 0], "{}", io::Error::last_os_error());
    }

    #[test]
    fn forks_where_a_container_refuses_clone3() {
        let procs = Procs::new(&ActConfig::new("/nowhere"));
        let dir = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let home = PreparedHome {
            program: ProgramId(1),
            cgroup: None,
            procs,
            v2: Some(dir),
            v1_tasks: Vec::new(),
        };
        let forking = std::thread::spawn(move || {
            refuse_clone3();
            // SAFETY: the child calls only `_exit`, which is async-signal-safe.
            match unsafe { home.fork() }.unwrap() {
                // SAFETY: `_exit` may be called in a forked child; it runs no exit handlers of the
                // parent.
                ForkResult::Child => unsafe { libc::_exit(7) },
                ForkResult::Parent { child, .. } => child,
            }
        });
        let child = Pid::from_raw(forking.join().unwrap().pid);
        let (_, status) = waitpid(child, WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(7));
    }
}
