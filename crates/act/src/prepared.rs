// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creation of a process inside a program's cgroups.
//!
//! Moving a process between cgroups takes a lock for writing that every fork on the machine takes
//! for reading. If no writer took it for a while, the kernel first waits for an RCU grace period: 8
//! to 20 ms here (7.9 ms median at HZ=250), then 20 to 60 us per move while moves are frequent. Two
//! ways into a cgroup avoid the wait: `clone3` with `CLONE_INTO_CGROUP` (cgroup v2), and a single
//! thread that moves itself by writing `0` to `tasks` (cgroup v1). Both are used here.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_model::{ProcessId, ProcessTree, ProgramId};

use crate::error::{ActError, file_error};
use crate::journal::{Dir, DirKind};
use crate::procs::Procs;

/// From the kernel's `linux/sched.h`; libc's constant has too few bits.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The cgroups of a program that has no process yet.
#[derive(Debug)]
pub struct PreparedHome {
    program: ProgramId,
    cgroup: Option<PathBuf>,
    procs: Procs,
    /// The cgroup v2 directory in which the process is created.
    v2: Option<OwnedFd>,
    /// `tasks` of the v1 directories that the child enters.
    v1_tasks: Vec<OwnedFd>,
}

/// Which side of a fork this is.
#[derive(Debug)]
pub enum ForkResult {
    /// The new process, inside the cgroups.
    Child,
    /// The calling process.
    Parent {
        /// The new process.
        child: ProcessId,
        /// Pidfd of the child.
        pidfd: OwnedFd,
    },
}

impl PreparedHome {
    pub(crate) fn open(procs: &Procs, program: ProgramId, dirs: &[Dir]) -> Result<Self, ActError> {
        let open = |path: PathBuf, flags: OFlags| {
            open(&path, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| file_error("opening", path)(errno.into()))
        };
        let mut home = Self {
            program,
            cgroup: None,
            procs: procs.clone(),
            v2: None,
            v1_tasks: Vec::new(),
        };
        for dir in dirs {
            match dir.kind {
                DirKind::CpusetV1 | DirKind::CpuV1 => {
                    let tasks = open(dir.dir.join("tasks"), OFlags::WRONLY)?;
                    home.v1_tasks.push(tasks);
                }
                // Neither can exist before the program has a process.
                DirKind::Scope | DirKind::Unit => {}
                DirKind::V2 => {
                    home.v2 = Some(open(dir.dir.clone(), OFlags::PATH | OFlags::DIRECTORY)?);
                    home.cgroup = Some(dir.dir.clone());
                }
            }
        }
        Ok(home)
    }

    /// Returns the program.
    pub fn program(&self) -> ProgramId {
        self.program
    }

    /// Returns the home as it will be with this first process.
    pub fn home(&self, root: ProcessId) -> ProcessTree {
        ProcessTree {
            program: self.program,
            root,
            cgroup: self.cgroup.clone(),
        }
    }

    /// Forks. The child is inside the cgroups before this returns on either side. If the kernel
    /// does not create it there, it is created outside, and [`crate::Actuator::admit`] moves it.
    ///
    /// # Errors
    /// A system call failed; nothing was forked.
    ///
    /// # Safety
    /// As after `fork`: in a program with several threads the child may only call async-signal-safe
    /// functions until it execs or exits. No `pthread_atfork` handlers run.
    pub unsafe fn fork(&self) -> io::Result<ForkResult> {
        let (entered, says_entered) = pipe_with(PipeFlags::CLOEXEC)?;
        // The kernel, the cgroup or a seccomp filter may reject it: creation outside.
        // SAFETY: the caller has accepted the contract of this function.
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
        // If the read ends without a byte, the child has died.
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
/// As for `fork`.
unsafe fn clone_into(cgroup: &OwnedFd) -> io::Result<i32> {
    // SAFETY: all of its fields are integers.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.flags = CLONE_INTO_CGROUP;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: the arguments are valid for the size given and share nothing
    // with the child, which gets a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &args, size_of_val(&args)) };
    child_of(pid)
}

/// `fork` without `clone3`, which the seccomp filters of docker and podman refuse. 0 in the
/// child.
///
/// # Safety
/// As for `fork`.
unsafe fn clone() -> io::Result<i32> {
    // SAFETY: without a stack of its own the child has a copy of this one.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    child_of(pid)
}

/// The result of a system call that forks.
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
        // SAFETY: the program outlives the calls; both affect the calling thread alone.
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
            // SAFETY: the child only exits.
            match unsafe { home.fork() }.unwrap() {
                // SAFETY: `_exit` runs no handlers of the parent.
                ForkResult::Child => unsafe { libc::_exit(7) },
                ForkResult::Parent { child, .. } => child,
            }
        });
        let child = Pid::from_raw(forking.join().unwrap().pid);
        let (_, status) = waitpid(child, WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(7));
    }
}
