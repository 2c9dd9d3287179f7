// SPDX-License-Identifier: MIT OR Apache-2.0
//! Letting a program go: what its journal says, taken back.
//!
//! The same code serves a program that leaves in good order, the keeper, a
//! launcher and the next start. Every step may be done twice, and finds its
//! work done by somebody else without complaint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use usher_model::{CpuSet, ProgramId};

use crate::error::ActError;
use crate::family::{Family, is_thread_of};
use crate::journal::{Demoted, Dir, DirKind, ProgramState, ThreadId};
use crate::procs::Procs;
use crate::scan::{self, Found, Pace, ProgramChange, Scan, ThreadChange};
use crate::site::is_ours;
use crate::{autogroup, cgroups, mask, priority, tree};

/// Pause between two attempts to empty a directory of processes that are
/// about to die.
const PAUSE: Duration = Duration::from_millis(1);
/// Rounds of emptying one directory before the others are looked at again.
const ROUNDS_MAX: usize = 100;

/// How long letting go may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// While living processes are still to be moved: a fork storm.
    pub living: Duration,
    /// While only the dead keep the directories: those that are exiting.
    pub dead: Duration,
    /// While only autogroups are left, of which the kernel takes so many a
    /// second.
    pub sessions: Duration,
    /// While threads may be born with masks and priorities of ours.
    pub threads: Duration,
}

impl Patience {
    /// For a loop that has other things to do: the rest is finished later.
    pub(crate) const SHORT: Self = Self {
        living: Duration::from_millis(200),
        dead: Duration::from_millis(2),
        sessions: Duration::from_millis(500),
        threads: Duration::from_millis(50),
    };
    /// For the last one who can do it.
    const LONG: Self = Self {
        living: Duration::from_millis(700),
        dead: Duration::from_millis(700),
        // `let_go_all` waits once for all.
        sessions: Duration::ZERO,
        threads: Duration::ZERO,
    };
    /// For one attempt.
    pub(crate) const NONE: Self = Self {
        living: Duration::ZERO,
        dead: Duration::ZERO,
        sessions: Duration::ZERO,
        threads: Duration::ZERO,
    };
}

/// How long [`let_go_all`] scans for threads that are born with something of
/// ours; less than another process waits for the lock of the journal.
const THREADS_MAX: Duration = Duration::from_millis(1500);

/// What is left of a program that was let go.
#[derive(Debug)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// Directories without living processes that the kernel does not let go
    /// of yet.
    Remains,
    /// Threads that may be born with a mask or a priority of ours: the scan
    /// goes on.
    Threads,
    /// Something that went wrong.
    Errors(Vec<ActError>),
}

/// Thaws, continues, widens, gives masks and priorities back, moves survivors
/// to where they came from and removes the directories; tries again until
/// `patience` ends. `scan` is the one of this program, which a later call
/// continues.
pub(crate) fn let_go(
    procs: &Procs,
    program: ProgramId,
    state: &ProgramState,
    scan: &mut Scan,
    patience: Patience,
) -> Left {
    let begin = Instant::now();
    let pace = match patience.threads.is_zero() {
        true => Pace::Background,
        false => Pace::Now,
    };
    loop {
        let left = attempt(procs, program, state, scan, pace);
        let (limit, pause) = match &left {
            Left::Nothing => return left,
            Left::Remains => (patience.dead, PAUSE),
            Left::Threads => (patience.threads, scan::PAUSE),
            Left::Errors(errors) if errors.iter().all(autogroup::is_for_later) => {
                (patience.sessions, PAUSE)
            }
            Left::Errors(_) => (patience.living, PAUSE),
        };
        if begin.elapsed() >= limit {
            return left;
        }
        std::thread::sleep(pause);
    }
}

/// Lets all these programs go, with patience. First all of them go on and are
/// widened, so that the last does not wait for the removal of the others.
pub(crate) fn let_go_all(
    procs: &Procs,
    programs: &BTreeMap<ProgramId, ProgramState>,
) -> Vec<(ProgramId, Left)> {
    for state in programs.values() {
        // What fails here fails again, and is reported, below.
        let _ = go_on(procs, state);
        let _ = leave_cpu(procs, state);
        // Autogroups first: a scan waits until each runnable thread has run for some
        // milliseconds, which takes seconds at the lowest weight on a busy CPU.
        let _ = autogroup::restore(procs, &state.demoted.autogroups);
    }
    let mut scans = scan_all(procs, programs);
    let sessions = programs.values().map(|state| &state.demoted.autogroups);
    autogroup::restore_in_rounds(procs, &sessions.collect::<Vec<_>>());
    let let_go = |(&program, state): (&ProgramId, &ProgramState)| {
        let mut scan = scans.remove(&program).unwrap_or_else(Scan::new);
        let left = let_go(procs, program, state, &mut scan, Patience::LONG);
        (program, left)
    };
    programs.iter().map(let_go).collect()
}

