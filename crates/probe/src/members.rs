// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of one program, and their CPU time.
//!
//! A program in a cgroup of its own is accounted by the kernel. Processes that
//! leave this cgroup (they move, or systemd moves them into a scope) stay
//! members: the caller names them, and they are followed by their numbers from
//! then on. What they used before is in the cgroup's sum already.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_model::{ProcessId, ProcessTree};

use crate::error::ProbeError;
use crate::group::Group;
use crate::tree::Tree;

/// CPU time and waiting time of all members.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub cpu_ns: u64,
    pub wait_ns: Option<u64>,
}

/// Where the program's processes are.
#[derive(Debug)]
pub(crate) enum Members {
    /// In a cgroup of its own, but for those that have left it.
    Group {
        group: Box<Group>,
        /// Whether the cgroup was empty at the last look.
        is_empty: bool,
        leavers: Leavers,
    },
    /// Anywhere.
    Tree(Followed),
}

/// Processes that have left the program's cgroup.
#[derive(Debug)]
pub(crate) struct Leavers {
    tree: Tree,
    /// CPU time that they had when they were first seen outside.
    before_ns: u64,
    /// One of them that lives, to see it end.
    pidfd: Option<OwnedFd>,
}

/// A process tree and one of its living processes.
#[derive(Debug)]
pub(crate) struct Followed {
    tree: Tree,
    pidfd: OwnedFd,
}

impl Members {
    /// The members of the program that lives there.
    ///
    /// # Errors
    /// It has ended, or its cgroup cannot be read.
    pub(crate) fn open(home: &ProcessTree, proc_root: &Path) -> Result<Self, ProbeError> {
        Ok(match &home.cgroup {
            Some(dir) => Self::Group {
                group: Box::new(Group::open(dir)?),
                is_empty: false,
                leavers: Leavers {
                    tree: Tree::empty(proc_root),
                    before_ns: 0,
                    pidfd: None,
                },
            },
            None => Self::Tree(Followed::open(home, proc_root)?),
        })
    }

    /// Follows these processes too; they have left the program's cgroup.
    pub(crate) fn follow(&mut self, processes: &[ProcessId]) {
        if let Self::Group { leavers, .. } = self {
            // One that has ended meanwhile is in the cgroup's sum.
            let known = processes
                .iter()
                .filter_map(|&one| leavers.tree.add(one).ok());
            leavers.before_ns += known.sum::<u64>();
            leavers.look();
        }
    }

    pub(crate) fn totals(&mut self) -> Result<Totals, ProbeError> {
        Ok(match self {
            Self::Group { group, leavers, .. } => {
                leavers.tree.look();
                Totals {
                    cpu_ns: group.cpu_ns()? + leavers.cpu_ns(),
                    wait_ns: group.wait_ns(),
                }
            }
            Self::Tree(followed) => {
                followed.tree.look();
                Totals {
                    cpu_ns: followed.tree.cpu_ns(),
                    wait_ns: None,
                }
            }
        })
    }

    pub(crate) fn threads(&self) -> Result<BTreeSet<i32>, ProbeError> {
        match self {
            Self::Group { group, leavers, .. } => {
                let mut threads = group.threads()?;
                threads.extend(leavers.tree.threads());
                Ok(threads)
            }
            Self::Tree(followed) => Ok(followed.tree.threads()),
        }
    }

    pub(crate) fn processes(&self) -> Result<BTreeSet<i32>, ProbeError> {
        match self {
            Self::Group { group, leavers, .. } => {
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
            Self::Group {
                group,
                is_empty,
                leavers,
            } => {
                *is_empty = group.has_ended()?;
                leavers.look();
                Ok(*is_empty && leavers.pidfd.is_none())
            }
            Self::Tree(followed) => {
                followed.tree.look();
                // One that has died stays readable.
                if has_died(&followed.pidfd)
                    && let Some(oldest) = followed.tree.oldest()
                {
                    followed.pidfd = oldest;
                }
                Ok(followed.tree.has_ended())
            }
        }
    }

    /// What to poll for the program's end, and for which event.
    pub(crate) fn poll(&self) -> (BorrowedFd<'_>, PollFlags) {
        match self {
            Self::Group {
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

impl Leavers {
    fn cpu_ns(&self) -> u64 {
        self.tree.cpu_ns().saturating_sub(self.before_ns)
    }

    /// Looks at all of them, and has one that lives to wait for.
    fn look(&mut self) {
        self.tree.look();
        if self.pidfd.as_ref().is_none_or(has_died) {
            self.pidfd = self.tree.oldest();
        }
    }
}

impl Followed {
    /// The pidfd is opened first and the start time checked after, so that it
    /// cannot belong to a later process of the same number.
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
        let tree = Tree::open(proc_root, home.root)?;
        Ok(Self { tree, pidfd })
    }
}

/// Whether the process behind a pidfd has died.
fn has_died(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
