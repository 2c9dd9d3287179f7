// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of one program, and their CPU time.
//!
//! For a program with its own cgroup, the kernel sums up the CPU time of the cgroup. A process that
//! leaves the cgroup (it moves itself, or systemd moves it into a scope) remains a member: the
//! caller reports the process, and from then on [`LeftProcesses`] tracks the process by its number.
//! The sum of the cgroup already contains the CPU time that the process used before it left. A
//! program without a cgroup is tracked by the numbers of all its processes (`tree.rs`).
//!
//! A sample reads two files of the cgroup (CPU time and pressure), plus the files of each process
//! that is tracked by its number (see `tree.rs`). A program without a cgroup has no waiting time. A
//! cgroup that cannot be read is an error; a process that cannot be read counts as ended.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_model::{ProcessId, ProcessTree};

use crate::error::ProbeError;
use crate::group::Cgroup;
use crate::tree::TrackedProcesses;

/// CPU time and waiting time of all members.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TotalTimes {
    pub cpu_ns: u64,
    pub wait_ns: Option<u64>,
}

/// The processes of a program.
#[derive(Debug)]
pub(crate) enum ProgramMembers {
    /// A program with its own cgroup, and processes that have left the cgroup.
    Cgroup {
        group: Box<Cgroup>,
        /// Whether the cgroup was empty at the last check.
        is_empty: bool,
        leavers: LeftProcesses,
    },
    /// A program without a cgroup.
    Tree(TreeMembers),
}

/// Processes that have left the program's cgroup.
#[derive(Debug)]
pub(crate) struct LeftProcesses {
    tree: TrackedProcesses,
    /// CPU time that these processes had when the caller first reported them.
    before_ns: u64,
    /// A living process of the program; the probe polls for the end of this process.
    pidfd: Option<OwnedFd>,
}

/// A process tree and one of its living processes.
#[derive(Debug)]
pub(crate) struct TreeMembers {
    tree: TrackedProcesses,
    /// CPU time that further process trees had when they joined the program.
    before_ns: u64,
    pidfd: OwnedFd,
}

impl ProgramMembers {
    /// Opens the members of the program that consists of this process tree.
    ///
    /// # Errors
    /// The program has ended, or its cgroup cannot be read.
    pub(crate) fn open(home: &ProcessTree, proc_root: &Path) -> Result<Self, ProbeError> {
        Ok(match &home.cgroup {
            Some(dir) => Self::Cgroup {
                group: Box::new(Cgroup::open(dir)?),
                is_empty: false,
                leavers: LeftProcesses {
                    tree: TrackedProcesses::empty(proc_root),
                    before_ns: 0,
                    pidfd: None,
                },
            },
            None => Self::Tree(TreeMembers::open(home, proc_root)?),
        })
    }

    /// Also tracks these processes, which have left the program's cgroup or joined the program.
    pub(crate) fn follow(&mut self, processes: &[ProcessId]) {
        let add = |tree: &mut TrackedProcesses| -> u64 {
            // The CPU time of a process that has already ended is lost, or part of the cgroup's sum.
            let known = processes.iter().filter_map(|&one| tree.add(one).ok());
            known.sum()
        };
        match self {
            Self::Cgroup { leavers, .. } => {
                leavers.before_ns += add(&mut leavers.tree);
                leavers.sample();
            }
            // Only a tree that joins is not tracked yet.
            Self::Tree(followed) => {
                followed.before_ns += add(&mut followed.tree);
                followed.tree.sample();
            }
        }
    }

    pub(crate) fn totals(&mut self) -> Result<TotalTimes, ProbeError> {
        Ok(match self {
            Self::Cgroup { group, leavers, .. } => {
                leavers.tree.sample();
                TotalTimes {
                    cpu_ns: group.cpu_ns()? + leavers.cpu_ns(),
                    wait_ns: group.wait_ns(),
                }
            }
            Self::Tree(followed) => {
                followed.tree.sample();
                TotalTimes {
                    cpu_ns: followed.tree.cpu_ns().saturating_sub(followed.before_ns),
                    wait_ns: None,
                }
            }
        })
    }

