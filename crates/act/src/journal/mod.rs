// SPDX-License-Identifier: MIT OR Apache-2.0
//! The undo journal of one instance: append-only JSON lines on a tmpfs, each
//! written before the action that it takes back. `README.md` beside this file
//! has the protocol.
//!
//! What lines say and amount to is pure and public, so that the simulator
//! writes, tears and folds the very lines that the real actuator does.

mod record;
mod state;
mod validate;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use record::{Dir, DirKind, Head, Record, ThreadId, VERSION};
pub use state::{Autogroup, Demoted, ProgramState, State};

pub use crate::mounts::Places;
pub use crate::priority::Priority;

use usher_model::ProgramId;

pub(crate) use validate::validate;

use crate::error::{ActError, file_error};
use crate::files;

/// The journal's file in an instance's directory.
pub(crate) const FILE: &str = "journal.jsonl";
/// A journal is rewritten when it has grown to this size and by the factor
/// below since it was last.
const COMPACT_BYTES_MIN: u64 = 1 << 18;
/// A journal that is larger than this is not Usher's.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;
const COMPACT_GROWTH: u64 = 4;

/// A journal that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    state: State,
    bytes: u64,
    bytes_compact: u64,
}

impl Journal {
    /// Starts a journal in an instance's directory.
    pub(crate) fn create(dir: &Path, head: Head) -> Result<Self, ActError> {
        let path = dir.join(FILE);
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)
            .map_err(file_error("making journal", &path))?;
        let mut journal = Self {
            path,
            file,
            state: State::default(),
            bytes: 0,
            bytes_compact: 0,
        };
        journal.write(Record::Open(head))?;
        Ok(journal)
    }

    /// What would have to be undone now.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Writes a line; only when it stands may the action follow.
    pub(crate) fn write(&mut self, record: Record) -> Result<(), ActError> {
        let line = line_of(&record).map_err(file_error("writing", &self.path))?;
        if let Err(error) = self.file.write_all(&line) {
            // Half a line must not spoil the next one.
            let _ = self.file.set_len(self.bytes);
            return Err(file_error("writing", &self.path)(error));
        }
        self.bytes += line.len() as u64;
        self.state.apply(record);
        let limit = COMPACT_BYTES_MIN.max(self.bytes_compact * COMPACT_GROWTH);
        if self.bytes > limit && self.compact().is_err() {
            // A long journal does as well; it is tried again when it has grown.
            let _ = fs::remove_file(self.path.with_extension("new"));
            self.bytes_compact = self.bytes;
        }
        Ok(())
    }

    /// Forgets of a program what is gone by itself: the next rewriting of the
    /// file leaves it out.
    pub(crate) fn forget(&mut self, program: ProgramId, gone: impl FnOnce(&mut ProgramState)) {
        if let Some(state) = self.state.programs.get_mut(&program) {
            gone(state);
        }
    }

    /// Rewrites the journal with the fewest lines. The new file takes the old
    /// one's place in one step, so that a reader sees one or the other.
    fn compact(&mut self) -> Result<(), ActError> {
        let path = self.path.with_extension("new");
        let rewrite = || -> io::Result<(File, u64)> {
            let mut lines = Vec::new();
            for record in self.state.records() {
                lines.extend(line_of(&record)?);
            }
            fs::write(&path, &lines)?;
            let file = OpenOptions::new().append(true).open(&path)?;
            fs::rename(&path, &self.path)?;
            Ok((file, lines.len() as u64))
        };
        let (file, bytes) = rewrite().map_err(file_error("rewriting", &self.path))?;
        (self.file, self.bytes, self.bytes_compact) = (file, bytes, bytes);
        Ok(())
    }
}

/// Reads the journal in a dead instance's directory: what is to be undone,
/// and the lines that make no sense. `None` where there is no journal.
pub(crate) fn read(dir: &Path) -> Result<Option<(State, Vec<ActError>)>, ActError> {
    let path = dir.join(FILE);
    let bytes = match files::read_own(&path, JOURNAL_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error("reading", &path)(error)),
    };
    check_version(&bytes).map_err(file_error("leaving alone journal", &path))?;
    let (state, corrupt) = fold(&bytes);
    let errors = corrupt.into_iter().map(|(line, reason)| ActError::Corrupt {
        path: path.clone(),
        line,
        reason,
    });
    Ok(Some((state, errors.collect())))
}

/// Refuses a journal of another version: what it says cannot be undone by this
/// one, and must not be lost.
fn check_version(bytes: &[u8]) -> io::Result<()> {
    let first = bytes
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    let head: Option<serde_json::Value> = serde_json::from_slice(first).ok();
    let is_known = |found: &serde_json::Value| {
        let number = found.as_u64();
        number.is_some_and(|number| (1..=u64::from(VERSION)).contains(&number))
    };
    match head.as_ref().and_then(|head| head.get("version")) {
        Some(found) if !is_known(found) => Err(io::Error::other(format!(
            "it has format {found}, this Usher knows formats up to {VERSION}: run the version of Usher that wrote it once, or restart the machine and remove the file"
        ))),
        _ => Ok(()),
    }
}

/// What the bytes of a journal amount to, and the lines that make no sense:
/// their numbers, from 1, and why.
pub fn fold(bytes: &[u8]) -> (State, Vec<(usize, String)>) {
    let mut state = State::default();
    let mut corrupt = Vec::new();
    let lines = bytes.split_inclusive(|&byte| byte == b'\n').enumerate();
    for (at, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice::<Record>(line) {
            Ok(record) => state.apply(record),
            // The last line was torn by death: its action was not yet taken.
            Err(_) if !line.ends_with(b"\n") => {}
            Err(error) => corrupt.push((at + 1, error.to_string())),
        }
    }
    (state, corrupt)
}

/// Removes the journal from an instance's directory: all is undone.
pub(crate) fn remove(dir: &Path) -> Result<(), ActError> {
    let path = dir.join(FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(file_error("removing journal", path)(error))
        }
        _ => Ok(()),
    }
}

/// Notes in a dead instance's journal that a program is done with.
pub(crate) fn close(dir: &Path, program: ProgramId) -> Result<(), ActError> {
    let path = dir.join(FILE);
    let append = || -> io::Result<()> {
        let mut line = b"\n".to_vec();
        line.extend(line_of(&Record::Close { program })?);
        OpenOptions::new()
            .append(true)
            .open(&path)?
            .write_all(&line)
    };
    append().map_err(file_error("writing", &path))
}

/// A record as its line.
///
/// # Errors
/// It cannot be written as JSON: a path in it is not UTF-8.
pub fn line_of(record: &Record) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests;
