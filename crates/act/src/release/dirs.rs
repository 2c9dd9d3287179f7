// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps of a release that concern processes and cgroup directories: finds the program's
//! processes, continues stopped processes, moves processes back to their former cgroups and removes
//! the program's directories.
//!
//! Processes may fork while they are moved. Therefore each directory is emptied repeatedly, up to
//! 100 times per attempt, and only once after an error. This limit is no error here: if a directory
//! cannot be removed yet, the caller repeats the attempt. A process without a visible former cgroup
//! moves to the nearest directory above that Usher did not make.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::environment::is_ours;
use crate::error::ActError;
use crate::journal::{Dir, DirKind, ProgramState};
use crate::procs::Procs;
use crate::{cgroups, tree};

/// Upper limit of attempts to empty one directory before the other directories are retried.
const ROUNDS_MAX: usize = 100;

/// Clears `cpu.idle` in the program's directories.
pub(crate) fn end_idle(state: &ProgramState) -> Vec<ActError> {
    let could = |dir: &&Dir| matches!(dir.kind, DirKind::CpuV1 | DirKind::V2 | DirKind::Scope);
    let dirs = state.dirs.iter().filter(could);
    dirs.filter_map(|dir| dir.set_idle(false).err()).collect()
}

/// Moves all processes out of the directory with `cpu.idle`. This move is the first step of a
/// release, because a kernel with `CONFIG_RT_GROUP_SCHED` does not permit real-time policies in
/// this directory, which a later step may restore. The program's other directories still identify
/// its processes.
pub(crate) fn leave_cpu(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    move_back(procs, state, |kind| kind == DirKind::CpuV1)
}

/// Empties and removes the directories made for a program.
pub(crate) fn remove_dirs(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let mut errors = move_back(procs, state, DirKind::is_entered);
    let made = state.dirs.iter().filter(|dir| dir.kind.is_entered());
    errors.extend(made.filter_map(|dir| cgroups::remove(&dir.dir).err()));
    errors
}

/// Returns the pids of all processes of a program: the processes in its cgroups, and the
/// descendants of recorded processes outside these cgroups.
pub(crate) fn pids(procs: &Procs, state: &ProgramState) -> BTreeSet<i32> {
    let mut pids = inside(state);
    let outside = state.members.keys().copied();
    let outside = outside.filter(|one| !pids.contains(&one.pid));
    // If the program has no cgroups, all its recorded processes are outside. One scan then finds
    // all descendants.
    let outside: Vec<_> = match state.dirs.is_empty() {
        true => outside.collect(),
        false => outside.filter(|one| procs.same(*one).is_some()).collect(),
    };
    if !outside.is_empty() {
        pids.extend(tree::descendants(procs, outside).iter().map(|p| p.id.pid));
    }
    pids
}

/// Returns the pids of the processes in a program's cgroups.
pub(crate) fn inside(state: &ProgramState) -> BTreeSet<i32> {
    let dirs = state.dirs.iter();
    dirs.flat_map(|dir| cgroups::members(&dir.dir)).collect()
}

/// Sends `SIGCONT` to the processes to which Usher sent `SIGSTOP`.
pub(crate) fn resume(procs: &Procs, state: &ProgramState) -> Vec<ActError> {
    let stopped = state.stopped.iter();
    stopped
        .filter_map(|&process| procs.signal(process, Signal::CONT).err())
        .collect()
}

/// Thaws the cgroup in which a program was found, if Usher froze it.
pub(crate) fn thaw_unit(state: &ProgramState) -> Result<(), ActError> {
    let units = state.dirs.iter().filter(|dir| dir.kind == DirKind::Unit);
    for unit in units.filter(|_| state.frozen) {
        cgroups::freeze(&unit.dir, false)?;
    }
    Ok(())
}

/// Moves all processes out of the program's directories with one of these kinds. Processes in a
/// directory may fork during the moves. Therefore each directory is emptied repeatedly, at most
/// [`ROUNDS_MAX`] times.
pub(super) fn move_back(
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
    // If a process's former cgroup was not visible, the process moves to the nearest visible
    // cgroup, which is the parent of Usher's directories.
    let mut above = dir.dir.ancestors().skip(1);
    let above = above.find(|dir| !is_ours(dir));
    match from.of(dir.kind).map(PathBuf::as_path).or(above) {
        Some(target) => cgroups::go_back(target, pid),
        None => Ok(()),
    }
}
