// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads, lowers and restores the priorities of threads: nice value, scheduling policy and I/O
//! priority. Only values that are still Usher's are restored.
//!
//! A demoted thread has nice 19 and, if the demotion includes it and the kernel permits it, the
//! policy `SCHED_IDLE` and the I/O class `idle`. The undo compares each value of a thread with the
//! demoted value:
//!
//! - If the values differ, the program or its user has set the present value since the demotion,
//!   and the value is not changed.
//! - If they are equal, the value is Usher's, and the thread's former value is restored.
//!
//! If the first known values of a thread are Usher's, the thread was created while its program was
//! demoted, and inherited the values. A thread with inherited values gets the former values of its
//! process's first thread or, if these are unknown, of the program's thread that was demoted first.
//! Each scan first records the values of all threads, and only then sets values, because a child
//! could otherwise inherit a lowered value before it is recorded. `mask.rs` does the same for
//! affinity masks. The cost is a few system calls per thread. No function waits or retries.
//!
//! A demotion sets the nice value before the policy. If Usher died between the steps in the reverse
//! order, a demoted `SCHED_IDLE` thread could not be distinguished from a thread that set this
//! policy itself. The undo sets the policy and the nice value in one call.

use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CapabilitySet, capabilities};
use usher_model::Demotion;

use crate::error::ActError;
use crate::files;
use crate::journal::{DemotionState, Priority, ThreadId};
use crate::procs::Procs;
use crate::scan::VisitResult;

/// The highest nice value, which is the lowest priority.
pub(crate) const NICE_MAX: i32 = 19;
/// Position of the class in an I/O priority, from `ioprio_set(2)`. The bits below it are the level
/// within the class.
const IO_CLASS_SHIFT: i32 = 13;
const IO_REALTIME: i32 = 1;
const IO_IDLE: i32 = 3;
const IO_WHO_PROCESS: libc::c_int = 1;
/// The value of `SCHED_FLAG_RESET_ON_FORK` in the kernel's `linux/sched.h`.
const RESET_ON_FORK: u64 = 1;

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
    /// Returns the priority of a thread.
    pub(crate) fn of(tid: i32) -> io::Result<Self> {
        let mut attr = SchedAttr::default();
        // SAFETY: the kernel writes at most the given size to the structure, which outlives the
        // call.
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
        // SAFETY: `ioprio_get` takes two numbers and accesses no memory of this process.
        let io = unsafe { libc::syscall(libc::SYS_ioprio_get, IO_WHO_PROCESS, tid) };
        if io < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            policy: attr.policy,
            // The nice value is read separately, because the attributes of a real-time thread do
            // not include it.
            nice: getpriority_process(pid(tid)?)?,
            realtime: attr.priority,
            reset_on_fork: attr.flags & RESET_ON_FORK != 0,
            io: io as i32,
        })
    }

    fn io_class(&self) -> i32 {
        self.io >> IO_CLASS_SHIFT
    }

    /// Returns whether a thread with this priority is scheduled by deadlines, which only the thread
    /// itself can restore.
    pub(crate) fn is_deadline(&self) -> bool {
        self.policy == libc::SCHED_DEADLINE as u32
    }

    fn is_idle(&self) -> bool {
        self.policy == libc::SCHED_IDLE as u32
    }

    /// Returns whether an unprivileged process can restore this priority. `nice_min` is the lowest
    /// nice value that the thread's process may have.
    fn can_come_back(&self, nice_min: i32) -> bool {
        nice_min <= self.nice && self.realtime == 0
    }

    /// Returns a description of the privileges that restoring this priority requires.
    pub(crate) fn rights_needed(&self) -> String {
        let limit = 20 - self.nice;
        match self.realtime == 0 && self.io_class() != IO_REALTIME {
            true => format!("root's rights, or `ulimit -e {limit}`"),
            false => "root's rights".to_owned(),
        }
    }
}

/// The priorities that this process may set and restore.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PriorityRights {
    /// Whether all values may be lowered and restored ([`Self::are_all`]).
    pub all: bool,
    /// The lowest nice value that the thread's process may be given without privileges.
    pub nice_min: i32,
}

