// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that a scheduler benchmark can be resumed (`--resume`), and composes the command that
//! resumes a run.
//!
//! A run saves the loads of each part as `loads.json` in the folder of its results. If a resumed
//! run has another load for a part, it is rejected, because the samples would not be comparable. A
//! run of an older version, which saved no loads, cannot be resumed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::messages::GuestLoad;

const FILE: &str = "loads.json";

/// Saves the loads of a run in its folder, or compares them with the saved loads.
///
/// # Errors
/// The run was begun with another load for a part.
pub fn note<'a>(folder: &Path, loads: impl Iterator<Item = &'a GuestLoad>) -> Result<()> {
    let file = folder.join(FILE);
    let mut begun: BTreeMap<String, GuestLoad> = match fs::read(&file) {
        Err(why) if why.kind() == ErrorKind::NotFound => no_loads(folder)?,
        read => {
            let text = read.with_context(|| format!("reading {}", file.display()))?;
            serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))?
        }
    };
    for load in loads {
        let part = load.part();
        let before = begun.insert(part.to_owned(), load.clone());
        if before.is_some_and(|before| before != *load) {
            bail!(
                "--resume {}: the part '{part}' was begun with another load (--quick, \
                 --processes, or another version): begin a new run",
                folder.display()
            );
        }
    }
    let text = serde_json::to_string_pretty(&begun)?;
    fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

/// Returns the command that resumes the run in `folder`: the present command line, in which
/// `--resume folder` replaces the options `--resume` and `--out`.
pub fn again(words: impl Iterator<Item = String>, folder: &Path) -> String {
    let mut command = "usher bench sched".to_owned();
    let mut words = words.skip_while(|word| word != "sched").skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            // The next word is the value of the option.
            "--resume" | "--out" => drop(words.next()),
            _ if word.starts_with("--resume=") || word.starts_with("--out=") => {}
            _ => command.extend([" ", &quoted(&word)]),
        }
    }
    let folder = quoted(&folder.display().to_string());
    format!("{command} --resume {folder}")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=:+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns an empty list of loads. Fails if the folder contains results of an older version, which
/// did not save its loads.
fn no_loads(folder: &Path) -> Result<BTreeMap<String, GuestLoad>> {
    let reading = || format!("reading {}", folder.display());
    for entry in fs::read_dir(folder).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "jsonl")
        {
            bail!(
                "--resume {}: an older version began this run, perhaps with other loads: begin a \
                 new run",
                folder.display()
            );
        }
    }
    Ok(BTreeMap::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_needs_the_same_selection() {
        let again = |words: &[&str]| {
            let words = ["usher-bench", "sched"].iter().chain(words);
            again(words.map(|&word| word.to_owned()), Path::new("out/x-sched"))
        };
        let alone = "usher bench sched --resume out/x-sched";
        assert_eq!(again(&[]), alone);
        assert_eq!(again(&["--resume", "a", "--out=b"]), alone);
        assert_eq!(
            again(&[
                "--quick",
                "--out",
                "b",
                "--only",
                "cores,mix",
                "--usher",
                "it's"
            ]),
            r"usher bench sched --quick --only cores,mix --usher 'it'\''s' --resume out/x-sched"
        );
    }

    #[test]
    fn a_run_goes_on_with_the_loads_that_it_was_begun_with() {
        let folder = tempfile::tempdir().unwrap();
        let cores = |short_ms| GuestLoad::Cores {
            times: 2,
            short_ms,
            long_ms: 500,
        };
        let with =
            |loads: &[GuestLoad]| note(folder.path(), loads.iter()).map_err(|e| e.to_string());
        assert_eq!(with(&[cores(100)]), Ok(()));
        fs::write(folder.path().join("one.jsonl"), "").unwrap();
        assert_eq!(with(&[GuestLoad::Overhead { ms: 5 }, cores(100)]), Ok(()));
        let other = with(&[cores(250)]).unwrap_err();
        assert!(
            other.contains("the part 'cores' was begun with another load"),
            "{other}"
        );
        assert_eq!(with(&[cores(100)]), Ok(()), "as it was begun");
        fs::remove_file(folder.path().join(FILE)).unwrap();
        let older = with(&[cores(100)]).unwrap_err();
        assert!(older.contains("an older version"), "{older}");
    }
}
