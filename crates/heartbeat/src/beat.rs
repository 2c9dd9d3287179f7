// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of the heartbeat page that the reporting program calls: map the page, count
//! completed work, describe the work, and claim thread slots.
//!
//! A beat costs one atomic addition, and all threads may beat at the same time. The counter wraps
//! at 2^64 units. A description is written byte by byte and may be read half written; the name of a
//! unit keeps 31 bytes, a label 63. A claim searches at most all 1,024 slots (`slot.rs`). If the
//! program has no page, all calls have no effect. No call waits.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use crate::ENVIRONMENT;
use crate::error::PageError;
use crate::layout::{LABEL_AT, LABEL_BYTES, TARGET_AT, UNIT_AT, UNIT_BYTES, WORK_AT};
use crate::map::Mapping;
use crate::page::check_header;
use crate::slot::ThreadSlot;

/// Counts the work of a program. All threads of the program may share it.
///
/// If the program has no page, every call has no effect. A program need not check whether it is
/// observed.
#[derive(Debug)]
pub struct Heartbeat {
    page: Option<Mapping>,
}

impl Heartbeat {
    /// Opens the page named by `USHER_HEARTBEAT`. If the variable is not set or the page cannot be
    /// used, the calls of the result have no effect, so that the program still works.
    /// [`Heartbeat::open`] returns the reason.
    pub fn from_env() -> Self {
        let path = std::env::var_os(ENVIRONMENT);
        path.and_then(|path| Self::open(Path::new(&path)).ok())
            .unwrap_or(Self { page: None })
    }

    /// Opens the page at a path.
    ///
    /// # Errors
    /// If the page cannot be opened, or is not a heartbeat page of this version.
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

    /// Returns whether the program is observed, through a page.
    pub fn is_active(&self) -> bool {
        self.page.is_some()
    }

    /// Adds `units` units of completed work. A call costs one atomic addition. The function is
    /// intended for up to a few thousand calls per second.
    #[inline]
    pub fn beat(&self, units: u64) {
        if let Some(page) = &self.page {
            page.word(WORK_AT).fetch_add(units, Relaxed);
        }
    }

    /// Describes the work: the name of a unit (31 bytes are kept), the intended number of units per
    /// second (0: as fast as possible), and a label for display (63 bytes are kept).
    pub fn describe(&self, unit: &str, target_per_s: f64, label: &str) {
        if let Some(page) = &self.page {
            write_text(page, UNIT_AT, UNIT_BYTES, unit);
            write_text(page, LABEL_AT, LABEL_BYTES, label);
            page.word(TARGET_AT).store(target_per_s.to_bits(), Relaxed);
        }
    }

    /// Sets only the name of a unit, of which 31 bytes are kept.
    pub fn name_unit(&self, unit: &str) {
        if let Some(page) = &self.page {
            write_text(page, UNIT_AT, UNIT_BYTES, unit);
        }
    }

    /// Returns the name of a unit; empty if it has no name, or without a page. During a change of
    /// the name, the result may be a mixture of the old and the new name.
    pub fn unit(&self) -> String {
        let Some(page) = &self.page else {
            return String::new();
        };
        let bytes = (0..UNIT_BYTES).map(|i| page.byte(UNIT_AT + i).load(Relaxed));
        let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the units of work done until now, by all processes that use the page; 0 without a page.
    pub fn work(&self) -> u64 {
        let work = |page: &Mapping| page.word(WORK_AT).load(Relaxed);
        self.page.as_ref().map_or(0, work)
    }

    /// Claims a slot for the useful and waiting time of the calling thread, for runtimes that
    /// measure these times, such as OpenMP's. Returns `None` without a page, or if all slots are
    /// taken.
    pub fn thread_slot(&self) -> Option<ThreadSlot<'_>> {
        ThreadSlot::claim(self.page.as_ref()?)
    }
}

/// Writes a zero-terminated text, cut at a character boundary if it is too long.
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
