// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads, narrows and restores the affinity masks of a program's threads, and finds pinned threads.
//!
//! A seat is applied as the affinity mask of each thread of the program. The new mask of a thread
//! is the intersection of the seat with the thread's former mask. A new thread inherits Usher's
//! mask or the former mask of its parent thread. Therefore [`narrow`] repeats its scan until two
//! consecutive scans change nothing, but begins no further scan after 50 ms ([`NARROW_MAX`]) or 64
//! scans. This limit is no error: the next call narrows the remaining threads. The result of
//! [`narrow`] states whether such a call is needed, also because the kernel gave a thread fewer CPUs
//! than requested ([`SeatState`]). A scan lists all threads of the program and costs a few system
//! calls per thread. [`pins`] examines at most 4096 threads of a program.
//!
//! **Origin of a mask.** Each scan classifies the present mask of each thread:
//!
//! - A mask that Usher gave to this program is Usher's mask. If the first known mask of a thread is
//!   Usher's, the thread inherited it.
//! - A mask that equals the thread's former mask, or the program's mask at admission ([`initial`]),
//!   may be narrowed again.
//! - The program itself set any other mask, and thereby *pinned* the thread. Usher does not change
//!   this mask, and [`pins`] reports it.
//!
//! A scan first records the masks of all threads, and only then sets masks, because a mask that it
//! sets could otherwise be inherited by a thread that is not recorded yet.
//!
//! `sched_getaffinity` does not report offline CPUs. Therefore masks are compared within the online
//! CPUs.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use usher_model::{CpuSet, ProcessId, ProgramId};

use crate::error::ActError;
use crate::files;
use crate::journal::{Journal, ProgramState, Record, ThreadId};
use crate::membership::Membership;
use crate::new_threads::{NewThreads, VISIT_QUIET, over_new};
use crate::own_masks::OwnMasks;
use crate::procs::Procs;
use crate::scan::{self, SCANS_MAX, ThreadChange, VisitResult};

/// Upper limit of the scans of one process. A thread that starts during the last scan keeps its mask
/// until the next change.
const PROCESS_SCANS_MAX: usize = 8;

/// Number of 64-bit words in a mask that is passed to the kernel: enough bits for `CPU_ID_MAX` + 1
/// CPUs.
const MASK_WORDS: usize = 1024;

/// CPUs that threads of a program chose by affinity masks of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedCpus {
    /// The CPUs of all pinned threads together.
    pub cpus: CpuSet,
    /// Whether every thread of the program is pinned.
    pub every_thread: bool,
}

/// Returns the mask of a thread, within the online CPUs.
pub(crate) fn get(tid: i32) -> io::Result<CpuSet> {
    let mut words = [0u64; MASK_WORDS];
    // SAFETY: the kernel writes at most `size_of_val` bytes to the array, which outlives the call.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            size_of_val(&words),
            words.as_mut_ptr(),
        )
    };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut cpus = CpuSet::new();
    for (at, mut word) in (0..).zip(words.into_iter().take(written as usize / 8)) {
        while word != 0 {
            cpus.insert(at * 64 + word.trailing_zeros());
            word &= word - 1;
        }
    }
    Ok(cpus)
}

