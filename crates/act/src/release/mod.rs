// SPDX-License-Identifier: MIT OR Apache-2.0
//! Release of a program: undoes the changes that its journal records.
//!
//! Four callers share this code: the orderly departure of a program, the keeper, a launcher, and
//! the next start of Usher. Every step may be repeated, and succeeds if another process has already
//! done it.
//!
//! 1. Thaw and continue the program, remove its CPU restriction (journal version 1) and clear
//!    `cpu.idle`.
//! 2. Restore autogroups, affinity masks and priorities, the latter two by scans ([`Scan`]).
//! 3. Move surviving processes back to their former cgroups and remove the directories.
//!
//! [`RetryLimits`] bound the time of the retries of one call: with `SHORT` 200 ms, or 500 ms while
//! only autogroups remain; with `LONG` 700 ms. An attempt that has begun in time is completed; its
//! time is in proportion to the processes and threads of the program. [`release_all`] takes at most
//! 1.5 s for scans and 2 s for autogroups, for all programs together, and then `LONG` for each
//! program. [`ReleaseOutcome`] states which changes remain.
//!
//! `dirs.rs` moves processes and removes directories; `restore.rs` restores masks and priorities.

mod dirs;
mod restore;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use usher_model::ProgramId;

pub(crate) use dirs::{end_idle, inside, leave_cpu, pids, remove_dirs, resume, thaw_unit};
pub(crate) use restore::{RestoreScope, scan_step};

use crate::error::ActError;
use crate::journal::{Dir, DirKind, ProgramState};
use crate::procs::Procs;
use crate::scan::{self, Scan, ScanUrgency};
use crate::{autogroup, cgroups};
use dirs::move_back;

/// Pause between two attempts to empty a directory of processes that are about to die.
const PAUSE: Duration = Duration::from_millis(1);

/// Upper limits of the time for which a release retries, by the cause that prevents its completion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryLimits {
    /// Limit while living processes remain to be moved, because the program forks all the time.
    pub living: Duration,
    /// Limit while only exiting processes prevent the removal of the directories.
    pub dead: Duration,
    /// Limit while only autogroups remain, of which the kernel accepts one change per 100 ms from
    /// unprivileged users.
    pub sessions: Duration,
    /// Limit while threads may still inherit Usher's masks and priorities.
    pub threads: Duration,
}

impl RetryLimits {
    /// Limits for a caller with other work, such as the daemon's loop. The caller completes the
    /// release later.
    pub(crate) const SHORT: Self = Self {
        living: Duration::from_millis(200),
        dead: Duration::from_millis(2),
        sessions: Duration::from_millis(500),
        threads: Duration::from_millis(50),
    };
    /// Limits for the last process that can release the program.
    const LONG: Self = Self {
        living: Duration::from_millis(700),
        dead: Duration::from_millis(700),
        // [`release_all`] waits for autogroups and threads once for all programs, not per program.
        sessions: Duration::ZERO,
        threads: Duration::ZERO,
    };
    /// Limits for a single attempt without retries.
    pub(crate) const NONE: Self = Self {
        living: Duration::ZERO,
        dead: Duration::ZERO,
        sessions: Duration::ZERO,
        threads: Duration::ZERO,
    };
}

/// Upper limit of the time in which [`release_all`] scans for threads that inherit Usher's values.
/// The limit is shorter than the time for which another process waits for the lock of the journal
/// (2 s).
const THREADS_MAX: Duration = Duration::from_millis(1500);

/// The result of an attempt to release a program.
#[derive(Debug)]
pub(crate) enum ReleaseOutcome {
    /// The program is released completely.
    Done,
    /// Only directories without living processes remain, which the kernel does not remove yet.
    DirsLeft,
    /// Threads may remain that inherited a mask or a priority of Usher's. The caller should
    /// continue the scan.
    ThreadsLeft,
    /// Changes remain that could not be undone.
    Failed(Vec<ActError>),
}

