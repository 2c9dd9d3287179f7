// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applies a change, such as an affinity mask or a priority, to every thread of a program,
//! including threads that start during the scan.
//!
//! **Problem.** A new thread inherits mask and priority from the thread that creates it. The kernel
//! copies these values before the new thread can be found, and the creating thread may end at once.
//! A listing of `/proc/PID/task` can take longer than such a thread lives. Therefore a chain of
//! short-lived threads, each of which creates the next thread, can escape every listing.
//!
//! **Idea.** The kernel assigns thread numbers in rising order. After one pass over all threads,
//! only threads with later numbers can have inherited the old value. A step visits these numbers in
//! microseconds each, without a listing (`new_threads.rs`), until no new thread needs the change. A
//! pass over all processes of the machine costs milliseconds; a pass over the threads of known
//! processes costs some microseconds per thread. Therefore most steps are *light*: they cover only
//! the threads of known processes and new threads. A *full* step determines the processes of the
//! program anew, for which it may have to list all processes of the machine.
//!
//! **Steps** of one [`Scan::step`]:
//! 1. Pass over the threads of the known processes. In a full step, list the program's processes
//!    anew and pass over all their threads.
//! 2. Visit the thread numbers assigned since the last step. Repeat this until no visit has changed
//!    a thread for 0.3 ms of CPU time ([`VISIT_QUIET`]), but for at most 4 ms of CPU time. Later
//!    than 100 ms after a change, 0.1 ms replaces 0.3 ms.
//! 3. The scan is complete when the pass of a full step changes nothing. This pass must begin at
//!    least 20 ms ([`SETTLE`]) after the last change. Each thread that was runnable at the last
//!    change must also have run for 5 ms since, or have stopped being runnable. A runnable thread
//!    that waits for a CPU may be inside `clone`, after the kernel has copied the old value.
//!
//! **Cost.** A caller with other work executes a step only while [`Scan::is_within_budget`] returns
//! true. Light steps and full steps have separate budgets, because one full step on a machine with
//! many processes would use up the budget of many light steps. In the first second, both budgets
//! together are 16 ms of CPU time. A step is not interrupted; a scan may therefore exceed its
//! budget by one step.
//!
//! **Completeness.** When a full pass begins, each thread with the old value is in one of two
//! states. If the thread can be found, the pass lists it. At its visit, the thread either lives and
//! is changed, or has ended and counts as missed. If the thread cannot be found yet, its parent is
//! inside `clone`, and step 3 waits for this parent. Consequently, a pass that changed and missed
//! no thread proves that no thread with the old value remains. The light steps are not needed for
//! this proof. The light steps change the chains of short-lived threads that would make every full
//! pass miss threads.
//!
//! **Limits.** In a program with threads that start and end all the time, every pass misses some
//! threads. The scan is then complete after 12 steps ([`STEPS_MAX`]) and 0.5 s ([`QUIET`]) without
//! a change. A scan that keeps finding threads to change never completes; its callers limit its
//! time. An orphaned process is found only if `membership.rs` recognises it as a part of the
//! program.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::error::ActError;
use crate::journal::ThreadId;
use crate::membership::KnownProcesses;
use crate::new_threads::{NewThreads, VISIT_QUIET, cpu_time, over_new};
use crate::procs::Procs;

/// Upper limit of passes over the threads of one program in one call of a function of the actuator.
pub(crate) const SCANS_MAX: usize = 64;

/// Upper limit of listings of a process's threads in one pass.
const LISTINGS_MAX: usize = 32;
/// Time without a change after which the pass of a full step can complete a scan.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// Pause between two steps of a blocking scan.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
/// Number of steps without a change after which a scan is complete although threads end before
/// their visit. The time [`QUIET`] must also have passed without a change.
const STEPS_MAX: u32 = 12;
const QUIET: Duration = Duration::from_millis(500);
/// Longest time between two full steps of a scan that changes threads.
const FULL_EVERY: Duration = Duration::from_millis(100);
/// Upper limit of the time for which a thread in state D, which waits in the kernel, prevents the
/// completion of a scan.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// CPU time in nanoseconds after which a thread is assumed to have finished a `clone` that it had
/// begun.
const CLONE_NS: u64 = 5_000_000;
/// Time after a change in which each step visits new threads for [`VISIT_QUIET`].
const VISIT_AFTER_CHANGE: Duration = Duration::from_millis(100);
/// Time of visits that replaces [`VISIT_QUIET`] in steps later than [`VISIT_AFTER_CHANGE`] after a
/// change.
const HOT_LATER: Duration = Duration::from_micros(100);
/// CPU time that the light steps of a scan may use from its start.
const GRANT: Duration = Duration::from_millis(2);
/// In addition to [`GRANT`], light steps may use 1/125 (0.8 %) of a CPU.
const SHARE_DIVISOR: u32 = 125;
/// CPU time that the full steps of a scan may use from its start.
const GRANT_FULL: Duration = Duration::from_millis(2);
/// In addition to [`GRANT_FULL`], full steps may use 1/250 (0.4 %) of a CPU.
const SHARE_DIVISOR_FULL: u32 = 250;

