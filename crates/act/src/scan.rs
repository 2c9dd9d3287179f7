// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans over the threads of a program: how a change (an affinity mask, a priority) is applied to
//! every thread, including threads that start during the scan.
//!
//! **Problem.** A new thread inherits mask and priority from the thread that creates it. The kernel
//! copies both before the new thread can be found, and the creating thread may end at once. A
//! listing of `/proc/PID/task` takes longer than such a thread lives, so a chain of short-lived
//! threads can escape every listing.
//!
//! **Idea.** The kernel assigns thread numbers in rising order. After one pass over all threads,
//! only threads with later numbers can have inherited the old value. These numbers are visited one
//! by one, in microseconds, without a listing (`new_threads.rs`), until none of them needs the
//! change any more. A pass over all processes of the machine costs milliseconds; a pass over the
//! threads of known processes costs some microseconds per thread. So most steps are light: they
//! cover only known and new threads.
//!
//! **Steps** of one [`Scan::step`]:
//! 1. Pass over the threads of the known processes. In a full step, list the program's processes
//!    anew and pass over all their threads.
//! 2. Visit the numbers assigned since the last step, again and again, until no visit changed
//!    anything for [`VISIT_QUIET`].
//! 3. The scan is complete when a full pass changed nothing. The pass must have begun [`SETTLE`]
//!    after the last change, and after every thread that was runnable then has run: a thread that
//!    waits for a CPU may be in the middle of `clone`, with the old value already copied.
//!
//! **Cost.** A caller that has other work takes a step only while [`Scan::is_within_budget`] is
//! true. Light and full steps have budgets of their own, because a full step on a machine with many
//! processes would use up the budget of many light steps. The budgets of the first second are 16 ms
//! together. A step is not interrupted, so a scan may exceed them.
//!
//! **Completeness.** A full pass lists each thread that still has the old value and can be found
//! when the pass begins. Such a thread is alive at its visit, and is changed, or it has ended by
//! then, and the pass missed it. A thread that cannot be found yet has a parent inside `clone`,
//! which step 3 waits for. So a pass that changed and missed nothing proves that nothing is left.
//! The light steps are not needed for that; they catch the chains that make passes miss threads.
//!
//! **Limits.** In a program with threads that start and end all the time, every pass misses some
//! threads. The scan is then complete after [`STEPS_MAX`] steps and [`QUIET`] without a change.
//! Processes that lost their parents are found only if `membership.rs` knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::error::ActError;
use crate::journal::ThreadId;
use crate::membership::KnownProcesses;
use crate::new_threads::{NewThreads, VISIT_QUIET, cpu_time, over_new};
use crate::procs::Procs;

/// Upper limit of passes over the threads of one program in one call of an actuator.
pub(crate) const SCANS_MAX: usize = 64;

/// Upper limit of listings of a process's threads in one pass.
const LISTINGS_MAX: usize = 32;
/// Time for which no thread may need the change before a scan is complete.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// Pause between two steps of a blocking scan.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
/// Number of steps, and time, without a change after which a scan is complete although threads end
/// before their visit.
const STEPS_MAX: u32 = 12;
const QUIET: Duration = Duration::from_millis(500);
/// Longest time between two full steps of a scan that changes threads.
const FULL_EVERY: Duration = Duration::from_millis(100);
/// Upper limit of the time for which a thread that waits in the kernel keeps a scan going.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// CPU time in nanoseconds after which a thread has finished the `clone` that it was in.
const CLONE_NS: u64 = 5_000_000;
/// Time after a change in which each step visits new threads for [`VISIT_QUIET`].
const VISIT_AFTER_CHANGE: Duration = Duration::from_millis(100);
/// Replaces [`VISIT_QUIET`] in steps after [`VISIT_AFTER_CHANGE`].
const HOT_LATER: Duration = Duration::from_micros(100);
/// CPU time that the light steps of a scan may use at once.
const GRANT: Duration = Duration::from_millis(2);
/// Light steps may then use 1/125 (0.8 %) of a CPU.
const SHARE_DIVISOR: u32 = 125;
/// CPU time that the full steps of a scan may use at once.
const GRANT_FULL: Duration = Duration::from_millis(2);
/// Full steps may then use 1/250 (0.4 %) of a CPU.
const SHARE_DIVISOR_FULL: u32 = 250;

/// The urgency of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanUrgency {
    /// Beside other work, within a budget of CPU time.
    Background,
    /// As soon as possible.
    Now,
}

/// The result of a visit to one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VisitResult {
    /// The thread needs no change, or belongs to another program.
    Unchanged,
    /// The thread was changed.
    Changed,
    /// The thread ended before the visit. It may have left a child that
    /// inherited the old value.
    Missed,
}

/// A change to apply to threads of a program.
pub(crate) trait ThreadChange {
    /// Returns whether a thread may need the change; `None` if it is gone. The thread may belong to
    /// any program of the machine.
    fn is_needed(&self, tid: i32) -> Option<bool>;

