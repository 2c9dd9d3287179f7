// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scan that restores affinity masks and priorities of a program's threads.
//!
//! For each thread of the program:
//!
//! 1. If its mask is a mask that Usher gave, restore the former mask. A mask that the program
//!    itself has set is not changed.
//! 2. If a part of its priority has the demoted value, restore the former value.
//! 3. The former values are in the journal. For a thread that was created since, the former values
//!    of its process's or of the program's first thread are used.
//!
//! One call of [`scan_step`] is one step of a [`Scan`]; the scan is complete when no thread with
//! Usher's values remains. `scan.rs` describes the cost and the proof.

use std::collections::BTreeSet;

use usher_model::CpuSet;

use crate::error::ActError;
use crate::journal::{DemotionState, ProgramState, ThreadId};
use crate::membership::{Membership, is_thread_of};
use crate::procs::Procs;
use crate::scan::{ProgramChange, Scan, ScanUrgency, ThreadChange, VisitResult};
use crate::{mask, priority};

/// The values that a scan restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestoreScope {
    /// Only masks are restored; demoted threads stay demoted.
    Masks,
    /// Masks and priorities.
    All,
}

/// Executes one step of the scan that restores masks and priorities. Returns whether the scan is
/// complete. Callers scan several programs in turn until the last scan is complete: a scan that is
/// complete takes no further step, because a light step proves nothing and would make it
/// incomplete.
///
/// # Errors
/// The errors of [`Scan::step`].
pub(crate) fn scan_step(
    procs: &Procs,
    state: &ProgramState,
    scan: &mut Scan,
    what: RestoreScope,
    pace: ScanUrgency,
) -> Result<bool, Vec<ActError>> {
    let is_demoted = what == RestoreScope::All && !state.demoted.to.is_empty();
    if state.masks.is_empty() && !is_demoted {
        scan.complete();
    }
    if scan.is_complete() {
        return Ok(true);
    }
    let known = std::mem::take(&mut scan.known);
    let ours = AppliedValues::new(procs, state, is_demoted);
    let membership = Membership::with_known(procs, state, known);
    let mut restoration = Restoration {
        procs,
        state,
        membership,
        ours,
    };
    let done = scan.step(procs, &mut restoration, pace);
    scan.known = restoration.membership.into_known();
    done
}

/// The values that Usher has set. A thread with such a value needs to be restored.
struct AppliedValues<'a> {
    /// The masks that Usher gave, within the online CPUs.
    masks: BTreeSet<CpuSet>,
    /// The program's mask before the seat, within the online CPUs.
    own: Option<CpuSet>,
    online: CpuSet,
    /// The demotion to undo, if priorities are restored.
    demoted: Option<&'a DemotionState>,
}

impl<'a> AppliedValues<'a> {
    fn new(procs: &Procs, state: &'a ProgramState, is_demoted: bool) -> Self {
        let online = procs.online_cpus();
        let unbound = state.unbound.as_ref();
        Self {
            masks: mask::ours(state, &online),
            own: unbound.map(|unbound| unbound.and(&online)),
            online,
            demoted: is_demoted.then_some(&state.demoted),
        }
    }

    fn has_mask(&self, tid: i32) -> Option<bool> {
        match self.masks.is_empty() {
            true => Some(false),
            false => Some(self.masks.contains(&mask::get(tid).ok()?)),
        }
    }

    /// Returns whether the first thread of a process has a mask of Usher's that differs from the
    /// program's former mask.
    fn is_narrowed(&self, pid: i32) -> bool {
        let mask = mask::get(pid).ok();
        mask.is_some_and(|mask| self.masks.contains(&mask) && Some(mask) != self.own)
    }
}

/// The change that restores masks and priorities.
struct Restoration<'a> {
    procs: &'a Procs,
    state: &'a ProgramState,
    membership: Membership<'a>,
    ours: AppliedValues<'a>,
}

impl Restoration<'_> {
    /// Returns the identity of a thread, by which its former values are found in the journal.
    /// Reading the start time takes long. If the journal contains no thread with this number, the
    /// start time is therefore 0. Returns `None` if the thread is gone.
    fn thread(&self, pid: i32, tid: i32) -> Option<ThreadId> {
        let numbers = ThreadId::range(pid, tid);
        let is_noted = self.state.threads.range(numbers.clone()).next().is_some()
            || self.state.demoted.threads.range(numbers).next().is_some();
        if is_noted {
            return self.procs.thread_id(pid, tid);
        }
        is_thread_of(pid, tid).then_some(ThreadId {
            pid,
            tid,
            start_ticks: 0,
        })
    }
}

impl ProgramChange for Restoration<'_> {
    fn pids(&mut self) -> BTreeSet<i32> {
        self.membership.list(|pid| self.ours.is_narrowed(pid))
    }

    fn known_pids(&mut self) -> BTreeSet<i32> {
        self.membership.list_known()
    }

    fn lists_all(&self) -> bool {
        self.membership.has_cgroup()
    }

    fn others(&self) -> Vec<ThreadId> {
        let demoted = self.state.demoted.threads.keys();
        let all: BTreeSet<_> = self.state.threads.keys().chain(demoted).copied().collect();
        all.into_iter().collect()
    }
}

impl ThreadChange for Restoration<'_> {
    fn is_needed(&self, tid: i32) -> Option<bool> {
        let has_mask = self.ours.has_mask(tid)?;
        match self.ours.demoted {
            Some(demoted) if !has_mask => priority::may_be_ours(demoted, tid),
            _ => Some(has_mask),
        }
    }

    fn process_of(&mut self, tid: i32) -> Option<i32> {
        let with_orphans = self.ours.is_narrowed(tid);
        self.membership.process_of(tid, with_orphans)
    }

    /// If restoring the mask fails, the priority is still restored, and vice versa.
    fn apply(&mut self, pid: i32, tid: i32) -> Result<VisitResult, ActError> {
        let Some(thread) = self.thread(pid, tid) else {
            return Ok(VisitResult::Missed);
        };
        let ours = &self.ours;
        let mask = match ours.masks.is_empty() {
            true => Ok(VisitResult::Unchanged),
            false => mask::restore(self.procs, self.state, &ours.masks, &ours.online, thread),
        };
        let priority = ours.demoted.map_or(Ok(VisitResult::Unchanged), |demoted| {
            priority::restore(self.procs, demoted, thread)
        });
        match (mask?, priority?) {
            (VisitResult::Missed, _) | (_, VisitResult::Missed) => Ok(VisitResult::Missed),
            (VisitResult::Changed, _) | (_, VisitResult::Changed) => Ok(VisitResult::Changed),
            _ => Ok(VisitResult::Unchanged),
        }
    }
}
