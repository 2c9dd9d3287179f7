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
//! the old value. These few numbers are visited one by one, in microseconds,
//! without a listing, until none of them needs the change any more.
//!
//! **Steps** of one [`Scan::step`]:
//! 1. Note the last number given out; pass over all threads of all processes.
//! 2. Visit the numbers given out since ([`NewThreads`]), again and again, until
//!    no visit changed anything for [`HOT`], at most [`HOT_MAX`].
//! 3. The scan is complete when a pass changed nothing that began [`SETTLE`] after
//!    the last change, and after every thread that was runnable then has run: a
//!    thread that waits for a CPU may be in the middle of `clone`, with the old
//!    value already copied.
//!
//! **Cost.** A caller that has other work takes a step only while
//! [`Scan::is_within_budget`]: a scan uses 8 ms at once and 2 % of a CPU.
//!
//! **Why this is complete.** A thread that still has the old value and can be
//! found when a pass begins is listed by it. It is alive at its visit, and is
//! changed, or it has ended by then, and the pass missed it. A thread that
//! cannot be found yet has a parent inside `clone`, which step 3 waits for. So a
//! pass that changed and missed nothing proves that nothing is left. Step 2 is
//! not needed for that; it catches the chains that make passes miss.
//!
//! **Limits.** A program whose own threads come and go all the time makes every
//! pass miss some. The scan is then complete after [`STEPS_MAX`] steps without a
//! change. Processes that lost their parents are found only as far as
//! `family.rs` knows them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::error::ActError;
use crate::journal::ThreadId;
use crate::procs::Procs;

/// Passes over the threads of one program in one call of an actuator.
pub(crate) const SCANS_MAX: usize = 64;

/// Listings of a process's threads in one pass.
const LISTINGS_MAX: usize = 32;
/// How long no thread may need the change before a scan is complete.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// Pause between two steps of a blocking scan.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);
/// Steps without a change after which threads that end before they are visited
/// do not keep a scan going.
const STEPS_MAX: u32 = 10;
/// How long a thread that waits in the kernel keeps a scan going.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// CPU time in nanoseconds after which a thread has finished the `clone` that it
/// was in.
const CLONE_NS: u64 = 5_000_000;
/// CPU time for which new threads are visited after the last that needed the
/// change...
const HOT: Duration = Duration::from_micros(300);
/// ... and at most.
const HOT_MAX: Duration = Duration::from_millis(4);
/// CPU time that a scan may use at once, and after that as a share of the time.
const GRANT: Duration = Duration::from_millis(8);
const SHARE: u32 = 50;
/// More new numbers than this are cheaper to find by a listing.
const NUMBERS_MAX: i32 = 2048;
/// Free numbers that are visited again.
const FREE_MAX: usize = 256;

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
    /// The numbers of the program's processes, as they are now.
    fn pids(&mut self) -> BTreeSet<i32>;

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
    fn note(&mut self, found: Result<Found, ActError>) {
        match found {
            Ok(found) => {
                self.changed |= found == Found::Changed;
                self.missed |= found == Found::Missed;
            }
            Err(error) => self.errors.push(error),
        }
    }

    fn add(&mut self, other: Self) {
        self.changed |= other.changed;
        self.missed |= other.missed;
        self.errors.extend(other.errors);
    }
}

/// A cursor over the thread numbers that the kernel gives out.
#[derive(Debug)]
pub(crate) struct NewThreads {
    /// The last number that was visited.
    last: i32,
    /// Numbers that were free when they were visited, and since when.
    free: VecDeque<(i32, Instant)>,
}

impl NewThreads {
    /// Begins with the numbers given out from now on; `None` where the kernel
    /// does not report the last one.
    pub(crate) fn from_now(procs: &Procs) -> Option<Self> {
        Some(Self {
            last: procs.last_pid()?,
            free: VecDeque::new(),
        })
    }