    /// Returns the process of a new thread if that process belongs to the program.
    fn process_of(&mut self, tid: i32) -> Option<i32>;

    /// Changes a thread of the program.
    fn apply(&mut self, pid: i32, tid: i32) -> Result<VisitResult, ActError>;
}

/// A change that a [`Scan`] brings to every thread of a program.
pub(crate) trait ProgramChange: ThreadChange {
    /// Returns the pids of the program's processes, listed anew.
    fn pids(&mut self) -> BTreeSet<i32>;

    /// Returns the pids of known processes that still live, and of those in the program's cgroups.
    fn known_pids(&mut self) -> BTreeSet<i32>;

    /// Returns whether an empty list proves that no process is left.
    fn lists_all(&self) -> bool;

    /// Returns threads that may have left these processes.
    fn others(&self) -> Vec<ThreadId>;
}

/// Returns every thread of these processes.
pub(crate) fn threads(procs: &Procs, pids: &BTreeSet<i32>) -> Vec<ThreadId> {
    let of = |&pid: &i32| {
        let threads = procs.threads(pid).into_iter();
        threads.filter_map(move |tid| procs.thread_id(pid, tid))
    };
    pids.iter().flat_map(of).collect()
}

/// The sum of several visits.
#[derive(Debug, Default)]
pub(crate) struct ScanPass {
    /// Whether a thread was changed.
    pub changed: bool,
    /// Whether a thread was missed.
    pub missed: bool,
    /// What failed.
    pub errors: Vec<ActError>,
}

impl ScanPass {
    pub(crate) fn note(&mut self, found: Result<VisitResult, ActError>) {
        match found {
            Ok(found) => {
                self.changed |= found == VisitResult::Changed;
                self.missed |= found == VisitResult::Missed;
            }
            Err(error) => self.errors.push(error),
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.changed |= other.changed;
        self.missed |= other.missed;
        self.errors.extend(other.errors);
    }
}

/// One change that is being applied to all threads of a program.
#[derive(Debug)]
pub(crate) struct Scan {
    begun: Instant,
    /// CPU time used by light steps, and by full steps.
    spent: Duration,
    spent_full: Duration,
    /// The time of the last full step.
    full_at: Option<Instant>,
    /// Threads that started since the first step.
    new: Option<NewThreads>,
    /// The knowledge of earlier steps about the program's processes.
    pub(crate) known: KnownProcesses,
    /// Steps since the last change.
    steps: u32,
    /// The time of the last change, or of the start.
    changed_at: Instant,
    /// Threads that were runnable after the last change, with their CPU times, except those that
    /// have run since. `None`: not listed yet.
    waiting: Option<BTreeMap<(i32, i32), u64>>,
    complete: bool,
}

impl Scan {
    /// Starts a scan now.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            spent: Duration::ZERO,
            spent_full: Duration::ZERO,
            full_at: None,
            new: None,
            known: KnownProcesses::default(),
            steps: 0,
            changed_at: now,
            waiting: None,
            complete: false,
        }
    }

    /// Returns whether the last step completed the scan.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Ends a scan that has nothing to do.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    /// Returns whether the scan has used less CPU time than its budget.
    pub(crate) fn is_within_budget(&self) -> bool {
        self.spent < GRANT + self.begun.elapsed() / SHARE_DIVISOR
            || self.is_full_due(ScanUrgency::Background)
    }

    /// Returns whether the next step has to list all processes of the program.
    fn is_full_due(&self, pace: ScanUrgency) -> bool {
        let Some(full_at) = self.full_at else {
            return true;
        };
        let within = self.spent_full < GRANT_FULL + self.begun.elapsed() / SHARE_DIVISOR_FULL;
        let settled_at = self.changed_at + SETTLE;
        let is_again = full_at < settled_at || full_at.elapsed() >= SETTLE;
        let is_settled = settled_at <= Instant::now() && is_again;
        // Under `ScanUrgency::Now` each step is full until the running threads are known.
        let is_first = pace == ScanUrgency::Now && self.waiting.is_none();
        let is_due = is_settled || is_first || full_at.elapsed() >= FULL_EVERY;
        is_due && (within || pace == ScanUrgency::Now)
    }

    /// Passes once over the program's threads and those that start meanwhile. Returns whether the
    /// scan is complete; if not, the caller steps again after a pause.
    ///
    /// # Errors
    /// All errors of the pass. Threads after a failure were visited too.
    pub(crate) fn step(
        &mut self,
        procs: &Procs,
        change: &mut impl ProgramChange,
        pace: ScanUrgency,
    ) -> Result<bool, Vec<ActError>> {
        let begun = cpu_time();
        let is_full = self.is_full_due(pace);
        let is_ready = is_full && self.is_ready(procs);
        if self.new.is_none() {
            self.new = NewThreads::from_now(procs);
        }
        let pids = match is_full {
            true => change.pids(),
            false => change.known_pids(),
        };
        let mut pass = over_all(procs, &pids, change, is_full);
        let hot = match pass.changed || self.changed_at.elapsed() < VISIT_AFTER_CHANGE {
            true => VISIT_QUIET,
            false => HOT_LATER,
        };
        if let Some(new) = &mut self.new {
            pass.add(over_new(procs, new, change, hot));
        }
        let is_over = is_full && pids.is_empty() && !pass.changed && change.lists_all();
        let is_quiet = self.note(procs, &pids, &pass, is_full);
        self.complete = (is_over || (is_ready && is_quiet)) && pass.errors.is_empty();
        self.account(is_full, cpu_time().saturating_sub(begun));
        match pass.errors.is_empty() {
            true => Ok(self.complete),
            false => Err(pass.errors),
        }
    }

    fn account(&mut self, is_full: bool, spent: Duration) {
        match is_full {
            true => {
                self.full_at = Some(Instant::now());
                self.spent_full += spent;
            }
            false => self.spent += spent,
        }
    }

    /// Returns whether every thread that may have been creating another thread at the time of the
    /// last change has finished that. Call it before a pass: the pass then finds what these threads
    /// created.
    fn is_ready(&mut self, procs: &Procs) -> bool {
        let quiet = self.changed_at.elapsed();
        // A thread in `clone` may also wait for memory; a thread in state D may wait for a server
        // that is gone.
        let states: &[char] = match quiet < WAIT_MAX {
            true => &['R', 'D'],
            false => &['R'],
        };
        let Some(waiting) = &mut self.waiting else {
            return false;
        };
        waiting.retain(|&(pid, tid), run_ns| {
            let now = procs.run_ns_if_in(states, pid, tid);
            now.is_some_and(|now| now < *run_ns + CLONE_NS)
        });
        waiting.is_empty() && quiet >= SETTLE
    }

    /// Records a pass. Returns whether it found nothing to do.
    fn note(
        &mut self,
        procs: &Procs,
        pids: &BTreeSet<i32>,
        pass: &ScanPass,
        is_full: bool,
    ) -> bool {
        self.steps += 1;
        if pass.changed {
            (self.steps, self.changed_at, self.waiting) = (0, Instant::now(), None);
            return false;
        }
        if is_full && self.waiting.is_none() {
            self.waiting = Some(runnable_threads(procs, pids));
        }
        let is_long_quiet = self.steps >= STEPS_MAX && self.changed_at.elapsed() >= QUIET;
        !pass.missed || is_long_quiet
    }
}

