// SPDX-License-Identifier: MIT OR Apache-2.0
//! Priorities of threads: lowering them, and giving back what is still ours.
//!
//! A demoted thread has nice 19 and, where all is done that can be,
//! `SCHED_IDLE` and the idle class for disks. What a thread has is compared
//! value by value with what a demoted one has: a value that is not ours any
//! more was set by the program or its user meanwhile and is left to them; one
//! that is ours is given back as the thread had it before. A thread that is met
//! for the first time while its program is demoted, and with our values, was
//! born with them; it gets what its process's first thread had, else what the
//! program's first had. So each scan first notes what all threads have, and
//! only then sets, as with affinity masks (`mask.rs`).
//!
//! Nice comes first and the policy second, as a thread of `SCHED_IDLE` could
//! not be told from one that has chosen it if the order were the other way
//! round and we died in between; on the way back the policy comes first and
//! brings its nice value along in the same call.

use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use usher_model::Demotion;

use crate::error::ActError;
use crate::files;
use crate::journal::{Demoted, ThreadId};
use crate::procs::Procs;
use crate::scan::Found;

/// The lowest nice value there is.
pub(crate) const NICE_MAX: i32 = 19;
/// Of `ioprio_set(2)`: classes stand above the level's bits.
const IO_CLASS_SHIFT: i32 = 13;
const IO_REALTIME: i32 = 1;
const IO_IDLE: i32 = 3;
const IO_WHO_PROCESS: libc::c_int = 1;
/// Of the kernel's `linux/sched.h`.
const RESET_ON_FORK: u64 = 1;

/// What a thread's share of CPUs and disks goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priority {
    /// Its scheduling policy, by the kernel's number.
    pub policy: u32,
    /// Its nice value, -20 to 19.
    pub nice: i32,
    /// Its real-time priority; 0 where its policy has none.
    #[serde(default)]
    pub realtime: u32,
    /// Whether its children are born without real-time priorities.
    #[serde(default)]
    pub reset_on_fork: bool,
    /// Its I/O priority as `ioprio_get(2)` says it.
    pub io: i32,
}

/// `struct sched_attr` of `sched_setattr(2)`, first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Priority {
    /// That of a thread.
    pub(crate) fn of(tid: i32) -> io::Result<Self> {
        let mut attr = SchedAttr::default();
        // SAFETY: the kernel writes at most the size given into the structure.
        let got = unsafe {
            libc::syscall(
                libc::SYS_sched_getattr,
                tid,
                &raw mut attr,
                size_of::<SchedAttr>(),
                0,
            )
        };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: takes two numbers and returns one.
        let io = unsafe { libc::syscall(libc::SYS_ioprio_get, IO_WHO_PROCESS, tid) };
        if io < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            policy: attr.policy,
            // The attributes of a real-time thread leave it out.
            nice: getpriority_process(pid(tid)?)?,
            realtime: attr.priority,
            reset_on_fork: attr.flags & RESET_ON_FORK != 0,
            io: io as i32,
        })
    }

    fn io_class(&self) -> i32 {
        self.io >> IO_CLASS_SHIFT
    }

    /// Whether a thread that has this is scheduled by deadlines, which nobody
    /// but itself can give it back.
    pub(crate) fn is_deadline(&self) -> bool {
        self.policy == libc::SCHED_DEADLINE as u32
    }

    fn is_idle(&self) -> bool {
        self.policy == libc::SCHED_IDLE as u32
    }

    /// Whether a thread of a process that may have nice values from
    /// `nice_min` on can get this back from somebody without rights.
    fn can_come_back(&self, nice_min: i32) -> bool {
        nice_min <= self.nice && self.realtime == 0
    }

    /// What somebody needs so that all of this can be lowered.
    pub(crate) fn rights_needed(&self) -> String {
        let limit = 20 - self.nice;
        match self.realtime == 0 && self.io_class() != IO_REALTIME {
            true => format!("root, or `ulimit -e {limit}`"),
            false => "root".to_owned(),
        }
    }
}

