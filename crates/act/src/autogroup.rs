// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads, lowers and restores the nice values of autogroups. An autogroup is the scheduling group
//! that the kernel makes of each session (`sched(7)`). The kernel divides the CPUs first among
//! autogroups, by the autogroups' nice values, and then among the threads of each autogroup, by the
//! threads' nice values.
//!
//! Usher lowers an autogroup only if all processes of its session belong to the program, because it
//! would otherwise lower the user's shell, too. An autogroup's nice value has an effect only while
//! the processes of the session are in the root cgroup of the cpu controller.
//!
//! [`restore_in_rounds()`] restores the autogroups that still have Usher's nice value. This
//! function retries changes that the kernel's rate limit rejects, every 10 ms for at most 2 s in
//! total. Changes that still fail are no error of this function; they stay in the journal.
//! [`sessions`] and each round list all processes of the machine.

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

/// Upper limit of the time to restore the autogroups of all programs in one call. The kernel
/// accepts one change of an autogroup per 100 ms from all unprivileged users of the machine
/// together.
const RESTORE_TIME_MAX: Duration = Duration::from_secs(2);
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(10);

/// The autogroup of one process's session.
#[derive(Debug)]
pub(crate) struct Autogroup {
    /// The kernel's number of the autogroup.
    pub number: u64,
    pub nice: i32,
    file: File,
}

impl Autogroup {
    /// Returns the autogroup of a process; `None` if the process has no autogroup, or is gone.
    ///
    /// # Errors
    /// This process may not change the autogroup.
    pub(crate) fn of(procs: &Procs, pid: i32) -> io::Result<Option<Self>> {
        let path = procs.path(pid, "autogroup");
        let file = OpenOptions::new().read(true).write(true).open(path);
        let mut file = match file {
            Err(error) if files::is_gone(&error) => return Ok(None),
            file => file?,
        };
        let mut text = String::new();
        // The read fails if the process died after the open.
        if file.read_to_string(&mut text).is_err() {
            return Ok(None);
        }
        Ok(parse(&text).map(|(number, nice)| Self { number, nice, file }))
    }

    /// Sets the nice value of the autogroup, in one attempt.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::WouldBlock`] means that a later attempt may succeed.
    pub(crate) fn set(&mut self, nice: i32) -> io::Result<()> {
        self.file.write_all(nice.to_string().as_bytes())
    }
}

/// Parses the number and nice value in `/autogroup-NUMBER nice NICE`.
fn parse(text: &str) -> Option<(u64, i32)> {
    let (number, nice) = text.trim().split_once(" nice ")?;
    let number = number.strip_prefix("/autogroup-")?;
    Some((number.parse().ok()?, nice.parse().ok()?))
}

/// Returns the sessions of the processes that `pids` lists. The value of a session is true if all
/// its processes are in the list. Each call of `pids` lists the processes anew.
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
    // A process that is missing in the first list may have been created since and belong to the
    // program. Therefore the processes are listed again.
    let known = match others.is_empty() {
        true => known,
        false => pids(),
    };
    for other in others {
        let is_alive = || procs.same(other.id).is_some_and(|now| !now.is_dead());
        if !known.contains(&other.id.pid) && is_alive() {
            own.insert(other.session, false);
        }
    }
    own
}

/// Restores the autogroups of several programs in rounds. Each round tries all autogroups that
/// remain. The total time is bounded by [`RESTORE_TIME_MAX`] for all programs together.
///
/// A later call of [`restore()`] reports the autogroups that still have Usher's nice value.
pub(crate) fn restore_in_rounds(procs: &Procs, of_programs: &[&BTreeMap<u64, journal::Autogroup>]) {
    let begin = Instant::now();
    let mut waiting = of_programs.to_vec();
    loop {
        waiting.retain(|autogroups| restore(procs, autogroups).iter().any(is_for_later));
        if waiting.is_empty() || begin.elapsed() >= RESTORE_TIME_MAX {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns whether the error means that the kernel may accept the same change later.
pub(crate) fn is_for_later(error: &ActError) -> bool {
    matches!(error, ActError::File { source, .. } if files::is(source, Errno::AGAIN))
}

/// Restores autogroups that still have Usher's nice value, in one attempt each. The kernel's rate
/// limit may reject a part of the attempts.
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
        // The autogroup is opened through any process of the session. The processes are tried in
        // turn, because each of them may be exiting.
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
    fn parses_autogroup_files() {
        assert_eq!(parse("/autogroup-648 nice -5\n"), Some((648, -5)));
        assert_eq!(parse(""), None, "the first session of a machine has none");
    }
}