/// Sets the affinity mask of a thread.
pub(crate) fn set(tid: i32, cpus: &CpuSet) -> io::Result<()> {
    let mut words = [0u64; MASK_WORDS];
    for cpu in cpus.iter() {
        words[cpu as usize / 64] |= 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads at most `size_of_val` bytes of the array, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            size_of_val(&words),
            words.as_ptr(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the whole mask of a thread, offline CPUs included. A thread that may use all online CPUs
/// is not restricted: its mask consists of all possible CPUs, although the cpuset of a new cgroup
/// leaves out CPUs that are offline when the cgroup gets its first process. `online` are the online
/// CPUs.
fn whole(procs: &Procs, online: &CpuSet, pid: i32, tid: i32) -> Option<CpuSet> {
    let path = procs.path(pid, "task").join(tid.to_string()).join("status");
    let status = files::read_text(&path).ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let listed: CpuSet = list.parse().ok()?;
    match online.is_subset(&listed) {
        true => Some(listed.or(&procs.possible_cpus())),
        false => Some(listed),
    }
}

/// Time after which a call of [`narrow`] begins no further scan. A program that starts threads all
/// the time could otherwise prolong the call without end. The next call narrows the threads that
/// this call misses.
const NARROW_MAX: Duration = Duration::from_millis(50);

/// Upper limit of the threads of a program that a scan for pins covers.
const PINS_MAX: usize = 4096;

/// Returns the masks that Usher gave to a program, within the online CPUs.
pub(crate) fn ours(state: &ProgramState, online: &CpuSet) -> BTreeSet<CpuSet> {
    state.masks.iter().map(|mask| mask.and(online)).collect()
}

/// Returns the mask of a whole program, which is the set of CPUs that at least one of its threads
/// may use. `None` if no thread is left.
pub(crate) fn initial(procs: &Procs, pids: &BTreeSet<i32>) -> Option<CpuSet> {
    let online = procs.online_cpus();
    let mut seen = BTreeSet::new();
    let mut all: Option<CpuSet> = None;
    for &pid in pids {
        for tid in procs.listed_threads(pid) {
            let is_new = get(tid).is_ok_and(|mask| seen.insert(mask));
            if let Some(mask) = is_new.then(|| whole(procs, &online, pid, tid)).flatten() {
                all = Some(all.map_or(mask.clone(), |all| all.or(&mask)));
            }
        }
    }
    all
}

/// Returns the CPUs to which the program pinned threads of these processes.
pub(crate) fn pins(
    procs: &Procs,
    state: &ProgramState,
    own: &OwnMasks,
    pids: &BTreeSet<i32>,
) -> Option<PinnedCpus> {
    let online = procs.online_cpus();
    let ours = ours(state, &online);
    own.initial.as_ref()?;
    let is_pinned = |pid: i32, tid: i32, mask: &CpuSet| {
        let is_initial = own.initial_equal(mask, &online).is_some();
        if is_initial || (own.pinned.is_empty() && ours.contains(mask)) {
            return false;
        }
        let thread = procs.thread_id(pid, tid);
        let known = thread.and_then(|thread| own.pinned.get(&thread));
        if known.is_some_and(|known| known == mask) {
            return true;
        }
        let before = thread.and_then(|thread| state.threads.get(&thread));
        let had_before = before.is_some_and(|before| before.and(&online) == *mask);
        !had_before && !ours.contains(mask)
    };
    let mut pinned = CpuSet::new();
    let mut every_thread = true;
    let threads = |&pid: &i32| {
        let threads = procs.listed_threads(pid).into_iter();
        threads.map(move |tid| (pid, tid))
    };
    for (pid, tid) in pids.iter().flat_map(threads).take(PINS_MAX) {
        let Ok(mask) = get(tid) else {
            continue;
        };
        match is_pinned(pid, tid, &mask) {
            true => pinned = pinned.or(&mask),
            false => every_thread = false,
        }
    }
    (!pinned.is_empty()).then_some(PinnedCpus {
        cpus: pinned,
        every_thread,
    })
}

/// Whether a seat is complete after [`narrow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeatState {
    /// Every thread has the seat or keeps a pin that an earlier call has seen.
    Complete,
    /// The seat must be applied again later. The kernel restricted a mask to CPUs that its cpusets
    /// had at that moment, a pinned thread was new, or the scans reached their limit. While a CPU
    /// comes online, the first two are transient: the kernel lists the CPU as online before cpusets
    /// contain it and before `sched_getaffinity` reports it.
    Incomplete,
}

/// Applies a seat to all threads of a program, by scans until two consecutive scans find no thread
/// without the seat. Pinned threads are recorded in `own` and not changed. If `owner` is set, only
/// processes of this user are changed.
///
/// # Errors
/// No thread may use any of the seat's CPUs, and no mask was changed; or a system call failed.
pub(crate) fn narrow(
    procs: &Procs,
    journal: &mut Journal,
    program: ProgramId,
    cpus: &CpuSet,
    own: &mut OwnMasks,
    owner: Option<u32>,
) -> Result<SeatState, ActError> {
    let online = procs.online_cpus();
    note_initial(journal, program, own)?;
    let begun = Instant::now();
    let mut quiet = 0;
    let mut found_new_pins = false;
    let mut restricted = false;
    for _ in 0..SCANS_MAX {
        let Some(state) = journal.state().programs.get(&program) else {
            return Err(ActError::Unknown(program));
        };
        let new = NewThreads::from_now(procs);
        let mut membership = Membership::new(procs, state).owned_by(owner);
        // The list excludes orphans, because the masks of processes of unknown origin are not
        // changed.
        let found = scan::threads(procs, &membership.list(|_| false));
        let mut narrowing = SeatScan::new(procs, journal, membership, program, cpus, own, &online);
        let mut again = narrowing.all(&found)?;
        if let Some(mut new) = new {
            let pass = over_new(procs, &mut new, &mut narrowing, VISIT_QUIET);
            again |= pass.changed;
            if let Some(error) = pass.errors.into_iter().next() {
                return Err(error);
            }
        }
        found_new_pins |= narrowing.found_new_pins;
        restricted = narrowing.restricted;
        quiet = if again { 0 } else { quiet + 1 };
        if quiet == 2 || begun.elapsed() >= NARROW_MAX {
            break;
        }
    }
    match quiet == 2 && !found_new_pins && !restricted {
        true => Ok(SeatState::Complete),
        false => Ok(SeatState::Incomplete),
    }
}

/// Applies a mask to the threads of one process of a program. Repeats the scan until a scan finds
/// no thread without the mask, at most [`PROCESS_SCANS_MAX`] times. Pinned threads are not changed.
/// Returns whether at least one thread of the process has the mask.
///
/// # Errors
/// A system call failed.
pub(crate) fn narrow_process(
    procs: &Procs,
    journal: &mut Journal,
    program: ProgramId,
    process: ProcessId,
    cpus: &CpuSet,
    own: &mut OwnMasks,
) -> Result<bool, ActError> {
    let online = procs.online_cpus();
    note_initial(journal, program, own)?;
    let pids = BTreeSet::from([process.pid]);
    let mut found = Vec::new();
    for _ in 0..PROCESS_SCANS_MAX {
        let Some(state) = journal.state().programs.get(&program) else {
            return Err(ActError::Unknown(program));
        };
        found = scan::threads(procs, &pids);
        let membership = Membership::new(procs, state);
        let mut narrowing = SeatScan::new(procs, journal, membership, program, cpus, own, &online);
        match narrowing.all(&found) {
            Ok(true) => {}
            Ok(false) => break,
            Err(ActError::NoCpus { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    let is_placed = |thread: &ThreadId| {
        let mask = get(thread.tid);
        mask.is_ok_and(|mask| !mask.is_empty() && mask.is_subset(cpus))
            && !own.pinned.contains_key(thread)
    };
    Ok(found.iter().any(is_placed))
}

/// Restores the own masks of the threads of one process of a program without a seat.
///
/// # Errors
/// A system call failed.
pub(crate) fn restore_process(
    procs: &Procs,
    state: &ProgramState,
    process: ProcessId,
) -> Result<(), ActError> {
    let online = procs.online_cpus();
    let ours = ours(state, &online);
    let pids = BTreeSet::from([process.pid]);
    for _ in 0..PROCESS_SCANS_MAX {
        let mut again = false;
        for thread in scan::threads(procs, &pids) {
            again |= restore(procs, state, &ours, &online, thread)? != VisitResult::Unchanged;
        }
        if !again {
            break;
        }
    }
    Ok(())
}

/// One scan that applies a seat to all threads of a program.
struct SeatScan<'a> {
    procs: &'a Procs,
    journal: &'a mut Journal,
    membership: Membership<'a>,
    program: ProgramId,
    cpus: &'a CpuSet,
    own: &'a mut OwnMasks,
    online: &'a CpuSet,
    /// Whether a pinned thread was found that no earlier scan has seen.
    found_new_pins: bool,
    /// Whether the kernel gave a thread fewer CPUs than requested.
    restricted: bool,
}

impl ThreadChange for SeatScan<'_> {
    fn is_needed(&self, tid: i32) -> Option<bool> {
        let current = get(tid).ok()?;
        Some(current != self.cpus.and(self.online))
    }

    fn process_of(&mut self, tid: i32) -> Option<i32> {
        self.membership.process_of(tid, false)
    }

    fn apply(&mut self, pid: i32, tid: i32) -> Result<VisitResult, ActError> {
        let Some(thread) = self.procs.thread_id(pid, tid) else {
            return Ok(VisitResult::Missed);
        };
        match self.all(&[thread]) {
            Ok(true) => Ok(VisitResult::Changed),
            // This thread can use no CPU of the seat and keeps its mask. The failure for one thread
            // is no error, because other threads of the program can use the seat.
            Ok(false) | Err(ActError::NoCpus { .. }) => Ok(VisitResult::Unchanged),
            Err(error) => Err(error),
        }
    }
}

impl<'a> SeatScan<'a> {
    fn new(
        procs: &'a Procs,
        journal: &'a mut Journal,
        membership: Membership<'a>,
        program: ProgramId,
        cpus: &'a CpuSet,
        own: &'a mut OwnMasks,
        online: &'a CpuSet,
    ) -> Self {
        Self {
            procs,
            journal,
            membership,
            program,
            cpus,
            own,
            online,
            found_new_pins: false,
            restricted: false,
        }
    }

    /// Records the masks of the threads `found`, and then sets them. Returns whether another scan
    /// is needed, because a thread got another mask, or ended before the scan and may have left a
    /// child.
    fn all(&mut self, found: &[ThreadId]) -> Result<bool, ActError> {
        let mut to_set = Vec::new();
        let mut allowed = CpuSet::new();
        let mut seated = found.is_empty();
        let mut missed = false;
        for &thread in found {
            let Ok(current) = get(thread.tid) else {
                missed = true;
                continue;
            };
            self.note_unpinned(thread, &current)?;
            let Some(before) = self.before(thread, &current) else {
                self.note_pinned(thread, &current)?;
                seated = true;
                continue;
            };
            self.note_thread(thread, &before)?;
            let own = before.and(self.online);
            let wanted = self.target(thread.pid, &own);
            allowed = allowed.or(&own);
            seated |= !wanted.is_empty();
            if !wanted.is_empty() && wanted != current {
                to_set.push((thread, wanted, current));
            }
        }
        if !seated && !allowed.is_empty() {
            return Err(ActError::NoCpus {
                program: self.program,
                wanted: self.cpus.clone(),
                allowed,
            });
        }
        let mut again = missed;
        for (thread, wanted, current) in &to_set {
            let given = self.set(*thread, wanted)?;
            again |= given.is_none_or(|given| given != *current);
        }
        Ok(again)
    }

    /// Returns the mask that a thread of a process should have, within its own mask: the part of the
    /// seat of a confined copy, or else the seat.
    fn target(&self, pid: i32, own: &CpuSet) -> CpuSet {
        let seat = own.and(self.cpus);
        let part = self.part_of(pid).map(|part| seat.and(part));
        part.filter(|part| !part.is_empty()).unwrap_or(seat)
    }

    /// Returns the part of the seat to which a process is confined as a copy.
    fn part_of(&self, pid: i32) -> Option<&CpuSet> {
        let of_pid = ProcessId {
            pid,
            start_ticks: 0,
        }..=ProcessId {
            pid,
            start_ticks: u64::MAX,
        };
        let mut parts = self.own.copies.range(of_pid);
        parts.next().map(|(_, part)| part)
    }

    /// Sets the mask of a thread. Returns the mask that the kernel gave the thread; `None` if the
    /// thread has ended. A mask with fewer CPUs than requested also counts as Usher's.
    fn set(&mut self, thread: ThreadId, cpus: &CpuSet) -> Result<Option<CpuSet>, ActError> {
        let state = self.journal.state().programs.get(&self.program);
        if state.is_none_or(|state| state.masks.last() != Some(cpus)) {
            self.note_mask(cpus.clone())?;
        }
        match set(thread.tid, cpus) {
            Err(error) if !files::is(&error, Errno::SRCH) => return Err(failed(thread, error)),
            _ => {}
        }
        let Ok(given) = get(thread.tid) else {
            return Ok(None);
        };
        if self.part_of(thread.pid).is_some() || self.own.given.contains_key(&thread) {
            self.own.note_given(thread, &given);
        }
        if given != *cpus && given.is_subset(cpus) {
            self.restricted = true;
            let state = self.journal.state().programs.get(&self.program);
            if state.is_some_and(|state| !ours(state, self.online).contains(&given)) {
                self.note_mask(given.clone())?;
            }
        }
        Ok(Some(given))
    }

    fn note_mask(&mut self, cpus: CpuSet) -> Result<(), ActError> {
        let program = self.program;
        self.journal.write(Record::Mask { program, cpus })
    }

    /// Returns the mask that a thread would have without Usher; `None` if the program itself has
    /// set another mask since.
    fn before(&self, thread: ThreadId, current: &CpuSet) -> Option<CpuSet> {
        let state = self.journal.state().programs.get(&self.program)?;
        let mut masks = state.masks.iter();
        let ours = masks.any(|mask| mask.and(self.online) == *current);
        match state.threads.get(&thread) {
            _ if self.own.pinned.get(&thread) == Some(current) => None,
            _ if self.own.is_chosen_by_copy(thread, current, self.online) => None,
            Some(before) if ours || before.and(self.online) == *current => Some(before.clone()),
            Some(_) => None,
            None if ours && !self.may_inherit(thread, current) => None,
            None if ours => Some(inherited(self.procs, state, thread)?.clone()),
            None if self.is_chosen(current) => None,
            None => whole(self.procs, self.online, thread.pid, thread.tid),
        }
    }

    /// Returns whether a thread may have inherited its mask from its parent process. Otherwise, a
    /// copy has chosen a mask that Usher gave only to other copies.
    fn may_inherit(&self, thread: ThreadId, current: &CpuSet) -> bool {
        if self.part_of(thread.pid).is_none() {
            return true;
        }
        let process = self.procs.get(thread.pid);
        let parent = process.and_then(|process| self.procs.get(process.parent));
        // The parent that left an orphan is not known.
        let Some(parent) = parent.filter(|parent| self.membership.contains(parent.id)) else {
            return true;
        };
        let pid = parent.id.pid;
        let mut given = self.own.given.range(ThreadId::range(pid, pid));
        let was_given = given.any(|(_, masks)| masks.iter().any(|mask| mask == current));
        was_given || get(pid).is_ok_and(|mask| mask == *current)
    }

    /// Returns whether the program itself set a mask that is known not to be Usher's.
    fn is_chosen(&self, mask: &CpuSet) -> bool {
        self.own.initial.is_some() && self.own.initial_equal(mask, self.online).is_none()
    }

    fn note_pinned(&mut self, thread: ThreadId, mask: &CpuSet) -> Result<(), ActError> {
        if self.own.pinned.get(&thread) == Some(mask) {
            return Ok(());
        }
        self.found_new_pins = true;
        self.own.pinned.insert(thread, mask.clone());
        self.note_own(thread, mask.clone())
    }

    /// If a pinned thread has the program's initial mask again, records that the thread is no
    /// longer pinned.
    fn note_unpinned(&mut self, thread: ThreadId, mask: &CpuSet) -> Result<(), ActError> {
        let initial = self.own.initial_equal(mask, self.online).cloned();
        match initial {
            Some(initial) if self.own.pinned.remove(&thread).is_some() => {
                self.note_own(thread, initial)
            }
            _ => Ok(()),
        }
    }

    fn note_own(&mut self, thread: ThreadId, mask: CpuSet) -> Result<(), ActError> {
        let program = self.program;
        self.journal.write(Record::Own {
            program,
            thread,
            mask,
        })
    }

    fn note_thread(&mut self, thread: ThreadId, before: &CpuSet) -> Result<(), ActError> {
        let program = self.program;
        let state = self.journal.state().programs.get(&program);
        if state.is_some_and(|state| state.threads.contains_key(&thread)) {
            return Ok(());
        }
        self.journal.write(Record::Thread {
            program,
            thread,
            before: before.clone(),
        })
    }
}

/// Writes the program's initial mask to the journal: threads that inherit a mask of Usher's would
/// have this mask without Usher. This line must precede the first line about a pinned thread.
fn note_initial(journal: &mut Journal, program: ProgramId, own: &OwnMasks) -> Result<(), ActError> {
    let state = journal.state().programs.get(&program);
    let is_new = state.is_some_and(|state| state.unbound.is_none());
    match &own.initial {
        Some(initial) if is_new => journal.write(Record::Unbound {
            program,
            before: initial.clone(),
        }),
        _ => Ok(()),
    }
}

/// Returns the mask that a thread with an inherited mask of Usher's would have without Usher: the
/// former mask of the tree that joined the program and contains the thread, else the program's former
/// mask or, if it is unknown, the former mask of the process's first thread.
fn inherited<'a>(procs: &Procs, state: &'a ProgramState, thread: ThreadId) -> Option<&'a CpuSet> {
    if !state.joined.is_empty() {
        let above = procs.lineage(thread.pid);
        let mut roots = above.iter().filter_map(|one| state.joined.get(&one.id));
        if let Some(before) = roots.next() {
            return Some(before);
        }
    }
    let leader = || {
        let mut threads = state.threads.range(ThreadId::range(thread.pid, thread.pid));
        threads.next().map(|(_, before)| before)
    };
    state.unbound.as_ref().or_else(leader)
}

/// Restores a thread's own mask if its present mask is Usher's. The argument `ours` is the result
/// of [`ours`].
pub(crate) fn restore(
    procs: &Procs,
    state: &ProgramState,
    ours: &BTreeSet<CpuSet>,
    online: &CpuSet,
    thread: ThreadId,
) -> Result<VisitResult, ActError> {
    let Ok(current) = get(thread.tid) else {
        return Ok(VisitResult::Missed);
    };
    if !ours.contains(&current) {
        return Ok(VisitResult::Unchanged);
    }
    let known = state.threads.get(&thread);
    let Some(before) = known.or_else(|| inherited(procs, state, thread)) else {
        return Ok(VisitResult::Unchanged);
    };
    if before.and(online) == current {
        return Ok(VisitResult::Unchanged);
    }
    let given = match set(thread.tid, before) {
        // If all CPUs of a mask have gone offline, the thread gets all CPUs.
        Err(error) if files::is(&error, Errno::INVAL) => set(
            thread.tid,
            &CpuSet::range(0, usher_model::cpuset::CPU_ID_MAX),
        ),
        result => result,
    };
    match given {
        Ok(()) => Ok(VisitResult::Changed),
        Err(error) if files::is(&error, Errno::SRCH) => Ok(VisitResult::Missed),
        Err(source) => Err(failed(thread, source)),
    }
}

fn failed(thread: ThreadId, source: io::Error) -> ActError {
    ActError::Process {
        doing: "setting the affinity of thread",
        pid: thread.tid,
        source,
    }
}