    /// Visits every number given out since the last call, and those that were
    /// free a moment ago. `visit` returns `None` for a free number. Returns
    /// `false` where the numbers wrapped around, or are too many.
    fn visit(&mut self, procs: &Procs, mut visit: impl FnMut(i32) -> Option<()>) -> bool {
        let now = Instant::now();
        for _ in 0..self.free.len() {
            if let Some((tid, since)) = self.free.pop_front()
                && visit(tid).is_none()
                && now.duration_since(since) < SETTLE
            {
                self.free.push_back((tid, since));
            }
        }
        let Some(last) = procs.last_pid() else {
            return false;
        };
        if last < self.last || last - self.last > NUMBERS_MAX {
            return false;
        }
        for tid in self.last + 1..=last {
            if visit(tid).is_none() && self.free.len() < FREE_MAX {
                self.free.push_back((tid, now));
            }
        }
        self.last = last;
        true
    }
}

/// One change on its way to all threads of a program.
#[derive(Debug)]
pub(crate) struct Scan {
    begun: Instant,
    /// CPU time used so far.
    spent: Duration,
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
        self.spent < GRANT + self.begun.elapsed() / SHARE
    }

    /// One pass over all threads and those that start meanwhile. Returns
    /// whether the scan is complete; if not, the caller steps again after a
    /// pause.
    ///
    /// # Errors
    /// All errors of the pass. Threads after a failure were visited too.
    pub(crate) fn step(
        &mut self,
        procs: &Procs,
        change: &mut impl ProgramChange,
    ) -> Result<bool, Vec<ActError>> {
        let begun = cpu_time();
        let is_ready = self.is_ready(procs);
        let new = NewThreads::from_now(procs);
        let pids = change.pids();
        let mut pass = over_all(procs, &pids, change);
        if let Some(mut new) = new {
            pass.add(over_new(procs, &mut new, change));
        }
        let is_over = pids.is_empty() && !pass.changed && change.lists_all();
        let is_quiet = self.note(procs, &pids, &pass);
        self.complete = (is_over || (is_ready && is_quiet)) && pass.errors.is_empty();
        self.spent += cpu_time().saturating_sub(begun);
        match pass.errors.is_empty() {
            true => Ok(self.complete),
            false => Err(pass.errors),
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
    fn note(&mut self, procs: &Procs, pids: &BTreeSet<i32>, pass: &Pass) -> bool {
        self.steps += 1;
        if pass.changed {
            (self.steps, self.changed_at, self.waiting) = (0, Instant::now(), None);
            return false;
        }
        if self.waiting.is_none() {
            self.waiting = Some(at_work(procs, pids));
        }
        !pass.missed || self.steps >= STEPS_MAX
    }
}

fn over_all<C: ProgramChange>(procs: &Procs, pids: &BTreeSet<i32>, change: &mut C) -> Pass {
    let mut pass = Pass::default();
    for &pid in pids {
        pass.add(over_process(procs, pid, change));
    }
    for thread in change.others() {
        let is_same = || procs.thread_start(thread.pid, thread.tid) == Some(thread.start_ticks);
        if !pids.contains(&thread.pid) && is_same() {
            visit(thread.pid, thread.tid, change, &mut pass);
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

/// Visits new threads until none needed the change for a while.
pub(crate) fn over_new(
    procs: &Procs,
    new: &mut NewThreads,
    change: &mut impl ThreadChange,
) -> Pass {
    let mut all = Pass::default();
    let begun = cpu_time();
    let mut changed_at = begun;
    loop {
        let now = cpu_time();
        if now.saturating_sub(changed_at) >= HOT || now.saturating_sub(begun) >= HOT_MAX {
            break;
        }
        let mut pass = Pass::default();
        let found_all = new.visit(procs, |tid| {
            if change.is_needed(tid)?
                && let Some(pid) = change.process_of(tid)
            {
                pass.note(change.apply(pid, tid));
            }
            Some(())
        });
        if pass.changed {
            changed_at = cpu_time();
        }
        all.add(pass);
        if !found_all {
            break;
        }
    }
    // What was missed here is found by the next pass, or missed by it.
    all.missed = false;
    all
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