impl PriorityRights {
    /// The rights of a process that may set and restore all values.
    pub(crate) const ALL: Self = Self {
        all: true,
        nice_min: -NICE_MAX - 1,
    };

    /// Returns the rights that this process has without privileges over the priorities of the
    /// process `pid`.
    pub(crate) fn over(procs: &Procs, pid: i32) -> Self {
        Self {
            all: false,
            nice_min: procs.nice_min(pid),
        }
    }

    /// Returns whether this process may lower and raise all values.
    pub(crate) fn are_all(procs: &Procs) -> bool {
        let own = capabilities(None);
        own.is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_NICE))
            && procs.has_machine_capabilities()
    }

    /// Returns whether a thread's nice value and policy could be restored.
    fn cover(&self, before: &Priority) -> bool {
        self.all || before.can_come_back(self.nice_min)
    }
}

fn pid(tid: i32) -> io::Result<Option<Pid>> {
    let pid = Pid::from_raw(tid);
    // A missing number is an error, because the kernel would apply 0 to the calling thread.
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
    // SAFETY: the kernel reads as many bytes of the structure as its field `size` states.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attr, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_io(tid: i32, io: i32) -> io::Result<()> {
    // SAFETY: `ioprio_set` takes three numbers and accesses no memory of this process.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, IO_WHO_PROCESS, tid, io) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the values that a demotion must lower: values that the thread still had before the
/// demotion and that this process could restore.
pub(crate) fn to_lower(
    now: &Priority,
    before: &Priority,
    to: Demotion,
    rights: &PriorityRights,
) -> PriorityFields {
    let may = rights.cover(before) && !now.is_deadline();
    let idle = to == Demotion::Idle;
    PriorityFields {
        nice: may && now.nice != NICE_MAX && now.nice == before.nice,
        policy: may && idle && !now.is_idle() && now.policy == before.policy,
        io: idle
            && (rights.all || before.io_class() != IO_REALTIME)
            && now.io_class() != IO_IDLE
            && now.io == before.io,
    }
}

/// Lowers the values `what` of a thread.
pub(crate) fn lower(tid: i32, now: &Priority, what: &PriorityFields) -> io::Result<()> {
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

/// As [`lower()`], but a value that cannot be lowered does not prevent the others. Returns the
/// first error.
pub(crate) fn lower_each(tid: i32, now: &Priority, what: &PriorityFields) -> io::Result<()> {
    let none = PriorityFields::default();
    let each = [
        PriorityFields {
            nice: what.nice,
            ..none
        },
        PriorityFields {
            policy: what.policy,
            ..none
        },
        PriorityFields {
            io: what.io,
            ..none
        },
    ];
    let results = each.map(|one| lower(tid, now, &one));
    results.into_iter().collect()
}

/// Returns the priority that a thread would have without Usher.
pub(crate) fn before(state: &DemotionState, thread: ThreadId, now: &Priority) -> Priority {
    if let Some(before) = state.threads.get(&thread) {
        return *before;
    }
    let inborn = inherited(state, thread);
    let inborn = inborn.filter(|before| PriorityFields::ours(state, now, before).any());
    inborn.unwrap_or(*now)
}

/// A subset of the values of a thread's priority.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PriorityFields {
    nice: bool,
    policy: bool,
    io: bool,
}

impl PriorityFields {
    /// Returns whether the subset contains any value.
    pub(crate) fn any(&self) -> bool {
        self.nice || self.policy || self.io
    }

    /// Returns the values of this subset that `others` does not contain.
    pub(crate) fn without(&self, others: &Self) -> Self {
        Self {
            nice: self.nice && !others.nice,
            policy: self.policy && !others.policy,
            io: self.io && !others.io,
        }
    }

    /// Returns the names of the values; `None` if there are none.
    pub(crate) fn in_words(&self) -> Option<String> {
        let names = [
            (self.nice, "nice value"),
            (self.policy, "scheduling policy"),
            (self.io, "I/O priority class"),
        ];
        let names: Vec<&str> = names.iter().filter(|one| one.0).map(|one| one.1).collect();
        (!names.is_empty()).then(|| names.join(" and "))
    }

    /// Returns the values of the thread that a demotion has set and that differ from its former
    /// values.
    fn ours(state: &DemotionState, now: &Priority, before: &Priority) -> Self {
        let idle = state.to.contains(&Demotion::Idle);
        Self {
            nice: !state.to.is_empty() && now.nice == NICE_MAX && before.nice != NICE_MAX,
            policy: idle && now.is_idle() && !before.is_idle() && !before.is_deadline(),
            io: idle && now.io_class() == IO_IDLE && before.io_class() != IO_IDLE,
        }
    }
}

/// Returns the priority that a thread which was created while its program was demoted would have
/// without Usher.
fn inherited(state: &DemotionState, thread: ThreadId) -> Option<Priority> {
    let mut leader = state.threads.range(ThreadId::range(thread.pid, thread.pid));
    leader.next().map(|(_, before)| *before).or(state.inborn)
}

/// Restores the values of a thread that a demotion has set; keeps values that were set since.
fn raise(state: &DemotionState, thread: ThreadId) -> io::Result<VisitResult> {
    let now = Priority::of(thread.tid)?;
    let known = state.threads.get(&thread).copied();
    let Some(before) = known.or_else(|| inherited(state, thread)) else {
        return Ok(VisitResult::Unchanged);
    };
    let ours = PriorityFields::ours(state, &now, &before);
    if !ours.any() {
        return Ok(VisitResult::Unchanged);
    }
    let nice = if ours.nice { before.nice } else { now.nice };
    if ours.policy {
        set_policy(thread.tid, &Priority { nice, ..before })?;
    }
    // A policy change of a real-time thread does not set its nice value.
    if ours.nice && getpriority_process(pid(thread.tid)?)? != nice {
        set_nice(thread.tid, nice)?;
    }
    if ours.io {
        set_io(thread.tid, before.io)?;
    }
    Ok(VisitResult::Changed)
}

/// Returns whether a thread has a value that a demotion sets; `None` if the thread is gone.
pub(crate) fn may_be_ours(state: &DemotionState, tid: i32) -> Option<bool> {
    let now = Priority::of(tid).ok()?;
    let idle = state.to.contains(&Demotion::Idle);
    let io = idle && now.io_class() == IO_IDLE;
    Some(now.nice == NICE_MAX || io || (idle && now.is_idle()))
}

/// Restores the values of a thread that a demotion has set; keeps values that were set since.
pub(crate) fn restore(
    procs: &Procs,
    state: &DemotionState,
    thread: ThreadId,
) -> Result<VisitResult, ActError> {
    match raise(state, thread) {
        Ok(found) => Ok(found),
        Err(error) if files::is(&error, Errno::SRCH) => Ok(VisitResult::Missed),
        // This process may not change the thread, which now runs as another user. The thread is
        // left unchanged.
        Err(error) if is_refused(&error) && !PriorityRights::are_all(procs) => {
            Ok(VisitResult::Unchanged)
        }
        Err(source) => Err(ActError::Process {
            doing: "restoring the priority of thread",
            pid: thread.tid,
            source,
        }),
    }
}

/// Returns whether the kernel rejected the operation because this process lacks privileges.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    files::is(error, Errno::PERM) || files::is(error, Errno::ACCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the values that an unprivileged demotion to `to` leaves unchanged for a
    /// thread with this nice value.
    fn kept(nice: i32, to: Demotion) -> Option<String> {
        let now = Priority {
            policy: libc::SCHED_OTHER as u32,
            nice,
            realtime: 0,
            reset_on_fork: false,
            io: 0,
        };
        let none = PriorityRights {
            all: false,
            nice_min: 20,
        };
        let wanted = to_lower(&now, &now, to, &PriorityRights::ALL);
        wanted.without(&to_lower(&now, &now, to, &none)).in_words()
    }

    #[test]
    fn values_that_are_already_low_are_not_reported_as_missing() {
        let both = "nice value and scheduling policy";
        assert_eq!(kept(0, Demotion::Nice).as_deref(), Some("nice value"));
        assert_eq!(kept(0, Demotion::Idle).as_deref(), Some(both));
        assert_eq!(kept(19, Demotion::Nice), None);
        let policy = Some("scheduling policy");
        assert_eq!(kept(19, Demotion::Idle).as_deref(), policy);
    }
}
