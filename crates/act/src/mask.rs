// SPDX-License-Identifier: MIT OR Apache-2.0
//! Affinity masks of threads.
//!
//! The seat of a program is the affinity mask of each of its threads, within
//! the mask that the thread had: a program's own affinity is respected. A
//! thread born meanwhile inherits ours or its parent's old one, so `narrow`
//! scans until two consecutive scans change nothing, for at most
//! [`NARROW_MAX`].
//!
//! Whose mask is it? One that equals a mask that we gave to this program is
//! ours. One that equals what the thread had before, or what the program had
//! when it was taken in ([`initial`]), may be narrowed again. Any other was
//! chosen by the program, which *pinned* the thread: it is left as it is, and
//! [`pins`] reports it. A thread that is met for the first time with one of our
//! masks was born with it; so each look first notes what all threads have, and
//! only then sets.
//! The kernel hides CPUs that are offline from `sched_getaffinity`, so masks
//! are compared within those that are online.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use usher_model::{CpuSet, ProgramId};

use crate::actuator::PinnedCpus;
use crate::error::ActError;
use crate::family::Family;
use crate::files;
use crate::journal::{Journal, ProgramState, Record, ThreadId};
use crate::newborn::{HOT, NewThreads, over_new};
use crate::procs::Procs;
use crate::scan::{self, Found, SCANS_MAX, ThreadChange};

/// CPUs that a mask passed to the kernel has room for: `CPU_ID_MAX` + 1.
const MASK_WORDS: usize = 1024;