fn over_all<C: ProgramChange>(
    procs: &Procs,
    pids: &BTreeSet<i32>,
    change: &mut C,
    with_others: bool,
) -> ScanPass {
    let mut pass = ScanPass::default();
    for &pid in pids {
        pass.add(over_process(procs, pid, change));
    }
    let others = with_others.then(|| change.others());
    for thread in others.into_iter().flatten() {
        let is_same = || procs.thread_start(thread.pid, thread.tid) == Some(thread.start_ticks);
        let is_needed = || change.is_needed(thread.tid) == Some(true);
        if !pids.contains(&thread.pid) && is_needed() && is_same() {
            pass.note(change.apply(thread.pid, thread.tid));
        }
    }
    pass
}

/// Visits all threads of a process. They are visited before they are counted, because each of them
/// may live only briefly.
fn over_process<C: ThreadChange>(procs: &Procs, pid: i32, change: &mut C) -> ScanPass {
    let mut pass = ScanPass::default();
    for _ in 0..LISTINGS_MAX {
        let listed = procs.listed_threads(pid);
        for &tid in &listed {
            visit(pid, tid, change, &mut pass);
        }
        match procs.thread_count(pid) {
            Some(count) if listed.len() < count => {}
            Some(_) => return pass,
            None => break,
        }
    }
    // The process has ended, or its list is never complete.
    pass.missed = true;
    pass
}

fn visit<C: ThreadChange>(pid: i32, tid: i32, change: &mut C, pass: &mut ScanPass) {
    match change.is_needed(tid) {
        None => pass.note(Ok(VisitResult::Missed)),
        Some(false) => {}
        Some(true) => pass.note(change.apply(pid, tid)),
    }
}

/// Returns the threads of these processes that run, wait for a CPU or wait in the kernel, each with
/// its CPU time; empty if the kernel does not report it.
fn runnable_threads(procs: &Procs, pids: &BTreeSet<i32>) -> BTreeMap<(i32, i32), u64> {
    let mut runnable_threads = BTreeMap::new();
    for &pid in pids {
        for tid in procs.threads(pid) {
            if let Some(run_ns) = procs.run_ns_if_in(&['R', 'D'], pid, tid) {
                runnable_threads.insert((pid, tid), run_ns);
            }
        }
    }
    runnable_threads
}
