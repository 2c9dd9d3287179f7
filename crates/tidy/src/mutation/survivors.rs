// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the list of known survivors of the mutation test, and compares the list with the result of
//! a run.
//!
//! An entry identifies a mutant by its file, function, text of the line, column and change. An
//! entry therefore stays valid if other lines of the file change. Each entry has a reason why no
//! test catches the mutant:
//!
//! ```toml
//! [[survivor]]
//! file = "crates/scx/src/bpf/dispatch.h"
//! function = "steal"
//! line = "if (llc >= llcs)"
//! column = 9
//! change = "`>=` to `<`"
//! reason = "The tables have room for twice that number."
//! ```
//!
//! An entry without a reason and a repeated entry are errors. Equal lines of a function are
//! numbered by `occurrence`, which is 1 if it is missing. A comparison takes time in proportion to
//! the entries times the mutants.

use std::collections::BTreeMap;

use super::Error;
use super::mutants::Mutant;
use super::run::{Outcome, Tested};

/// Identifies a mutant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Path of the file.
    pub file: String,
    function: String,
    line: String,
    column: i64,
    occurrence: i64,
    change: String,
}

impl Key {
    fn of(mutant: &Mutant) -> Self {
        Self {
            file: mutant.file.clone(),
            function: mutant.function.clone(),
            line: mutant.line.clone(),
            column: i64::try_from(mutant.column).unwrap_or(i64::MAX),
            occurrence: i64::try_from(mutant.occurrence).unwrap_or(i64::MAX),
            change: mutant.change(),
        }
    }

    /// Formats an entry of the list.
    fn entry(&self, reason: &str) -> String {
        let text = |text: &str| toml::Value::from(text).to_string();
        let mut entry = format!(
            "[[survivor]]\nfile = {}\nfunction = {}\nline = {}\ncolumn = {}\n",
            text(&self.file),
            text(&self.function),
            text(&self.line),
            self.column
        );
        if self.occurrence != 1 {
            entry.push_str(&format!("occurrence = {}\n", self.occurrence));
        }
        entry
            + &format!(
                "change = {}\nreason = {}\n",
                text(&self.change),
                text(reason)
            )
    }
}

/// Known survivors and their reasons.
pub type Known = BTreeMap<Key, String>;

/// Reads the list.
///
/// # Errors
/// If the text is not a list of survivors, if an entry occurs twice, or if a reason is missing.
pub fn read(text: &str) -> Result<Known, Error> {
    let table: toml::Table = text
        .parse()
        .map_err(|error| Error::of(super::LIST, error))?;
    let entries = table.get("survivor").and_then(toml::Value::as_array);
    let mut known = Known::new();
    for entry in entries.into_iter().flatten() {
        let word = |key: &str| {
            let value = entry.get(key).and_then(toml::Value::as_str);
            let missing = || Error(format!("{}: no {key} in {entry}", super::LIST));
            value.map(str::to_owned).ok_or_else(missing)
        };
        let number = |key: &str| {
            entry
                .get(key)
                .and_then(toml::Value::as_integer)
                .unwrap_or(1)
        };
        let key = Key {
            file: word("file")?,
            function: word("function")?,
            line: word("line")?,
            column: number("column"),
            occurrence: number("occurrence"),
            change: word("change")?,
        };
        if known.insert(key, word("reason")?).is_some() {
            return Err(Error(format!("{}: twice: {entry}", super::LIST)));
        }
    }
    Ok(known)
}

/// Differences between the list and a result.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// New entries for survivors that the list does not contain.
    pub unexplained: Vec<String>,
    /// Entries of the list for mutants that were caught or do not exist.
    pub stale: Vec<String>,
}

/// Compares the list with a result. `all` contains all mutants of the selected headers, and
/// `tested` the mutants that were tested.
pub fn compare(known: &Known, all: &[Mutant], tested: &[Tested]) -> Differences {
    let mut differences = Differences::default();
    let mut caught = Vec::new();
    for tested in tested {
        let key = Key::of(&tested.mutant);
        match (&tested.outcome, known.get(&key)) {
            (Outcome::Survived, None) => differences.unexplained.push(key.entry("")),
            (Outcome::Survived, Some(_)) => {}
            (_, Some(reason)) => {
                differences.stale.push(key.entry(reason));
                caught.push(key);
            }
            (_, None) => {}
        }
    }
    let files: Vec<&String> = all.iter().map(|mutant| &mutant.file).collect();
    let all: Vec<Key> = all.iter().map(Key::of).collect();
    for (key, reason) in known {
        let in_files = files.contains(&&key.file);
        if in_files && !all.contains(key) && !caught.contains(key) {
            differences.stale.push(key.entry(reason));
        }
    }
    differences
}

/// Returns whether the list names a mutant.
pub fn is_known(known: &Known, mutant: &Mutant) -> bool {
    known.contains_key(&Key::of(mutant))
}

#[cfg(test)]
mod tests {
    use super::super::mutants::mutants;
    use super::*;

    const SOURCE: &str = "int f(int a)\n{\n\treturn a < 1 && \"b\";\n}\n";

    fn tested(outcomes: [Outcome; 2]) -> (Vec<Mutant>, Vec<Tested>) {
        let all = mutants("a.h", SOURCE);
        let tested = all.iter().cloned().zip(outcomes);
        let tested = tested.map(|(mutant, outcome)| Tested { mutant, outcome });
        (all.clone(), tested.collect())
    }

    #[test]
    fn unexplained_survivor_is_printed_as_an_entry_that_explains_it() {
        let caught = Outcome::Caught("t".to_owned());
        let (all, tested) = tested([Outcome::Survived, caught]);
        let differences = compare(&Known::new(), &all, &tested);
        assert_eq!(differences.unexplained.len(), 1);
        assert_eq!(differences.stale, [""; 0]);
        let known = read(&differences.unexplained[0]).unwrap();
        assert_eq!(compare(&known, &all, &tested), Differences::default());
        assert!(is_known(&known, &all[0]) && !is_known(&known, &all[1]));
    }

    #[test]
    fn entry_of_a_caught_mutant_is_stale() {
        let (all, survived) = tested([Outcome::Survived, Outcome::Survived]);
        let list = compare(&Known::new(), &all, &survived).unexplained.concat();
        let known = read(&list).unwrap();
        let (all, now) = tested([Outcome::Survived, Outcome::Equal]);
        let differences = compare(&known, &all, &now);
        assert_eq!(differences.unexplained, [""; 0]);
        assert_eq!(differences.stale.len(), 1);
        assert!(differences.stale[0].contains("`&&` to `||`"));
    }

    #[test]
    fn entry_of_a_changed_line_is_stale() {
        let (all, survived) = tested([Outcome::Survived, Outcome::Survived]);
        let list = compare(&Known::new(), &all, &survived).unexplained.concat();
        let known = read(&list.replace("a < 1", "a < 2")).unwrap();
        assert_eq!(compare(&known, &all, &[]).stale.len(), 2);
        // Entries of files that were not selected are not compared.
        assert_eq!(compare(&known, &[], &[]), Differences::default());
    }

    #[test]
    fn rejects_entries_without_reason_and_double_entries() {
        let (all, survived) = tested([Outcome::Survived, Outcome::Survived]);
        let list = compare(&Known::new(), &all, &survived).unexplained.concat();
        let error = read(&list.replace("reason", "because")).unwrap_err();
        assert!(error.0.contains("no reason"), "{error}");
        let error = read(&list.repeat(2)).unwrap_err();
        assert!(error.0.contains("twice"), "{error}");
    }
}