/// Thaws and continues a program, removes its CPU restriction, restores masks and priorities, moves
/// surviving processes to their former cgroups and removes the directories. Retries until
/// `limits` are reached. `scan` belongs to this program; a later call continues it.
pub(crate) fn release_program(
    procs: &Procs,
    program: ProgramId,
    state: &ProgramState,
    scan: &mut Scan,
    limits: RetryLimits,
) -> ReleaseOutcome {
    let begin = Instant::now();
    let pace = match limits.threads.is_zero() {
        true => ScanUrgency::Background,
        false => ScanUrgency::Now,
    };
    loop {
        let left = attempt(procs, program, state, scan, pace);
        let (limit, pause) = match &left {
            ReleaseOutcome::Done => return left,
            ReleaseOutcome::DirsLeft => (limits.dead, PAUSE),
            ReleaseOutcome::ThreadsLeft => (limits.threads, scan::PAUSE),
            ReleaseOutcome::Failed(errors) if errors.iter().all(autogroup::is_for_later) => {
                (limits.sessions, PAUSE)
            }
            ReleaseOutcome::Failed(_) => (limits.living, PAUSE),
        };
        if begin.elapsed() >= limit {
            return left;
        }
        std::thread::sleep(pause);
    }
}

/// Releases all these programs, with retries. First continues all programs and removes their CPU
/// restrictions, so that no program waits for the release of another program.
pub(crate) fn release_all(
    procs: &Procs,
    programs: &BTreeMap<ProgramId, ProgramState>,
) -> Vec<(ProgramId, ReleaseOutcome)> {
    for state in programs.values() {
        // Errors are ignored here, because `release_program` repeats these steps and reports the
        // errors.
        let _ = resume_all(procs, state);
        let _ = leave_cpu(procs, state);
        // Autogroups are restored before the scans. A scan waits until each runnable thread has run
        // for some milliseconds, which takes seconds if the thread has the lowest weight on a busy
        // CPU.
        let _ = autogroup::restore(procs, &state.demoted.autogroups);
    }
    let mut scans = scan_all(procs, programs);
    let sessions = programs.values().map(|state| &state.demoted.autogroups);
    autogroup::restore_in_rounds(procs, &sessions.collect::<Vec<_>>());
    let release = |(&program, state): (&ProgramId, &ProgramState)| {
        let mut scan = scans.remove(&program).unwrap_or_else(Scan::new);
        let left = release_program(procs, program, state, &mut scan, RetryLimits::LONG);
        (program, left)
    };
    programs.iter().map(release).collect()
}

/// Executes steps of the scans of all programs in turn, until all scans are complete or
/// [`THREADS_MAX`] has passed.
fn scan_all(
    procs: &Procs,
    programs: &BTreeMap<ProgramId, ProgramState>,
) -> BTreeMap<ProgramId, Scan> {
    let mut scans: BTreeMap<_, _> = programs.keys().map(|&id| (id, Scan::new())).collect();
    let begun = Instant::now();
    loop {
        for (id, scan) in &mut scans {
            // The error is ignored here, because `release_program` repeats the step and reports the
            // error.
            let _ = scan_step(
                procs,
                &programs[id],
                scan,
                RestoreScope::All,
                ScanUrgency::Now,
            );
        }
        if scans.values().all(Scan::is_complete) || begun.elapsed() >= THREADS_MAX {
            return scans;
        }
        std::thread::sleep(scan::PAUSE);
    }
}

/// Thaws and continues the program, removes its CPU restriction and ends `cpu.idle`.
fn resume_all(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let mut errors = Vec::new();
    for dir in &state.dirs {
        if dir.kind.is_v2() && (dir.kind != DirKind::Unit || state.frozen) {
            errors.extend(cgroups::freeze(&dir.dir, false).err());
        }
        errors.extend(dir.widen().err());
    }
    errors.extend(end_idle(state));
    errors.extend(resume(procs, state));
    errors
}

