// SPDX-License-Identifier: GPL-2.0-only
//! Words of the command line that select managed programs: a name, a number (`ID` in `usher
//! status`) or the pid of any process of a program. All commands use this parser.
//!
//! 1. A word with the prefix `id:` or `pid:` is a number of that kind.
//! 2. Any other word selects all programs with this name. If the word is a whole number, it also
//!    selects the program with this number, and the program to which the process with this pid
//!    belongs.
//! 3. If two of these meanings select different programs, the word is ambiguous, which is an error
//!    that names the prefixes. A word that selects no program is an error, too.
//!
//! The words select programs of all daemons that listen for this user (`client::Daemons`). A command
//! that acts on programs rejects a word that selects programs of several daemons; `usher status`
//! shows all of them.
//!
//! A search for a pid makes one call to each daemon. All other searches read only the given states.

use std::collections::BTreeSet;
use std::ffi::OsString;

use anyhow::bail;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::api::Program;
use crate::cli::numbers;
use crate::client::{Daemon, QueriedDaemon};
use crate::output;

/// The last lines of the help of each command that selects programs.
pub const HELP: &str = "\
A program is given by its name, its number (ID in `usher status`) or the pid of any of its
processes. 'id:N' and 'pid:N' distinguish a number from a pid.";

/// A word that selects managed programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The number of a program.
    Id(i64),
    /// The pid of a process of a program.
    Pid(i32),
    /// A name, a number or a pid.
    Word(String),
}

impl Target {
    /// Returns clap's parser of such a word. Bytes that are not UTF-8 are replaced, as the daemon
    /// replaces them in names.
    pub fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|word: OsString| Self::parse(&word.to_string_lossy()))
    }

    fn parse(word: &str) -> Result<Self, String> {
        if let Some(id) = word.strip_prefix("id:") {
            return numbers::whole(1..=i64::MAX)(id).map(Self::Id);
        }
        match word.strip_prefix("pid:") {
            Some(pid) => numbers::pid(pid).map(Self::Pid),
            None => Ok(Self::Word(word.to_owned())),
        }
    }

    /// Returns the positions of the daemons with programs that the word selects, and the numbers of
    /// these programs.
    ///
    /// # Errors
    /// The word selects no program or is ambiguous within a daemon, or a daemon is gone.
    fn locate(&self, daemons: &mut [QueriedDaemon]) -> anyhow::Result<Vec<(usize, BTreeSet<i64>)>> {
        let mut found = Vec::new();
        for (at, one) in daemons.iter_mut().enumerate() {
            let ids = self.find(one)?;
            if !ids.is_empty() {
                found.push((at, ids));
            }
        }
        if found.is_empty() {
            bail!("no managed program has the {self}: 'usher status' lists the managed programs");
        }
        Ok(found)
    }

    /// Returns the numbers of the programs of a daemon that the word selects.
    ///
    /// # Errors
    /// The word is ambiguous, or the daemon is gone.
    fn find(&self, one: &mut QueriedDaemon) -> anyhow::Result<BTreeSet<i64>> {
        let QueriedDaemon { daemon, state } = one;
        let found = self.select(&state.programs, |pid| daemon.find_program(pid.into()))?;
        let is_listed = |id: &i64| state.programs.iter().any(|program| program.id == *id);
        Ok(found.into_iter().filter(is_listed).collect())
    }

    /// Returns the numbers of the selected programs; `program_of` finds the program of a process.
    fn select(
        &self,
        programs: &[Program],
        program_of: impl FnOnce(i32) -> anyhow::Result<Option<i64>>,
    ) -> anyhow::Result<BTreeSet<i64>> {
        let word = match self {
            Self::Id(id) => return Ok(BTreeSet::from([*id])),
            Self::Pid(pid) => return Ok(program_of(*pid)?.into_iter().collect()),
            Self::Word(word) => word,
        };
        let named = output::named(programs, |program| &program.name, word);
        let named: BTreeSet<i64> = named.into_iter().map(|program| program.id).collect();
        let number = word.parse::<i64>().ok();
        let numbered = programs.iter().map(|program| program.id);
        let numbered: BTreeSet<i64> = numbered.filter(|id| Some(*id) == number).collect();
        let pid = numbers::pid(word).ok();
        let contains = pid.map(program_of).transpose()?.flatten();
        let meanings = [
            (named, "the name"),
            (numbered, "the number ('id:N')"),
            (contains.into_iter().collect(), "a process ('pid:N')"),
        ];
        let mut meanings = meanings.into_iter().filter(|(ids, _)| !ids.is_empty());
        let Some((ids, first)) = meanings.next() else {
            return Ok(BTreeSet::new());
        };
        if let Some((_, second)) = meanings.find(|(others, _)| *others != ids) {
            bail!(
                "'{word}' is ambiguous: it is {first} of one managed program and {second} of \
                 another"
            );
        }
        Ok(ids)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => write!(f, "number {id}"),
            Self::Pid(pid) => write!(f, "process {pid}"),
            Self::Word(word) => write!(f, "name, number or process '{word}'"),
        }
    }
}

/// Parses the pid of a process that is not managed yet, with or without the prefix `pid:`.
///
/// # Errors
/// The accepted range, or the advice for the number of a program.
pub fn process(word: &str) -> Result<i32, String> {
    match word.strip_prefix("id:") {
        Some(_) => Err("a program with a number is managed already; give a pid".to_owned()),
        None => numbers::pid(word.strip_prefix("pid:").unwrap_or(word)),
    }
}