/// Scans all programs in turn until every scan is complete, or time is up.
fn scan_all(
    procs: &Procs,
    programs: &BTreeMap<ProgramId, ProgramState>,
) -> BTreeMap<ProgramId, Scan> {
    let mut scans: BTreeMap<_, _> = programs.keys().map(|&id| (id, Scan::new())).collect();
    let begun = Instant::now();
    loop {
        for (id, scan) in &mut scans {
            // What fails here fails again, and is reported, by `let_go`.
            let _ = scan_step(procs, &programs[id], scan, Restored::All, Pace::Now);
        }
        if scans.values().all(Scan::is_complete) || begun.elapsed() >= THREADS_MAX {
            return scans;
        }
        std::thread::sleep(scan::PAUSE);
    }
}

/// What a scan gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restored {
    /// Masks only: what was demoted stays so.
    Masks,
    /// Masks and priorities.
    All,
}

/// One step of the scan that gives masks and priorities back. Whether the scan
/// is complete.
///
/// # Errors
/// As [`Scan::step`].
pub(crate) fn scan_step(
    procs: &Procs,
    state: &ProgramState,
    scan: &mut Scan,
    what: Restored,
    pace: Pace,
) -> Result<bool, Vec<ActError>> {
    let is_demoted = what == Restored::All && !state.demoted.to.is_empty();
    if state.masks.is_empty() && !is_demoted {
        scan.complete();
        return Ok(true);
    }
    let known = std::mem::take(&mut scan.known);
    let ours = Ours::new(procs, state, is_demoted);
    let family = Family::with_known(procs, state, known);
    let mut restoration = Restoration {
        procs,
        state,
        family,
        ours,
    };
    let done = scan.step(procs, &mut restoration, pace);
    scan.known = restoration.family.into_known();
    done
}

/// How threads are recognised that have something of ours.
struct Ours<'a> {
    /// The masks that were given, within the CPUs that are online.
    masks: BTreeSet<CpuSet>,
    /// The mask that the program had before, within these.
    own: Option<CpuSet>,
    online: CpuSet,
    /// How priorities were lowered, where they are given back.
    demoted: Option<&'a Demoted>,
}

impl<'a> Ours<'a> {
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

    /// Whether a process has a mask of ours that the program did not have
    /// before.
    fn is_narrowed(&self, pid: i32) -> bool {
        let mask = mask::get(pid).ok();
        mask.is_some_and(|mask| self.masks.contains(&mask) && Some(mask) != self.own)
    }
}

/// Masks and priorities on their way back.
struct Restoration<'a> {
    procs: &'a Procs,
    state: &'a ProgramState,
    family: Family<'a>,
    ours: Ours<'a>,
}

impl Restoration<'_> {
    /// A thread as the journal names it. The start time serves to find the thread
    /// there and takes long to read, so it is 0 for a number that the journal
    /// does not have. `None` where the thread is gone.
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
        self.family.list(|pid| self.ours.is_narrowed(pid))
    }

    fn known_pids(&mut self) -> BTreeSet<i32> {
        self.family.list_known()
    }

    fn lists_all(&self) -> bool {
        self.family.has_cgroup()
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
        self.family.process_of(tid, with_orphans)
    }

    /// What of one cannot be done does not keep the other from being done.
    fn apply(&mut self, pid: i32, tid: i32) -> Result<Found, ActError> {
        let Some(thread) = self.thread(pid, tid) else {
            return Ok(Found::Missed);
        };
        let ours = &self.ours;
        let mask = match ours.masks.is_empty() {
            true => Ok(Found::Fine),
            false => mask::restore(self.state, &ours.masks, &ours.online, thread),
        };
        let priority = ours.demoted.map_or(Ok(Found::Fine), |demoted| {
            priority::restore(self.procs, demoted, thread)
        });
        match (mask?, priority?) {
            (Found::Missed, _) | (_, Found::Missed) => Ok(Found::Missed),
            (Found::Changed, _) | (_, Found::Changed) => Ok(Found::Changed),
            _ => Ok(Found::Fine),
        }
    }
}