/// The urgency of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanUrgency {
    /// The scan runs within a budget of CPU time, because the caller has other work.
    Background,
    /// The scan runs as fast as possible.
    Now,
}

/// The result of a visit to one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VisitResult {
    /// The thread needs no change, or belongs to another program.
    Unchanged,
    /// The thread was changed.
    Changed,
    /// The thread ended before the visit. The thread may have left a child that inherited the old
    /// value.
    Missed,
}

/// A change to apply to threads of a program.
pub(crate) trait ThreadChange {
    /// Returns whether a thread may need the change; `None` if the thread is gone. The thread may
    /// belong to any program of the machine.
    fn is_needed(&self, tid: i32) -> Option<bool>;

    /// Returns the process of a new thread if that process belongs to the program.
    fn process_of(&mut self, tid: i32) -> Option<i32>;

    /// Changes a thread of the program.
    fn apply(&mut self, pid: i32, tid: i32) -> Result<VisitResult, ActError>;
}

/// A change that a [`Scan`] applies to every thread of a program.
pub(crate) trait ProgramChange: ThreadChange {
    /// Returns the pids of the program's processes, listed anew.
    fn pids(&mut self) -> BTreeSet<i32>;

    /// Returns the pids of the known processes that still live, and of the processes in the
    /// program's cgroups.
    fn known_pids(&mut self) -> BTreeSet<i32>;

    /// Returns whether an empty list proves that no process is left.
    fn lists_all(&self) -> bool;

    /// Returns recorded threads that a listing of the program's processes may not contain.
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

/// The combined results of several visits.
#[derive(Debug, Default)]
pub(crate) struct ScanPass {
    /// Whether a thread was changed.
    pub changed: bool,
    /// Whether a thread was missed.
    pub missed: bool,
    /// The errors of the visits.
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

/// The progress of applying one change to all threads of a program.
#[derive(Debug)]
pub(crate) struct Scan {
    begun: Instant,
    /// CPU time used by light steps. `spent_full` is the CPU time used by full steps.
    spent: Duration,
    spent_full: Duration,
    /// The time of the last full step.
    full_at: Option<Instant>,
    /// The cursor over threads that started since the first step.
    new: Option<NewThreads>,
    /// The processes of the program that earlier steps found.
    pub(crate) known: KnownProcesses,
    /// Number of steps since the last change.
    steps: u32,
    /// The time of the last change, or of the start.
    changed_at: Instant,
    /// Threads that were runnable after the last change and have not run since, with their CPU
    /// times. `None` if these threads have not been listed since the last change.
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

    /// Marks a scan as complete that has no thread to change.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    /// Returns whether the scan has used less CPU time than its budget.
    pub(crate) fn is_within_budget(&self) -> bool {
        self.spent < GRANT + self.begun.elapsed() / SHARE_DIVISOR
            || self.is_full_due(ScanUrgency::Background)
    }

    /// Returns whether the next step must be a full step.
    fn is_full_due(&self, pace: ScanUrgency) -> bool {
        let Some(full_at) = self.full_at else {
            return true;
        };
        let within = self.spent_full < GRANT_FULL + self.begun.elapsed() / SHARE_DIVISOR_FULL;
        let settled_at = self.changed_at + SETTLE;
        let is_again = full_at < settled_at || full_at.elapsed() >= SETTLE;
        let is_settled = settled_at <= Instant::now() && is_again;
        // Under `ScanUrgency::Now`, each step is full until the runnable threads have been listed.
        let is_first = pace == ScanUrgency::Now && self.waiting.is_none();
        let is_due = is_settled || is_first || full_at.elapsed() >= FULL_EVERY;
        is_due && (within || pace == ScanUrgency::Now)
    }

    /// Executes one step of the scan: visits the program's threads and the threads that start
    /// during the step. Returns whether the scan is complete. If the scan is not complete, the
    /// caller must call this function again after a pause.
    ///
    /// # Errors
    /// All errors of the pass. The pass visits the remaining threads after an error, too.
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

    /// Returns whether all threads that may have been inside `clone` at the last change have left
    /// `clone`. Call this function before a pass, because the pass then finds the threads that they
    /// created.
    fn is_ready(&mut self, procs: &Procs) -> bool {
        let quiet = self.changed_at.elapsed();
        // A thread inside `clone` may be in state D, because it waits for memory. After
        // [`WAIT_MAX`], state D is ignored, because a thread may also wait without end for a server
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

    /// Records the result of a pass. Returns whether the pass completes the scan.
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

/// Visits all threads of a process. Each listing is visited before its length is checked, because
/// the threads may live only briefly.
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
    // The process has ended, or no listing of its threads was complete.
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
/// its CPU time. Empty if the kernel does not report CPU times.
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
