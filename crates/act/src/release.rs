// SPDX-License-Identifier: MIT OR Apache-2.0
//! Letting a program go: what its journal says, taken back.
//!
//! The same code serves a program that leaves in good order, the keeper, a
//! launcher and the next start. Every step may be done twice, and finds its
//! work done by somebody else without complaint.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use usher_model::ProgramId;

use crate::cgroups;
use crate::error::ActError;
use crate::journal::{Dir, DirKind, ProgramState};
use crate::mask;
use crate::procs::Procs;
use crate::tree;

/// Pause between two attempts to empty a directory of processes that are
/// about to die.
const PAUSE: Duration = Duration::from_millis(1);
/// Rounds of emptying one directory before the others are looked at again.
const ROUNDS_MAX: usize = 100;

/// How long no thread may be found with one of our masks before it is taken
/// that none is on the way.
pub(crate) const MASK_SETTLE: Duration = Duration::from_millis(20);

/// How long letting go may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// While living processes are still to be moved: a fork storm.
    pub living: Duration,
    /// While only the dead keep the directories: those that are exiting.
    pub dead: Duration,
    /// How long no thread may be found with one of our masks before it is
    /// taken that none is on the way.
    pub settle: Duration,
}

impl Patience {
    /// For a loop that has other things to do: the rest is finished later.
    pub(crate) const SHORT: Self = Self {
        living: Duration::from_millis(200),
        dead: Duration::from_millis(2),
        settle: MASK_SETTLE,
    };
    /// For the last one who can do it.
    const LONG: Self = Self {
        living: Duration::from_millis(700),
        dead: Duration::from_millis(700),
        settle: Duration::ZERO, // `let_go_all` waits once for all
    };
    /// For one attempt.
    pub(crate) const NONE: Self = Self {
        living: Duration::ZERO,
        dead: Duration::ZERO,
        settle: Duration::ZERO,
    };
}

/// What is left of a program that was let go.
#[derive(Debug)]
pub(crate) enum Left {
    /// Nothing.
    Nothing,
    /// Directories without living processes that the kernel does not let go
    /// of yet.
    Remains,
    /// Something that went wrong.
    Errors(Vec<ActError>),
}

/// Thaws, continues, widens, gives masks back, moves survivors to where they
/// came from and removes the directories; tries again until `patience` ends.
pub(crate) fn let_go(
    procs: &Procs,
    program: ProgramId,
    state: &ProgramState,
    patience: Patience,
) -> Left {
    let begin = Instant::now();
    loop {
        let left = attempt(procs, program, state, patience.settle);
        let limit = match left {
            Left::Nothing => return left,
            Left::Remains => patience.dead,
            Left::Errors(_) => patience.living,
        };
        if begin.elapsed() >= limit {
            return left;
        }
        std::thread::sleep(PAUSE);
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
        let _ = set_free(procs, state, Duration::ZERO);
    }
    if programs.values().any(|state| !state.masks.is_empty()) {
        std::thread::sleep(MASK_SETTLE);
    }
    programs
        .iter()
        .map(|(&program, state)| (program, let_go(procs, program, state, Patience::LONG)))
        .collect()
}

/// Thaws, widens, continues and gives masks back.
fn set_free(procs: &Procs, state: &ProgramState, settle: Duration) -> Vec<ActError> {
    let mut errors = Vec::new();
    for dir in &state.dirs {
        if dir.kind != DirKind::CpusetV1 {
            errors.extend(cgroups::freeze(&dir.dir, false).err());
        }
        errors.extend(dir.widen().err());
    }
    errors.extend(resume(procs, state));
    let restored = mask::restore(procs, state, settle, || pids(procs, state));
    errors.extend(restored.err().unwrap_or_default());
    errors
}

fn attempt(procs: &Procs, program: ProgramId, state: &ProgramState, settle: Duration) -> Left {
    let mut errors = set_free(procs, state, settle);
    errors.extend(move_back(procs, state));
    let mut remains = false;
    for dir in state.dirs.iter().rev() {
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
        .find(|dir| dir.kind != DirKind::Scope && living(dir))
    {
        Some(dir) => Left::Errors(vec![ActError::Left {
            program,
            what: format!("processes keep appearing in {}", dir.dir.display()),
        }]),
        None => Left::Remains,
    }
}

/// The numbers of all processes of a program.
pub(crate) fn pids(procs: &Procs, state: &ProgramState) -> BTreeSet<i32> {
    let mut pids: BTreeSet<i32> = state
        .dirs
        .iter()
        .flat_map(|dir| cgroups::members(&dir.dir))
        .collect();
    if state.dirs.is_empty() {
        let members = state.members.keys().copied();
        pids.extend(tree::descendants(procs, members).iter().map(|p| p.id.pid));
    }
    pids
}

/// Continues the processes that were sent `SIGSTOP`.
pub(crate) fn resume(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let stopped = state.stopped.iter();
    stopped
        .filter_map(|&process| procs.signal(process, Signal::CONT).err())
        .collect()
}

/// Empties the directories. Those inside may fork meanwhile, so each is
/// emptied until it is empty, a bounded number of times.
fn move_back(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let mut errors = Vec::new();
    for dir in state.dirs.iter().filter(|dir| dir.kind != DirKind::Scope) {
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
    let target = match dir.kind {
        DirKind::CpusetV1 => &from.cpuset,
        DirKind::V2 | DirKind::Scope => &from.v2,
    };
    // Where the origin was not visible, the parent of this instance's own
    // directory is the nearest place that is.
    let base = dir.dir.parent().and_then(|base| base.parent());
    match target.as_deref().or(base) {
        Some(target) => cgroups::go_back(target, pid),
        None => Ok(()),
    }
}
