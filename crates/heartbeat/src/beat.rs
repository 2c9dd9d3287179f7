// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's side.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use crate::ENVIRONMENT;
use crate::error::PageError;
use crate::layout::{LABEL_AT, LABEL_BYTES, TARGET_AT, UNIT_AT, UNIT_BYTES, WORK_AT};
use crate::map::Mapping;
use crate::page::check_header;
use crate::slot::ThreadSlot;

/// Where a program counts its work; may be shared by all its threads.
///
/// Without a page every call does nothing, so that a program need not ask
/// whether it is watched.
#[derive(Debug)]
pub struct Heartbeat {
    page: Option<Mapping>,
}

impl Heartbeat {
    /// The page that `USHER_HEARTBEAT` names, or one that does nothing where
    /// the variable is not set or the page cannot be used: a program does not
    /// fail because nobody listens. [`Heartbeat::open`] tells why.
    pub fn from_env() -> Self {
        let path = std::env::var_os(ENVIRONMENT);
        path.and_then(|path| Self::open(Path::new(&path)).ok())
            .unwrap_or(Self { page: None })
    }

    /// The page at that path.
    ///
    /// # Errors
    /// When it cannot be opened, or is not a heartbeat page of this version.
    pub fn open(path: &Path) -> Result<Self, PageError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| PageError::io(path, "opening", e))?;
        check_header(&file, path)?;
        let page = Mapping::new(&file).map_err(|e| PageError::io(path, "mapping", e))?;
        Ok(Self { page: Some(page) })
    }

    /// Whether somebody listens.
    pub fn is_watched(&self) -> bool {
        self.page.is_some()
    }

    /// `units` more units of work are done. One atomic addition; beat a few
    /// to a few thousand times a second, not once an instruction.
    #[inline]
    pub fn beat(&self, units: u64) {
        if let Some(page) = &self.page {
            page.word(WORK_AT).fetch_add(units, Relaxed);
        }
    }

    /// Says what a unit is (31 bytes are kept), how many a second the program
    /// aims at (0 where it just wants to be done), and a label for people (63
    /// bytes are kept).
    pub fn describe(&self, unit: &str, target_per_s: f64, label: &str) {
        if let Some(page) = &self.page {
            write_text(page, UNIT_AT, UNIT_BYTES, unit);
            write_text(page, LABEL_AT, LABEL_BYTES, label);
            page.word(TARGET_AT).store(target_per_s.to_bits(), Relaxed);
        }
    }

    /// A slot for the calling thread's useful and waiting time, for runtimes
    /// such as OpenMP's that know it; `None` where nobody listens or every
    /// slot is taken.
    pub fn thread_slot(&self) -> Option<ThreadSlot<'_>> {
        ThreadSlot::claim(self.page.as_ref()?)
    }
}

/// Writes a zero-ended text, cut at a character's end where it is too long.
fn write_text(page: &Mapping, at: usize, bytes: usize, text: &str) {
    let end = (0..bytes)
        .rev()
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(0);
    let kept = &text.as_bytes()[..end];
    for i in 0..bytes {
        let byte = kept.get(i).copied().unwrap_or(0);
        page.byte(at + i).store(byte, Relaxed);
    }
}