/// The mask of a thread, within the CPUs that are online.
pub(crate) fn get(tid: i32) -> io::Result<CpuSet> {
    let mut words = [0u64; MASK_WORDS];
    // SAFETY: the kernel writes at most the length given into the array.
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

/// Gives a thread a mask.
pub(crate) fn set(tid: i32, cpus: &CpuSet) -> io::Result<()> {
    let mut words = [0u64; MASK_WORDS];
    for cpu in cpus.iter() {
        words[cpu as usize / 64] |= 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads at most the length given from the array.
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

/// The whole mask of a thread, offline CPUs included.
fn whole(procs: &Procs, pid: i32, tid: i32) -> Option<CpuSet> {
    let path = procs.path(pid, "task").join(tid.to_string()).join("status");
    let status = files::read_text(&path).ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.parse().ok()
}

/// How long one call narrows a program whose threads come and go. Threads that
/// it misses are found by the next call.
const NARROW_MAX: Duration = Duration::from_millis(50);

/// What is known of the masks that a program gave to its own threads.
#[derive(Debug, Default)]
pub(crate) struct OwnMasks {
    /// What one of its threads at least could use when it was taken in.
    pub initial: Option<CpuSet>,
    /// Threads that had a mask of their own when a seat was given, and that mask.
    /// The journal notes it as the one before, so a later seat that equals it is
    /// not taken for the origin of the mask.
    pub pinned: BTreeMap<ThreadId, CpuSet>,
}

/// Threads of one program that one look for pins covers.
const PINS_MAX: usize = 4096;

/// The masks that a program was given, within the CPUs that are online.
pub(crate) fn ours(state: &ProgramState, online: &CpuSet) -> BTreeSet<CpuSet> {
    state.masks.iter().map(|mask| mask.and(online)).collect()
}

/// The mask that a program has as a whole: all that one of its threads may
/// use. `None` where none of them is left.
pub(crate) fn initial(procs: &Procs, pids: &BTreeSet<i32>) -> Option<CpuSet> {
    let mut seen = BTreeSet::new();
    let mut all: Option<CpuSet> = None;
    for &pid in pids {
        for tid in procs.listed_threads(pid) {
            let is_new = get(tid).is_ok_and(|mask| seen.insert(mask));
            if let Some(mask) = is_new.then(|| whole(procs, pid, tid)).flatten() {
                all = Some(all.map_or(mask.clone(), |all| all.or(&mask)));
            }
        }
    }
    all
}

/// The CPUs that threads among these processes were pinned to by the program.
pub(crate) fn pins(
    procs: &Procs,
    state: &ProgramState,
    own: &OwnMasks,
    pids: &BTreeSet<i32>,
) -> Option<PinnedCpus> {
    let online = procs.online_cpus();
    let ours = ours(state, &online);
    let initial = own.initial.as_ref()?.and(&online);
    let is_pinned = |pid: i32, tid: i32, mask: &CpuSet| {
        if *mask == initial || (own.pinned.is_empty() && ours.contains(mask)) {
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

/// Gives every thread of a program its seat, until two scans running find no
/// thread without. Threads that the program pinned are noted in `own` and left
/// as they are. With an `owner` only processes of that user are changed.
///
/// # Errors
/// No thread may use any of the CPUs (nothing was changed then), or the
/// kernel refuses.
pub(crate) fn narrow(
    procs: &Procs,
    journal: &mut Journal,
    program: ProgramId,
    cpus: &CpuSet,
    own: &mut OwnMasks,
    owner: Option<u32>,
) -> Result<(), ActError> {
    let online = procs.online_cpus();
    note_initial(journal, program, own)?;
    let begun = Instant::now();
    let mut quiet = 0;
    for _ in 0..SCANS_MAX {
        let Some(state) = journal.state().programs.get(&program) else {
            return Err(ActError::Unknown(program));
        };
        let new = NewThreads::from_now(procs);
        let mut family = Family::new(procs, state).owned_by(owner);
        // A process whose origin is in doubt is not narrowed.
        let found = scan::threads(procs, &family.list(|_| false));
        let mut narrowing = Narrowing {
            procs,
            journal,
            family,
            program,
            cpus,
            own,
            online: &online,
        };
        let mut again = narrowing.all(&found)?;
        if let Some(mut new) = new {
            let pass = over_new(procs, &mut new, &mut narrowing, HOT);
            again |= pass.changed;
            if let Some(error) = pass.errors.into_iter().next() {
                return Err(error);
            }
        }
        quiet = if again { 0 } else { quiet + 1 };
        if quiet == 2 || begun.elapsed() >= NARROW_MAX {
            break;
        }
    }
    Ok(())
}

/// One scan that gives all threads of a program its seat.
struct Narrowing<'a> {
    procs: &'a Procs,
    journal: &'a mut Journal,
    family: Family<'a>,
    program: ProgramId,
    cpus: &'a CpuSet,
    own: &'a mut OwnMasks,
    online: &'a CpuSet,
}

impl ThreadChange for Narrowing<'_> {
    fn is_needed(&self, tid: i32) -> Option<bool> {
        let current = get(tid).ok()?;
        Some(current != self.cpus.and(self.online))
    }

    fn process_of(&mut self, tid: i32) -> Option<i32> {
        self.family.process_of(tid, false)
    }

    fn apply(&mut self, pid: i32, tid: i32) -> Result<Found, ActError> {
        let Some(thread) = self.procs.thread_id(pid, tid) else {
            return Ok(Found::Missed);
        };
        match self.all(&[thread]) {
            Ok(true) => Ok(Found::Changed),
            // Other threads of the program can use the seat.
            Ok(false) | Err(ActError::NoCpus { .. }) => Ok(Found::Fine),
            Err(error) => Err(error),
        }
    }
}

impl Narrowing<'_> {
    /// Notes the masks of all these threads, and sets them. Whether there may be
    /// more to do: a thread was given another mask, or ended before the scan
    /// and may have left a child.
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
            let wanted = own.and(self.cpus);
            allowed = allowed.or(&own);
            seated |= !wanted.is_empty();
            if !wanted.is_empty() && wanted != current {
                to_set.push((thread, wanted));
            }
        }
        if !seated && !allowed.is_empty() {
            return Err(ActError::NoCpus {
                program: self.program,
                wanted: self.cpus.clone(),
                allowed,
            });
        }
        for (thread, wanted) in &to_set {
            self.set(*thread, wanted)?;
        }
        Ok(missed || !to_set.is_empty())
    }

    fn set(&mut self, thread: ThreadId, cpus: &CpuSet) -> Result<(), ActError> {
        let program = self.program;
        let state = self.journal.state().programs.get(&program);
        if state.is_none_or(|state| state.masks.last() != Some(cpus)) {
            let cpus = cpus.clone();
            self.journal.write(Record::Mask { program, cpus })?;
        }
        match set(thread.tid, cpus) {
            Err(error) if !files::is(&error, Errno::SRCH) => Err(failed(thread, error)),
            _ => Ok(()),
        }
    }

    /// The mask that a thread would have without us; `None` where it has
    /// chosen another one since.
    fn before(&self, thread: ThreadId, current: &CpuSet) -> Option<CpuSet> {
        let state = self.journal.state().programs.get(&self.program)?;
        let mut masks = state.masks.iter();
        let ours = masks.any(|mask| mask.and(self.online) == *current);
        match state.threads.get(&thread) {
            _ if self.own.pinned.get(&thread) == Some(current) => None,
            Some(before) if ours || before.and(self.online) == *current => Some(before.clone()),
            Some(_) => None,
            None if ours => Some(inherited(state, thread)?.clone()),
            None if self.is_chosen(current) => None,
            None => whole(self.procs, thread.pid, thread.tid),
        }
    }

    /// Whether a mask that is not ours was chosen by the program.
    fn is_chosen(&self, mask: &CpuSet) -> bool {
        let initial = self.own.initial.as_ref();
        initial.is_some_and(|initial| initial.and(self.online) != *mask)
    }

    fn note_pinned(&mut self, thread: ThreadId, mask: &CpuSet) -> Result<(), ActError> {
        if self.own.pinned.get(&thread) == Some(mask) {
            return Ok(());
        }
        self.own.pinned.insert(thread, mask.clone());
        self.note_own(thread, mask.clone())
    }

    /// Notes a pinned thread that has the mask from the start again.
    fn note_unpinned(&mut self, thread: ThreadId, mask: &CpuSet) -> Result<(), ActError> {
        let initial = self.own.initial.clone();
        let initial = initial.filter(|initial| initial.and(self.online) == *mask);
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

/// Notes what threads born with one of our masks would have without us, before
/// a thread that was pinned by the program is noted as the first.
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

/// What a thread that was born with one of our masks would have without us:
/// what its program had, else what its process's first thread had.
fn inherited(state: &ProgramState, thread: ThreadId) -> Option<&CpuSet> {
    let leader = || {
        let mut threads = state.threads.range(ThreadId::range(thread.pid, thread.pid));
        threads.next().map(|(_, before)| before)
    };
    state.unbound.as_ref().or_else(leader)
}

/// Gives a thread that has one of our masks, those of [`ours`], its own again.
pub(crate) fn restore(
    state: &ProgramState,
    ours: &BTreeSet<CpuSet>,
    online: &CpuSet,
    thread: ThreadId,
) -> Result<Found, ActError> {
    let Ok(current) = get(thread.tid) else {
        return Ok(Found::Missed);
    };
    if !ours.contains(&current) {
        return Ok(Found::Fine);
    }
    let known = state.threads.get(&thread);
    let Some(before) = known.or_else(|| inherited(state, thread)) else {
        return Ok(Found::Fine);
    };
    if before.and(online) == current {
        return Ok(Found::Fine);
    }
    let given = match set(thread.tid, before) {
        // A mask whose CPUs have all gone offline gives way to all there are.
        Err(error) if files::is(&error, Errno::INVAL) => set(
            thread.tid,
            &CpuSet::range(0, usher_model::cpuset::CPU_ID_MAX),
        ),
        result => result,
    };
    match given {
        Ok(()) => Ok(Found::Changed),
        Err(error) if files::is(&error, Errno::SRCH) => Ok(Found::Missed),
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
