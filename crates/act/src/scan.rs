// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans over the threads of a program: how a change (an affinity mask, a
//! priority) reaches every thread, those included that start meanwhile.
//!
//! **Problem.** A new thread inherits mask and priority from the thread that
//! creates it. The kernel copies both before the new thread can be found, and
//! the creating thread may end at once. A listing of `/proc/PID/task` takes
//! longer than such a thread lives, so a chain of short-lived threads can
//! escape every listing.
//!
//! **Idea.** The kernel gives out thread numbers in rising order. After one
//! pass over all threads, only threads with later numbers can have inherited
//! the old value. These numbers are visited one by one, in microseconds,
//! without a listing (`newborn.rs`), until none of them needs the change any
//! more. A pass over all processes of the machine costs milliseconds, a pass over
//! the threads of processes that are known costs some microseconds per thread.
//! So most steps are light: they pass over what is known and what is new.
//!
//! **Steps** of one [`Scan::step`]:
//! 1. Pass over the threads of the known processes, or, in a full step, over all
//!    threads of all processes of the program, which are listed anew.
//! 2. Visit the numbers given out since the last step, again and again, until no
//!    visit changed anything for [`HOT`].
//! 3. The scan is complete when a full pass changed nothing that began [`SETTLE`]
//!    after the last change, and after every thread that was runnable then has
//!    run: a thread that waits for a CPU may be in the middle of `clone`, with the
//!    old value already copied.
//!
//! **Cost.** A caller that has other work takes a step only while
//! [`Scan::is_within_budget`]. Light and full steps have budgets of their own, as a
//! full step on a machine with many processes would use up those of many light
//! ones. The budgets of the first second are 18 ms together. A step is not
//! interrupted, so a scan may exceed them.
//!
//! **Why this is complete.** A thread that still has the old value and can be
//! found when a full pass begins is listed by it. It is alive at its visit, and is
//! changed, or it has ended by then, and the pass missed it. A thread that
//! cannot be found yet has a parent inside `clone`, which step 3 waits for. So a
//! pass that changed and missed nothing proves that nothing is left. The light
//! steps are not needed for that; they catch the chains that make passes miss.
//!
//! **Limits.** A program whose own threads come and go all the time makes every
//! pass miss some. The scan is then complete after [`STEPS_MAX`] steps and
//! [`QUIET`] without a change. Processes that lost their parents are found only as
//! far as `family.rs` knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::error::ActError;
use crate::family::KnownProcesses;
use crate::journal::ThreadId;
use crate::newborn::{HOT, NewThreads, cpu_time, over_new};
use crate::procs::Procs;

/// Passes over the threads of one program in one call of an actuator.
pub(crate) const SCANS_MAX: usize = 64;

/// Listings of a process's threads in one pass.
const LISTINGS_MAX: usize = 32;
/// How long no thread may need the change before a scan is complete.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// Pause between two steps of a blocking scan.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
/// Steps without a change, and the time without one, after which threads that end
/// before they are visited do not keep a scan going.
const STEPS_MAX: u32 = 12;
const QUIET: Duration = Duration::from_millis(500);
/// Longest time between two full steps of a scan that changes threads.
const FULL_EVERY: Duration = Duration::from_millis(100);
/// How long a thread that waits in the kernel keeps a scan going.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// CPU time in nanoseconds after which a thread has finished the `clone` that it
/// was in.
const CLONE_NS: u64 = 5_000_000;
/// How long after a change new threads are visited for [`HOT`] in each step, and
/// the CPU time of these visits in later ones.
const HOT_FOR: Duration = Duration::from_millis(100);
const HOT_LATER: Duration = Duration::from_micros(100);
/// CPU time that the light steps of a scan may use at once.
const GRANT: Duration = Duration::from_millis(3);
/// Light steps may then use 1/125 (0.8 %) of a CPU.
const SHARE_DIVISOR: u32 = 125;
/// CPU time that the full steps of a scan may use at once.
const GRANT_FULL: Duration = Duration::from_millis(3);
/// Full steps may then use 1/250 (0.4 %) of a CPU.
const SHARE_DIVISOR_FULL: u32 = 250;

/// How soon a scan has to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Beside other work, within a budget of CPU time.
    Background,
    /// As soon as possible.
    Now,
}

/// The result of a visit to one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The thread needs no change, or belongs to another program.
    Fine,
    /// The thread was changed.
    Changed,
    /// The thread ended before the visit. It may have left a child that
    /// inherited the old value.
    Missed,
}

/// A change that threads of a program are to get.
pub(crate) trait ThreadChange {
    /// Whether a thread may need the change; `None` where it is gone. The
    /// thread may belong to any program of the machine.
    fn is_needed(&self, tid: i32) -> Option<bool>;

    /// The process of a new thread, where that process belongs to the program.
    fn process_of(&mut self, tid: i32) -> Option<i32>;

    /// Changes a thread of the program.
    fn apply(&mut self, pid: i32, tid: i32) -> Result<Found, ActError>;
}

/// A change that a [`Scan`] brings to every thread of a program.
pub(crate) trait ProgramChange: ThreadChange {
    /// The numbers of the program's processes, listed anew.
    fn pids(&mut self) -> BTreeSet<i32>;

    /// The numbers of those processes that were found before and still live, and
    /// of those in the program's cgroups.
    fn known_pids(&mut self) -> BTreeSet<i32>;

