// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking at all threads of a program, again and again until nothing is left
//! to do: how whatever threads inherit is given to all of them, and taken back.
//!
//! A thread that is being born copies what its parent has (affinity mask,
//! priority) a while before it can be found. On a busy machine its parent may
//! wait for a CPU in between, so besides a time without a find every thread
//! that was runnable must have run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::error::ActError;
use crate::journal::ThreadId;
use crate::procs::Procs;

/// Looks at a program's threads before giving up on a quiet one: only threads
/// born during the last look can be missed, and they inherit from threads that
/// have been found.
pub(crate) const LOOKS_MAX: usize = 64;
/// Whoever waits for quiet gives up on it after so many times as long as quiet
/// has to last: threads that live for a moment, one after another, make every
/// look miss one. From [`LOOKS_MAX`] on there is a breath between two looks.
const PATIENCE: u32 = 200;
const BREATHS: u32 = 20;

/// What looking at one thread came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing was to be done.
    Fine,
    /// It was changed.
    Changed,
    /// It died before it was looked at, and may have left a child that has
    /// what it had.
    Missed,
}

/// Every thread of these processes.
pub(crate) fn threads(procs: &Procs, pids: &BTreeSet<i32>) -> Vec<ThreadId> {
    let of = |&pid: &i32| {
        let threads = procs.threads(pid).into_iter();
        threads.filter_map(move |tid| procs.thread_id(pid, tid))
    };
    pids.iter().flat_map(of).collect()
}

/// What one look at all threads came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Looked {
    threads: usize,
    changed: bool,
    missed: bool,
}

/// Both of two looks, made at the same threads. What one could not do does
/// not keep the other from being made.
pub(crate) fn both(
    one: Result<Looked, Vec<ActError>>,
    other: Result<Looked, Vec<ActError>>,
) -> Result<Looked, Vec<ActError>> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(Looked {
            threads: one.threads.max(other.threads),
            changed: one.changed || other.changed,
            missed: one.missed || other.missed,
        }),
        (Ok(_), Err(errors)) | (Err(errors), Ok(_)) => Err(errors),
        (Err(errors), Err(more)) => Err(errors.into_iter().chain(more).collect()),
    }
}

/// One look at all threads of these processes, and at those of the `known`
/// that have left them: these are found by their number and start.
pub(crate) fn at_all(
    procs: &Procs,
    pids: &BTreeSet<i32>,
    known: impl Iterator<Item = ThreadId>,
    mut one: impl FnMut(i32, i32) -> Result<Found, ActError>,
) -> Result<Looked, Vec<ActError>> {
    let mut look = Looked::default();
    let mut errors = Vec::new();
    let mut note = |found: Result<Found, ActError>| {
        look.threads += 1;
        match found {
            Ok(found) => {
                look.changed |= found == Found::Changed;
                look.missed |= found == Found::Missed;
            }
            Err(error) => errors.push(error),
        }
    };
    for &pid in pids {
        for tid in procs.threads(pid) {
            note(one(pid, tid));
        }
    }
    for thread in known.filter(|thread| !pids.contains(&thread.pid)) {
        if procs.thread_start(thread.pid, thread.tid) == Some(thread.start_ticks) {
            note(one(thread.pid, thread.tid));
        }
    }
    if errors.is_empty() {
        Ok(look)
    } else {
        Err(errors)
    }
}

/// Looks until nothing was found for as long as `settle`, which may be zero.
/// `pids` lists the program's processes anew for each look. Returns whether
/// any thread was changed.
///
/// # Errors
/// Those of the look that had any.
pub(crate) fn until_quiet(
    procs: &Procs,
    settle: Duration,
    mut pids: impl FnMut() -> BTreeSet<i32>,
    mut look: impl FnMut(&BTreeSet<i32>) -> Result<Looked, Vec<ActError>>,
) -> Result<bool, Vec<ActError>> {
    let mut any = false;
    let begun = Instant::now();
    let mut quiet_since = begun;
    let mut waiting: Option<BTreeMap<(i32, i32), u64>> = None;
    for look_number in 0_usize.. {
        if look_number >= LOOKS_MAX {
            if begun.elapsed() >= settle * PATIENCE {
                break;
            }
            std::thread::sleep(settle / BREATHS);
        }
        let pids = pids();
        let look = look(&pids)?;
        any |= look.changed;
        if look.changed || look.missed {
            (quiet_since, waiting) = (Instant::now(), None);
        } else if look.threads == 0 || settle.is_zero() {
            break;
        } else {
            let runnable = runnable(procs, &pids);
            let waiting = waiting.get_or_insert_with(|| runnable.clone());
            waiting.retain(|thread, run_ns| runnable.get(thread) == Some(run_ns));
            if waiting.is_empty() && quiet_since.elapsed() >= settle {
                break;
            }
            std::thread::sleep(settle / 4);
        }
    }
    Ok(any)
}

/// The threads of these processes that run or wait for a CPU, each with the
/// CPU time that it has had; none where the kernel does not tell.
fn runnable(procs: &Procs, pids: &BTreeSet<i32>) -> BTreeMap<(i32, i32), u64> {
    let mut runnable = BTreeMap::new();
    for &pid in pids {
        for tid in procs.threads(pid) {
            if let Some(run_ns) = procs.run_ns_if_runnable(pid, tid) {
                runnable.insert((pid, tid), run_ns);
            }
        }
    }
    runnable
}