    /// Returns the CPU time that the kernel has summed up for the program, by one read of an open
    /// file and one per process that has left the cgroup; `None` without a cgroup.
    pub(crate) fn summed_cpu_ns(&mut self) -> Option<u64> {
        match self {
            Self::Cgroup { group, leavers, .. } => {
                leavers.tree.sample();
                Some(group.cpu_ns().ok()? + leavers.cpu_ns())
            }
            Self::Tree(_) => None,
        }
    }

    pub(crate) fn threads(&self) -> Result<BTreeSet<i32>, ProbeError> {
        match self {
            Self::Cgroup { group, leavers, .. } => {
                let mut threads = group.threads()?;
                threads.extend(leavers.tree.threads());
                Ok(threads)
            }
            Self::Tree(followed) => Ok(followed.tree.threads()),
        }
    }

    pub(crate) fn processes(&self) -> Result<BTreeSet<i32>, ProbeError> {
        match self {
            Self::Cgroup { group, leavers, .. } => {
                let mut processes = group.processes()?;
                processes.extend(leavers.tree.processes());
                Ok(processes)
            }
            Self::Tree(followed) => Ok(followed.tree.processes()),
        }
    }

    /// Whether the last process has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool, ProbeError> {
        match self {
            Self::Cgroup {
                group,
                is_empty,
                leavers,
            } => {
                *is_empty = group.has_ended()?;
                leavers.sample();
                Ok(*is_empty && leavers.pidfd.is_none())
            }
            Self::Tree(followed) => {
                followed.tree.sample();
                // The pidfd of a dead process stays readable.
                if has_died(&followed.pidfd)
                    && let Some(oldest) = followed.tree.oldest()
                {
                    followed.pidfd = oldest;
                }
                Ok(followed.tree.has_ended())
            }
        }
    }

    /// Returns the descriptor and the event by which a caller polls for the program's end.
    pub(crate) fn poll(&self) -> (BorrowedFd<'_>, PollFlags) {
        match self {
            Self::Cgroup {
                group,
                is_empty,
                leavers,
            } => match leavers.pidfd.as_ref().filter(|_| *is_empty) {
                Some(pidfd) => (pidfd.as_fd(), PollFlags::IN),
                None => (group.as_fd(), PollFlags::PRI),
            },
            Self::Tree(followed) => (followed.pidfd.as_fd(), PollFlags::IN),
        }
    }
}

impl LeftProcesses {
    fn cpu_ns(&self) -> u64 {
        self.tree.cpu_ns().saturating_sub(self.before_ns)
    }

    /// Samples the tree, and selects a living process; [`ProgramMembers::poll`] then polls for the
    /// end of this process.
    fn sample(&mut self) {
        self.tree.sample();
        if self.pidfd.as_ref().is_none_or(has_died) {
            self.pidfd = self.tree.oldest();
        }
    }
}

impl TreeMembers {
    /// Opens the pidfd first and checks the start time afterwards, so that the pidfd cannot
    /// belong to a later process with the same number.
    fn open(home: &ProcessTree, proc_root: &Path) -> Result<Self, ProbeError> {
        let pid = home.root.pid;
        let gone = ProbeError::Gone { pid };
        let Some(raw) = Pid::from_raw(pid) else {
            return Err(gone);
        };
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
            rustix::io::Errno::SRCH => gone,
            other => ProbeError::read(
                &proc_root.join(pid.to_string()),
                std::io::Error::from(other),
            ),
        })?;
        let tree = TrackedProcesses::open(proc_root, home.root)?;
        Ok(Self {
            tree,
            before_ns: 0,
            pidfd,
        })
    }
}

/// Returns whether the process behind a pidfd has died.
fn has_died(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