/// Thaws, widens, continues and ends `cpu.idle`.
fn go_on(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let mut errors = Vec::new();
    for dir in &state.dirs {
        if dir.kind.is_v2() && (dir.kind != DirKind::Unit || state.frozen) {
            errors.extend(cgroups::freeze(&dir.dir, false).err());
        }
        errors.extend(dir.widen().err());
    }
    errors.extend(wake(state));
    errors.extend(resume(procs, state));
    errors
}

/// Ends `cpu.idle` in the program's directories.
pub(crate) fn wake(state: &ProgramState) -> Vec<ActError> {
    let could = |dir: &&Dir| matches!(dir.kind, DirKind::CpuV1 | DirKind::V2 | DirKind::Scope);
    let dirs = state.dirs.iter().filter(could);
    dirs.filter_map(|dir| dir.set_idle(false).err()).collect()
}

/// Thaws, widens, continues, gives masks and priorities back. Whether threads
/// may be left that have something of ours.
fn set_free(
    procs: &Procs,
    state: &ProgramState,
    scan: &mut Scan,
    pace: Pace,
) -> (bool, Vec<ActError>) {
    let mut errors = go_on(procs, state);
    errors.extend(leave_cpu(procs, state));
    let scanned = match scan.is_complete() {
        true => Ok(true),
        false => scan_step(procs, state, scan, Restored::All, pace),
    };
    let is_free = *scanned.as_ref().unwrap_or(&false);
    errors.extend(scanned.err().unwrap_or_default());
    errors.extend(autogroup::restore(procs, &state.demoted.autogroups));
    (is_free, errors)
}

/// Moves everybody out of the directory that made them give way: first of all,
/// as some cannot have a real-time policy in there (`CONFIG_RT_GROUP_SCHED`).
/// Who belongs to the program is told by its other directories.
pub(crate) fn leave_cpu(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    move_back(procs, state, |kind| kind == DirKind::CpuV1)
}

/// Empties the directories made for a program, and removes them.
pub(crate) fn leave(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let mut errors = move_back(procs, state, DirKind::is_entered);
    let made = state.dirs.iter().filter(|dir| dir.kind.is_entered());
    errors.extend(made.filter_map(|dir| cgroups::remove(&dir.dir).err()));
    errors
}