    /// Whether no process can be left where none was listed.
    fn lists_all(&self) -> bool;

    /// Threads that may have left these processes.
    fn others(&self) -> Vec<ThreadId>;
}

/// Every thread of these processes.
pub(crate) fn threads(procs: &Procs, pids: &BTreeSet<i32>) -> Vec<ThreadId> {
    let of = |&pid: &i32| {
        let threads = procs.threads(pid).into_iter();
        threads.filter_map(move |tid| procs.thread_id(pid, tid))
    };
    pids.iter().flat_map(of).collect()
}

/// The sum of several visits.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Whether a thread was changed.
    pub changed: bool,
    /// Whether a thread was missed.
    pub missed: bool,
    /// What failed.
    pub errors: Vec<ActError>,
}

impl Pass {
    pub(crate) fn note(&mut self, found: Result<Found, ActError>) {
        match found {
            Ok(found) => {
                self.changed |= found == Found::Changed;
                self.missed |= found == Found::Missed;
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

/// One change on its way to all threads of a program.
#[derive(Debug)]
pub(crate) struct Scan {
    begun: Instant,
    /// CPU time used so far by light steps, and by full ones.
    spent: Duration,
    spent_full: Duration,
    /// The last full step.
    full_at: Option<Instant>,
    /// Threads that start from the first step on.
    new: Option<NewThreads>,
    /// What the last steps learned about the program's processes.
    pub(crate) known: KnownProcesses,
    /// Steps since the last change.
    steps: u32,
    /// The last change, or the begin.
    changed_at: Instant,
    /// Threads that were runnable after the last change, with their CPU times,
    /// less those that have run since. `None`: not listed yet.
    waiting: Option<BTreeMap<(i32, i32), u64>>,
    complete: bool,
}

impl Scan {
    /// A scan that begins now.
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

    /// Whether the last step found the scan to be complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Ends a scan that has nothing to do.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    /// Whether the scan has used less CPU time than its share.
    pub(crate) fn is_within_budget(&self) -> bool {
        self.spent < GRANT + self.begun.elapsed() / SHARE_DIVISOR
            || self.is_full_due(Pace::Background)
    }

    /// Whether the next step has to list all processes of the program.
    fn is_full_due(&self, pace: Pace) -> bool {
        let Some(full_at) = self.full_at else {
            return true;
        };
        let within = self.spent_full < GRANT_FULL + self.begun.elapsed() / SHARE_DIVISOR_FULL;
        let settled_at = self.changed_at + SETTLE;
        let is_again = full_at < settled_at || full_at.elapsed() >= SETTLE;
        let is_settled = settled_at <= Instant::now() && is_again;
        // Under `Pace::Now` each step is full until the threads at work are known.
        let is_first = pace == Pace::Now && self.waiting.is_none();
        let is_due = is_settled || is_first || full_at.elapsed() >= FULL_EVERY;
        is_due && (within || pace == Pace::Now)
    }

    /// One pass over the program's threads and those that start meanwhile. Returns
    /// whether the scan is complete; if not, the caller steps again after a
    /// pause.
    ///
    /// # Errors
    /// All errors of the pass. Threads after a failure were visited too.
    pub(crate) fn step(
        &mut self,
        procs: &Procs,
        change: &mut impl ProgramChange,
        pace: Pace,
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
        let hot = match pass.changed || self.changed_at.elapsed() < HOT_FOR {
            true => HOT,
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

    /// Whether every thread that may have been creating another one when the
    /// last change was made is done with that. Call before a pass: the pass then
    /// finds what these threads created.
    fn is_ready(&mut self, procs: &Procs) -> bool {
        let quiet = self.changed_at.elapsed();
        // A thread in `clone` may also wait for memory, a thread in state D for
        // a server that is gone.
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

    /// Takes note of a pass. Whether nothing was left to do in it.
    fn note(&mut self, procs: &Procs, pids: &BTreeSet<i32>, pass: &Pass, is_full: bool) -> bool {
        self.steps += 1;
        if pass.changed {
            (self.steps, self.changed_at, self.waiting) = (0, Instant::now(), None);
            return false;
        }
        if is_full && self.waiting.is_none() {
            self.waiting = Some(at_work(procs, pids));
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
) -> Pass {
    let mut pass = Pass::default();
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

/// Visits all threads of a process. They are visited before they are counted,
/// as each of them may live for a moment only.
fn over_process<C: ThreadChange>(procs: &Procs, pid: i32, change: &mut C) -> Pass {
    let mut pass = Pass::default();
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
    // It has ended, or its list is never whole.
    pass.missed = true;
    pass
}

fn visit<C: ThreadChange>(pid: i32, tid: i32, change: &mut C, pass: &mut Pass) {
    match change.is_needed(tid) {
        None => pass.note(Ok(Found::Missed)),
        Some(false) => {}
        Some(true) => pass.note(change.apply(pid, tid)),
    }
}

/// The threads of these processes that run, wait for a CPU or wait in the
/// kernel, each with its CPU time; none where the kernel does not report it.
fn at_work(procs: &Procs, pids: &BTreeSet<i32>) -> BTreeMap<(i32, i32), u64> {
    let mut at_work = BTreeMap::new();
    for &pid in pids {
        for tid in procs.threads(pid) {
            if let Some(run_ns) = procs.run_ns_if_in(&['R', 'D'], pid, tid) {
                at_work.insert((pid, tid), run_ns);
            }
        }
    }
    at_work
}
