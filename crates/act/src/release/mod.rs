// SPDX-License-Identifier: MIT OR Apache-2.0
//! Release of a program: undoes the changes that its journal records.
//!
//! The orderly departure of a program, the keeper, a launcher and the next start share this code.
//! Every step may be repeated, and succeeds if another process has already done it.
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

/// Upper limits of the time that a release may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryLimits {
    /// While living processes are still to be moved: a fork storm.
    pub living: Duration,
    /// While only exiting processes keep the directories.
    pub dead: Duration,
    /// While only autogroups are left, for which the kernel accepts a limited number of changes per
    /// second.
    pub sessions: Duration,
    /// While threads may inherit Usher's masks and priorities.
    pub threads: Duration,
}

impl RetryLimits {
    /// For a loop that has other work: the rest is finished later.
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
        // `release_all` waits once for all programs.
        sessions: Duration::ZERO,
        threads: Duration::ZERO,
    };
    /// Limits for one of several attempts.
    pub(crate) const NONE: Self = Self {
        living: Duration::ZERO,
        dead: Duration::ZERO,
        sessions: Duration::ZERO,
        threads: Duration::ZERO,
    };
}

/// Upper limit of the time in which [`release_all`] scans for threads that inherit Usher's values.
/// Less than the time for which another process waits for the lock of the journal.
const THREADS_MAX: Duration = Duration::from_millis(1500);

/// The result of an attempt to release a program.
#[derive(Debug)]
pub(crate) enum ReleaseOutcome {
    /// The program is released completely.
    Done,
    /// Directories without living processes remain, which the kernel does not remove yet.
    DirsLeft,
    /// Threads remain that may inherit a mask or a priority of Usher's: the scan continues.
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

/// Releases all these programs, with retries. All of them are first continued and widened, so that
/// the last one does not wait for the removal of the others.
pub(crate) fn release_all(
    procs: &Procs,
    programs: &BTreeMap<ProgramId, ProgramState>,
) -> Vec<(ProgramId, ReleaseOutcome)> {
    for state in programs.values() {
        // A failure here occurs again below and is reported there.
        let _ = resume_all(procs, state);
        let _ = leave_cpu(procs, state);
        // Autogroups first: a scan waits until each runnable thread has run for some milliseconds,
        // which takes seconds at the lowest weight on a busy CPU.
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

/// Scans all programs in turn until every scan is complete, or the time is up.
fn scan_all(
    procs: &Procs,
    programs: &BTreeMap<ProgramId, ProgramState>,
) -> BTreeMap<ProgramId, Scan> {
    let mut scans: BTreeMap<_, _> = programs.keys().map(|&id| (id, Scan::new())).collect();
    let begun = Instant::now();
    loop {
        for (id, scan) in &mut scans {
            // A failure here occurs again in `release_program` and is reported there.
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
/// Returns whether threads with one of Usher's values may be left.
fn restore_state(
    procs: &Procs,
    state: &ProgramState,
    scan: &mut Scan,
    pace: ScanUrgency,
) -> (bool, Vec<ActError>) {
    let mut errors = resume_all(procs, state);
    errors.extend(leave_cpu(procs, state));
    let scanned = match scan.is_complete() {
        true => Ok(true),
        false => scan_step(procs, state, scan, RestoreScope::All, pace),
    };
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
        // The program's directories identify its threads.
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

    fn set_io(pid: i32, io: i32) {
        // SAFETY: takes three numbers.
        let set = unsafe { libc::syscall(libc::SYS_ioprio_set, 1, pid, io) };
        assert_eq!(set, 0);
    }

    /// Returns the state of a program of two processes: the first should have only CPU 0, the
    /// second was in no I/O class.
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

    /// Restores a program without the privilege to change processes of other users.
    fn restore_state_without_rights(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
        let free = || {
            let mut own = capabilities(None).unwrap();
            own.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, own).unwrap();
            restore_state(procs, state, &mut Scan::new(), ScanUrgency::Now).1
        };
        // Capabilities belong to a thread.
        std::thread::scope(|scope| scope.spawn(free).join().unwrap())
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