/// Thaws and continues the program, removes its CPU restriction, restores masks and priorities.
/// Returns whether threads with a value of Usher's may remain.
fn restore_state(
    procs: &Procs,
    state: &ProgramState,
    scan: &mut Scan,
    pace: ScanUrgency,
) -> (bool, Vec<ActError>) {
    let mut errors = resume_all(procs, state);
    errors.extend(leave_cpu(procs, state));
    let scanned = scan_step(procs, state, scan, RestoreScope::All, pace);
    let is_free = *scanned.as_ref().unwrap_or(&false);
    errors.extend(scanned.err().unwrap_or_default());
    errors.extend(autogroup::restore(procs, &state.demoted.autogroups));
    (is_free, errors)
}

fn attempt(
    procs: &Procs,
    program: ProgramId,
    state: &ProgramState,
    scan: &mut Scan,
    pace: ScanUrgency,
) -> ReleaseOutcome {
    let (is_free, mut errors) = restore_state(procs, state, scan, pace);
    if errors.is_empty() && !is_free {
        // The directories are kept until the scan is complete, because they identify the program's
        // threads.
        return ReleaseOutcome::ThreadsLeft;
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
        return ReleaseOutcome::Failed(errors);
    }
    if !remains {
        return ReleaseOutcome::Done;
    }
    let living = |dir: &Dir| !cgroups::members(&dir.dir).is_empty();
    match state
        .dirs
        .iter()
        .find(|dir| dir.kind.is_entered() && living(dir))
    {
        Some(dir) => ReleaseOutcome::Failed(vec![ActError::NotUndone {
            program,
            what: format!(
                "processes in the cgroup {} start new processes faster than Usher can release them",
                dir.dir.display()
            ),
        }]),
        None => ReleaseOutcome::DirsLeft,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use usher_model::{CpuSet, Demotion};

    use super::*;
    use crate::config::ActConfig;
    use crate::journal::{JournalState, Priority, Record};
    use crate::mask;

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

    fn own_uid() -> u32 {
        rustix::process::getuid().as_raw()
    }

    fn set_io(pid: i32, io: i32) {
        // SAFETY: `ioprio_set` takes three numbers and accesses no memory of this process.
        let set = unsafe { libc::syscall(libc::SYS_ioprio_set, 1, pid, io) };
        assert_eq!(set, 0);
    }

    /// Returns the recorded state of a program of two processes. The process `bound` was restricted
    /// to CPU 0; the process `demoted` had no I/O class before its demotion.
    fn state(procs: &Procs, bound: i32, demoted: i32) -> ProgramState {
        let mut state = JournalState::default();
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

    /// Restores a program from a thread without the privilege to change processes of other users.
    fn restore_state_without_rights(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
        let free = || {
            let mut own = capabilities(None).unwrap();
            own.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, own).unwrap();
            restore_state(procs, state, &mut Scan::new(), ScanUrgency::Now).1
        };
        // A separate thread drops the capabilities, because capabilities belong to a single thread.
        std::thread::scope(|scope| scope.spawn(free).join().unwrap())
    }

    /// [`scan_all`] waits for the last of several scans: with a scan that a further step made
    /// incomplete, it waited until its time limit.
    #[test]
    fn a_complete_scan_stays_complete() {
        let procs = Procs::new(&ActConfig::new("/nonexistent"));
        let (first, second) = (Sleeper::start(own_uid()), Sleeper::start(own_uid()));
        let state = state(&procs, first.pid(), second.pid());
        let mut scan = Scan::new();
        let mut step = || {
            let all = RestoreScope::All;
            scan_step(&procs, &state, &mut scan, all, ScanUrgency::Now).unwrap()
        };
        let begun = Instant::now();
        while !step() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert!((0..20).all(|_| step()));
    }

    #[test]
    fn a_mask_that_cannot_be_restored_does_not_prevent_restoring_the_priority() {
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
        let errors = restore_state_without_rights(&procs, &state);
        let [error] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        assert!(error.to_string().contains("affinity"), "{error}");
        assert_eq!(Priority::of(own.pid()).unwrap(), before);
    }
}
