// SPDX-License-Identifier: MIT OR Apache-2.0
//! Autogroups: the kernel shares CPUs out between sessions first, so that a
//! nice value counts within its session only; between sessions it is the nice
//! value of the session's autogroup that does (`sched(7)`).
//!
//! An autogroup may be lowered where its whole session belongs to the program;
//! else the user's shell would be lowered with it. It counts only while the
//! session's processes are in the root cgroup of the cpu controller.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{ActError, file_error};
use crate::files;
use crate::journal;
use crate::priority::NICE_MAX;
use crate::procs::Procs;

/// How long all autogroups of a machine may take to be given back. From users
/// the kernel takes one nice value in a tenth of a second, whoever wrote last.
const ROUNDS_MAX: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(10);

/// The autogroup of one process's session.
#[derive(Debug)]
pub(crate) struct Autogroup {
    /// The kernel's number of it.
    pub number: u64,
    pub nice: i32,
    file: File,
}

impl Autogroup {
    /// That of a process; `None` where it has none, or is gone.
    ///
    /// # Errors
    /// It may not be changed.
    pub(crate) fn of(procs: &Procs, pid: i32) -> io::Result<Option<Self>> {
        let path = procs.path(pid, "autogroup");
        let file = OpenOptions::new().read(true).write(true).open(path);
        let mut file = match file {
            Err(error) if files::is_gone(&error) => return Ok(None),
            file => file?,
        };
        let mut text = String::new();
        // The process may die in between.
        if file.read_to_string(&mut text).is_err() {
            return Ok(None);
        }
        Ok(parse(&text).map(|(number, nice)| Self { number, nice, file }))
    }

    /// Sets its nice value, once.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::WouldBlock`]: later.
    pub(crate) fn set(&mut self, nice: i32) -> io::Result<()> {
        self.file.write_all(nice.to_string().as_bytes())
    }
}

/// The number and nice value in `/autogroup-NUMBER nice NICE`.
fn parse(text: &str) -> Option<(u64, i32)> {
    let (number, nice) = text.trim().split_once(" nice ")?;
    let number = number.strip_prefix("/autogroup-")?;
    Some((number.parse().ok()?, nice.parse().ok()?))
}

/// The sessions of these processes, and whether all of each is among them.
/// `pids` lists them anew.
pub(crate) fn sessions(
    procs: &Procs,
    mut pids: impl FnMut() -> BTreeSet<i32>,
) -> BTreeMap<i32, bool> {
    let known = pids();
    let all = procs.all();
    let mut own: BTreeMap<i32, bool> = all
        .iter()
        .filter(|process| process.session != 0 && known.contains(&process.id.pid))
        .map(|process| (process.session, true))
        .collect();
    let others = all
        .iter()
        .filter(|one| own.contains_key(&one.session) && !known.contains(&one.id.pid));
    let others: Vec<_> = others.collect();
    // Those that were born between the two lists are the program's as well.
    let known = match others.is_empty() {
        true => known,
        false => pids(),
    };
    for other in others {
        let lives = || procs.same(other.id).is_some_and(|now| !now.is_dead());
        if !known.contains(&other.id.pid) && lives() {
            own.insert(other.session, false);
        }
    }
    own
}

/// Gives those of several programs back, in rounds, for a bounded time in all:
/// whatever waits for the kernel waits together.
///
/// What is left, or cannot be given back, is found by [`restore()`].
pub(crate) fn restore_in_rounds(procs: &Procs, of_programs: &[&BTreeMap<u64, journal::Autogroup>]) {
    let begin = Instant::now();
    let mut waiting = of_programs.to_vec();
    loop {
        waiting.retain(|autogroups| restore(procs, autogroups).iter().any(is_for_later));
        if waiting.is_empty() || begin.elapsed() >= ROUNDS_MAX {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether the kernel only wants it to be tried again later.
pub(crate) fn is_for_later(error: &ActError) -> bool {
    matches!(error, ActError::File { source, .. } if files::is(source, Errno::AGAIN))
}

/// Gives autogroups that still have our nice value their own back, as far as
/// the kernel takes it at once.
pub(crate) fn restore(
    procs: &Procs,
    autogroups: &BTreeMap<u64, journal::Autogroup>,
) -> Vec<ActError> {
    if autogroups.is_empty() {
        return Vec::new();
    }
    let all = procs.all();
    let restored = autogroups.iter().map(|(&number, before)| {
        let mut pids = all
            .iter()
            .filter(|process| process.session == before.session)
            .map(|process| process.id.pid);
        // Any process of it will do, and each may be dying.
        let mut found = pids.find_map(|pid| {
            let found = Autogroup::of(procs, pid).ok()??;
            (found.number == number).then_some((pid, found))
        });
        match &mut found {
            Some((pid, found)) if found.nice == NICE_MAX => give_back(procs, *pid, found, before),
            _ => Ok(()),
        }
    });
    restored.filter_map(Result::err).collect()
}

fn give_back(
    procs: &Procs,
    pid: i32,
    autogroup: &mut Autogroup,
    before: &journal::Autogroup,
) -> Result<(), ActError> {
    match autogroup.set(before.nice) {
        Err(error) if !files::is_gone(&error) => {
            Err(file_error("writing", procs.path(pid, "autogroup"))(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autogroups_are_read() {
        assert_eq!(parse("/autogroup-648 nice -5\n"), Some((648, -5)));
        assert_eq!(parse(""), None, "the first session of a machine has none");
    }
}