fn attempt(
    procs: &Procs,
    program: ProgramId,
    state: &ProgramState,
    scan: &mut Scan,
    pace: Pace,
) -> Left {
    let (is_free, mut errors) = set_free(procs, state, scan, pace);
    if errors.is_empty() && !is_free {
        // The program's directories tell which threads are its own.
        return Left::Threads;
    }
    errors.extend(move_back(procs, state, DirKind::is_entered));
    let mut remains = false;
    let made = state.dirs.iter().filter(|dir| dir.kind != DirKind::Unit);
    for dir in made.rev() {
        match cgroups::remove(&dir.dir) {
            Ok(true) => {}
            Ok(false) if dir.kind == DirKind::Scope => {}
            Ok(false) => remains = true,
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Left::Errors(errors);
    }
    if !remains {
        return Left::Nothing;
    }
    let living = |dir: &Dir| !cgroups::members(&dir.dir).is_empty();
    match state
        .dirs
        .iter()
        .find(|dir| dir.kind.is_entered() && living(dir))
    {
        Some(dir) => Left::Errors(vec![ActError::Left {
            program,
            what: format!("processes keep appearing in {}", dir.dir.display()),
        }]),
        None => Left::Remains,
    }
}

/// The numbers of all processes of a program: those in its cgroups, and what
/// descends from those noted that are outside of them.
pub(crate) fn pids(procs: &Procs, state: &ProgramState) -> BTreeSet<i32> {
    let mut pids = inside(state);
    let outside = state.members.keys().copied();
    let outside = outside.filter(|one| !pids.contains(&one.pid));
    // Without cgroups all of them are: they are found by one scan.
    let outside: Vec<_> = match state.dirs.is_empty() {
        true => outside.collect(),
        false => outside.filter(|one| procs.same(*one).is_some()).collect(),
    };
    if !outside.is_empty() {
        pids.extend(tree::descendants(procs, outside).iter().map(|p| p.id.pid));
    }
    pids
}

/// The numbers of the processes in a program's cgroups.
pub(crate) fn inside(state: &ProgramState) -> BTreeSet<i32> {
    let dirs = state.dirs.iter();
    dirs.flat_map(|dir| cgroups::members(&dir.dir)).collect()
}

/// Continues the processes that were sent `SIGSTOP`.
pub(crate) fn resume(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let stopped = state.stopped.iter();
    stopped
        .filter_map(|&process| procs.signal(process, Signal::CONT).err())
        .collect()
}

/// Thaws the cgroup that a program was found in, where it was frozen by us.
pub(crate) fn thaw_unit(state: &ProgramState) -> Result<(), ActError> {
    let units = state.dirs.iter().filter(|dir| dir.kind == DirKind::Unit);
    for unit in units.filter(|_| state.frozen) {
        cgroups::freeze(&unit.dir, false)?;
    }
    Ok(())
}

/// Empties the directories. Those inside may fork meanwhile, so each is
/// emptied until it is empty, a bounded number of times.
fn move_back(
    procs: &Procs,
    state: &ProgramState,
    which: impl Fn(DirKind) -> bool,
) -> Vec<ActError> {
    let mut errors = Vec::new();
    for dir in state.dirs.iter().filter(|dir| which(dir.kind)) {
        for _ in 0..ROUNDS_MAX {
            let members = cgroups::members(&dir.dir);
            if members.is_empty() || !errors.is_empty() {
                break;
            }
            let moved = members
                .into_iter()
                .map(|pid| send_back(procs, state, dir, pid));
            errors.extend(moved.filter_map(Result::err));
        }
    }
    errors
}

fn send_back(procs: &Procs, state: &ProgramState, dir: &Dir, pid: i32) -> Result<(), ActError> {
    let process = procs.get(pid).map(|process| process.id);
    let known = process.and_then(|process| state.members.get(&process));
    let from = known.unwrap_or(&state.from);
    // Where the origin was not visible, what our directories lie in is the
    // nearest place that is.
    let mut above = dir.dir.ancestors().skip(1);
    let above = above.find(|dir| !is_ours(dir));
    match from.of(dir.kind).map(PathBuf::as_path).or(above) {
        Some(target) => cgroups::go_back(target, pid),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use usher_model::Demotion;

    use super::*;
    use crate::config::ActConfig;
    use crate::journal::{Priority, Record, State};

    const ONE: ProgramId = ProgramId(1);
    const NOBODY: u32 = 65_534;
    const IO_IDLE: i32 = 3 << 13;

    struct Sleeper(Child);

    impl Sleeper {
        fn start(uid: u32) -> Self {
            Self(Command::new("sleep").arg("60").uid(uid).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn set_io(pid: i32, io: i32) {
        // SAFETY: takes three numbers.
        let set = unsafe { libc::syscall(libc::SYS_ioprio_set, 1, pid, io) };
        assert_eq!(set, 0);
    }

    /// A program of two processes: one that should have CPU 0 alone, and one
    /// that was in no I/O class.
    fn state(procs: &Procs, bound: i32, demoted: i32) -> ProgramState {
        let mut state = State::default();
        let program = ONE;
        for pid in [bound, demoted] {
            let process = procs.get(pid).unwrap().id;
            let from = Default::default();
            state.apply(Record::Member {
                program,
                process,
                from,
            });
        }
        let thread = procs.thread_id(bound, bound).unwrap();
        let before = CpuSet::single(0);
        state.apply(Record::Thread {
            program,
            thread,
            before,
        });
        let cpus = mask::get(bound).unwrap();
        state.apply(Record::Mask { program, cpus });
        let thread = procs.thread_id(demoted, demoted).unwrap();
        let before = Priority::of(demoted).unwrap();
        state.apply(Record::Priority {
            program,
            thread,
            before,
        });
        let to = Demotion::Idle;
        state.apply(Record::Demote { program, to });
        state.programs.remove(&ONE).unwrap()
    }

    /// Sets a program free without the right to set what is somebody else's.
    fn set_free_without_rights(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
        let free = || {
            let mut own = capabilities(None).unwrap();
            own.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, own).unwrap();
            set_free(procs, state, &mut Scan::new(), Pace::Now).1
        };
        // Capabilities are a thread's own.
        std::thread::scope(|scope| scope.spawn(free).join().unwrap())
    }

    #[test]
    fn a_mask_that_cannot_be_given_back_keeps_no_priority() {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root || mask::get(0).unwrap().len() < 2 {
            usher_skip::skip!("needs root and two CPUs");
            return;
        }
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        let (foreign, own) = (Sleeper::start(NOBODY), Sleeper::start(0));
        let state = state(&procs, foreign.pid(), own.pid());
        let before = Priority::of(own.pid()).unwrap();
        set_io(own.pid(), IO_IDLE);
        let errors = set_free_without_rights(&procs, &state);
        let [error] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        assert!(error.to_string().contains("affinity"), "{error}");
        assert_eq!(Priority::of(own.pid()).unwrap(), before);
    }
}