/// The programs of one daemon that the words select.
pub struct Selection {
    /// The daemon.
    pub daemon: Daemon,
    /// The selected programs, each once, in the order of their numbers.
    pub programs: Vec<Program>,
}

/// Removes the programs that none of the words selects from the states of the daemons. Without
/// words, all programs are kept.
///
/// # Errors
/// One of the words selects no program or is ambiguous within a daemon, or a daemon is gone.
pub fn filter_programs(targets: &[Target], daemons: &mut [QueriedDaemon]) -> anyhow::Result<()> {
    if targets.is_empty() {
        return Ok(());
    }
    let mut ids = vec![BTreeSet::new(); daemons.len()];
    for target in targets {
        for (at, found) in target.locate(daemons)? {
            ids[at].extend(found);
        }
    }
    for (one, ids) in daemons.iter_mut().zip(ids) {
        one.state
            .programs
            .retain(|program| ids.contains(&program.id));
    }
    Ok(())
}

/// Returns the programs that the words select, for each daemon with such a program. A command that
/// changes programs uses this function, because it rejects a word that selects programs of several
/// daemons.
///
/// # Errors
/// One of the words selects no program or is ambiguous, or a daemon is gone.
pub fn find_all(
    targets: &[Target],
    mut daemons: Vec<QueriedDaemon>,
) -> anyhow::Result<Vec<Selection>> {
    let mut ids = vec![BTreeSet::new(); daemons.len()];
    for target in targets {
        let found = target.locate(&mut daemons)?;
        if let [first, second, ..] = &found[..] {
            let owner = |(at, ids): &(usize, BTreeSet<i64>)| owner(&daemons[*at], ids);
            bail!(
                "several daemons manage a program with the {target}: {}, and {}; give the pid of \
                 the program, or select a daemon by --runtime-dir",
                owner(first),
                owner(second)
            );
        }
        for (at, found) in found {
            ids[at].extend(found);
        }
    }
    let selected = daemons.into_iter().zip(ids).map(|(one, ids)| {
        let programs = one.state.programs.into_iter();
        Selection {
            daemon: one.daemon,
            programs: programs
                .filter(|program| ids.contains(&program.id))
                .collect(),
        }
    });
    Ok(selected.filter(|one| !one.programs.is_empty()).collect())
}

/// Describes the first of the programs with these numbers, and its daemon.
fn owner(one: &QueriedDaemon, ids: &BTreeSet<i64>) -> String {
    let programs = one.state.programs.iter();
    let first = programs
        .filter(|program| ids.contains(&program.id))
        .min_by_key(|program| program.id);
    let program = first.map_or_else(String::new, |program| {
        format!("{} (process {})", output::shown(&program.name), program.pid)
    });
    format!("{} manages {program}", one.daemon.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Program_mode;

    fn program(id: i64, name: &str) -> Program {
        Program {
            id,
            name: name.to_owned(),
            pid: 100 + id,
            uid: 0,
            job: None,
            command: String::new(),
            weight: 1.0,
            mode: Program_mode::shared,
            stopped: false,
            stopped_by_user: false,
            cpus: String::new(),
            borrowed: String::new(),
            lent: String::new(),
            cpu_quota: None,
            cores: None,
            pinned_to: None,
            domains: Vec::new(),
            ntt: None,
            threads: 1,
            spinners: 0,
            active_wait: None,
            busy_cpus: 0.0,
            cpu_seconds: 0.0,
            seconds: 0.0,
            progress: None,
            background: None,
            abstention: None,
            copies: Vec::new(),
            unrecognised_workers: 0,
            hints: None,
        }
    }

    /// Selects among four programs; process N belongs to program N - 100.
    fn select(word: &str) -> Result<Vec<i64>, String> {
        let programs = [
            program(1, "a"),
            program(2, "b"),
            program(3, "a"),
            program(101, "4"),
        ];
        let of = |pid: i32| Ok(Some(i64::from(pid) - 100).filter(|id| (1..=4).contains(id)));
        let ids = Target::parse(word)?.select(&programs, of);
        ids.map(|ids| ids.into_iter().collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_word_is_a_name_a_number_or_a_pid() {
        assert_eq!(select("a"), Ok(vec![1, 3]));
        assert_eq!(select("2"), Ok(vec![2]));
        assert_eq!(select("102"), Ok(vec![2]));
        assert_eq!(select("4"), Ok(vec![101]));
        assert_eq!(select("id:101"), Ok(vec![101]));
        assert_eq!(select("pid:101"), Ok(vec![1]));
        for none in ["c", "99", "-3", ""] {
            assert_eq!(select(none), Ok(Vec::new()), "{none}");
        }
    }

    #[test]
    fn an_ambiguous_number_is_rejected_with_both_meanings() {
        let error = select("101").unwrap_err();
        assert!(error.starts_with("'101' is ambiguous"), "{error}");
        assert!(error.contains("id:N") && error.contains("pid:N"), "{error}");
        assert!(select("id:x").unwrap_err().contains("whole number"));
        assert!(select("pid:0").unwrap_err().contains("a pid must be"));
        assert_eq!(process("pid:7"), process("7"));
        assert!(process("id:7").unwrap_err().contains("managed already"));
        assert!(process("x").unwrap_err().contains("a pid must be"));
    }
}