/// What somebody may set, and undo again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rights {
    /// Whether all may be lowered and given back ([`Self::are_all`]).
    pub all: bool,
    /// The least nice value that the thread's process may be given without.
    pub nice_min: i32,
}

impl Rights {
    /// Everything.
    pub(crate) const ALL: Self = Self {
        all: true,
        nice_min: -NICE_MAX - 1,
    };

    /// What may be set of a process without rights over the machine.
    pub(crate) fn over(procs: &Procs, pid: i32) -> Self {
        Self {
            all: false,
            nice_min: procs.nice_min(pid),
        }
    }

    /// Whether this process may lower and raise whatever it likes.
    pub(crate) fn are_all(procs: &Procs) -> bool {
        let own = capabilities(None);
        own.is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_NICE))
            && procs.rules_machine()
    }

    /// Whether nice value and policy of a thread could be given back.
    fn cover(&self, before: &Priority) -> bool {
        self.all || before.can_come_back(self.nice_min)
    }
}

fn pid(tid: i32) -> io::Result<Option<Pid>> {
    let pid = Pid::from_raw(tid);
    // No number would mean the caller.
    pid.map(Some)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn set_nice(tid: i32, nice: i32) -> io::Result<()> {
    Ok(setpriority_process(pid(tid)?, nice)?)
}

fn set_policy(tid: i32, to: &Priority) -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: to.policy,
        flags: if to.reset_on_fork { RESET_ON_FORK } else { 0 },
        nice: to.nice,
        priority: to.realtime,
        ..SchedAttr::default()
    };
    // SAFETY: the kernel reads the structure, which says how long it is.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_io(tid: i32, io: i32) -> io::Result<()> {
    // SAFETY: takes three numbers.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, IO_WHO_PROCESS, tid, io) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Which of a thread's values a demotion has to lower: those that are as they
/// were before, where they could be given back.
pub(crate) fn to_lower(now: &Priority, before: &Priority, to: Demotion, rights: &Rights) -> Values {
    let may = rights.cover(before) && !now.is_deadline();
    let idle = to == Demotion::Idle;
    Values {
        nice: may && now.nice != NICE_MAX && now.nice == before.nice,
        policy: may && idle && !now.is_idle() && now.policy == before.policy,
        io: idle
            && (rights.all || before.io_class() != IO_REALTIME)
            && now.io_class() != IO_IDLE
            && now.io == before.io,
    }
}

/// Lowers some of a thread's values.
pub(crate) fn lower(tid: i32, now: &Priority, what: &Values) -> io::Result<()> {
    if what.nice {
        set_nice(tid, NICE_MAX)?;
    }
    if what.policy {
        let idle = Priority {
            policy: libc::SCHED_IDLE as u32,
            realtime: 0,
            ..*now
        };
        set_policy(tid, &idle)?;
    }
    if what.io {
        set_io(tid, IO_IDLE << IO_CLASS_SHIFT)?;
    }
    Ok(())
}

/// The priority that a thread would have without us.
pub(crate) fn before(state: &Demoted, thread: ThreadId, now: &Priority) -> Priority {
    if let Some(before) = state.threads.get(&thread) {
        return *before;
    }
    let inborn = inherited(state, thread);
    let inborn = inborn.filter(|before| Values::ours(state, now, before).any());
    inborn.unwrap_or(*now)
}

/// Some of a thread's values.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Values {
    nice: bool,
    policy: bool,
    io: bool,
}

impl Values {
    /// Whether there is one.
    pub(crate) fn any(&self) -> bool {
        self.nice || self.policy || self.io
    }

    /// Those of these that are not among the others.
    pub(crate) fn without(&self, others: &Self) -> Self {
        Self {
            nice: self.nice && !others.nice,
            policy: self.policy && !others.policy,
            io: self.io && !others.io,
        }
    }

    /// What they are called; `None` where there is none.
    pub(crate) fn in_words(&self) -> Option<String> {
        let names = [
            (self.nice, "nice value"),
            (self.policy, "scheduling policy"),
            (self.io, "class for disks"),
        ];
        let names: Vec<&str> = names.iter().filter(|one| one.0).map(|one| one.1).collect();
        (!names.is_empty()).then(|| names.join(" and "))
    }

