// SPDX-License-Identifier: MIT OR Apache-2.0
//! The undo journal of one instance: append-only JSON lines in a file on a tmpfs. Each line records
//! how to undo one action, and is written before this action. `README.md` beside this file
//! describes the protocol.
//!
//! [`fold`] reads the lines in order and applies each of them to a [`JournalState`], the changes
//! that remain to be undone. An incomplete last line is ignored, because its action was not yet
//! taken; any other invalid line is reported, and the rest is applied. A journal of at least 256
//! KiB is rewritten with the fewest lines when it has grown by the factor 4 since the last rewrite.
//! A journal has at most 256 MiB: if a line would exceed this size even after the journal has been
//! rewritten, the line is not written, and its action is not taken. When a journal is read, a
//! larger file and an unknown version are rejected, and the journal is kept.
//!
//! [`fold`] takes time in proportion to the file. Writing a line never calls `fsync`; a failed
//! write leaves the state unchanged.
//!
//! The functions for lines and states use no files and are public, because the simulator writes,
//! truncates and folds the same lines as the real actuator.

mod record;
mod state;
mod validate;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use record::{CgroupPaths, Dir, DirKind, JournalHeader, Priority, Record, ThreadId, VERSION};
pub use state::{Autogroup, DemotionState, JournalState, ProgramState};

use usher_model::ProgramId;

pub(crate) use validate::validate;

use crate::error::{ActError, file_error, runtime_error};
use crate::files;

/// The journal's file in an instance's directory.
pub(crate) const FILE: &str = "journal.jsonl";
/// Smallest size of a journal that is rewritten. The journal must also have grown by the factor
/// [`COMPACT_GROWTH`] since it was last rewritten.
const COMPACT_BYTES_MIN: u64 = 1 << 18;
/// Upper limit of the size of a journal in bytes. Journals are usually much smaller, because Usher
/// rewrites them.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;
/// Factor by which a journal must have grown since it was last rewritten.
const COMPACT_GROWTH: u64 = 4;

/// The journal of this instance, open for writing.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    state: JournalState,
    bytes: u64,
    bytes_compact: u64,
    bytes_max: u64,
}

impl Journal {
    /// Starts a journal in an instance's directory.
    pub(crate) fn create(dir: &Path, head: JournalHeader) -> Result<Self, ActError> {
        let path = dir.join(FILE);
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)
            .map_err(runtime_error("making journal", &path))?;
        let mut journal = Self {
            path,
            file,
            state: JournalState::default(),
            bytes: 0,
            bytes_compact: 0,
            bytes_max: JOURNAL_BYTES_MAX,
        };
        journal.write(Record::Open(head))?;
        Ok(journal)
    }

    /// Returns the changes that would have to be undone if the process ended now.
    pub(crate) fn state(&self) -> &JournalState {
        &self.state
    }

    /// Writes a line. The caller may take the action only after this function has returned `Ok`.
    pub(crate) fn write(&mut self, record: Record) -> Result<(), ActError> {
        let line = line_of(&record).map_err(file_error("writing", &self.path))?;
        self.make_room(line.len() as u64)?;
        if let Err(error) = self.file.write_all(&line) {
            // An incomplete line is cut off, because the next line would be appended to it and both
            // would be invalid.
            let _ = self.file.set_len(self.bytes);
            return Err(runtime_error("writing", &self.path)(error));
        }
        self.bytes += line.len() as u64;
        self.state.apply(record);
        let limit = COMPACT_BYTES_MIN.max(self.bytes_compact * COMPACT_GROWTH);
        if self.bytes > limit && self.compact().is_err() {
            // The failure is ignored, because a long journal is valid, too. The next attempt
            // follows after the journal has grown by the same factor again.
            let _ = fs::remove_file(self.path.with_extension("new"));
            self.bytes_compact = self.bytes;
        }
        Ok(())
    }

    /// Rewrites the journal if a line would exceed the size that the undo can read.
    ///
    /// # Errors
    /// The rewritten journal is too large, too, or the journal cannot be rewritten.
    fn make_room(&mut self, line_bytes: u64) -> Result<(), ActError> {
        if self.bytes + line_bytes <= self.bytes_max {
            return Ok(());
        }
        self.compact()?;
        if self.bytes + line_bytes <= self.bytes_max {
            return Ok(());
        }
        let limit = io::Error::other(format!(
            "the journal would have more than {} bytes, and a larger journal cannot be undone",
            self.bytes_max
        ));
        Err(file_error("writing", &self.path)(limit))
    }

    /// Drops parts of a program's state that need no undo any more, such as ended threads. The
    /// lines stay in the file until the file is rewritten.
    pub(crate) fn forget(&mut self, program: ProgramId, gone: impl FnOnce(&mut ProgramState)) {
        if let Some(state) = self.state.programs.get_mut(&program) {
            gone(state);
        }
    }

    /// Rewrites the journal with the fewest lines. `rename` replaces the old file by the new file
    /// atomically; a reader finds a complete file at any time.
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
        let (file, bytes) = rewrite().map_err(runtime_error("rewriting", &self.path))?;
        (self.file, self.bytes, self.bytes_compact) = (file, bytes, bytes);
        Ok(())
    }
}

/// Reads the journal in a dead instance's directory. Returns the state to be undone, and the
/// invalid lines. `None` if there is no journal.
pub(crate) fn read(dir: &Path) -> Result<Option<(JournalState, Vec<ActError>)>, ActError> {
    let path = dir.join(FILE);
    let bytes = match files::read_own(&path, JOURNAL_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error("reading", &path)(error)),
    };
    check_version(&bytes).map_err(file_error("refusing to undo the journal", &path))?;
    let (state, corrupt) = fold(&bytes);
    let errors = corrupt.into_iter().map(|(line, _)| ActError::DamagedLine {
        path: path.clone(),
        line,
    });
    Ok(Some((state, errors.collect())))
}

/// Rejects a journal of an unknown version, because this version of Usher cannot undo its lines.
/// The journal is kept for a version that can.
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
            "the journal has format {found}, but this version of Usher reads only formats up to \
             {VERSION}: run 'usher undo' of the version that wrote the journal, or restart the \
             machine and remove the file"
        ))),
        _ => Ok(()),
    }
}

/// Folds the bytes of a journal into a state. Also returns the invalid lines: their numbers, from
/// 1, and the errors.
pub fn fold(bytes: &[u8]) -> (JournalState, Vec<(usize, String)>) {
    let mut state = JournalState::default();
    let mut corrupt = Vec::new();
    let lines = bytes.split_inclusive(|&byte| byte == b'\n').enumerate();
    for (at, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice::<Record>(line) {
            Ok(record) => state.apply(record),
            // The writer died while it wrote the last line, and had not yet taken the action of
            // this line.
            Err(_) if !line.ends_with(b"\n") => {}
            Err(error) => corrupt.push((at + 1, error.to_string())),
        }
    }
    (state, corrupt)
}

/// Removes the journal from an instance's directory after the undo is complete.
pub(crate) fn remove(dir: &Path) -> Result<(), ActError> {
    let path = dir.join(FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(file_error("removing journal", path)(error))
        }
        _ => Ok(()),
    }
}

/// Appends to a dead instance's journal the line that records that all changes of a program are
/// undone.
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
    append().map_err(runtime_error("writing", &path))
}

/// Returns the journal line of a record, with its line feed.
///
/// # Errors
/// The line cannot be written as JSON, because a path in the record is not UTF-8.
pub fn line_of(record: &Record) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests;