    /// Those that are ours and not the thread's own.
    fn ours(state: &Demoted, now: &Priority, before: &Priority) -> Self {
        let idle = state.to.contains(&Demotion::Idle);
        Self {
            nice: !state.to.is_empty() && now.nice == NICE_MAX && before.nice != NICE_MAX,
            policy: idle && now.is_idle() && !before.is_idle() && !before.is_deadline(),
            io: idle && now.io_class() == IO_IDLE && before.io_class() != IO_IDLE,
        }
    }
}

/// What a thread that was born demoted would have without us.
fn inherited(state: &Demoted, thread: ThreadId) -> Option<Priority> {
    let mut leader = state.threads.range(ThreadId::range(thread.pid, thread.pid));
    leader.next().map(|(_, before)| *before).or(state.inborn)
}

/// Gives a thread its own values back where it has ours.
fn raise(state: &Demoted, thread: ThreadId) -> io::Result<Found> {
    let now = Priority::of(thread.tid)?;
    let known = state.threads.get(&thread).copied();
    let Some(before) = known.or_else(|| inherited(state, thread)) else {
        return Ok(Found::Fine);
    };
    let ours = Values::ours(state, &now, &before);
    if !ours.any() {
        return Ok(Found::Fine);
    }
    let nice = if ours.nice { before.nice } else { now.nice };
    if ours.policy {
        set_policy(thread.tid, &Priority { nice, ..before })?;
    }
    // A real-time thread's nice value does not come with its policy.
    if ours.nice && getpriority_process(pid(thread.tid)?)? != nice {
        set_nice(thread.tid, nice)?;
    }
    if ours.io {
        set_io(thread.tid, before.io)?;
    }
    Ok(Found::Changed)
}

/// Whether a thread has a value that a demotion gives; `None` where it is gone.
pub(crate) fn may_be_ours(state: &Demoted, tid: i32) -> Option<bool> {
    let now = Priority::of(tid).ok()?;
    let idle = state.to.contains(&Demotion::Idle);
    let io = idle && now.io_class() == IO_IDLE;
    Some(now.nice == NICE_MAX || io || (idle && now.is_idle()))
}

/// Gives a thread its own values back where it has ours.
pub(crate) fn restore(procs: &Procs, state: &Demoted, thread: ThreadId) -> Result<Found, ActError> {
    match raise(state, thread) {
        Ok(found) => Ok(found),
        Err(error) if files::is(&error, Errno::SRCH) => Ok(Found::Missed),
        // It belongs to another user since.
        Err(error) if is_refused(&error) && !Rights::are_all(procs) => Ok(Found::Fine),
        Err(source) => Err(ActError::Process {
            doing: "giving its priority back to thread",
            pid: thread.tid,
            source,
        }),
    }
}

/// Whether the kernel said that somebody may not do this.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    files::is(error, Errno::PERM) || files::is(error, Errno::ACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a demotion leaves of such a thread's without rights, in words.
    fn kept(nice: i32, to: Demotion) -> Option<String> {
        let now = Priority {
            policy: libc::SCHED_OTHER as u32,
            nice,
            realtime: 0,
            reset_on_fork: false,
            io: 0,
        };
        let none = Rights {
            all: false,
            nice_min: 20,
        };
        let wanted = to_lower(&now, &now, to, &Rights::ALL);
        wanted.without(&to_lower(&now, &now, to, &none)).in_words()
    }

    #[test]
    fn what_is_low_already_is_not_missed() {
        let both = "nice value and scheduling policy";
        assert_eq!(kept(0, Demotion::Nice).as_deref(), Some("nice value"));
        assert_eq!(kept(0, Demotion::Idle).as_deref(), Some(both));
        assert_eq!(kept(19, Demotion::Nice), None);
        let policy = Some("scheduling policy");
        assert_eq!(kept(19, Demotion::Idle).as_deref(), policy);
    }
}
